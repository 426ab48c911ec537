"""What PyTorch's newer exporter leaves in a file: folded weights with their origins, and chunks as sequences."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from poetopt.frontends.onnx_file import load_onnx
from poetopt.frontends.proto import model_proto
from tests.frontends.support import floats, model_of, run, text_model

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
    assert "their results are trained: expand" in notes
    assert "BatchNormalization is in evaluation mode" in notes


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
