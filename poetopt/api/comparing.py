"""`po.compare` and `po.pareto`: what the commands of these names do, for scripts and notebooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from poetopt.api.problems import CompareOptions, checked_scope, taken
from poetopt.comparison.baselines import Baseline, names
from poetopt.comparison.baselines.acceptance import Settings
from poetopt.comparison.compare import Comparison
from poetopt.comparison.compare import Told as ToldMethod
from poetopt.comparison.compare import compare as run
from poetopt.comparison.pareto import Front
from poetopt.comparison.pareto import Told as ToldPoint
from poetopt.comparison.pareto import pareto as trace
from poetopt.comparison.rows import in_bytes, parse_budgets
from poetopt.graph.problem import Problem
from poetopt.plan.storeall import store_all_bytes
from poetopt.util.errors import OptionError
from poetopt.util.progress import telling
from poetopt.util.units import (
    Factor,
    Share,
    parse_deadline,
    parse_fraction,
    parse_ram,
    parse_time,
)

if TYPE_CHECKING:
    from poetopt.api.problems import Solvable

POINT_S = 20.0
"""Seconds for one point of a front."""


def compare(
    problem: Solvable,
    *,
    ram: str | int | Share | Sequence[str | int | Share] = "20%..100%/9",
    methods: str | Baseline | Sequence[str | Baseline] = "all",
    time_limit: str | float = 12.0,
    told: ToldMethod | None = None,
    progress: bool = False,
    **options: Unpack[CompareOptions],
) -> Comparison:
    """Methods side by side on the same budgets.

    problem
        A problem, or a model (the path of its file, a zoo network's name, what `load` or `differentiate` gave): then
        with `device`, and for a path with the options of `load` and `Model.differentiate`.
    ram
        Budgets: `"20%..100%/9"`, `"3MB,40%"`, or a sequence of single ones.
    methods
        Names separated by commas, a `Baseline`, or a sequence of both; `"all"` stands for every method, also beside
        others.
    time_limit
        Of one solve, for the methods that solve an integer program.
    options
        `device`, `profile` and `runtime`, as for `Training.cost`; `deadline`, that all plans keep: seconds, a time, or
        a multiple of one pass; `gap`, `threads`, `backend` and `scope` of one solve, as in `solve`.
    told
        Called with the method and the budget that are next.
    progress
        Write that to stderr. Whoever listens to the log `poetopt` at INFO gets it there.

    Raises OptionError for an unknown method or a budget that can't be understood.
    """
    found, rest = taken(problem, options)
    if isinstance(ram, str):
        budgets = parse_budgets(ram)
    else:
        budgets = tuple(map(parse_ram, ram if isinstance(ram, Sequence) else [ram]))
    asked: Sequence[str | Baseline]
    if isinstance(methods, str):
        asked = [name.strip() for name in methods.split(",")]
    else:
        asked = [methods] if isinstance(methods, Baseline) else list(methods)
    if "all" in asked:
        asked = [*names(), *(given for given in asked if isinstance(given, Baseline))]
    settings = _settings(found, parse_time(time_limit, option="--time-limit"), 1e-3, rest)
    in_ram = in_bytes(budgets, store_all_bytes(found))
    say = telling(progress)

    def next_up(name: str, budget: int) -> None:
        say(f"{name} at {budget:,} B")
        if told is not None:
            told(name, budget)

    return run(found, in_ram, asked, settings, next_up)


def pareto(
    problem: Solvable,
    *,
    points: int = 14,
    time_limit: str | float = 230.0,
    told: ToldPoint | None = None,
    progress: bool = False,
    **options: Unpack[CompareOptions],
) -> Front:
    """The front of least energy against RAM, from the smallest feasible budget to store-all.

    problem, options
        As in `compare`; the gap is 2 % by default.
    points
        At most this many of them.
    time_limit
        No new point is taken up after this many seconds.
    told, progress
        As in `compare`, with a budget and why it is next.

    Raises InfeasibleError where no schedule keeps the deadline.
    """
    if points < 2:
        raise OptionError(f"--points {points}: a front has at least its two ends")
    say = telling(progress)

    def next_up(budget: int, why: str) -> None:
        say(f"{budget:,} B: {why}")
        if told is not None:
            told(budget, why)

    limit = parse_time(time_limit, option="--time-limit")
    found, rest = taken(problem, options)
    settings = _settings(found, min(POINT_S, limit), 0.02, rest)
    return trace(found, points=points, settings=settings, time_limit_s=limit, told=next_up)


def _settings(problem: Problem, time_limit_s: float, gap: float, options: Mapping[str, Any]) -> Settings:
    """The settings of each solve. Raises TypeError for an option that there isn't."""
    given = dict(options)
    deadline, scope = given.pop("deadline", None), checked_scope(given.pop("scope", "auto"))
    limit = None if deadline is None else parse_deadline(deadline)
    limit_s = limit.times * problem.baseline_time_s if isinstance(limit, Factor) else limit
    gap = parse_fraction(given.pop("gap", gap), option="--gap")
    return Settings(deadline_s=limit_s, time_limit_s=time_limit_s, gap=gap, scope=scope, **given)
