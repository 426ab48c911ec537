"""What a schedule does to single operators and tensors: which run again, which are paged, and what that costs."""

from __future__ import annotations

from dataclasses import dataclass

from poetopt.graph.problem import Variant
from poetopt.plan.instructions import Action
from poetopt.report.view import View


@dataclass(frozen=True, slots=True)
class Recomputed:
    """An operator that runs more than once.

    operator
        Its index.
    steps
        The instructions that run it again, in order.
    energy_j
        Joules of those.
    """

    operator: int
    steps: tuple[int, ...]
    energy_j: float


@dataclass(frozen=True, slots=True)
class Paged:
    """A tensor that is written to storage or read from it.

    tensor
        Its index.
    outs, ins
        The instructions that write and read it, in order.
    energy_j
        Joules of all of them.
    """

    tensor: int
    outs: tuple[int, ...]
    ins: tuple[int, ...]
    energy_j: float


def recomputed(view: View) -> tuple[Recomputed, ...]:
    """The operators that run more than once, in their order."""
    found: dict[int, list[int]] = {}
    for index, (step, again) in enumerate(zip(view.plan.instructions, view.again, strict=True)):
        if again:
            found.setdefault(step.target, []).append(index)
    runs = view.plan.instructions
    operators = view.problem.operators
    return tuple(
        Recomputed(k, tuple(steps), sum(operators[k].variant(runs[step].variant).energy_j for step in steps))
        for k, steps in sorted(found.items())
    )


def streamed(view: View) -> dict[int, Variant]:
    """How each run goes that streams operands, by its instruction."""
    operators = view.problem.operators
    ways = {
        k: operators[run.target].variant(run.variant) for k, run in enumerate(view.plan.instructions) if run.variant
    }
    return {k: way for k, way in ways.items() if way.streams}


def paged(view: View) -> tuple[Paged, ...]:
    """The tensors that are paged, in their order."""
    outs: dict[int, list[int]] = {}
    ins: dict[int, list[int]] = {}
    for index, step in enumerate(view.plan.instructions):
        if step.action is Action.PAGE_OUT:
            outs.setdefault(step.target, []).append(index)
        elif step.action is Action.PAGE_IN:
            ins.setdefault(step.target, []).append(index)
    found = []
    for i in sorted(outs.keys() | ins.keys()):
        tensor = view.problem.tensors[i]
        out_steps, in_steps = tuple(outs.get(i, ())), tuple(ins.get(i, ()))
        joules = len(out_steps) * tensor.page_out_j + len(in_steps) * tensor.page_in_j
        found.append(Paged(i, out_steps, in_steps, joules))
    return tuple(found)
