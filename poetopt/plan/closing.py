"""The end of a step, behind the last part of a batch: each update with what it reads of storage around it.

A plan says how a part runs. The updates behind the last one follow from it: what is in RAM from one part to the next
lies where it was, all else is read for its update, whole or chunk by chunk, and written back after it; so is what the
parts keep in RAM and read from storage all the same, where they let it go in between. An operator has nothing in RAM
that another one needs, so that each runs in the way of least energy that has room (`poetopt.graph.problem.problem`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

from poetopt.graph.problem.problem import closing_with, ways_within
from poetopt.plan.instructions import Action, Instruction, Plan

if TYPE_CHECKING:
    from poetopt.graph.problem import Problem
    from poetopt.plan.simulate import Simulation


@dataclass(frozen=True)
class ClosingPlan:
    """The updates behind the last part, as a plan without offsets.

    problem
        What they are of; what the parts keep in RAM is in RAM as it begins and as it ends.
    beside_bytes
        What the parts keep in RAM and no update reads.
    simulation
        What they take.
    """

    problem: Problem
    instructions: tuple[Instruction, ...]
    beside_bytes: int
    simulation: Simulation

    @property
    def peak_bytes(self) -> int:
        """The highest sum of live bytes, with what the parts keep in RAM."""
        return self.simulation.peak_bytes + self.beside_bytes


def closing_of(problem: Problem, instructions: Sequence[Instruction]) -> ClosingPlan | None:
    """The updates that follow the parts of a plan of `problem`; None where nothing follows."""
    from poetopt.plan.simulate import simulate

    if problem.closing is None:
        return None
    kept = {problem.tensors[i].name: i for i in problem.lasting}
    read = {step.target for step in instructions if step.action is Action.PAGE_IN}
    for step in instructions:
        if step.variant:
            read.update(problem.operators[step.target].variant(step.variant).streamed_in)
    again = frozenset(name for name, i in kept.items() if i in read and problem.tensors[i].backed)
    known: dict[frozenset[str], ClosingPlan] = problem.memo.setdefault(ClosingPlan, {})
    if again not in known:
        closing, beside = closing_with(problem, problem.lasting)
        ways = (0,) * len(closing.operators)
        if problem.closing_ram_bytes is not None:
            ways = ways_within(closing, problem.closing_ram_bytes - problem.reserve_bytes - beside)
        steps = tuple(_steps(closing, ways, again))
        known[again] = ClosingPlan(closing, steps, beside, simulate(closing, steps))
    return known[again]


def closing_plan(plan: Plan) -> Plan | None:
    """The updates that follow the parts of `plan`, which has offsets, in the same arena; None where nothing follows."""
    from poetopt.plan.layout import lasting_at, lay_out_around

    found = closing_of(plan.problem, plan.instructions)
    return None if found is None else lay_out_around(Plan(found.problem, found.instructions), lasting_at(plan))


def closing_lives(plan: Plan) -> list[tuple[int, int, int]]:
    """Bytes, first and last instruction of what the updates behind a plan's parts have in RAM, one after another.

    Instructions are counted on from the plan's.
    """
    from poetopt.plan.layout import buffers

    found = closing_of(plan.problem, plan.instructions)
    if found is None:
        return []
    begin, update = len(plan.instructions), _updates(found.instructions)
    made = (b for b in buffers(Plan(found.problem, found.instructions)) if b.first >= 0 and b.nbytes)
    return [(b.nbytes, begin + update[b.first], begin + update[b.first]) for b in made]


def _updates(instructions: Sequence[Instruction]) -> list[int]:
    """For each instruction, the operator that it is before, or that it computes."""
    found, operator = [], 0
    for step in reversed(instructions):
        operator = step.target if step.action is Action.COMPUTE else operator
        found.append(operator)
    return found[::-1]


def _steps(problem: Problem, ways: Sequence[int], again: Set[str]) -> Iterator[Instruction]:
    """Each operator in its order and way, with its transfers; those named in `again` are written back, too."""
    there = set(problem.lasting)
    for k, (operator, way) in enumerate(zip(problem.operators, ways, strict=True)):
        whole = [i for i in operator.inputs if i not in operator.variant(way).streamed_in]
        moved = [i for i in whole if i not in there]
        written = [i for i in whole if i not in there or problem.tensors[i].name in again]
        yield from (Instruction(Action.PAGE_IN, i) for i in moved)
        yield Instruction(Action.COMPUTE, k, way)
        yield from (Instruction(Action.PAGE_OUT, i) for i in written if problem.tensors[i].updated_by == k)
        yield from (Instruction(Action.FREE, i) for i in (*moved, *operator.outputs))
