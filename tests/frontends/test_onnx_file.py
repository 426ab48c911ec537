"""What is imported computes what the file computes, with static shapes, roles and views."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from poetopt.frontends.onnx_file import load_onnx
from poetopt.frontends.proto import model_proto
from poetopt.graph import Graph, Role
from poetopt.util.errors import ModelError
from tests.support.frontends import floats, model_of, run, text_model

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
NETWORKS = {
    "bvlc_alexnet": 16, "densenet121": 368, "inception_v1": 115, "inception_v2": 235, "resnet50": 161,
    "shufflenet": 150, "squeezenet": 52, "vgg19": 38, "zfnet512": 16,
}  # fmt: skip
"""Classic networks in the onnx package (opset 9, IR 3, weights left out): how many weights their layers have."""

CONVNET = """
convnet (float[N,3,8,8] x) => (float[N,5] y) {
    c = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (x, conv_w, conv_b)
    r = Relu (c)
    s = Shape (r)
    zero = Constant <value = int64[1] {0}> ()
    n = Gather <axis = 0> (s, zero)
    rest = Constant <value = int64[1] {-1}> ()
    shape = Concat <axis = 0> (n, rest)
    f = Reshape (r, shape)
    y = Gemm <transB = 1> (f, fc_w, fc_b)
}
"""


def convnet(opset: int = 18) -> onnx.ModelProto:
    """Conv, Relu, the shape arithmetic of `x.view(x.size(0), -1)`, Gemm; a symbolic batch."""
    model = text_model(CONVNET, opset=opset)
    weights = {
        "conv_w": floats(4, 3, 3, 3), "conv_b": floats(4), "fc_w": floats(5, 256), "fc_b": floats(5),
    }  # fmt: skip
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    return model


def consistent(graph: Graph) -> None:
    """What every graph of the frontend keeps."""
    known = {*graph.inputs, *graph.values}
    for operator in graph.operators:
        assert len(operator.nodes) == 1
        assert set(operator.inputs) <= known
        assert not known & set(operator.outputs)
        known.update(operator.outputs)
        if operator.view:
            assert graph.tensors[operator.inputs[0]].nbytes == graph.tensors[operator.outputs[0]].nbytes
    assert set(graph.outputs) <= known == set(graph.tensors)
    assert len({operator.name for operator in graph.operators}) == len(graph.operators)
    for name, array in graph.values.items():
        tensor = graph.tensors[name]
        assert (array.shape, array.dtype.name) == (tensor.shape, tensor.dtype)
        assert not array.flags.writeable
    assert {tensor.name for tensor in graph.tensors.values() if tensor.role is Role.PARAMETER} == set(graph.trained)


@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_networks_of_the_onnx_package(name: str) -> None:
    path = LIGHT / f"light_{name}.onnx"
    if not path.exists():
        pytest.skip("this onnx package comes without its test data")
    graph = load_onnx(path)
    consistent(graph)
    assert graph.opset == 18
    assert len(graph.trained) == NETWORKS[name]
    assert len(graph.inputs) == 1
    if sum(array.nbytes for array in graph.values.values()) > 200e6:
        return  # hundreds of megabytes of equal weights: nothing to compare
    feeds = {graph.inputs[0]: floats(*graph.tensors[graph.inputs[0]].shape)}
    unfed = [info for info in onnx.load(path).graph.input if info.name.startswith("OC2_DUMMY")]
    assert not set(graph.inputs) & {info.name for info in unfed}
    for found, expected in zip(run(model_proto(graph), feeds), run(str(path), feeds), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("opset", [9, 11, 13, 15, 17, 18, 19, 21, 23, 26])
def test_opsets(opset: int) -> None:
    graph = load_onnx(convnet(opset), batch=2)
    consistent(graph)
    assert graph.opset == max(opset, 18)
    x = {"x": floats(2, 3, 8, 8, seed=1)}
    for found, expected in zip(run(model_proto(graph), x), run(convnet(opset), x), strict=True):
        np.testing.assert_array_equal(found, expected)


SCALES = "s = Constant <value = float[4] {1,1,1.5,2}> ()"
OLD_FORMS = {
    # name: opset, input, outputs, nodes
    "Softmax": (9, "[2,3,4]", "[2,3,4] y", "y = Softmax <axis = 1> (x)"),
    "LogSoftmax": (11, "[2,3,4]", "[2,3,4] y", "y = LogSoftmax (x)"),
    "Clip": (9, "[2,3]", "[2,3] y", "y = Clip <min = -0.5, max = 0.5> (x)"),
    "Pad": (9, "[2,3]", "[2,5] y", "y = Pad <pads = [0,1,0,1]> (x)"),
    "Slice": (9, "[2,4]", "[2,2] y", "y = Slice <starts = [1], ends = [3], axes = [1]> (x)"),
    "Split": (11, "[2,4]", "[2,1] y, float[2,3] z", "y, z = Split <axis = 1, split = [1,3]> (x)"),
    "Split in halves": (13, "[2,4]", "[2,2] y, float[2,2] z", "y, z = Split <axis = 1> (x)"),
    "Upsample": (9, "[1,2,4,4]", "[1,2,6,8] y", SCALES + ' y = Upsample <mode = "nearest"> (x, s)'),
    "Resize nearest": (10, "[1,2,4,4]", "[1,2,6,8] y", SCALES + ' y = Resize <mode = "nearest"> (x, s)'),
    "Resize linear": (10, "[1,2,4,4]", "[1,2,6,8] y", SCALES + ' y = Resize <mode = "linear"> (x, s)'),
    "Resize nearest, smaller": (
        10, "[1,2,5,7]", "[1,2,3,4] y", "s = Constant <value = float[4] {1, 1, 0.7, 0.6}> () "
        'y = Resize <mode = "nearest"> (x, s)'
    ),
    "Resize nearest, smaller and larger": (
        10, "[1,2,5,7]", "[1,2,3,10] y", "s = Constant <value = float[4] {1, 1, 0.7, 1.5}> () "
        'y = Resize <mode = "nearest"> (x, s)'
    ),
    "ReduceSum": (9, "[2,3]", "[2] y", "y = ReduceSum <axes = [1], keepdims = 0> (x)"),
    "TopK": (9, "[2,3]", "[2,2] y", "y, i = TopK <k = 2> (x)"),
    "Dropout": (9, "[2,3]", "[2,3] y", "y = Dropout <ratio = 0.3> (x)"),
    "AveragePool": (
        11, "[1,2,5,5]", "[1,2,3,3] y", "y = AveragePool <kernel_shape = [2,2], strides = [2,2], ceil_mode = 1> (x)"
    ),
    "AveragePool, no window in the padding": (
        11, "[1,2,5,5]", "[1,2,N,N] y",
        "y = AveragePool <kernel_shape = [2,2], strides = [3,3], pads = [1,1,1,1], ceil_mode = 1> (x)"
    ),
    "MaxPool, no window in the padding": (
        17, "[1,2,5,5]", "[1,2,N,N] y",
        "y = MaxPool <kernel_shape = [2,2], strides = [3,3], pads = [1,1,1,1], ceil_mode = 1> (x)"
    ),
    "Unsqueeze": (11, "[2,3]", "[2,1,3] y", "y = Unsqueeze <axes = [1]> (x)"),
    "LRN": (9, "[2,4,3,3]", "[2,4,3,3] y", "y = LRN <size = 3> (x)"),
    "MaxPool": (8, "[1,2,5,5]", "[1,2,2,2] y", "y = MaxPool <kernel_shape = [2,2], strides = [2,2]> (x)"),
}  # fmt: skip


@pytest.mark.parametrize("name", OLD_FORMS)
def test_old_forms_keep_their_meaning(name: str) -> None:
    opset, shape, outputs, nodes = OLD_FORMS[name]
    model = text_model(f"g (float{shape} x) => (float{outputs}) {{ {nodes} }}", opset=opset, ir_version=4)
    graph = load_onnx(model)
    consistent(graph)
    assert graph.opset == 18
    x = {"x": floats(*graph.tensors["x"].shape)}
    for found, expected in zip(run(model_proto(graph), x), run(model, x), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-6)


def test_axes_become_inputs() -> None:
    model = text_model(
        """
        g (float[2,3,4] x) => (float[2,4] y, float[2,3,4] z) {
            m = ReduceMean <axes = [1], keepdims = 1> (x)
            y = Squeeze <axes = [1]> (m)
            z = Sub (x, m)
        }
        """,
        opset=11,
    )
    graph = load_onnx(model)
    consistent(graph)
    mean, squeeze = graph.operators[0], graph.operators[1]
    assert "axes" not in mean.nodes[0].attributes
    assert graph.values[mean.nodes[0].inputs[1]].tolist() == [1]
    assert squeeze.view
    assert squeeze.inputs[0] == mean.outputs[0]


def test_shape_arithmetic_is_folded() -> None:
    graph = load_onnx(convnet(), batch=4)
    assert [operator.kind for operator in graph.operators] == ["Conv", "Relu", "Reshape", "Gemm"]
    reshape = graph.operators[2]
    assert reshape.view
    assert graph.root(reshape.outputs[0]) == "r"
    assert graph.values[reshape.inputs[1]].tolist() == [4, -1]
    assert graph.tensors["f"].shape == (4, 256)
    assert any("constant nodes" in note for note in graph.notes)


class TestBatch:
    def test_two_symbols_with_names_are_two_sizes(self) -> None:
        nodes = [helper.make_node("MatMul", ["a", "b"], ["y"])]
        with pytest.raises(ModelError, match=r"dimension 0 of input 'b' is symbolic .'edges'. and is not the batch"):
            load_onnx(model_of(nodes, {"a": ["nodes", 3], "b": ["edges", 3]}, ["y"]), batch=5)

    def test_a_fixed_batch_is_replaced(self) -> None:
        model = model_proto(load_onnx(convnet(), batch=2))  # its Reshape says [2, -1]
        graph = load_onnx(model, batch=6)
        consistent(graph)
        assert graph.tensors["y"].shape == (6, 5)
        assert any("replaced the file's batch 2 by 6" in note for note in graph.notes)
        x = {"x": floats(6, 3, 8, 8)}
        np.testing.assert_array_equal(run(model_proto(graph), x)[0], run(convnet(), x)[0])

    def test_a_reshape_that_mixes_batch_and_features(self) -> None:
        nodes = [helper.make_node("Reshape", ["x", "s"], ["y"])]
        model = model_of(nodes, {"x": [2, 6]}, ["y"], {"s": np.array([3, 4], dtype=np.int64)})
        with pytest.raises(ModelError, match="fixed batch 2"):
            load_onnx(model, batch=4)


class TestTrain:
    @pytest.mark.parametrize(
        ("pattern", "trained"),
        [("fc_*", ("fc_w", "fc_b")), ("*_b", ("conv_b", "fc_b")), ("fc_b,conv_w", ("conv_w", "fc_b")),
         (["fc_b", "conv_w"], ("conv_w", "fc_b"))],
    )  # fmt: skip
    def test_patterns(self, pattern: str | list[str], trained: tuple[str, ...]) -> None:
        graph = load_onnx(convnet(), batch=1, train=pattern)
        consistent(graph)
        assert graph.trained == trained
        assert all(
            graph.tensors[name].role is (Role.PARAMETER if name in trained else Role.CONSTANT)
            for name in ("conv_w", "conv_b", "fc_w", "fc_b")
        )


class TestSharedWeights:
    NODES = (
        helper.make_node("Identity", ["w"], ["w2"], name="merged"),
        helper.make_node("Identity", ["w2"], ["w3"], name="merged_again"),
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("MatMul", ["h", "w2"], ["k"]),
        helper.make_node("MatMul", ["k", "w3"], ["y"]),
    )

    def test_identities_of_a_weight_are_the_weight(self) -> None:
        model = model_of(self.NODES, {"x": [2, 3]}, ["y"], {"w": floats(3, 3)})
        graph = load_onnx(model)
        assert graph.trained == ("w",)
        assert [operator.inputs[1] for operator in graph.operators] == ["w", "w", "w"]
        assert any("shared by several operators" in note for note in graph.notes)
        x = {"x": floats(2, 3, seed=3)}
        np.testing.assert_array_equal(run(model_proto(graph), x)[0], run(model, x)[0])

    def test_statistics_merged_with_weights_get_their_own_tensors(self) -> None:
        nodes = [
            helper.make_node("Identity", ["ones"], ["bn1.running_var"]),
            helper.make_node(
                "BatchNormalization", ["x", "ones", "zeros", "zeros", "bn1.running_var"], ["a"], "bn1", training_mode=1
            ),
            helper.make_node(
                "BatchNormalization", ["a", "ones", "zeros", "zeros", "ones"], ["y"], "bn2", training_mode=1
            ),
        ]
        weights = {"ones": np.ones(3, np.float32), "zeros": np.zeros(3, np.float32)}
        graph = load_onnx(model_of(nodes, {"x": [4, 3, 2]}, ["y"], weights))
        consistent(graph)
        assert graph.trained == ("ones", "zeros", "bn2.weight", "bn2.bias")
        statistics = [name for operator in graph.operators for name in operator.inputs[3:]]
        assert statistics == ["bn1.running_mean", "bn1.running_var", "bn2.running_mean", "bn2.running_var"]
        assert all(graph.tensors[name].role is Role.CONSTANT for name in statistics)


class TestTrainingMode:
    def test_batch_normalization_lists_its_statistics(self) -> None:
        nodes = [helper.make_node("BatchNormalization", ["x", "s", "b", "m", "v"], ["y"], "bn", training_mode=1)]
        weights = {"s": floats(3), "b": floats(3, seed=1), "m": floats(3, seed=2), "v": np.ones(3, np.float32)}
        model = model_of(nodes, {"x": [4, 3, 5, 5]}, ["y"], weights)
        graph = load_onnx(model)
        consistent(graph)
        operator = graph.operators[0]
        assert graph.trained == ("s", "b")
        assert operator.outputs == ("y", "y.running_mean", "y.running_var")
        assert [graph.tensors[name].role for name in operator.outputs] == [Role.ACTIVATION, Role.STATE, Role.STATE]
        x = {"x": floats(4, 3, 5, 5)}
        y, mean = run(model_proto(graph, ["y", "y.running_mean"]), x)
        batch_mean, batch_var = (f(x["x"], axis=(0, 2, 3), keepdims=True) for f in (np.mean, np.var))
        scale, bias = (weights[name].reshape(3, 1, 1) for name in "sb")
        np.testing.assert_allclose(y, (x["x"] - batch_mean) / np.sqrt(batch_var + 1e-5) * scale + bias, atol=1e-5)
        np.testing.assert_allclose(mean, 0.9 * weights["m"] + 0.1 * batch_mean.reshape(3), atol=1e-6)

    @staticmethod
    def _dropout(training: bool, ratio: float = 0.5) -> onnx.ModelProto:
        nodes = [helper.make_node("Dropout", ["x", "r", "t"], ["y"], "drop")]
        weights = {"r": np.array(ratio, np.float32), "t": np.array(training)}
        return model_of(nodes, {"x": [4, 3]}, ["y"], weights)

    def test_dropout_in_training_keeps_its_mask(self) -> None:
        graph = load_onnx(self._dropout(True))
        consistent(graph)
        operator = graph.operators[0]
        assert operator.outputs == ("y", "y.mask")
        assert graph.tensors["y.mask"].dtype == "bool"
        assert not operator.recomputable
        assert not operator.view
        assert operator.nodes[0].attributes["seed"] == 1


def test_importing_twice_gives_the_same_graph() -> None:
    first, second = (model_proto(load_onnx(convnet(11), batch=2)) for _ in range(2))
    assert first.SerializeToString(deterministic=True) == second.SerializeToString(deterministic=True)
