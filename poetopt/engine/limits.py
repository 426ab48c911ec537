"""Budgets and deadlines: those that plainly no schedule can keep, and whether a simulated plan does."""

from __future__ import annotations

from typing import TypedDict

from poetopt.engine.solution import DeadlineModel, Options
from poetopt.formulations import formulation
from poetopt.plan.simulate import RELATIVE_TOLERANCE, Simulation
from poetopt.problem import Problem


class Refusal(TypedDict, total=False):
    """Fields of a Solution that say why nothing is possible."""

    reason: str
    ram_bound_bytes: int
    least_deadline_s: float


def impossible(problem: Problem, options: Options) -> Refusal | None:
    """Why no schedule can keep the options, or None where that isn't plain from sums."""
    if options.deadline_s is not None and options.deadline_s < problem.baseline_time_s * (1 - 1e-9):
        return Refusal(
            reason=(
                f"the deadline of {options.deadline_s:.6g} s is shorter than one pass over all operators, "
                f"{problem.baseline_time_s:.6g} s"
            ),
            least_deadline_s=problem.baseline_time_s,
        )
    if options.ram_bytes < problem.least_ram_bytes:
        return Refusal(
            reason=(
                f"the budget of {options.ram_bytes:,} bytes is below the {problem.least_ram_bytes:,} bytes that any "
                f"schedule needs ({_binds(problem)})"
            ),
            ram_bound_bytes=problem.least_ram_bytes,
        )
    return None


def within(options: Options, problem: Problem, simulation: Simulation, arena_bytes: int) -> bool:
    """Whether a simulated plan keeps the budget, the deadline and the moves of `options`; not what blocks ask."""
    room = options.ram_bytes - formulation(options.formulation).reserve_bytes(problem)
    if simulation.peak_bytes > room or arena_bytes > room - problem.reserve_bytes:
        return False
    if not options.paging and simulation.page_ins + simulation.page_outs:
        return False
    if not options.remat and simulation.recomputes:
        return False
    paper = options.deadline_model is DeadlineModel.PAPER
    time_s = simulation.compute_s if paper else simulation.makespan_s
    return options.deadline_s is None or time_s <= options.deadline_s * (1 + RELATIVE_TOLERANCE)


def _binds(problem: Problem) -> str:
    """What takes the least RAM of all, in words."""
    needed = max(range(len(problem.operators)), key=problem.working_set_bytes)
    inputs, working = problem.nbytes(problem.inputs), problem.working_set_bytes(needed)
    what = (
        f"operator {needed} '{problem.operators[needed].name}' takes {working:,} for its inputs, outputs and workspace"
        if working >= inputs
        else f"the graph inputs take {inputs:,} at the start"
    )
    return what + (f", kernels {problem.reserve_bytes:,} beside them" if problem.reserve_bytes else "")
