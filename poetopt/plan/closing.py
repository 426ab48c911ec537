"""Update phase: the updates that follow the last part of a batch, with the transfers that each needs.

A plan describes how one part runs. The updates after the last part follow from it. A tensor that stays in RAM from
part to part keeps its place. Any other tensor is read from storage for its update, whole or in chunks, and written
back afterwards. A tensor that the parts keep in RAM and also read from storage is written back too, where they allow
it to leave RAM in between. No operator has anything in RAM that another one needs, so each one runs as the variant of
least energy that fits (`poetopt.graph.problem.problem`).
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
    """Updates after the last part, as a plan without offsets.

    Attributes
    ----------
    problem
        Problem of the updates; tensors that the parts keep in RAM are in RAM at its start and end.
    beside_bytes
        Bytes that the parts keep in RAM and no update reads.
    simulation
        Simulation of the updates.
    """

    problem: Problem
    instructions: tuple[Instruction, ...]
    beside_bytes: int
    simulation: Simulation

    @property
    def peak_bytes(self) -> int:
        """Highest sum of live bytes, including the tensors that the parts keep in RAM."""
        return self.simulation.peak_bytes + self.beside_bytes


def closing_of(problem: Problem, instructions: Sequence[Instruction]) -> ClosingPlan | None:
    """Return the updates that follow the parts of a plan of `problem`, or None if there are none."""
    from poetopt.plan.simulate import simulate

    if problem.closing is None:
        return None
    kept = {problem.tensors[i].name: i for i in problem.lasting}
    paged_in = {step.target for step in instructions if step.action is Action.PAGE_IN}
    for step in instructions:
        if step.variant:
            paged_in.update(problem.operators[step.target].variant(step.variant).streamed_in)
    written_back = frozenset(name for name, i in kept.items() if i in paged_in and problem.tensors[i].backed)
    cache: dict[frozenset[str], ClosingPlan] = problem.memo.setdefault(ClosingPlan, {})
    if written_back not in cache:
        closing, unread_bytes = closing_with(problem, problem.lasting)
        variants = (0,) * len(closing.operators)
        if problem.closing_ram_bytes is not None:
            variants = ways_within(closing, problem.closing_ram_bytes - problem.reserve_bytes - unread_bytes)
        steps = tuple(_steps(closing, variants, written_back))
        cache[written_back] = ClosingPlan(closing, steps, unread_bytes, simulate(closing, steps))
    return cache[written_back]


def closing_plan(plan: Plan) -> Plan | None:
    """Return the updates after `plan`, which has offsets, laid out in the same arena; None if there are none."""
    from poetopt.plan.layout import lasting_at, lay_out_around

    updates = closing_of(plan.problem, plan.instructions)
    return None if updates is None else lay_out_around(Plan(updates.problem, updates.instructions), lasting_at(plan))


def closing_lives(plan: Plan) -> list[tuple[int, int, int]]:
    """Return (bytes, first, last instruction) of each buffer of the updates that follow a plan.

    Updates run one after another. Their instructions are numbered from the plan's last one on.
    """
    from poetopt.plan.layout import buffers

    updates = closing_of(plan.problem, plan.instructions)
    if updates is None:
        return []
    first_index, step_of = len(plan.instructions), _updates(updates.instructions)
    allocated = (b for b in buffers(Plan(updates.problem, updates.instructions)) if b.first >= 0 and b.nbytes)
    return [(b.nbytes, first_index + step_of[b.first], first_index + step_of[b.first]) for b in allocated]


def _updates(instructions: Sequence[Instruction]) -> list[int]:
    """Return, for each instruction, the next operator that is computed (its own for a COMPUTE)."""
    operators, operator = [], 0
    for step in reversed(instructions):
        operator = step.target if step.action is Action.COMPUTE else operator
        operators.append(operator)
    return operators[::-1]


def _steps(problem: Problem, variants: Sequence[int], written_back: Set[str]) -> Iterator[Instruction]:
    """Yield each operator in order, as its variant, with its transfers; tensors in `written_back` are written too."""
    resident = set(problem.lasting)
    for k, (operator, variant) in enumerate(zip(problem.operators, variants, strict=True)):
        unstreamed = [i for i in operator.inputs if i not in operator.variant(variant).streamed_in]
        paged_in = [i for i in unstreamed if i not in resident]
        written = [i for i in unstreamed if i not in resident or problem.tensors[i].name in written_back]
        yield from (Instruction(Action.PAGE_IN, i) for i in paged_in)
        yield Instruction(Action.COMPUTE, k, variant)
        yield from (Instruction(Action.PAGE_OUT, i) for i in written if problem.tensors[i].updated_by == k)
        yield from (Instruction(Action.FREE, i) for i in (*paged_in, *operator.outputs))
