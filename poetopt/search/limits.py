"""Budgets and deadlines: those that plainly no schedule can keep, and whether a simulated plan does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

from poetopt.formulations import formulation
from poetopt.graph.problem import Problem
from poetopt.plan.simulate import RELATIVE_TOLERANCE, Simulation
from poetopt.search.solution import Options
from poetopt.util.units import show_limit


class Refusal(TypedDict, total=False):
    """Fields of a Solution that say why nothing is possible."""

    reason: str
    ram_bound_bytes: int
    deadline_bound_s: float


@dataclass(frozen=True)
class Step:
    """The bytes that must be in RAM while one operator runs for the first time, whatever the schedule.

    working_bytes
        Its inputs, outputs and workspace, in the way that takes the least.
    kept
        Tensors beside them that are read later, and that nothing can bring back.
    """

    operator: int
    working_bytes: int
    kept: tuple[int, ...]
    nbytes: int


def impossible(problem: Problem, options: Options) -> Refusal | None:
    """The reason why no schedule can keep the options, or None where that isn't plain from sums."""
    found, reasons = Refusal(), []
    if options.deadline_s is not None and options.deadline_s < problem.baseline_time_s * (1 - 1e-9):
        found["deadline_bound_s"] = problem.baseline_time_s
        reasons.append(
            f"the deadline of {options.deadline_s:.6g} s is shorter than one pass over all operators, "
            f"{show_limit(problem.baseline_time_s, 's')}"
        )
    step, least_s = hardest_step(problem, options), least_time_s(problem, options)
    if not reasons and options.deadline_s is not None and options.deadline_s < least_s * (1 - 1e-9):
        found["deadline_bound_s"] = least_s
        reasons.append(
            f"the deadline of {options.deadline_s:.6g} s is shorter than the {show_limit(least_s, 's')} that operators "
            "take which stream what the budget has no room for"
        )
    if options.ram_bytes < problem.least_ram_bytes:
        found["ram_bound_bytes"] = max(problem.least_ram_bytes, step.nbytes)
        reasons.append(
            f"the budget of {options.ram_bytes:,} bytes{_share_words(problem, options)} is below the "
            f"{problem.least_ram_bytes:,} bytes that any {kind(problem)} needs ({binds(problem)})"
        )
    elif options.ram_bytes < step.nbytes:
        found["ram_bound_bytes"] = step.nbytes
        reasons.append(
            f"the budget of {options.ram_bytes:,} bytes is below the {step.nbytes:,} bytes that any such "
            f"{kind(problem)} needs"
        )
    if not reasons:
        return None
    found["reason"] = ", and ".join(reasons)
    return found


def _share_words(problem: Problem, options: Options) -> str:
    """The spelling of a percentage, where a bare number may have been meant as one."""
    meant = 0 < options.ram_bytes <= 100 < problem.least_ram_bytes
    return f" ({options.ram_bytes}% would be a share of what ordinary training takes)" if meant else ""


def least_time_s(problem: Problem, options: Options) -> float:
    """The seconds of one run of each operator in the quickest way that fits the budget; of one that has none, plain."""
    room, paging = options.ram_bytes - problem.reserve_bytes, options.paging and problem.paging

    def quickest_s(k: int) -> float:
        operator = problem.operators[k]
        ways = problem.ways(k, paging=paging)
        fitting = (operator.variant(v).time_s for v in ways if problem.working_set_bytes(k, v) <= room)
        return min(fitting, default=operator.time_s)

    return sum(map(quickest_s, range(len(problem.operators))))


def kind(problem: Problem) -> str:
    """The schedules that sums are of: where operators might stream paged parameters and don't, of plain runs alone."""
    plain = problem.parameters == "paged" and not any(operator.variants for operator in problem.operators)
    return "schedule of plain runs" if plain else "schedule"


