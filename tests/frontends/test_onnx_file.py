"""What is imported computes what the file computes, with static shapes, roles and views."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from poetopt.frontends.onnx_file import load_onnx
from poetopt.frontends.proto import model_proto
from poetopt.graph import Graph, Role
from poetopt.util.errors import ModelError
from tests.frontends.support import F32, floats, model_of, run, text_model

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


def test_the_newest_opset_is_brought_to_one_that_runs() -> None:
    graph = load_onnx(convnet(onnx.defs.onnx_opset_version()), batch=2)
    assert run(model_proto(graph), {"x": floats(2, 3, 8, 8)})[0].shape == (2, 5)


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


@pytest.mark.parametrize("opset", [11, 12, 13])
def test_a_resize_without_scales_reads_none(opset: int) -> None:
    """Up to opset 12 sizes come with an empty tensor of scales, which a kernel that runs alone takes for scales."""
    model = text_model(
        "g (float[1,2,5,5] x) => (float[1,2,8,9] y) { e = Constant <value = float[0] {}> ()\n"
        "n = Constant <value = int64[4] {1, 2, 8, 9}> ()\ny = Resize <mode = \"linear\"> (x, e, e, n) }",
        opset=opset, ir_version=4,
    )  # fmt: skip
    (resize,) = (operator for operator in load_onnx(model).operators if operator.kind == "Resize")
    assert resize.nodes[0].inputs == ("x", "", "", "n")


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
    assert any("constant nodes folded" in note for note in graph.notes)


def test_roles() -> None:
    graph = load_onnx(convnet(), batch=4)
    assert graph.trained == ("conv_w", "conv_b", "fc_w", "fc_b")
    roles = {name: tensor.role for name, tensor in graph.tensors.items()}
    assert roles["x"] is Role.INPUT
    assert roles["fc_w"] is Role.PARAMETER
    assert roles[graph.operators[2].inputs[1]] is Role.CONSTANT
    assert roles["y"] is Role.ACTIVATION


def test_what_leads_to_no_output_is_dropped() -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["y"]),
        helper.make_node("MatMul", ["x", "w"], ["dead"]),
        helper.make_node("NoSuchOp", ["dead"], ["deader"], domain="elsewhere"),
    ]
    graph = load_onnx(model_of(nodes, {"x": [2, 2], "unread": [1]}, ["y"], {"w": floats(2, 2)}))
    assert [operator.kind for operator in graph.operators] == ["Relu"]
    assert not graph.values
    assert graph.inputs == ("x",)
    assert any("unread" in note for note in graph.notes)


def test_unsorted_nodes_are_sorted() -> None:
    nodes = [helper.make_node("Tanh", ["h"], ["y"]), helper.make_node("Relu", ["x"], ["h"])]
    assert [operator.kind for operator in load_onnx(model_of(nodes, {"x": [2]}, ["y"])).operators] == ["Relu", "Tanh"]


def test_node_names_are_made_unique() -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="act"),
        helper.make_node("Relu", ["a"], ["b"], name="act"),
        helper.make_node("Relu", ["b"], ["c"]),
        helper.make_node("Relu", ["c"], ["y"], name="act_2"),
    ]
    graph = load_onnx(model_of(nodes, {"x": [2]}, ["y"]))
    assert [operator.name for operator in graph.operators] == ["act", "act_3", "Relu_2", "act_2"]


def test_ir_3_lists_weights_among_the_inputs() -> None:
    model = convnet(9)
    model.ir_version = 3
    for proto in model.graph.initializer:
        model.graph.input.append(helper.make_tensor_value_info(proto.name, F32, list(proto.dims)))
    graph = load_onnx(model, batch=2)
    assert graph.inputs == ("x",)
    assert len(graph.trained) == 4


class TestBatch:
    def test_symbolic_batch_is_fixed(self) -> None:
        graph = load_onnx(convnet(), batch=7)
        assert graph.tensors["x"].shape == (7, 3, 8, 8)
        assert graph.tensors["y"].shape == (7, 5)

    @pytest.mark.parametrize("dim", [None, "batch_size", "anything"])
    def test_any_leading_symbol_is_the_batch(self, dim: str | None) -> None:
        model = model_of([helper.make_node("Relu", ["x"], ["y"])], {"x": [dim, 3]}, ["y"])
        assert load_onnx(model, batch=5).tensors["y"].shape == (5, 3)

    @pytest.mark.parametrize("names", [("unk__12", "unk__13"), ("DynamicDimension.0", "DynamicDimension.1")])
    def test_each_input_has_a_made_up_symbol(self, names: tuple[str, str]) -> None:
        nodes = [helper.make_node("Add", ["a", "b"], ["y"])]
        graph = load_onnx(model_of(nodes, {"a": [names[0], 3], "b": [names[1], 3]}, ["y"]), batch=5)
        assert graph.tensors["a"].shape == graph.tensors["b"].shape == (5, 3)
        other = model_of(nodes, {"a": [names[0], names[1] + "0"], "b": [names[1], 3]}, ["y"])
        with pytest.raises(ModelError, match=f"dimension 1 of input 'a' is symbolic .'{names[1]}0'. and is not"):
            load_onnx(other, batch=5)

    def test_two_symbols_with_names_are_two_sizes(self) -> None:
        nodes = [helper.make_node("MatMul", ["a", "b"], ["y"])]
        with pytest.raises(ModelError, match=r"dimension 0 of input 'b' is symbolic .'edges'. and is not the batch"):
            load_onnx(model_of(nodes, {"a": ["nodes", 3], "b": ["edges", 3]}, ["y"]), batch=5)

    def test_the_batch_may_stand_elsewhere_too(self) -> None:
        nodes = [helper.make_node("MatMul", ["s", "x"], ["y"])]
        model = model_of(nodes, {"x": ["batch", 3], "s": [4, "batch"]}, ["y"])
        assert load_onnx(model, batch=5).tensors["s"].shape == (4, 5)

    def test_without_batch(self) -> None:
        with pytest.raises(ModelError, match=r"dimension 0 of input 'x' is symbolic \('N'\).*--batch"):
            load_onnx(convnet())

    def test_other_symbols_are_refused(self) -> None:
        model = model_of([helper.make_node("Relu", ["x"], ["y"])], {"x": ["batch", "length"]}, ["y"])
        with pytest.raises(ModelError, match=r"dimension 1 of input 'x' is symbolic \('length'\) and is not the batch"):
            load_onnx(model, batch=5)

    def test_a_batch_below_one(self) -> None:
        with pytest.raises(ModelError, match="from 1 to"):
            load_onnx(convnet(), batch=0)

    def test_a_fixed_batch_is_replaced(self) -> None:
        model = model_proto(load_onnx(convnet(), batch=2))  # its Reshape says [2, -1]
        graph = load_onnx(model, batch=6)
        consistent(graph)
        assert graph.tensors["y"].shape == (6, 5)
        assert any("batch 2 of the file replaced by 6" in note for note in graph.notes)
        x = {"x": floats(6, 3, 8, 8)}
        np.testing.assert_array_equal(run(model_proto(graph), x)[0], run(convnet(), x)[0])

    def test_a_batch_that_is_baked_in_stays(self) -> None:
        nodes = [helper.make_node("Add", ["x", "w"], ["y"])]
        model = model_of(nodes, {"x": [2, 3]}, ["y"], {"w": floats(2, 3)})
        assert load_onnx(model, batch=2).tensors["y"].shape == (2, 3)
        with pytest.raises(ModelError, match="batch 2 baked in"):
            load_onnx(model, batch=4)

    def test_a_reshape_that_mixes_batch_and_features(self) -> None:
        nodes = [helper.make_node("Reshape", ["x", "s"], ["y"])]
        model = model_of(nodes, {"x": [2, 6]}, ["y"], {"s": np.array([3, 4], dtype=np.int64)})
        with pytest.raises(ModelError, match="batch 2 baked in"):
            load_onnx(model, batch=4)

    def test_the_hash_does_not_depend_on_options(self) -> None:
        other = load_onnx(convnet(), batch=3, train="fc*")
        assert load_onnx(convnet(), batch=2).content_hash == other.content_hash


class TestTrain:
    @pytest.mark.parametrize(
        ("pattern", "trained"),
        [
            ("fc_*", ("fc_w", "fc_b")),
            ("*_b", ("conv_b", "fc_b")),
            ("fc_b,conv_w", ("conv_w", "fc_b")),
            (["fc_b", "conv_w"], ("conv_w", "fc_b")),
        ],
    )
    def test_patterns(self, pattern: str | list[str], trained: tuple[str, ...]) -> None:
        graph = load_onnx(convnet(), batch=1, train=pattern)
        consistent(graph)
        assert graph.trained == trained
        assert all(
            graph.tensors[name].role is (Role.PARAMETER if name in trained else Role.CONSTANT)
            for name in ("conv_w", "conv_b", "fc_w", "fc_b")
        )

    @pytest.mark.parametrize("pattern", ["fcw", "fc_b,cnv*"])
    def test_no_match(self, pattern: str) -> None:
        with pytest.raises(ModelError, match="the last layer's are fc_w, fc_b; the closest names are conv_"):
            load_onnx(convnet(), batch=1, train=pattern)

    def test_an_empty_pattern(self) -> None:
        with pytest.raises(ModelError, match="no pattern"):
            load_onnx(convnet(), batch=1, train=" ,")

    def test_settings_and_scalars_are_not_trained(self) -> None:
        nodes = [
            helper.make_node("Mul", ["x", "scalar"], ["a"]),
            helper.make_node("Clip", ["a", "low", "high"], ["b"]),
            helper.make_node("Mul", ["b", "scale"], ["c"]),
            helper.make_node("Constant", [], ["two"], value=numpy_helper.from_array(np.full(3, 2, np.float32))),
            helper.make_node("Add", ["c", "two"], ["y"]),
        ]
        weights = {
            "scalar": np.array(2, np.float32), "low": np.array(0, np.float32), "high": np.array(6, np.float32),
            "scale": floats(3),
        }  # fmt: skip
        model = model_of(nodes, {"x": [2, 3]}, ["y"], weights)
        assert load_onnx(model).trained == ("scale",)
        assert load_onnx(model, train="sca*").trained == ("scalar", "scale")
        with pytest.raises(ModelError, match="'low', which is input 1 of Clip"):
            load_onnx(model, train="low")

    def test_a_layers_weight_in_a_constant_node_is_trained(self) -> None:
        nodes = [
            helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(floats(3, 4))),
            helper.make_node("MatMul", ["x", "w"], ["y"]),
        ]
        assert load_onnx(model_of(nodes, {"x": [2, 3]}, ["y"])).trained == ("w",)

    def test_what_a_trained_parameter_leads_to_is_not_folded(self) -> None:
        nodes = [
            helper.make_node("Transpose", ["w"], ["wt"], perm=[1, 0]),
            helper.make_node("Transpose", ["v"], ["vt"], perm=[1, 0]),
            helper.make_node("MatMul", ["x", "wt"], ["h"]),
            helper.make_node("MatMul", ["h", "vt"], ["y"]),
        ]
        model = model_of(nodes, {"x": [2, 3]}, ["y"], {"w": floats(4, 3), "v": floats(5, 4)})
        graph = load_onnx(model, train="w")
        assert [operator.kind for operator in graph.operators] == ["Transpose", "MatMul", "MatMul"]
        np.testing.assert_array_equal(graph.values["vt"], floats(5, 4).T)
        assert load_onnx(model).trained == ("w", "v")


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

    def test_a_pattern_finds_the_vanished_names(self) -> None:
        model = model_of(self.NODES, {"x": [2, 3]}, ["y"], {"w": floats(3, 3)})
        assert load_onnx(model, train="w3").trained == ("w",)

    def test_an_identity_that_is_an_output_stays(self) -> None:
        model = model_of(self.NODES, {"x": [2, 3]}, ["w2", "y"], {"w": floats(3, 3)})
        graph = load_onnx(model)
        consistent(graph)
        assert graph.outputs == ("w2", "y")
        assert graph.root("w2") == "w"
        np.testing.assert_array_equal(run(model_proto(graph), {"x": floats(2, 3)})[0], floats(3, 3))

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

    def test_batch_normalization_in_evaluation_has_one_output(self) -> None:
        nodes = [helper.make_node("BatchNormalization", ["x", "s", "b", "m", "v"], ["y"])]
        weights = {name: np.ones(3, np.float32) for name in "sbmv"}
        graph = load_onnx(model_of(nodes, {"x": [4, 3]}, ["y"], weights))
        assert graph.operators[0].outputs == ("y",)
        assert graph.trained == ("s", "b")

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

    @pytest.mark.parametrize(("training", "ratio"), [(False, 0.5), (True, 0.0)])
    def test_dropout_that_drops_nothing_is_a_view(self, training: bool, ratio: float) -> None:
        operator = load_onnx(self._dropout(training, ratio)).operators[0]
        assert (operator.name, operator.kind, operator.inputs, operator.view) == ("drop", "Identity", ("x",), True)

    def test_the_mask_of_such_a_dropout_is_constant(self) -> None:
        nodes = [
            helper.make_node("Dropout", ["x"], ["y", "mask"]),
            helper.make_node("Where", ["mask", "y", "x"], ["z"]),
        ]
        graph = load_onnx(model_of(nodes, {"x": [4, 3]}, ["z"]))
        assert graph.values["mask"].all()


class TestExternalData:
    @staticmethod
    def _save(folder: Path) -> Path:
        path = folder / "m.onnx"
        onnx.save_model(convnet(), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
        return path

    def test_it_is_read(self, tmp_path: Path) -> None:
        graph = load_onnx(self._save(tmp_path), batch=2)
        for name, array in load_onnx(convnet(), batch=2).values.items():
            np.testing.assert_array_equal(graph.values[name], array)

    def test_the_hash_is_of_the_content(self, tmp_path: Path) -> None:
        path = self._save(tmp_path)
        inline = load_onnx(convnet(), batch=2).content_hash
        assert load_onnx(path, batch=2).content_hash == inline
        weights = bytearray((tmp_path / "weights.bin").read_bytes())
        weights[3] ^= 1
        (tmp_path / "weights.bin").write_bytes(weights)
        assert load_onnx(path, batch=2).content_hash != inline

    def test_a_missing_file_is_named(self, tmp_path: Path) -> None:
        path = self._save(tmp_path)
        (tmp_path / "weights.bin").unlink()
        with pytest.raises(ModelError, match=r"'conv_[wb]': external data file .*weights\.bin' is missing"):
            load_onnx(path, batch=2)

    def test_a_truncated_file_is_named(self, tmp_path: Path) -> None:
        path = self._save(tmp_path)
        (tmp_path / "weights.bin").write_bytes(b"1234")
        with pytest.raises(ModelError, match=r"weights\.bin' is truncated"):
            load_onnx(path, batch=2)

    @pytest.mark.parametrize("location", ["../weights.bin", "/etc/hostname", "", "weights\0.bin"])
    def test_other_folders_are_refused(self, tmp_path: Path, location: str) -> None:
        path = self._save(tmp_path)
        model = onnx.load(path, load_external_data=False)
        for entry in model.graph.initializer[0].external_data:
            if entry.key == "location":
                entry.value = location
        path.write_bytes(model.SerializeToString())
        with pytest.raises(ModelError, match="not a path beside the model"):
            load_onnx(path, batch=2)

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
    def test_what_is_no_file_is_refused(self, tmp_path: Path) -> None:
        """Opening a pipe that nobody writes to would wait for ever."""
        path = self._save(tmp_path)
        (tmp_path / "weights.bin").unlink()
        os.mkfifo(tmp_path / "weights.bin")
        with pytest.raises(ModelError, match=r"weights\.bin' is no file"):
            load_onnx(path, batch=2)

    @pytest.mark.parametrize("place", ["node", "branch", "function"])
    def test_that_of_nodes_lies_beside_the_model_as_well(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
    ) -> None:
        constant = helper.make_node("Constant", [], ["k"], value=numpy_helper.from_array(floats(4, 4), "k"))
        product = helper.make_node("MatMul", ["h", "k"], ["y"])
        whole = model_of([constant, product], {"h": [2, 4]}, ["y"])
        if place == "function":
            body = helper.make_function("own", "f", ["h"], ["y"], [constant, product], whole.opset_import)
            whole.functions.append(body)
            whole.opset_import.append(helper.make_opsetid("own", 1))
            whole.graph.ClearField("node")
            whole.graph.node.append(helper.make_node("f", ["h"], ["y"], domain="own"))
        elif place == "branch":
            inside = helper.make_graph([constant, product], "b", [], [onnx.ValueInfoProto(name="y")])
            choice = helper.make_node("If", ["c"], ["y"], then_branch=inside, else_branch=inside)
            whole = model_of([choice], {"h": [2, 4]}, ["y"], {"c": np.array(True)})
        path, elsewhere = tmp_path / "m.onnx", tmp_path / "elsewhere"
        path.write_bytes(whole.SerializeToString())
        before = load_onnx(path)
        nodes = whole.functions[0].node if place == "function" else whole.graph.node
        stored = nodes[0].attribute[0].g.node[0] if place == "branch" else nodes[0]
        tensors = [stored.attribute[0].t]
        if place == "branch":
            tensors.append(nodes[0].attribute[1].g.node[0].attribute[0].t)
        (tmp_path / "k.bin").write_bytes(tensors[0].raw_data)
        for tensor in tensors:
            tensor.ClearField("raw_data")
            tensor.data_location = onnx.TensorProto.EXTERNAL
            tensor.external_data.add(key="location", value="k.bin")
        path.write_bytes(whole.SerializeToString())
        elsewhere.mkdir()
        (elsewhere / "k.bin").write_bytes(floats(4, 4, seed=1).tobytes())
        monkeypatch.chdir(elsewhere)
        after = load_onnx(path)
        assert after.content_hash == before.content_hash
        (name,) = after.values
        np.testing.assert_array_equal(after.values[name], floats(4, 4))
        (tmp_path / "k.bin").unlink()
        with pytest.raises(ModelError, match=r"'value' of node 'k': external data file .*k\.bin' is missing"):
            load_onnx(path)

    def test_a_model_in_memory_has_no_folder(self, tmp_path: Path) -> None:
        model = onnx.load(self._save(tmp_path), load_external_data=False)
        with pytest.raises(ModelError, match="load the model from its file"):
            load_onnx(model, batch=2)


def test_functions_of_the_file_are_inlined() -> None:
    body = [helper.make_node("Mul", ["a", "a"], ["b"])]
    square = helper.make_function("local", "Square", ["a"], ["b"], body, [helper.make_opsetid("", 18)])
    model = model_of([helper.make_node("Square", ["x"], ["y"], domain="local")], {"x": [2]}, ["y"])
    model.opset_import.append(helper.make_opsetid("local", 1))
    model.functions.append(square)
    assert [operator.kind for operator in load_onnx(model).operators] == ["Mul"]


def test_operators_that_are_functions_get_shapes() -> None:
    nodes = [helper.make_node("GroupNormalization", ["x", "s", "b"], ["y"], num_groups=2)]
    model = model_of(nodes, {"x": [2, 4, 5]}, ["y"], {"s": floats(4), "b": floats(4)}, opset=21)
    assert load_onnx(model).tensors["y"].shape == (2, 4, 5)


@pytest.mark.parametrize("opset", [18, 20])
def test_the_withdrawn_form_of_a_group_normalization(opset: int) -> None:
    nodes = [helper.make_node("GroupNormalization", ["x", "s", "b"], ["y"], num_groups=2)]
    model = model_of(nodes, {"x": [2, 6, 5]}, ["y"], {"s": floats(2), "b": floats(2, seed=1)}, opset=opset)
    graph, feeds = load_onnx(model), {"x": floats(2, 6, 5, seed=2)}
    assert graph.trained == ("s", "b")
    assert np.array_equal(run(model_proto(graph), feeds)[0], run(model, feeds)[0])
    del model.graph.node[0].attribute[:]
    with pytest.raises(ModelError, match="num_groups"):
        load_onnx(model)


def test_the_model_in_memory_is_not_changed() -> None:
    model = convnet(11)
    before = model.SerializeToString(deterministic=True)
    load_onnx(model, batch=2)
    assert model.SerializeToString(deterministic=True) == before


def test_importing_twice_gives_the_same_graph() -> None:
    first, second = (model_proto(load_onnx(convnet(11), batch=2)) for _ in range(2))
    assert first.SerializeToString(deterministic=True) == second.SerializeToString(deterministic=True)
