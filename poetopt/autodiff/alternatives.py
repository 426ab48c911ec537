"""Several constructions of one gradient, and the choice between them by shape: time against workspace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from poetopt.autodiff.emit import GraphBuilder, OperatorBuilder
from poetopt.autodiff.passes.in_place import takings, working_set_bytes
from poetopt.graph import Tensor, TrainingGraph
from poetopt.ops.runtimes.onnxruntime import runtime

FLOPS_PER_NS = 150.0
"""Of a well shaped Gemm, on the machine that the estimates were fitted on."""


@dataclass(frozen=True)
class Costed:
    """A construction.

    time_ns
        Estimate; only ratios between candidates matter.
    workspace_bytes
        Temporaries and kernel memory at their highest, to a few per cent.
    build
        Emits it.
    """

    name: str
    time_ns: float
    workspace_bytes: int
    build: Callable[[OperatorBuilder], Tensor]


def steps_ns(steps: int) -> float:
    """Nanoseconds that `steps` repetitions cost by their number alone; many make the graph itself unwieldy."""
    # of a few small nodes: their launch, and what they move
    return 9e3 * steps * (1 + steps / 32)


def chosen(graph: GraphBuilder, candidates: Iterable[Costed], operand_bytes: int) -> Costed:
    """Gives what `choose` picks in the room that the graph's floor leaves beside the operands, which are so many bytes.

    The choice is noted in the graph: its floor may become another once all of them are known.
    """
    found = Choice(operand_bytes, tuple(candidates))
    graph.choices.append(found)
    return found.at(graph.floor_bytes)


@dataclass(frozen=True)
class Choice:
    """The constructions that there are of one gradient, beside so many bytes of operands."""

    operand_bytes: int
    candidates: tuple[Costed, ...]

    def at(self, floor_bytes: int) -> Costed:
        """Gives what is picked where the graph needs so many bytes anyway."""
        return choose(self.candidates, floor_bytes - self.operand_bytes)


def choose(candidates: Iterable[Costed], room_bytes: int) -> Costed:
    """The fastest candidate whose workspace fits `room_bytes`, at equal times the leaner one; else the leanest.

    room_bytes
        What the graph's floor (`GraphBuilder.floor_bytes`) leaves beside the operands: below it,
        leanness does not lower the RAM that the whole graph needs, though it leaves more for others.
    """
    found = list(candidates)
    fitting = [c for c in found if c.workspace_bytes <= room_bytes]
    if not fitting:
        return min(found, key=lambda c: (c.workspace_bytes, c.time_ns))
    return min(fitting, key=lambda c: c.time_ns * (1 + 0.3 * c.workspace_bytes / max(room_bytes, 1)))


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
