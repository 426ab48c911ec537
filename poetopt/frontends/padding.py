"""Automatic pads of dilated windows, spelt out: onnxruntime's Conv refuses them, its pools forget the dilation.

torch's newer exporter writes `padding='same'` so. Where every stride is one the pads don't depend on the input:
dilation x (kernel - 1) in all, the odd one at the end (SAME_UPPER) or in front (SAME_LOWER).

A transposed convolution with automatic pads and an output_padding has one size in onnxruntime, and a larger one for
ONNX's shape inference: it is refused.
"""

from __future__ import annotations

from onnx import AttributeProto, NodeProto, helper

from poetopt.frontends.read import Document
from poetopt.frontends.structure import describe
from poetopt.util.errors import ModelError

WINDOWS = frozenset({"Conv", "MaxPool", "AveragePool", "LpPool"})


def spell_out_pads(document: Document) -> None:
    """Give dilated windows with automatic pads explicit ones, in place.

    Raises `ModelError` where the pads depend on the input's size, or the kernel's size is not in the file.
    """
    for node in document.proto.graph.node:
        auto = next((a.s.decode("utf-8", "replace") for a in node.attribute if a.name == "auto_pad"), "")
        if auto not in ("SAME_UPPER", "SAME_LOWER") or node.domain:
            continue
        added = _ints(node, "output_padding")
        if node.op_type == "ConvTranspose" and any(added):
            raise ModelError(
                f"{describe(document.where, node, document.opset)}: auto_pad {auto} with output_padding {added} has "
                "one size in onnxruntime and another in ONNX's shape inference; export the model with explicit pads"
            )
        dilations = _ints(node, "dilations")
        if node.op_type not in WINDOWS or all(d == 1 for d in dilations):
            continue
        kernel = _ints(node, "kernel_shape")
        if not kernel and node.op_type == "Conv" and len(node.input) > 1 and node.input[1] in document.weights:
            kernel = list(document.weights[node.input[1]].dims)[2:]
        if len(kernel) != len(dilations) or any(stride != 1 for stride in _ints(node, "strides")):
            raise ModelError(
                f"{describe(document.where, node, document.opset)}: auto_pad {auto} with dilations {dilations} is "
                "something that onnxruntime doesn't compute; export the model with explicit pads"
            )
        total = [d * (k - 1) for d, k in zip(dilations, kernel, strict=True)]
        before = [t // 2 if auto == "SAME_UPPER" else t - t // 2 for t in total]
        kept = [a for a in node.attribute if a.name not in ("auto_pad", "pads")]
        del node.attribute[:]
        pads = [*before, *(t - b for t, b in zip(total, before, strict=True))]
        node.attribute.extend([*kept, helper.make_attribute("pads", pads)])


def _ints(node: NodeProto, name: str) -> list[int]:
    return next((list(a.ints) for a in node.attribute if a.name == name and a.type == AttributeProto.INTS), [])
