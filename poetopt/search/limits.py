"""Sums that prove a budget or deadline infeasible, and the check of simulated plans against the options."""

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
    """Fields of a Solution for a problem that is infeasible by sums."""

    reason: str
    ram_bound_bytes: int
    deadline_bound_s: float


@dataclass(frozen=True)
class Step:
    """Bytes that must be in RAM while one operator runs for the first time, in any schedule.

    Attributes
    ----------
    operator
        Index of the operator.
    working_bytes
        Bytes of its inputs, outputs and workspace, in the variant that takes the least.
    kept
        Other tensors that are read later, and that nothing can bring back.
    nbytes
        Bytes altogether, with the kernels' reserve.
    """

    operator: int
    working_bytes: int
    kept: tuple[int, ...]
    nbytes: int


def impossible(problem: Problem, options: Options) -> Refusal | None:
    """Return why sums prove that no schedule fits the options, or None if they don't."""
    fields, reasons = Refusal(), []
    if options.deadline_s is not None and options.deadline_s < problem.baseline_time_s * (1 - 1e-9):
        fields["deadline_bound_s"] = problem.baseline_time_s
        reasons.append(
            f"the deadline of {options.deadline_s:.6g} s is shorter than one pass over all operators, "
            f"{show_limit(problem.baseline_time_s, 's')}"
        )
    step, least_s = hardest_step(problem, options), least_time_s(problem, options)
    if not reasons and options.deadline_s is not None and options.deadline_s < least_s * (1 - 1e-9):
        fields["deadline_bound_s"] = least_s
        reasons.append(
            f"the deadline of {options.deadline_s:.6g} s is shorter than the {show_limit(least_s, 's')} of one pass in "
            "which operators stream the tensors that don't fit the budget"
        )
    if options.ram_bytes < problem.least_ram_bytes:
        fields["ram_bound_bytes"] = max(problem.least_ram_bytes, step.nbytes)
        reasons.append(
            f"the budget of {options.ram_bytes:,} bytes{_percentage_hint(problem, options)} is below the "
            f"{problem.least_ram_bytes:,} bytes that any {kind(problem)} needs ({binds(problem)})"
        )
    elif options.ram_bytes < step.nbytes:
        fields["ram_bound_bytes"] = step.nbytes
        reasons.append(
            f"the budget of {options.ram_bytes:,} bytes is below the {step.nbytes:,} bytes that any such "
            f"{kind(problem)} needs"
        )
    if not reasons:
        return None
    fields["reason"] = ", and ".join(reasons)
    return fields


def _percentage_hint(problem: Problem, options: Options) -> str:
    """Return a hint if a bare number may have been meant as a percentage."""
    is_ambiguous = 0 < options.ram_bytes <= 100 < problem.least_ram_bytes
    return f" ({options.ram_bytes}% would be a share of the RAM of ordinary training)" if is_ambiguous else ""


def least_time_s(problem: Problem, options: Options) -> float:
    """Return the seconds of one run of each operator in its fastest variant that fits (plain if none does)."""
    budget_bytes, paging = options.ram_bytes - problem.reserve_bytes, options.paging and problem.paging

    def quickest_s(k: int) -> float:
        operator = problem.operators[k]
        variants = problem.ways(k, paging=paging)
        seconds = (operator.variant(v).time_s for v in variants if problem.working_set_bytes(k, v) <= budget_bytes)
        return min(seconds, default=operator.time_s)

    return sum(map(quickest_s, range(len(problem.operators))))


def kind(problem: Problem) -> str:
    """Return the schedules that sums are about: of plain runs alone if operators might stream and don't."""
    is_plain = problem.parameters == "paged" and not any(operator.variants for operator in problem.operators)
    return "schedule of plain runs" if is_plain else "schedule"


