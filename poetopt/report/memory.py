"""All the RAM of a step, in figures and in words: the schedule's, and what stands beside it.

What clipping by the norm of all gradients costs a step: which gradients wait for it, and what becomes of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from poetopt.autodiff.optimizers import CLIP
from poetopt.autodiff.optimizers.attach import SQUARES
from poetopt.graph import TOGETHER, Role
from poetopt.graph.problem import Problem
from poetopt.plan.closing import closing_of
from poetopt.plan.instructions import Action, Instruction, Plan


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
    """Tell whether the step clips by the norm of all gradients."""
    return problem.recipe.get(CLIP) is True


def clipping_of(problem: Problem, plan: Plan | None) -> Clipping | None:
    """The cost of clipping in `plan`, or without one the gradients that wait; None where the step doesn't clip."""
    if not clips(problem):
        return None
    problem = problem if plan is None else plan.problem
    if problem.closing is None:
        return _counted(problem, () if plan is None else plan.instructions)
    last = None if plan is None else closing_of(problem, plan.instructions)
    if last is None:
        return _counted(problem.closing, ())
    return _counted(last.problem, tuple(_for_the_norm(last.problem, last.instructions)))


def clipping_document(problem: Problem, plan: Plan | None) -> dict[str, object]:
    """Clipping in `solve --json`."""
    found = clipping_of(problem, plan)
    there = found is not None and plan is not None
    return {
        "clip_norm": found is not None,
        "clip_gradient_bytes": None if found is None else found.gradient_bytes,
        "clip_bytes_moved": found.written_bytes + found.read_bytes if found and there else None,
        "clip_recomputes": found.recomputes if found and there else None,
        "clip_energy_j": float(found.energy_j) if found and there else None,
    }


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
    """Tell whether an operator adds up squares of gradients."""
    return SQUARES in kind.split(TOGETHER)


OF_PARAMETERS = (Role.PARAMETER, Role.OPTIMIZER_STATE)


def memory_document(problem: Problem, plan: Plan | None, taken_bytes: int | None) -> dict[str, object]:
    """All of the RAM in `solve --json`; None without a plan, whose `taken_bytes` have the reserve of kernels."""
    lasting = None if plan is None else plan.problem.nbytes(plan.problem.lasting)
    total, limit = None if taken_bytes is None else problem.beside_bytes + taken_bytes, problem.device_ram_bytes
    return {
        "total_ram_bytes": total,
        "fits_device": None if total is None or limit is None else total <= limit,
        "parameter_bytes_in_ram": _resident(problem) if problem.parameters == "resident" else lasting,
    }


def taken_bytes(plan: Plan, peak_bytes: int, arena_bytes: int) -> int:
    """RAM that a schedule takes, the reserve of kernels included; peak and arena as found."""
    return max(peak_bytes, arena_bytes + plan.problem.reserve_bytes)


def _resident(problem: Problem) -> int | None:
    """Bytes of parameters and states in the resident region; None without a network."""
    graph = problem.graph
    if graph is None:
        return None
    names = {graph.root(name) for name, tensor in graph.tensors.items() if tensor.role in OF_PARAMETERS}
    return sum(graph.tensors[name].nbytes for name in names)
