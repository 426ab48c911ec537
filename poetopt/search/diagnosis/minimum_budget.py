"""Smallest budget and shortest deadline with a known schedule, as remedies for a problem without one."""

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
"""Complete solve: the plan of its solution, if any, has been simulated and laid out."""

SEARCH_S = 8.0
"""Seconds for the search of the least budget and the shortest deadline together."""
HEURISTICS_SHARE = 0.5
"""Share of each for heuristics, if a search follows."""
STEP_S = 2.5
"""Seconds of each solve in it."""
MIN_STEP_S = 0.2
"""Least seconds of a solve."""
CLIMB_PARTS = (64, 16, 4)
"""Parts of the range between the bound and ordinary training that the heuristics try first: replays at small budgets
take less work, and often no more RAM is needed."""
RESOLUTION = 500
"""Fraction of the budget or the deadline at which bisection stops."""


Observer = Callable[[Candidate], None]
"""Callback for each plan that the heuristics find."""


class Remedies(TypedDict, total=False):
    """Fields of a Solution without a plan that describe remedies."""

    ram_bound_bytes: int
    least_ram_bytes: int | None
    least_deadline_s: float | None
    deadline_bound_s: float
    interrupted: bool


class BisectionInterrupted(KeyboardInterrupt):
    """Ctrl-C in a bisection; `known` is the smallest budget that is known to be feasible."""

    def __init__(self, known: int) -> None:
        super().__init__()
        self.known = known


def remedies(
    problem: Problem,
    options: Options,
    search: Search | None,
    seconds: float = SEARCH_S,
    observer: Observer | None = None,
) -> Remedies:
    """Return the smallest known feasible budget at this deadline, and the shortest deadline at this budget.

    After an interrupt it is what was known by then.

    Parameters
    ----------
    search
        Solve for cases in which the heuristics give up. Without it the result is the same in each call.
    seconds
        Time limit of both searches together, if there is a `search`.
    """
    begin = time.monotonic()
    one_pass, deadline_s = problem.baseline_time_s, options.deadline_s
    has_deadline = deadline_s is not None and deadline_s >= one_pass
    seconds = math.inf if search is None else seconds
    fields = Remedies(ram_bound_bytes=problem.least_ram_bytes)
    try:
        until = begin + (seconds / 2 if has_deadline else seconds)
        fields["least_ram_bytes"] = least_ram(problem, options, search, until, observer)
        if has_deadline:
            fields["least_deadline_s"] = least_deadline(problem, options, search, begin + seconds, observer)
        elif deadline_s is not None:
            fields["deadline_bound_s"] = one_pass
            fields["least_deadline_s"] = _immediate_deadline(problem, options, observer)
    except BisectionInterrupted as stop:
        fields |= Remedies(least_ram_bytes=stop.known, interrupted=True)
    except KeyboardInterrupt:
        fields["interrupted"] = True
    return fields


def _immediate_deadline(problem: Problem, options: Options, observer: Observer | None) -> float | None:
    """Return a feasible deadline within the budget, without a search: one pass if everything fits."""
    chosen = formulation(options.formulation)
    if options.ram_bytes < problem.least_ram_bytes or not (chosen.judged and chosen.plans_count):
        return None
    if store_all_bytes(problem) <= options.ram_bytes:
        return problem.baseline_time_s
    return _shortest(problem, options, math.inf, observer, Work(WORK))


def least_ram(
    problem: Problem,
    options: Options,
    search: Search | None = None,
    until: float = math.inf,
    observer: Observer | None = None,
    work: Work | None = None,
) -> int | None:
    """Return the smallest budget in bytes with a known schedule at the deadline of `options`, or None.

    It lies between the bytes of the hardest step, which no schedule undercuts, and those of ordinary training.

    Parameters
    ----------
    search
        Solve for budgets at which the heuristics give up. Without it the result is the same in each call.
    until
        Moment (of `time.monotonic`) by which the search returns what is known.
    work
        Limit for the heuristics, `WORK` by default; `work.over` tells that they were cut short.

    Raises
    ------
    BisectionInterrupted
        At Ctrl-C; it is a KeyboardInterrupt.
    """
    if options.deadline_s is not None and options.deadline_s < problem.baseline_time_s * (1 - 1e-9):
        return None
    chosen = formulation(options.formulation)
    if chosen.impossible(problem) is not None or not chosen.judged:
        return None  # RAM doesn't help, or ordinary training may not be allowed
    may_be_late = options.deadline_s is not None and problem.closing is not None
    store_all_plan = store_all(problem.on_any_storage()) if may_be_late else None
    if store_all_plan is not None and simulate(store_all_plan).makespan_s > (options.deadline_s or 0.0):
        return None  # the update after the last part is too late with any RAM
    # The bound is often feasible, and bisection to a fraction of the budget would miss it.
    low = max(problem.least_ram_bytes, hardest_step(problem, options).nbytes, placed_bytes(problem))
    high = store_all_bytes(problem)
    if chosen.plans_count:
        heuristics_until = until if search is None else _heuristics_end(until)
        work = Work(WORK) if work is None else work
        high = _bisect(
            low,
            high,
            lambda ram_bytes: _heuristic_fits(problem, options, ram_bytes, heuristics_until, observer, work),
            CLIMB_PARTS,
        )
    if search is None:
        return high if chosen.plans_count else None

    def fits(ram_bytes: int) -> int | None:
        solution = solve_in_time(problem, replace(options, ram_bytes=ram_bytes), search, until)
        if solution.simulation is None or solution.arena_bytes is None:
            return None
        return taken_bytes(options, problem, solution.simulation, solution.arena_bytes)

    if not chosen.plans_count:  # ordinary training may be no point of it, or take more bytes
        try:
            n_bytes = fits(high)
        except TimeoutError:
            n_bytes = None
        if n_bytes is None:
            return None
    # With a deadline the bound is seldom feasible, and a search in vain takes a whole step.
    return _bisect(low, high, fits, low_first=options.deadline_s is None)


