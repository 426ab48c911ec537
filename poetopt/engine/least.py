"""The smallest budget and the shortest deadline for which a schedule is known: what a refused user can ask for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypedDict

from poetopt.engine.greedy import greedy
from poetopt.engine.incumbent import Candidate, Incumbent
from poetopt.engine.solution import DeadlineModel, Options, Solution
from poetopt.formulations import formulation
from poetopt.plan.storeall import store_all_bytes
from poetopt.problem import Problem
from poetopt.schedule import Schedule

Search = Callable[[Problem, Options], Solution]
"""A whole solve: the plan that it finds, if any, has been simulated and laid out."""

SEARCH_S = 8.0
"""Seconds that searching for the least budget may take."""
STEP_S = 2.5
"""Seconds of each solve in it."""
RESOLUTION = 500
"""Bisection stops at this fraction of the budget."""


Seen = Callable[[Candidate], None]
"""Is shown each plan that the heuristics find; may raise to end it all."""


class Remedies(TypedDict, total=False):
    """Fields of a Solution without a plan that say what would help."""

    ram_bound_bytes: int
    least_ram_bytes: int | None
    least_deadline_s: float | None
    interrupted: bool


class Interrupted(KeyboardInterrupt):
    """Ctrl-C in a bisection: the smallest budget that was `known` to fit by then."""

    def __init__(self, known: int) -> None:
        super().__init__()
        self.known = known


def remedies(
    problem: Problem, options: Options, search: Search, seconds: float = SEARCH_S, seen: Seen | None = None
) -> Remedies:
    """The smallest budget at this deadline, and the shortest deadline at this budget, for which a schedule is known.

    After an interrupt: what was known by then.
    """
    found = Remedies(ram_bound_bytes=problem.least_ram_bytes)
    try:
        found["least_ram_bytes"] = least_ram(problem, options, search, seconds, seen)
        if options.deadline_s is not None:
            one_pass = problem.baseline_time_s
            found["least_deadline_s"] = one_pass if options.deadline_s < one_pass else _shortest(problem, options, seen)
    except Interrupted as stop:
        found |= Remedies(least_ram_bytes=stop.known, interrupted=True)
    except KeyboardInterrupt:
        found["interrupted"] = True
    return found


def least_ram(
    problem: Problem,
    options: Options,
    search: Search | None = None,
    seconds: float = SEARCH_S,
    seen: Seen | None = None,
) -> int | None:
    """The smallest budget in bytes at which a schedule was found, at the deadline of `options`; None if there is none.

    It lies between `problem.least_ram_bytes`, which no schedule undercuts, and what ordinary training takes.

    search, seconds
        What decides where the heuristics give up, and about how long it may take; without it they are all there is.

    Raises Interrupted, a KeyboardInterrupt, at Ctrl-C.
    """
    if options.deadline_s is not None and options.deadline_s < problem.baseline_time_s * (1 - 1e-9):
        return None
    chosen = formulation(options.formulation)
    if chosen.impossible(problem) is not None or not chosen.judged:
        return None  # not a matter of RAM, or nobody can say that ordinary training is allowed
    until = time.monotonic() + seconds
    low = problem.least_ram_bytes
    high = _bisect(low, store_all_bytes(problem), lambda ram_bytes: _heuristic_fits(problem, options, ram_bytes, seen))
    if search is None:
        return high
    solving = replace(options, gap=1.0)

    def fits(ram_bytes: int) -> bool:
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        found = search(problem, replace(solving, ram_bytes=ram_bytes, time_limit_s=min(STEP_S, left)))
        if found.interrupted:
            raise KeyboardInterrupt
        return found.plan is not None

    return _bisect(low, high, fits)


def _bisect(low: int, high: int, fits: Callable[[int], bool]) -> int:
    """The smallest budget that `fits`, which `high` is known to do; stops where it raises TimeoutError."""
    try:
        if low >= high or fits(low):
            return min(low, high)
        while high - low > max(1, high // RESOLUTION):
            middle = (low + high) // 2
            if fits(middle):
                high = middle
            else:
                low = middle
    except TimeoutError:
        pass
    except KeyboardInterrupt as stop:
        raise Interrupted(high) from stop
    return high


def _shortest(problem: Problem, options: Options, seen: Seen | None) -> float | None:
    """Seconds of the quickest schedule that the heuristics find within the budget, or None."""
    quickest: float | None = None
    for schedule in heuristic(problem, options, options.ram_bytes):
        trial = Incumbent(problem, replace(options, deadline_s=None))
        if trial.offer(schedule) and trial.best is not None:
            if seen is not None:
                seen(trial.best)
            paper = options.deadline_model is DeadlineModel.PAPER
            simulation = trial.best.simulation
            time_s = simulation.compute_s if paper else simulation.makespan_s
            quickest = time_s if quickest is None else min(quickest, time_s)
    return quickest


def heuristic(problem: Problem, options: Options, ram_bytes: int) -> Iterator[Schedule]:
    """A few schedules that may fit `ram_bytes`, by greedy rules."""
    for paging, remat in dict.fromkeys([(options.paging, False), (options.paging, options.remat)]):
        for share in (1.0, 0.95, 0.88):
            schedule = greedy(problem, int(ram_bytes * share), paging=paging, remat=remat)
            if schedule is not None:
                yield schedule


def _heuristic_fits(problem: Problem, options: Options, ram_bytes: int, seen: Seen | None) -> bool:
    trial = Incumbent(problem, replace(options, ram_bytes=ram_bytes))
    for schedule in heuristic(problem, options, ram_bytes):
        if trial.offer(schedule) and trial.best is not None:
            if seen is not None:
                seen(trial.best)
            return True
    return False
