"""Several constructions of one gradient, and the choice between them by shape: time against workspace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from poetopt.autodiff.emit import GraphBuilder, OperatorBuilder
from poetopt.autodiff.passes.in_place import takings, working_set_bytes
from poetopt.graph import Tensor, TrainingGraph
from poetopt.ops.runtimes.onnxruntime import runtime

FLOPS_PER_NS = 150.0
"""Speed of a well-shaped Gemm on the machine to which the estimates were fitted."""


@dataclass(frozen=True)
class Costed:
    """A construction of a gradient.

    Attributes
    ----------
    time_ns
        Estimate; only ratios between candidates matter.
    workspace_bytes
        Peak of temporaries and kernel memory, to a few per cent.
    build
        Function that emits the construction.
    """

    name: str
    time_ns: float
    workspace_bytes: int
    build: Callable[[OperatorBuilder], Tensor]


def steps_ns(steps: int) -> float:
    """Return the overhead of `steps` repetitions in ns, which grows faster than their number: large graphs are slow."""
    # a repetition is a few small nodes, which cost their launch and their transfers
    return 9e3 * steps * (1 + steps / 32)


def chosen(graph: GraphBuilder, candidates: Iterable[Costed], operand_bytes: int) -> Costed:
    """Return the candidate that `choose` picks for the RAM that the graph's floor leaves beside `operand_bytes`.

    The choice is recorded in the graph, as its floor may change once all choices are known.
    """
    choice = Choice(operand_bytes, tuple(candidates))
    graph.choices.append(choice)
    return choice.at(graph.floor_bytes)


@dataclass(frozen=True)
class Choice:
    """The constructions of one gradient, and the bytes of its operands."""

    operand_bytes: int
    candidates: tuple[Costed, ...]

    def at(self, floor_bytes: int) -> Costed:
        """Return the candidate that `choose` picks where the graph needs `floor_bytes` anyway."""
        return choose(self.candidates, floor_bytes - self.operand_bytes)


def choose(candidates: Iterable[Costed], room_bytes: int) -> Costed:
    """Return the fastest candidate whose workspace fits, at equal times the smaller one; else the smallest.

    Parameters
    ----------
    room_bytes
        RAM that the graph's floor (`GraphBuilder.floor_bytes`) leaves beside the operands. A workspace below it does
        not lower the RAM that the whole graph needs, though it leaves more for other tensors.
    """
    listed = list(candidates)
    fitting = [c for c in listed if c.workspace_bytes <= room_bytes]
    if not fitting:
        return min(listed, key=lambda c: (c.workspace_bytes, c.time_ns))
    return min(fitting, key=lambda c: c.time_ns * (1 + 0.3 * c.workspace_bytes / max(room_bytes, 1)))


CHOSEN = ("Conv.grad_input", "Conv.grad_weight", "ConvTranspose.grad_input", "ConvTranspose.grad_weight")
"""Kinds of operators that have several constructions with different workspaces."""
SLOWER = 1.01
"""Factor by which the constructions' estimated time may grow in order to lower the floor.

Measured on vgg16-cifar: a floor of 4.1 MB instead of 5.8 MB would take a fifth more time.
"""


def floor_bytes(step: TrainingGraph, choices: Sequence[Choice] = (), *, over: bool = True) -> int | None:
    """Return the largest working set, in bytes, among all operators without alternatives (`CHOSEN`).

    The result is None where no operator has alternatives.

    Parameters
    ----------
    choices
        The constructions of the operators with alternatives.
    over
        Whether operators may overwrite their inputs. The floor is then lower: as low as choices reach it without
        exceeding the factor `SLOWER`.
    """
    if not any(operator.kind in CHOSEN for operator in step.operators):
        return None
    fixed = (operator for operator in step.operators if not operator.view and operator.kind not in CHOSEN)
    fixed_floor = max((working_set_bytes(operator, step, runtime) for operator in fixed), default=None)
    if fixed_floor is None or not over:
        return fixed_floor
    return _lowest_floor(choices, takings(step, runtime, CHOSEN).floor_bytes, fixed_floor)


def _lowest_floor(choices: Sequence[Choice], least: int, most: int) -> int:
    """Return the lowest floor from `least` to `most` whose choices take at most `SLOWER` times as long as at `most`."""
    demands = (
        choice.operand_bytes + candidate.workspace_bytes for choice in choices for candidate in choice.candidates
    )
    floors = sorted({least, most, *(demand for demand in demands if least < demand < most)})
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