def least_deadline(
    problem: Problem,
    options: Options,
    search: Search | None = None,
    until: float = math.inf,
    observer: Observer | None = None,
) -> float | None:
    """Return the seconds of the fastest schedule that is found within the budget by the moment `until`, or None.

    Heuristics come first, then any schedule at deadlines between theirs and the one of `options`. Deadlines with slack
    are solved in a fraction of a second, while the search for the fastest schedule of all takes long. Without a search
    the result is the same in each call.
    """
    asked_s, chosen = options.deadline_s, formulation(options.formulation)
    plans_count = chosen.plans_count
    heuristics_until = until if search is None else _heuristics_end(until)
    quickest = _shortest(problem, options, heuristics_until, observer, Work(WORK)) if plans_count else None
    if search is None or asked_s is None or options.deadline_model is DeadlineModel.PAPER or not chosen.judged:
        return quickest
    low = asked_s
    try:
        if quickest is None:
            quickest = _makespan_s(solve_in_time(problem, replace(options, deadline_s=None), search, until))
        while quickest is not None and quickest - low > quickest / RESOLUTION:
            middle = (low + quickest) / 2
            makespan_s = _makespan_s(solve_in_time(problem, replace(options, deadline_s=middle), search, until))
            if makespan_s is None:
                low = middle
            else:
                quickest = min(quickest, makespan_s)
    except TimeoutError:
        pass
    return quickest


def solve_in_time(
    problem: Problem, options: Options, search: Search, until: float, *, gap: float = 1.0, most_s: float = STEP_S
) -> Solution:
    """Return a solution within `gap`, in at most `most_s`. Raise TimeoutError at `until`."""
    left_s = until - time.monotonic()
    if left_s < MIN_STEP_S:
        raise TimeoutError
    solution = search(problem, replace(options, gap=gap, time_limit_s=min(most_s, left_s)))
    if solution.interrupted:
        raise KeyboardInterrupt
    return solution


def _makespan_s(solution: Solution) -> float | None:
    return None if solution.simulation is None else solution.simulation.makespan_s


def _heuristics_end(until: float) -> float:
    """Return the moment at which heuristics leave the rest of the time to a search."""
    now = time.monotonic()
    return now + HEURISTICS_SHARE * max(0.0, until - now)


def _bisect(
    low: int, high: int, fits: Callable[[int], int | None], shares: Sequence[int] = (), *, low_first: bool = True
) -> int:
    """Return the smallest budget at which a schedule was found; one is known at `high`.

    Parameters
    ----------
    fits
        Function that returns the bytes of a schedule within a budget, or None if none is found. It raises
        TimeoutError or OutOfWorkError to stop.
    shares
        Parts of the range by which to climb from `low`, before it is halved.
    """
    least_bytes, steps = high, iter(shares)
    try:
        if low >= high or (low_first and fits(low) is not None):
            return min(low, high)
        while high - low > max(1, high // RESOLUTION):
            middle = low + max(1, (high - low) // next(steps, 2))
            n_bytes = fits(middle)
            if n_bytes is None:
                low = middle
            else:
                high, least_bytes, steps = middle, n_bytes, iter(())
        # The last schedule may need less than its budget, but that budget counts only if a schedule is found for it.
        if low < least_bytes < high and fits(least_bytes) is not None:
            high = least_bytes
    except (TimeoutError, OutOfWorkError):
        pass
    except KeyboardInterrupt as stop:
        raise BisectionInterrupted(high) from stop
    return high


def _shortest(problem: Problem, options: Options, until: float, observer: Observer | None, work: Work) -> float | None:
    """Return the seconds of the fastest schedule within the budget by heuristics, or None; try one at least."""
    quickest: float | None = None
    prices = quick_prices(problem) if until < math.inf else []  # without a search the result is immediate
    for second_j in (0.0, *prices):
        for schedule in greedy_schedules(problem, options, options.ram_bytes, work, second_j):
            trial = Incumbent(problem, replace(options, deadline_s=None))
            if trial.offer(schedule, quick=True) and trial.best is not None:
                if quickest is None or trial.best.simulation.compute_s < quickest:
                    trial.hide_transfers(quick=True)
                if observer is not None:
                    observer(trial.best)
                time_s = options.deadline_model.seconds(trial.best.simulation)
                quickest = time_s if quickest is None else min(quickest, time_s)
            if time.monotonic() > until:
                return quickest
    return quickest


def _heuristic_fits(
    problem: Problem, options: Options, ram_bytes: int, until: float, observer: Observer | None, work: Work
) -> int | None:
    """Return the bytes of the heuristics' schedule for a budget.

    Raise TimeoutError if they have none by `until`, OutOfWorkError if they have none within the work.
    """
    trial = Incumbent(problem, replace(options, ram_bytes=ram_bytes))
    for schedule in greedy_schedules(problem, options, ram_bytes, work):
        if time.monotonic() > until:
            raise TimeoutError
        if trial.offer(schedule, quick=True) and trial.best is not None:
            if observer is not None:
                observer(trial.best)
            return taken_bytes(options, problem, trial.best.simulation, trial.best.arena_bytes)
    if work.over:
        raise OutOfWorkError
    return None
