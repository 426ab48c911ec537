"""What a training step needs whatever the gradients of its convolutions are made of."""

from __future__ import annotations

from poetopt.graph import TrainingGraph
from poetopt.passes.joining import working_set_bytes
from poetopt.runtimes.onnxruntime import runtime

CHOSEN = ("Conv.grad_input", "Conv.grad_weight", "ConvTranspose.grad_input", "ConvTranspose.grad_weight")
"""Kinds of operators that there are several constructions of, which differ in what they need."""


def floor_bytes(step: TrainingGraph) -> int | None:
    """The largest working set, in bytes, among all operators but those that could be made otherwise.

    None where there is none of the latter.
    """
    if not any(operator.kind in CHOSEN for operator in step.operators):
        return None
    others = (operator for operator in step.operators if not operator.view and operator.kind not in CHOSEN)
    return max((working_set_bytes(operator, step, runtime) for operator in others), default=None)
