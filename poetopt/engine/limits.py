"""Budgets and deadlines that plainly no schedule can keep."""

from __future__ import annotations

from typing import TypedDict

from poetopt.engine.solution import Options
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
