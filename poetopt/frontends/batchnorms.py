"""BatchNormalization that an exporter or an optimiser merged into the layer before it.

PyTorch's newer exporter leaves a rule's name in the node's metadata. Its older one, onnxruntime and tf2onnx give weight
and bias of the convolution names of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from poetopt.frontends.exporters import TRAINING, TRAINING_SHORT, UNFOLDED
from poetopt.frontends.read import Document
from poetopt.util.notes import Note, listed

_RULE = "pkg.onnxscript.rewriter.rule_name"
_MERGES = "FuseBatchNormInto"
_MERGED = re.compile(r"^(onnx::Conv(Transpose)?_)?\d+$|ConvBnFusion|_fused_bn(:0)?$")


def merged(document: Document) -> tuple[str, ...]:
    """Weights of the nodes that took in a BatchNormalization, while the nodes still have their metadata."""
    found: dict[str, None] = {}
    for node in document.proto.graph.node:
        if any(entry.key == _RULE and _MERGES in entry.value for entry in node.metadata_props):
            found.update((name, None) for name in node.input if name in document.weights)
    return tuple(found)


def merged_note(weights: Sequence[str], gone: Sequence[str]) -> list[str]:
    """What to say of those: one line, or nothing. `gone` are parameters that nothing in the file is called after."""
    if not weights:
        return []
    shown = ", ".join(weights[:6]) + (", ..." if len(weights) > 6 else "")
    lost = f" (of its own, {', '.join(gone[:4])}{', ...' * (len(gone) > 4)} are gone)" if gone else ""
    return [
        Note(
            f"the exporter merged BatchNormalization into {shown}{lost}: gradients are those of what was merged; to "
            f"train it, export with {TRAINING}; {UNFOLDED} keeps the layers apart, in evaluation mode",
            short=f"the exporter merged BatchNormalization into {listed(weights, 3)}; {TRAINING_SHORT} trains it",
        )
    ]


def merged_by_name(names: Iterable[str]) -> list[str]:
    """Those of `names` that say so."""
    return [name for name in names if "onv" in name and _MERGED.search(name)]


def named_note(document: Document) -> list[str]:
    """What to say of convolutions whose weight and bias have such names: one line, or nothing."""
    found = [
        node.input[1]
        for node in document.proto.graph.node
        if node.op_type in ("Conv", "ConvTranspose")
        and len(node.input) > 2
        and all(name in document.weights and _MERGED.search(name) for name in node.input[1:3])
    ]
    if not found:
        return []
    count = f"{len(found)} convolution{'s' * (len(found) > 1)}"
    text = f"the exporter merged BatchNormalization into {count} ({listed(found, 3)})"
    torchs = any("::" in name or name.isdigit() for name in found)
    advice = f"to train it, export with {TRAINING}" if torchs else "the file from before that has it apart"
    return [
        Note(
            f"{text}: gradients are those of what was merged; {advice}",
            short=f"{text}; {TRAINING_SHORT} trains it" if torchs else text,
        )
    ]
