"""Budgets and deadlines that no schedule can keep, with the smallest that one can."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TypedDict

from poetopt.engine.greedy import greedy
from poetopt.engine.incumbent import Incumbent
from poetopt.engine.solution import DeadlineModel, Options
from poetopt.problem import Problem
from poetopt.schedule import Schedule


class Refusal(TypedDict, total=False):
    """Fields of a Solution that say why nothing is possible."""

    reason: str
    ram_bound_bytes: int
    least_ram_bytes: int | None
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
        least = least_ram(problem, options)
        needed = max(range(len(problem.operators)), key=problem.working_set_bytes)
        if problem.working_set_bytes(needed) >= problem.nbytes(problem.inputs):
            name = problem.operators[needed].name
            binds = f"operator {needed} '{name}' needs them for its inputs, outputs and workspace"
        else:
            binds = "the graph inputs alone take them at the start"
        found = (
            f"a schedule exists at {least:,} bytes"
            if least is not None
            else "no feasible budget was found by the heuristics"
        )
        return Refusal(
            reason=(
                f"the budget of {options.ram_bytes:,} bytes is below the {problem.least_ram_bytes:,} bytes that any "
                f"schedule needs ({binds}); {found}"
            ),
            ram_bound_bytes=problem.least_ram_bytes,
            least_ram_bytes=least,
        )
    return None


class Remedies(TypedDict, total=False):
    """Fields of a Solution without a plan that say what would help."""

    ram_bound_bytes: int
    least_ram_bytes: int | None
    least_deadline_s: float | None


def remedies(problem: Problem, options: Options) -> Remedies:
    """The smallest budget at this deadline, and the shortest deadline at this budget, for which a schedule is known."""
    found = Remedies(ram_bound_bytes=problem.least_ram_bytes, least_ram_bytes=least_ram(problem, options))
    if options.deadline_s is not None:
        found["least_deadline_s"] = _shortest(problem, options)
    return found


def _shortest(problem: Problem, options: Options) -> float | None:
    """Seconds of the quickest schedule that the heuristics find within the budget, or None."""
    quickest: float | None = None
    for schedule in _heuristic(problem, options, options.ram_bytes):
        trial = Incumbent(problem, replace(options, deadline_s=None))
        if trial.offer(schedule) and trial.best is not None:
            paper = options.deadline_model is DeadlineModel.PAPER
            simulation = trial.best.simulation
            time_s = simulation.compute_s if paper else simulation.makespan_s
            quickest = time_s if quickest is None else min(quickest, time_s)
    return quickest


def _heuristic(problem: Problem, options: Options, ram_bytes: int) -> Iterator[Schedule]:
    for paging, remat in dict.fromkeys([(options.paging, False), (options.paging, options.remat)]):
        for share in (1.0, 0.95, 0.88):
            schedule = greedy(problem, int(ram_bytes * share), paging=paging, remat=remat)
            if schedule is not None:
                yield schedule


def least_ram(problem: Problem, options: Options) -> int | None:
    """The smallest budget at which a schedule was found (simulated and laid out), by bisection; or None."""
    high = _store_all_bytes(problem, options)
    low = problem.least_ram_bytes
    if high is None:
        return None
    if _feasible(problem, options, low):
        return low
    while high - low > max(1, high // 200):
        middle = (low + high) // 2
        if _feasible(problem, options, middle):
            high = middle
        else:
            low = middle
    return high


def _store_all_bytes(problem: Problem, options: Options) -> int | None:
    plain = Incumbent(problem, replace(options, ram_bytes=1 << 62))
    plain.offer(Schedule())
    if plain.best is None:
        return None
    return max(plain.best.arena_bytes + problem.reserve_bytes, plain.best.simulation.peak_bytes)


def _feasible(problem: Problem, options: Options, ram_bytes: int) -> bool:
    trial = Incumbent(problem, replace(options, ram_bytes=ram_bytes))
    return any(trial.offer(schedule) for schedule in _heuristic(problem, options, ram_bytes))
