"""What clipping by the norm of all gradients costs a step: which gradients wait for it, and what becomes of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from poetopt.autodiff.optimizers import CLIP
from poetopt.autodiff.optimizers.clip import SQUARES
from poetopt.graph import TOGETHER
from poetopt.graph.problem import Problem
from poetopt.plan.closing import closing_of
from poetopt.plan.instructions import Action, Instruction, Plan
from poetopt.util.units import show_bytes, show_joules


@dataclass(frozen=True, slots=True)
class Clipping:
    """The gradients that wait for the norm of all, and what a schedule does to have them twice.

    gradient_bytes
        Their size. Of a batch in parts, the sums that are scheduled: they wait for the last part anyway.
    written_bytes, read_bytes
        Of them, to storage and from there; of sums, what is read for the norm.
    recomputes
        How often operators that write them run again.
    energy_j
        Joules of all that; of a streamed run the share of their bytes.
    """

    gradient_bytes: int
    written_bytes: int = 0
    read_bytes: int = 0
    recomputes: int = 0
    energy_j: float = 0.0


def clips(problem: Problem) -> bool:
    """Whether the step clips by the norm of all gradients."""
    return problem.recipe.get(CLIP) is True


def clipping_of(problem: Problem, plan: Plan | None) -> Clipping | None:
    """What clipping costs in `plan`, or without one what has to wait; None where the step doesn't clip."""
    if not clips(problem):
        return None
    problem = problem if plan is None else plan.problem
    if problem.closing is None:
        return _counted(problem, () if plan is None else plan.instructions)
    last = None if plan is None else closing_of(problem, plan.instructions)
    if last is None:
        return _counted(problem.closing, ())
    return _counted(last.problem, tuple(_for_the_norm(last.problem, last.instructions)))


def clipping_fields(problem: Problem, plan: Plan | None) -> dict[str, object]:
    """The keys of `solve --json` on it."""
    found = clipping_of(problem, plan)
    there = found is not None and plan is not None
    return {
        "clip_norm": found is not None,
        "clip_gradient_bytes": None if found is None else found.gradient_bytes,
        "clip_bytes_moved": found.written_bytes + found.read_bytes if found and there else None,
        "clip_recomputes": found.recomputes if found and there else None,
        "clip_energy_j": float(found.energy_j) if found and there else None,
    }


def clipping_rows(problem: Problem, plan: Plan | None) -> list[tuple[str, str]]:
    """The same for people: label and text."""
    found = clipping_of(problem, plan)
    if found is None:
        return []
    size = show_bytes(found.gradient_bytes)
    text = f"{size} of gradients wait for the norm of all of them before the first update"
    if problem.parts > 1:
        sums = f"{size} of summed gradients" if found.gradient_bytes else "the sums of gradients"
        text = f"{sums} are read once more, for the norm of all of them, before the first update"
    if plan is not None:
        moved = (found.written_bytes, "written"), (found.read_bytes, "read")
        done = [f"{show_bytes(nbytes)} {word}" for nbytes, word in moved if nbytes]
        done += [f"{found.recomputes} computed again"] if found.recomputes else []
        text += f": {', '.join(done)}, {show_joules(found.energy_j)} of the overhead" if done else ", in RAM"
    return [("clipping", text)]


def _counted(problem: Problem, instructions: Sequence[Instruction]) -> Clipping:
    waiting = {i for operator in problem.operators if _adds(operator.kind) for i in operator.inputs}
    written = read = recomputes = 0
    energy = 0.0
    ran: set[int] = set()
    for step in instructions:
        if step.action is not Action.COMPUTE:
            held = problem.tensors[step.target]
            if step.target in waiting and step.action is Action.PAGE_OUT:
                written, energy = written + held.nbytes, energy + held.page_out_j
            elif step.target in waiting and step.action is Action.PAGE_IN:
                read, energy = read + held.nbytes, energy + held.page_in_j
            continue
        operator = problem.operators[step.target]
        way = operator.variant(step.variant)
        if step.target in ran and waiting.intersection(operator.outputs):
            recomputes, energy = recomputes + 1, energy + operator.energy_j
        ran.add(step.target)
        taken, given = (
            problem.nbytes(sorted(waiting.intersection(names))) for names in (way.streamed_in, way.streamed_out)
        )
        if taken or given:
            share = (taken + given) / max(way.read_bytes + way.written_bytes, taken + given)
            read, written, energy = read + taken, written + given, energy + share * (way.energy_j - operator.energy_j)
    return Clipping(problem.nbytes(sorted(waiting)), written, read, recomputes, energy)


def _for_the_norm(problem: Problem, instructions: Sequence[Instruction]) -> Iterator[Instruction]:
    """The instructions that add up squares, with what is read for each of them."""
    before: list[Instruction] = []
    for step in instructions:
        before.append(step)
        if step.action is Action.COMPUTE:
            if _adds(problem.operators[step.target].kind):
                yield from (one for one in before if one.action in (Action.COMPUTE, Action.PAGE_IN))
            before = []


def _adds(kind: str) -> bool:
    """Whether an operator adds up squares of gradients."""
    return SQUARES in kind.split(TOGETHER)
