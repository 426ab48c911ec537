"""Nodes and graphs to protobufs and back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from poetopt.frontends import proto
from poetopt.frontends.onnx_file import load_onnx
from poetopt.graph import DTYPE_BYTES, Node
from tests.support.frontends import floats, model_of, run

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


@pytest.mark.parametrize("dtype", sorted(DTYPE_BYTES))
def test_element_types_round_trip(dtype: str) -> None:
    assert proto.dtype_name(proto.elem_type(dtype)) == dtype
    assert np.dtype(helper.tensor_dtype_to_np_dtype(proto.elem_type(dtype))).itemsize == DTYPE_BYTES[dtype]


def _model() -> onnx.ModelProto:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="mm"),
        helper.make_node("Relu", ["h"], ["y"], name="relu"),
        helper.make_node("Tanh", ["h"], ["z"], name="tanh"),
    ]
    return model_of(nodes, {"x": [2, 3]}, ["y", "z"], {"w": floats(3, 512)})


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