def hardest_step(problem: Problem, options: Options) -> Step:
    """The operator whose first run needs the most RAM, kernels' reserve included.

    Without paging what can't be computed again must stay from its making to its last reader; without
    recomputation as well, everything must.
    """
    paging = options.paging and problem.paging

    def lasting(i: int) -> bool:
        return not options.remat or not problem.may_recompute(i)

    last = [max(readers, default=-1) for readers in problem.readers]
    kept = [
        i for i, tensor in enumerate(problem.tensors) if not paging and lasting(i) and last[i] > tensor.producer + 1
    ]
    # Of each kept tensor the bytes count between its making and its last reader, but not while an operator uses it.
    change = [0] * (len(problem.operators) + 1)
    beside = [0] * len(problem.operators)
    for i in kept:
        change[problem.tensors[i].producer + 1] += problem.tensors[i].nbytes
        change[last[i]] -= problem.tensors[i].nbytes
        for t in problem.readers[i]:
            if t < last[i]:
                beside[t] -= problem.tensors[i].nbytes
    best, most, live = 0, -1, 0
    for t in range(len(problem.operators)):
        live += change[t]
        nbytes = problem.least_working_set_bytes(t, paging=paging) + live + beside[t]
        if nbytes > most:
            best, most = t, nbytes
    if most < 0:
        return Step(0, 0, (), -1)
    used = {*problem.operators[best].inputs, *problem.operators[best].outputs}
    there = tuple(i for i in kept if i not in used and problem.tensors[i].producer < best < last[i])
    return Step(best, problem.least_working_set_bytes(best, paging=paging), there, most + problem.reserve_bytes)


def placed_bytes(problem: Problem) -> int:
    """The least arena of any plan, with the reserve: the largest working set, each buffer at its alignment."""
    unit = problem.alignment

    def placed(sizes: Sequence[int]) -> int:
        rounded = [-(-size // unit) * unit for size in sizes]
        return sum(rounded) - max((whole - size for whole, size in zip(rounded, sizes, strict=True)), default=0)

    def run(k: int, variant: int) -> int:
        operator = problem.operators[k]
        sizes = [problem.tensors[i].nbytes for i in operator.held(variant)]
        return placed([*sizes, operator.variant(variant).workspace_bytes])

    start = placed([problem.tensors[i].nbytes for i in problem.at_start])
    runs = (min(run(k, variant) for variant in problem.ways(k)) for k in range(len(problem.operators)))
    return max(start, max(runs, default=0)) + problem.reserve_bytes


def taken_bytes(options: Options, problem: Problem, simulation: Simulation, arena_bytes: int) -> int:
    """The least budget in bytes that a simulated plan keeps."""
    reserved = formulation(options.formulation).reserve_bytes(problem)
    return reserved + max(simulation.peak_bytes, arena_bytes + problem.reserve_bytes)


def within(options: Options, problem: Problem, simulation: Simulation, arena_bytes: int) -> bool:
    """Say whether a simulated plan keeps the budget, the deadline and the moves of `options`; not what blocks ask."""
    if taken_bytes(options, problem, simulation, arena_bytes) > options.ram_bytes:
        return False
    if not options.paging and simulation.page_ins + simulation.page_outs:
        return False
    if not options.remat and simulation.recomputes:
        return False
    time_s = options.deadline_model.seconds(simulation)
    return options.deadline_s is None or time_s <= options.deadline_s * (1 + RELATIVE_TOLERANCE)


def binds(problem: Problem) -> str:
    """The operator that decides the least RAM of all, in words."""
    closing = problem.closing
    if closing is not None and closing.least_ram_bytes == problem.least_ram_bytes:
        return f"behind the last part of the batch, {binds(closing)}"
    needed = max(range(len(problem.operators)), key=problem.least_working_set_bytes)
    inputs, working = problem.nbytes(problem.at_start), problem.least_working_set_bytes(needed)
    what = (
        f"operator {needed} '{problem.operators[needed].name}' takes {working:,} for its inputs, outputs and workspace"
        if working >= inputs
        else f"the graph inputs take {inputs:,} at the start"
    )
    return what + (f", kernels {problem.reserve_bytes:,} beside them" if problem.reserve_bytes else "")