def hardest_step(problem: Problem, options: Options) -> Step:
    """Return the operator whose first run needs the most RAM, with the kernels' reserve.

    Without paging, a tensor that can't be recomputed must stay until its last reader. Without recomputation as well,
    every tensor must.
    """
    paging = options.paging and problem.paging

    def must_stay(i: int) -> bool:
        return not options.remat or not problem.may_recompute(i)

    last = [max(readers, default=-1) for readers in problem.readers]
    kept = [
        i for i, tensor in enumerate(problem.tensors) if not paging and must_stay(i) and last[i] > tensor.producer + 1
    ]
    # The bytes of a kept tensor count from its producer to its last reader, but not while an operator uses it.
    change = [0] * (len(problem.operators) + 1)
    used_bytes = [0] * len(problem.operators)
    for i in kept:
        change[problem.tensors[i].producer + 1] += problem.tensors[i].nbytes
        change[last[i]] -= problem.tensors[i].nbytes
        for t in problem.readers[i]:
            if t < last[i]:
                used_bytes[t] -= problem.tensors[i].nbytes
    hardest, max_bytes, live = 0, -1, 0
    for t in range(len(problem.operators)):
        live += change[t]
        nbytes = problem.least_working_set_bytes(t, paging=paging) + live + used_bytes[t]
        if nbytes > max_bytes:
            hardest, max_bytes = t, nbytes
    if max_bytes < 0:
        return Step(0, 0, (), -1)
    used = {*problem.operators[hardest].inputs, *problem.operators[hardest].outputs}
    meanwhile = tuple(i for i in kept if i not in used and problem.tensors[i].producer < hardest < last[i])
    return Step(
        hardest,
        problem.least_working_set_bytes(hardest, paging=paging),
        meanwhile,
        max_bytes + problem.reserve_bytes,
    )


def placed_bytes(problem: Problem) -> int:
    """Return the least arena of any plan with the reserve: the largest working set of aligned buffers."""
    unit = problem.alignment

    def aligned_bytes(sizes: Sequence[int]) -> int:
        rounded = [-(-size // unit) * unit for size in sizes]
        return sum(rounded) - max((padded - size for padded, size in zip(rounded, sizes, strict=True)), default=0)

    def run_bytes(k: int, variant: int) -> int:
        operator = problem.operators[k]
        sizes = [problem.tensors[i].nbytes for i in operator.held(variant)]
        return aligned_bytes([*sizes, operator.variant(variant).workspace_bytes])

    start_bytes = aligned_bytes([problem.tensors[i].nbytes for i in problem.at_start])
    run_sizes = (min(run_bytes(k, variant) for variant in problem.ways(k)) for k in range(len(problem.operators)))
    return max(start_bytes, max(run_sizes, default=0)) + problem.reserve_bytes


def taken_bytes(options: Options, problem: Problem, simulation: Simulation, arena_bytes: int) -> int:
    """Return the least budget in bytes that a simulated plan fits."""
    reserved = formulation(options.formulation).reserve_bytes(problem)
    return reserved + max(simulation.peak_bytes, arena_bytes + problem.reserve_bytes)


def within(options: Options, problem: Problem, simulation: Simulation, arena_bytes: int) -> bool:
    """Return whether a simulated plan satisfies the options: budget, deadline, paging and recomputation."""
    if taken_bytes(options, problem, simulation, arena_bytes) > options.ram_bytes:
        return False
    if not options.paging and simulation.page_ins + simulation.page_outs:
        return False
    if not options.remat and simulation.recomputes:
        return False
    time_s = options.deadline_model.seconds(simulation)
    return options.deadline_s is None or time_s <= options.deadline_s * (1 + RELATIVE_TOLERANCE)


def binds(problem: Problem) -> str:
    """Return the operator that determines the least RAM of all plans, in words."""
    update_phase = problem.closing
    if update_phase is not None and update_phase.least_ram_bytes == problem.least_ram_bytes:
        return f"after the last part of the batch, {binds(update_phase)}"
    k = max(range(len(problem.operators)), key=problem.least_working_set_bytes)
    inputs, working = problem.nbytes(problem.at_start), problem.least_working_set_bytes(k)
    words = (
        f"operator {k} '{problem.operators[k].name}' takes {working:,} for its inputs, outputs and workspace"
        if working >= inputs
        else f"the graph inputs take {inputs:,} at the start"
    )
    return words + (f", kernels {problem.reserve_bytes:,} beside them" if problem.reserve_bytes else "")
