"""What PyTorch's newer exporter leaves in a file: folded weights with their origins, and chunks as sequences."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from poetopt.frontends.onnx_file import load_onnx
from poetopt.frontends.proto import model_proto
from poetopt.util.errors import ModelError, UnsupportedOpError
from tests.support.frontends import floats, model_of, run, text_model

SIGNATURE = """
# inputs
p_up_weight: PARAMETER target='up.weight'
p_scale: PARAMETER target='scale'
p_cls: PARAMETER target='cls'
b_mask: BUFFER target='mask' persistent=True
x: USER_INPUT

# outputs
getitem_3: BUFFER_MUTATION target='norm.running_mean'
add: USER_OUTPUT
"""


def folded(signature: str = SIGNATURE, listed: str = "['up.weight']") -> onnx.ModelProto:
    """y = (x val_1 + mask) table scale + expand, with metadata as the exporter writes it."""
    nodes = [
        helper.make_node("MatMul", ["x", "val_1"], ["a"]), helper.make_node("Add", ["a", "mask"], ["b"]),
        helper.make_node("Mul", ["b", "table"], ["c"]), helper.make_node("Mul", ["c", "scale"], ["d"]),
        helper.make_node("Add", ["d", "expand"], ["y"]),
    ]  # fmt: skip
    weights = {"val_1": floats(4, 3), **{name: floats(2, 3) for name in ("mask", "table", "scale", "expand")}}
    model = model_of(nodes, {"x": [2, 4]}, ["y"], weights)
    for name, origin in (("val_1", listed), ("table", "['arange', 'cos']"), ("expand", "['cls', 'val_7']")):
        info = helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, weights[name].shape)
        info.metadata_props.add(key="pkg.onnxscript.optimizer.folded_from", value=origin)
        model.graph.value_info.append(info)
    model.graph.metadata_props.add(key="pkg.torch.export.ExportedProgram.graph_signature", value=signature)
    return model


def test_buffers_and_folded_constants_are_not_trained() -> None:
    graph = load_onnx(folded())
    assert set(graph.trained) == {"val_1", "scale", "expand"}
    notes = "\n".join(graph.notes)
    assert "1 parameter is stored transposed or under another name (up.weight as val_1)" in notes
    assert "poetopt trains the results: expand" in notes
    assert "has BatchNormalization in evaluation mode" in notes


def test_the_modules_names_are_known_to_train() -> None:
    assert load_onnx(folded(), train="up.*").trained == ("val_1",)
    assert load_onnx(folded(), train="mask,scale").trained == ("mask", "scale")


@pytest.mark.parametrize("listed", ["up.weight", "[", "{'a': 1}", "['other']" * 2, "[1, 2]", "(" * 500])
def test_metadata_that_cannot_be_read_says_nothing(listed: str) -> None:
    assert "val_1" in load_onnx(folded(listed=listed), train="val_1").trained
    assert load_onnx(folded(signature="")).trained == ("val_1",)


def determinant(scalar: bool, source: str = "['scale', 'val_0']") -> onnx.ModelProto:
    """y = x scale - log, where the exporter computed `log` of `scale` and more."""
    nodes = [helper.make_node("Mul", ["x", "scale"], ["a"]), helper.make_node("Sub", ["a", "log"], ["y"])]
    log = np.float32(0.5) if scalar else floats(4, seed=2)
    model = model_of(nodes, {"x": [2, 4]}, ["y"], {"scale": floats(4), "log": np.asarray(log)})
    info = helper.make_tensor_value_info("log", onnx.TensorProto.FLOAT, np.shape(log))
    info.metadata_props.add(key="pkg.onnxscript.optimizer.folded_from", value=source)
    model.graph.value_info.append(info)
    model.graph.metadata_props.add(key="pkg.torch.export.ExportedProgram.graph_signature", value=SIGNATURE)
    return model


@pytest.mark.parametrize("scalar", [False, True])
@pytest.mark.parametrize("source", ["['scale', 'val_0']", "['scale']"])
def test_a_parameter_that_is_read_elsewhere_lacks_a_share(scalar: bool, source: str) -> None:
    graph = load_onnx(determinant(scalar, source))
    assert graph.trained == ("scale", "log")
    notes = "\n".join(graph.notes)
    assert "other nodes read too (log of scale): the gradient" in notes
    assert "po.torch.export(module, example, 'net.onnx') keeps it whole" in notes
    assert "poetopt trains the results: log" in notes
    frozen = "\n".join(load_onnx(determinant(False), train="log").notes)
    assert "other nodes read" not in frozen
    assert "trains the results: log; po.torch.export(module, example, 'net.onnx')" in frozen


def test_a_copy_lacks_no_share() -> None:
    model = determinant(False, "['scale']")
    model.graph.initializer[1].CopyFrom(numpy_helper.from_array(floats(4), "log"))
    graph = load_onnx(model)
    assert graph.trained == ("scale",)
    assert not any("other nodes read" in note for note in graph.notes)


def test_a_normalization_that_was_merged_is_named() -> None:
    weights = {"conv.weight": floats(2, 3, 3, 3), "conv.bias": floats(2)}
    merged = helper.make_node("Conv", ["x", "conv.weight", "conv.bias"], ["y"])
    merged.metadata_props.add(key="pkg.onnxscript.rewriter.rule_name", value="FuseBatchNormIntoConv")
    model = model_of([merged], {"x": [1, 3, 5, 5]}, ["y"], weights)
    names = ("conv.weight", "conv.bias", "bn.weight", "bn.bias")
    signature = "\n".join(f"p: PARAMETER target='{name}'" for name in names)
    assert any("merged BatchNormalization into conv.weight, conv.bias: gr" in note for note in load_onnx(model).notes)
    model.graph.metadata_props.add(key="pkg.torch.export.ExportedProgram.graph_signature", value=signature)
    notes = "\n".join(load_onnx(model).notes)
    assert "into conv.weight, conv.bias (its parameters bn.bias, bn.weight are lost): gradients" in notes
    assert "'net.onnx') keeps the layers apart" in notes


def chunks(body: str, opset: int = 18) -> onnx.ModelProto:
    """A model on a linear layer's result of length 7, whose shape the file states."""
    model = text_model(f"g (float[2, 4] x) => (float[2, n] y) {{ h = MatMul(x, w)\n{body} }}", opset=opset)
    model.graph.initializer.append(numpy_helper.from_array(floats(4, 7), "w"))
    for name, value in {"size": 3, "zero": 0, "two": 2, "last": -1, "nine": 9}.items():
        model.graph.initializer.append(numpy_helper.from_array(np.array(value, np.int64), name))
    model.graph.initializer.append(numpy_helper.from_array(np.array([1, 4, 2], np.int64), "sizes"))
    model.graph.value_info.append(helper.make_tensor_value_info("h", onnx.TensorProto.FLOAT, [2, 7]))
    return model


