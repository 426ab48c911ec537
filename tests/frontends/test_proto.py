"""Nodes and graphs to protobufs and back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from poetopt.frontends import proto
from poetopt.frontends.onnx_file import load_onnx
from poetopt.graph import DTYPE_BYTES, Node, Operator, Role, Tensor, TrainingGraph
from poetopt.util.errors import ModelError, OutputError
from tests.frontends.support import floats, model_of, run

NODES = [
    Node("Conv", ("x", "w", ""), ("y",), {"group": 1, "pads": [1, 1, 1, 1]}, name="c"),
    Node("Elu", ("x",), ("y",), {"alpha": 0.5}),
    Node("BatchNormalization", ("x", "s", "b", "m", "v"), ("y", "", ""), {"epsilon": 0.25, "training_mode": 1}),
    Node("AveragePool", ("x",), ("y",), {"auto_pad": "VALID", "kernel_shape": [2, 2]}),
    Node("Custom", ("x",), ("y",), {"names": ["a", "b"], "scales": [0.5, 1.0]}, domain="some.domain"),
]


@pytest.mark.parametrize("node", NODES, ids=lambda node: node.op_type)
def test_nodes_round_trip(node: Node) -> None:
    assert proto.from_node_proto(proto.node_proto(node)) == node


def test_arrays_and_empty_lists_round_trip() -> None:
    node = Node("Constant", (), ("y",), {"value": np.arange(6, dtype=np.int64).reshape(2, 3)})
    back = proto.from_node_proto(proto.node_proto(node)).attributes["value"]
    assert isinstance(back, np.ndarray)
    np.testing.assert_array_equal(back, np.arange(6).reshape(2, 3))
    empty = proto.node_proto(Node("Constant", (), ("y",), {"value_ints": []}))
    assert empty.attribute[0].type == onnx.AttributeProto.INTS
    again = proto.node_proto(proto.from_node_proto(empty))
    assert again == empty


def test_the_schema_decides_between_int_and_float() -> None:
    made = proto.node_proto(Node("Elu", ("x",), ("y",), {"alpha": 1})).attribute[0]
    assert made.type == onnx.AttributeProto.FLOAT
    made = proto.node_proto(Node("Softmax", ("x",), ("y",), {"axis": np.int64(-1)})).attribute[0]
    assert made.type == onnx.AttributeProto.INT


def test_the_domain_has_one_name() -> None:
    assert proto.from_node_proto(helper.make_node("Relu", ["x"], ["y"], domain="ai.onnx")).domain == ""


@pytest.mark.parametrize("dtype", sorted(DTYPE_BYTES))
def test_element_types_round_trip(dtype: str) -> None:
    assert proto.dtype_name(proto.elem_type(dtype)) == dtype
    assert np.dtype(helper.tensor_dtype_to_np_dtype(proto.elem_type(dtype))).itemsize == DTYPE_BYTES[dtype]


def test_types_without_a_counterpart_are_refused() -> None:
    with pytest.raises(ModelError, match="STRING is not supported"):
        proto.dtype_name(onnx.TensorProto.STRING)
    with pytest.raises(ModelError, match="no ONNX counterpart"):
        proto.elem_type("datetime64")


def _model() -> onnx.ModelProto:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="mm"),
        helper.make_node("Relu", ["h"], ["y"], name="relu"),
        helper.make_node("Tanh", ["h"], ["z"], name="tanh"),
    ]
    return model_of(nodes, {"x": [2, 3]}, ["y", "z"], {"w": floats(3, 512)})


def test_a_model_of_some_outputs_has_only_their_nodes() -> None:
    graph = load_onnx(_model())
    model = proto.model_proto(graph, ["z"])
    onnx.checker.check_model(model, full_check=True)
    assert [node.name for node in model.graph.node] == ["mm", "tanh"]
    with pytest.raises(ModelError, match="no tensor 'nothing'"):
        proto.model_proto(graph, ["nothing"])


def test_outputs_of_a_training_graph() -> None:
    tensors = [
        Tensor("x", (2,), "float32", Role.INPUT),
        Tensor("w", (2,), "float32", Role.PARAMETER),
        Tensor("y", (2,), "float32", Role.ACTIVATION),
        Tensor("loss", (), "float32", Role.LOSS),
        Tensor("w.grad", (2,), "float32", Role.PARAMETER_GRADIENT),
    ]
    half = Node("ReduceSum", ("y",), ("loss",), {"keepdims": 0})
    operators = (
        Operator("mul", "Mul", (Node("Mul", ("x", "w"), ("y",)),), ("x", "w"), ("y",)),
        Operator("sum", "ReduceSum", (half,), ("y",), ("loss",)),
        Operator("grad", "Mul.grad", (Node("Identity", ("x",), ("w.grad",)),), ("x",), ("w.grad",), backward=True),
    )
    graph = TrainingGraph(
        name="t",
        tensors={tensor.name: tensor for tensor in tensors},
        operators=operators,
        inputs=("x",),
        outputs=("y",),
        values={"w": floats(2)},
        trained=("w",),
        opset=18,
        loss="loss",
        loss_kind="none",
        gradients={"w": "w.grad"},
        states={},
    )
    model = proto.model_proto(graph)
    onnx.checker.check_model(model, full_check=True)
    assert [info.name for info in model.graph.output] == ["loss", "y", "w.grad"]
    x = floats(2, seed=1)
    loss, y, gradient = run(model, {"x": x})
    np.testing.assert_array_equal(gradient, x)
    np.testing.assert_allclose(loss, (x * floats(2)).sum(), rtol=1e-6)
    assert y.shape == (2,)


def test_saved_models_load_again(tmp_path: Path) -> None:
    graph = load_onnx(_model())
    path = tmp_path / "m.onnx"
    proto.save_model(graph, path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["m.onnx"]
    assert load_onnx(path).content_hash == load_onnx(proto.model_proto(graph)).content_hash


def test_weights_beyond_the_limit_go_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proto, "PROTOBUF_LIMIT_BYTES", proto._ROOM_FOR_NODES_BYTES)
    graph = load_onnx(_model())
    path = tmp_path / "m.onnx"
    proto.save_model(graph, path)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["m.onnx", "m.onnx.data"]
    x = {"x": floats(2, 3, seed=1)}
    for found, expected in zip(run(str(path), x), run(_model(), x), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert load_onnx(path).content_hash == load_onnx(proto.model_proto(graph)).content_hash


def test_an_unwritable_path_is_an_output_error(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="nowhere"):
        proto.save_model(load_onnx(_model()), tmp_path / "nowhere" / "m.onnx")
