"""`po.compare` and `po.pareto`: what the commands of these names do, for scripts and notebooks."""

from __future__ import annotations

from collections.abc import Sequence

from poetopt.baselines.acceptance import Settings
from poetopt.comparison.budgets import in_bytes, parse_budgets
from poetopt.comparison.compare import Comparison
from poetopt.comparison.compare import Told as ToldMethod
from poetopt.comparison.compare import compare as run
from poetopt.comparison.pareto import Front
from poetopt.comparison.pareto import Told as ToldPoint
from poetopt.comparison.pareto import pareto as trace
from poetopt.errors import OptionError
from poetopt.plan.storeall import store_all_bytes
from poetopt.problem import Problem
from poetopt.units import Factor, Share, parse_deadline, parse_fraction, parse_ram, parse_time

POINT_S = 20.0
"""Seconds for one point of a front."""


def compare(
    problem: Problem,
    *,
    ram: str | int | Share | Sequence[str | int | Share] = "20%..100%/9",
    methods: str | Sequence[str] = "all",
    deadline: str | float | Factor | None = None,
    time_limit: str | float = 12.0,
    gap: str | float = 1e-3,
    threads: int = 0,
    told: ToldMethod | None = None,
) -> Comparison:
    """Methods side by side on the same budgets.

    ram
        Budgets: `"20%..100%/9"`, `"3MB,40%"`, or a sequence of single ones.
    methods
        `"all"`, names with commas between them, or a sequence of names.
    deadline
        Seconds, a time, or a multiple of one pass, that all plans keep.
    time_limit, gap, threads
        Of one solve, for the methods that solve an integer program.
    told
        Called with the method and the budget that are next.

    Raises OptionError for an unknown method or a budget that can't be understood.
    """
    if isinstance(ram, str):
        budgets = parse_budgets(ram)
    else:
        budgets = tuple(map(parse_ram, ram if isinstance(ram, Sequence) else [ram]))
    names = [name.strip() for name in methods.split(",")] if isinstance(methods, str) else list(methods)
    settings = Settings(
        deadline_s=_deadline_s(problem, deadline),
        time_limit_s=parse_time(time_limit, option="--time-limit"),
        gap=parse_fraction(gap, option="--gap"),
        threads=threads,
    )
    in_ram = in_bytes(budgets, store_all_bytes(problem))
    return run(problem, in_ram, None if names == ["all"] else names, settings, told)


def pareto(
    problem: Problem,
    *,
    points: int = 14,
    deadline: str | float | Factor | None = None,
    time_limit: str | float = 230.0,
    gap: str | float = 0.02,
    threads: int = 0,
    told: ToldPoint | None = None,
) -> Front:
    """The front of least energy against RAM, from the smallest feasible budget to store-all.

    points
        At most so many budgets.
    deadline
        As in `compare`.
    time_limit
        No new budget is taken up after so many seconds.
    gap, threads
        Of one solve.

    Raises InfeasibleError where no schedule keeps the deadline.
    """
    if points < 2:
        raise OptionError(f"--points {points}: a front has at least its two ends")
    limit = parse_time(time_limit, option="--time-limit")
    settings = Settings(
        deadline_s=_deadline_s(problem, deadline),
        time_limit_s=min(POINT_S, limit),
        gap=parse_fraction(gap, option="--gap"),
        threads=threads,
    )
    return trace(problem, points=points, settings=settings, time_limit_s=limit, told=told)


def _deadline_s(problem: Problem, deadline: str | float | Factor | None) -> float | None:
    parsed = None if deadline is None else parse_deadline(deadline)
    return parsed.times * problem.baseline_time_s if isinstance(parsed, Factor) else parsed