@pytest.mark.parametrize(("body", "ops"), [
    ("s = SplitToSequence<axis = -1>(h, size)\na = SequenceAt(s, zero)\nb = SequenceAt(s, two)\ny = Mul(a, b)",
     "Split"),
    ("s = SplitToSequence<axis = 1>(h, sizes)\na = SequenceAt(s, last)\ny = Relu(a)", "Split"),
    ("s = SplitToSequence<axis = 1>(h, sizes)\na = SequenceAt(s, two)\nb = SequenceAt(s, last)\ny = Mul(a, b)",
     "Split"),
    ("s = SplitToSequence<axis = 1, keepdims = 0>(h)\na = SequenceAt(s, two)\nb = Identity(a)\ny = Unsqueeze(b, zero1)",
     "Gather"),
])  # fmt: skip
@pytest.mark.parametrize("opset", [11, 13, 18])
def test_chunks_become_a_split(body: str, ops: str, opset: int) -> None:
    if "Unsqueeze" in body and opset < 13:
        body = body.replace("Unsqueeze(b, zero1)", "Unsqueeze<axes = [0]>(b)")
    model = chunks(body, opset)
    if "zero1" in body:
        model.graph.initializer.append(numpy_helper.from_array(np.array([0], np.int64), "zero1"))
    graph = load_onnx(model)
    assert ops in {operator.kind for operator in graph.operators}
    assert graph.trained == ("w",)
    x = floats(2, 4, seed=5)
    (want,), (got,) = run(model, {"x": x}), run(model_proto(graph, list(graph.outputs)), {"x": x})
    assert np.array_equal(got, want)


@pytest.mark.parametrize("body", [
    "s = SequenceConstruct(h, k)\na = SequenceAt(s, last)\nb = SequenceAt(s, zero)\ny = Concat<axis = 1>(a, b)",
    "s = SequenceConstruct(h, k)\ny = ConcatFromSequence<axis = -1>(s)",
    "s = SequenceConstruct(h, k, h)\nt = ConcatFromSequence<axis = 1, new_axis = 1>(s)\n"
    "y = ReduceMax<keepdims = 0>(t, ax)",
    "s = SequenceConstruct(h, k)\nt = SequenceMap<body = each (float[2, 7] e) => (float[2, 7] f) {"
    " i = Mul(e, k)\n c = Less(zero, two)\n f = If(c) <then_branch = one () => (float[2, 7] p) { p = Relu(i) },"
    " else_branch = other () => (float[2, 7] q) { q = Neg(i) }> }>(s)\ny = ConcatFromSequence<axis = 0>(t)",
    "s = SequenceConstruct(h, k)\nn = SequenceLength(s)\nm = Cast<to = 1>(n)\ny = Mul(h, m)",
])  # fmt: skip
def test_lists_of_tensors_are_read_through(body: str) -> None:
    model = chunks(f"k = Neg(h)\n{body}")
    model.graph.initializer.append(numpy_helper.from_array(np.array([1], np.int64), "ax"))
    for dim in model.graph.output[0].type.tensor_type.shape.dim:
        dim.Clear()
    graph = load_onnx(model)
    assert graph.trained == ("w",)
    x = floats(2, 4, seed=5)
    (want,), (got,) = run(model, {"x": x}), run(model_proto(graph, list(graph.outputs)), {"x": x})
    assert np.array_equal(got, want)


