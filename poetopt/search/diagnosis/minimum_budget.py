"""The smallest budget and the shortest deadline for which a schedule is known: what a refused user can ask for."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypedDict

from poetopt.formulations import formulation
from poetopt.graph.problem import Problem
from poetopt.plan.assemble import store_all, store_all_bytes
from poetopt.plan.simulate import simulate
from poetopt.search.constructive import greedy_schedules, quick_prices
from poetopt.search.incumbent import Candidate, Incumbent
from poetopt.search.limits import hardest_step, placed_bytes, taken_bytes
from poetopt.search.solution import DeadlineModel, Options, Solution
from poetopt.search.tuning import WORK
from poetopt.util.work import OutOfWorkError, Work

Search = Callable[[Problem, Options], Solution]
"""A whole solve: the plan that it finds, if any, has been simulated and laid out."""

SEARCH_S = 8.0
"""Seconds that searching for the least budget and the shortest deadline may take together."""
HEURISTICS_SHARE = 0.5
"""Share of each that heuristics may take, where a search is to follow."""
STEP_S = 2.5
"""Seconds of each solve in it."""
LEAST_STEP_S = 0.2
"""Nothing is solved in less."""
CLIMB = (64, 16, 4)
"""Parts of what lies between the bound and ordinary training that the heuristics try first: replays at small budgets
take less work, and often no more RAM is needed."""
RESOLUTION = 500
"""Bisection stops at this fraction of the budget or the deadline."""


Seen = Callable[[Candidate], None]
"""Is shown each plan that the heuristics find."""


class Remedies(TypedDict, total=False):
    """Fields of a Solution without a plan that say what would help."""

    ram_bound_bytes: int
    least_ram_bytes: int | None
    least_deadline_s: float | None
    deadline_bound_s: float
    interrupted: bool


class Interrupted(KeyboardInterrupt):
    """Ctrl-C in a bisection: the smallest budget that was `known` to fit by then."""

    def __init__(self, known: int) -> None:
        super().__init__()
        self.known = known


def remedies(
    problem: Problem, options: Options, search: Search | None, seconds: float = SEARCH_S, seen: Seen | None = None
) -> Remedies:
    """The smallest budget at this deadline, and the shortest deadline at this budget, for which a schedule is known.

    search
        A whole solve, for where the heuristics give up. Without it the answer is the same in each call.
    seconds
        What both may take together with a search; what is known by then is the answer.

    After an interrupt: what was known by then.
    """
    begin = time.monotonic()
    one_pass, asked_s = problem.baseline_time_s, options.deadline_s
    timed = asked_s is not None and asked_s >= one_pass
    seconds = math.inf if search is None else seconds
    found = Remedies(ram_bound_bytes=problem.least_ram_bytes)
    try:
        until = begin + (seconds / 2 if timed else seconds)
        found["least_ram_bytes"] = least_ram(problem, options, search, until, seen)
        if timed:
            found["least_deadline_s"] = least_deadline(problem, options, search, begin + seconds, seen)
        elif asked_s is not None:
            found["deadline_bound_s"] = one_pass
            found["least_deadline_s"] = _at_once(problem, options, seen)
    except Interrupted as stop:
        found |= Remedies(least_ram_bytes=stop.known, interrupted=True)
    except KeyboardInterrupt:
        found["interrupted"] = True
    return found


def _at_once(problem: Problem, options: Options, seen: Seen | None) -> float | None:
    """A deadline that is feasible within the budget, found without a search: one pass where everything fits."""
    chosen = formulation(options.formulation)
    if options.ram_bytes < problem.least_ram_bytes or not (chosen.judged and chosen.plans_count):
        return None
    if store_all_bytes(problem) <= options.ram_bytes:
        return problem.baseline_time_s
    return _shortest(problem, options, math.inf, seen, Work(WORK))


def least_ram(
    problem: Problem,
    options: Options,
    search: Search | None = None,
    until: float = math.inf,
    seen: Seen | None = None,
    work: Work | None = None,
) -> int | None:
    """The smallest budget in bytes at which a schedule was found, at the deadline of `options`; None if there is none.

    It lies between what the hardest step needs, which no schedule undercuts, and what ordinary training takes.

    search
        What decides where the heuristics give up; without it they are all there is, and the answer is the same in
        each call.
    until
        The moment (of `time.monotonic`) by which the search answers with what is known.
    work
        What the heuristics may do, `WORK` by default; `work.over` says that they were cut short.

    Raises Interrupted, a KeyboardInterrupt, at Ctrl-C.
    """
    if options.deadline_s is not None and options.deadline_s < problem.baseline_time_s * (1 - 1e-9):
        return None
    chosen = formulation(options.formulation)
    if chosen.impossible(problem) is not None or not chosen.judged:
        return None  # not a matter of RAM, or nobody can say that ordinary training is allowed
    late = options.deadline_s is not None and problem.closing is not None
    ordinary = store_all(problem.on_any_storage()) if late else None
    if ordinary is not None and simulate(ordinary).makespan_s > (options.deadline_s or 0.0):
        return None  # by what comes behind the last part, whatever the RAM
    # The bound is often met exactly, and bisection to a fraction of the budget would end beside it.
    low = max(problem.least_ram_bytes, hardest_step(problem, options).nbytes, placed_bytes(problem))
    high = store_all_bytes(problem)
    if chosen.plans_count:
        enough = until if search is None else _for_heuristics(until)
        work = Work(WORK) if work is None else work
        high = _bisect(
            low, high, lambda ram_bytes: _heuristic_fits(problem, options, ram_bytes, enough, seen, work), CLIMB
        )
    if search is None:
        return high if chosen.plans_count else None

    def fits(ram_bytes: int) -> int | None:
        found = solve_in_time(problem, replace(options, ram_bytes=ram_bytes), search, until)
        if found.simulation is None or found.arena_bytes is None:
            return None
        return taken_bytes(options, problem, found.simulation, found.arena_bytes)

    if not chosen.plans_count:  # ordinary training is none of its points, or takes more there
        try:
            taken = fits(high)
        except TimeoutError:
            taken = None
        if taken is None:
            return None
    # In a hurry little RAM seldom does, and whoever searches for it in vain takes a whole step.
    return _bisect(low, high, fits, low_first=options.deadline_s is None)


def least_deadline(
    problem: Problem, options: Options, search: Search | None = None, until: float = math.inf, seen: Seen | None = None
) -> float | None:
    """Seconds of the quickest schedule that is found within the budget by the moment `until`, or None.

    Heuristics first, then any schedule at deadlines between theirs and the one of `options`: those that leave room are
    solved in a fraction of a second, where the quickest of all is searched for long. Without a search the answer is the
    same in each call.
    """
    asked_s, chosen = options.deadline_s, formulation(options.formulation)
    counts = chosen.plans_count
    enough = until if search is None else _for_heuristics(until)
    quickest = _shortest(problem, options, enough, seen, Work(WORK)) if counts else None
    if search is None or asked_s is None or options.deadline_model is DeadlineModel.PAPER or not chosen.judged:
        return quickest
    low = asked_s
    try:
        if quickest is None:
            quickest = _makespan_s(solve_in_time(problem, replace(options, deadline_s=None), search, until))
        while quickest is not None and quickest - low > quickest / RESOLUTION:
            middle = (low + quickest) / 2
            found_s = _makespan_s(solve_in_time(problem, replace(options, deadline_s=middle), search, until))
            if found_s is None:
                low = middle
            else:
                quickest = min(quickest, found_s)
    except TimeoutError:
        pass
    return quickest


def solve_in_time(
    problem: Problem, options: Options, search: Search, until: float, *, gap: float = 1.0, most_s: float = STEP_S
) -> Solution:
    """A schedule within `gap`, in at most `most_s`. Raises TimeoutError at `until`, and KeyboardInterrupt."""
    left = until - time.monotonic()
    if left < LEAST_STEP_S:
        raise TimeoutError
    found = search(problem, replace(options, gap=gap, time_limit_s=min(most_s, left)))
    if found.interrupted:
        raise KeyboardInterrupt
    return found


def _makespan_s(found: Solution) -> float | None:
    return None if found.simulation is None else found.simulation.makespan_s


def _for_heuristics(until: float) -> float:
    """The moment at which they leave the rest of the time to a search."""
    now = time.monotonic()
    return now + HEURISTICS_SHARE * max(0.0, until - now)


def _bisect(
    low: int, high: int, fits: Callable[[int], int | None], shares: Sequence[int] = (), *, low_first: bool = True
) -> int:
    """The smallest budget at which a schedule was found, as one is known to be at `high`.

    fits
        The bytes that a schedule within a budget takes, or None where none is found. Raises TimeoutError or
        OutOfWorkError to stop.
    shares
        Which parts of what lies between to climb by from `low`, before it is halved.
    """
    taken, steps = high, iter(shares)
    try:
        if low >= high or (low_first and fits(low) is not None):
            return min(low, high)
        while high - low > max(1, high // RESOLUTION):
            middle = low + max(1, (high - low) // next(steps, 2))
            found = fits(middle)
            if found is None:
                low = middle
            else:
                high, taken, steps = middle, found, iter(())
        # What the last one leaves of its budget isn't needed, but only what is found there can be asked for.
        if low < taken < high and fits(taken) is not None:
            high = taken
    except (TimeoutError, OutOfWorkError):
        pass
    except KeyboardInterrupt as stop:
        raise Interrupted(high) from stop
    return high


def _shortest(problem: Problem, options: Options, until: float, seen: Seen | None, work: Work) -> float | None:
    """Seconds of the quickest schedule that the heuristics find within the budget, or None; one is tried at least."""
    quickest: float | None = None
    prices = quick_prices(problem) if until < math.inf else []  # without a search the answer comes at once
    for second_j in (0.0, *prices):
        for schedule in greedy_schedules(problem, options, options.ram_bytes, work, second_j):
            trial = Incumbent(problem, replace(options, deadline_s=None))
            if trial.offer(schedule, quick=True) and trial.best is not None:
                if quickest is None or trial.best.simulation.compute_s < quickest:
                    trial.hide_transfers(quick=True)
                if seen is not None:
                    seen(trial.best)
                time_s = options.deadline_model.seconds(trial.best.simulation)
                quickest = time_s if quickest is None else min(quickest, time_s)
            if time.monotonic() > until:
                return quickest
    return quickest


def _heuristic_fits(
    problem: Problem, options: Options, ram_bytes: int, until: float, seen: Seen | None, work: Work
) -> int | None:
    """Bytes that the heuristics' schedule for a budget takes.

    Raises TimeoutError where they had none by `until`, OutOfWorkError where they had none within the work.
    """
    trial = Incumbent(problem, replace(options, ram_bytes=ram_bytes))
    for schedule in greedy_schedules(problem, options, ram_bytes, work):
        if time.monotonic() > until:
            raise TimeoutError
        if trial.offer(schedule, quick=True) and trial.best is not None:
            if seen is not None:
                seen(trial.best)
            return taken_bytes(options, problem, trial.best.simulation, trial.best.arena_bytes)
    if work.over:
        raise OutOfWorkError
    return None
