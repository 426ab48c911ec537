"""What a training step needs whatever the gradients of its convolutions are made of."""

from __future__ import annotations

from collections.abc import Sequence

from poetopt.autodiff.alternatives import Choice
from poetopt.autodiff.passes.in_place import takings, working_set_bytes
from poetopt.graph import TrainingGraph
from poetopt.ops.runtimes.onnxruntime import runtime

CHOSEN = ("Conv.grad_input", "Conv.grad_weight", "ConvTranspose.grad_input", "ConvTranspose.grad_weight")
"""Kinds of operators that there are several constructions of, which differ in what they need."""
SLOWER = 1.01
"""Constructions may take so many times the time, by their estimates, where that lowers what all of them need.

Measured on vgg16-cifar, whose floor of 4.1 MB instead of 5.8 would take a fifth more.
"""


def floor_bytes(step: TrainingGraph, choices: Sequence[Choice] = (), *, over: bool = True) -> int | None:
    """The largest working set, in bytes, among all operators but those that could be made otherwise.

    None where there is none of the latter.

    choices
        What those could be.
    over
        Whether operators may write over what they read. The floor is lower then; where the choices that keep it are
        slower, it is as low as `SLOWER` lets it be.
    """
    if not any(operator.kind in CHOSEN for operator in step.operators):
        return None
    others = (operator for operator in step.operators if not operator.view and operator.kind not in CHOSEN)
    plain = max((working_set_bytes(operator, step, runtime) for operator in others), default=None)
    if plain is None or not over:
        return plain
    return _lowest(choices, takings(step, runtime, CHOSEN).floor_bytes, plain)


def _lowest(choices: Sequence[Choice], least: int, most: int) -> int:
    """The lowest floor from `least` to `most` that is not much slower than `most`."""
    needs = (choice.operand_bytes + one.workspace_bytes for choice in choices for one in choice.candidates)
    floors = sorted({least, most, *(need for need in needs if least < need < most)})
    allowed = SLOWER * _time_ns(choices, most)
    low, high = 0, len(floors) - 1
    while low < high:
        middle = (low + high) // 2
        if _time_ns(choices, floors[middle]) <= allowed:
            high = middle
        else:
            low = middle + 1
    return floors[low]


def _time_ns(choices: Sequence[Choice], floor: int) -> float:
    return sum(choice.at(floor).time_ns for choice in choices)