@pytest.mark.parametrize("body", [
    "i = Cast<to = 7>(h)\ns = SequenceConstruct(h, h)\nj = Squeeze(d)\ny = SequenceAt(s, j)",
    "s = SequenceConstruct(h)\ny = SequenceAt(s, two)",
    "s = SequenceConstruct(h)\nt = SequenceMap<body = each () => (float[2, 7] f) { f = Neg(h) }>(s)\n"
    "y = SequenceAt(t, zero)",
])  # fmt: skip
def test_lists_whose_element_is_not_known_are_refused(body: str) -> None:
    with pytest.raises((UnsupportedOpError, ModelError)):
        load_onnx(chunks(f"d = ArgMax<axis = 0>(h)\n{body}"))


@pytest.mark.parametrize("body", [
    "s = SplitToSequence<axis = 1>(h, size)\ny = ConcatFromSequence<axis = 1>(s)",
    "s = SplitToSequence<axis = 1>(h, size)\ny = SequenceAt(s, nine)",
    "s = SplitToSequence<axis = 1>(h, zero)\ny = SequenceAt(s, zero)",
])  # fmt: skip
def test_other_sequences_are_refused(body: str) -> None:
    with pytest.raises((UnsupportedOpError, ModelError), match="sequences and optionals are not supported"):
        load_onnx(chunks(body))


@pytest.mark.parametrize(("op", "kinds"), [("CastLike(h, w)", {"Identity"}), ("Cast<to = 1>(h)", {"Identity"}),
                                           ("CastLike(h, half)", {"Cast"})])  # fmt: skip
def test_casts_without_effect_are_views_and_castlike_is_a_cast(op: str, kinds: set[str]) -> None:
    model = chunks(f"y = {op}")
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(1, np.float64), "half"))
    model.graph.output[0].type.tensor_type.elem_type = 11 if "half" in op else 1
    graph = load_onnx(model)
    assert {operator.kind for operator in graph.operators} == {"MatMul", *kinds}
    assert all(operator.view for operator in graph.operators if operator.kind == "Identity")


def unstated(body: str, first: int | str = 2) -> onnx.ModelProto:
    """As `chunks`, in a file that doesn't state the shape of what is split; the batch is `first`."""
    model = chunks(body)
    del model.graph.value_info[:]
    dim = model.graph.input[0].type.tensor_type.shape.dim[0]
    if isinstance(first, str):
        dim.dim_param = first
    return model


@pytest.mark.parametrize("body", [
    "s = SplitToSequence<axis = -1>(h, size)\na = SequenceAt(s, zero)\nb = SequenceAt(s, two)\ny = Mul(a, b)",
    # pieces that are split in their turn
    "s = SplitToSequence<axis = 1>(h, size)\na = SequenceAt(s, zero)\nt = SplitToSequence<axis = 1>(a, two)\n"
    "y = SequenceAt(t, last)",
    # a size and a place that shapes give
    "d = Shape<start = 0, end = 1>(h)\nn = Squeeze(d)\ns = SplitToSequence<axis = 1>(h, n)\ny = SequenceAt(s, n)",
])  # fmt: skip
@pytest.mark.parametrize("first", [2, "n"])
def test_lengths_are_inferred_where_the_file_states_none(body: str, first: int | str) -> None:
    model = unstated(body, first)
    graph = load_onnx(model, batch=2)
    assert {operator.kind for operator in graph.operators} <= {"MatMul", "Split", "Mul"}
    x = floats(2, 4, seed=5)
    (want,), (got,) = run(model, {"x": x}), run(model_proto(graph, list(graph.outputs)), {"x": x})
    assert np.array_equal(got, want)


def test_another_batch_leaves_lengths_that_do_not_depend_on_it() -> None:
    body = "s = SplitToSequence<axis = 1>(h, size)\ny = SequenceAt(s, two)"
    graph = load_onnx(unstated(body), batch=5)
    assert graph.tensors["y"].shape == (5, 1)
    with pytest.raises(UnsupportedOpError, match="sequences and optionals"):
        load_onnx(unstated(body.replace("axis = 1", "axis = 0").replace("two", "zero")), batch=5)


def test_a_length_of_an_open_batch_is_asked_for() -> None:
    with pytest.raises(ModelError, match="Give its size with --batch"):
        load_onnx(unstated("s = SplitToSequence<axis = 0>(h, two)\ny = SequenceAt(s, zero)", "n"))
