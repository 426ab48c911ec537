"""`po.compare` and `po.pareto`, the Python side of the commands with these names, and batches that fit a memory.

`what_fits` solves a network's step at several batches in some memories, and reports the costs per sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from poetopt.api.options import CompareOptions, MethodOptions, ParetoOptions, keywords
from poetopt.api.problems import problem_of
from poetopt.api.searching import checked_scope
from poetopt.api.solving import solve
from poetopt.comparison.baselines import Baseline, names
from poetopt.comparison.baselines.acceptance import Settings
from poetopt.comparison.compare import Comparison
from poetopt.comparison.compare import compare as run
from poetopt.comparison.pareto import Front
from poetopt.comparison.pareto import pareto as trace
from poetopt.comparison.rows import in_bytes, parse_budgets
from poetopt.devices import Device
from poetopt.devices import device as device_of
from poetopt.graph.problem import Problem
from poetopt.plan.assemble import store_all_bytes
from poetopt.report.goals import Fits
from poetopt.util.errors import InfeasibleError, NoScheduleError, OptionError
from poetopt.util.progress import Told, silent, telling
from poetopt.util.units import (
    Factor,
    parse_deadline,
    parse_fraction,
    parse_ram,
    parse_size,
    parse_time,
    show_bytes,
)

if TYPE_CHECKING:
    import os

    from poetopt.api.problems import Solvable


@keywords(CompareOptions)
def compare(problem: Solvable, options: CompareOptions) -> Comparison:
    """Compare methods on the same budgets.

    Parameters
    ----------
    problem
        A problem, or a model (the path of its file, the name of a zoo network, or the result of `load` or
        `differentiate`). A model needs `device`; a path may have the options of `load` and `Model.differentiate`.
    {options}

    Raises
    ------
    OptionError
        For an unknown method or an invalid budget.
    """
    ram, methods = options.ram, options.methods
    found_problem = problem_of(problem, options)
    if isinstance(ram, str):
        budgets = parse_budgets(ram)
    else:
        budgets = tuple(map(parse_ram, ram if isinstance(ram, Sequence) else [ram]))
    requested: Sequence[str | Baseline]
    if isinstance(methods, str):
        requested = [name.strip() for name in methods.split(",")]
    else:
        requested = [methods] if isinstance(methods, Baseline) else list(methods)
    if "all" in requested:
        requested = [*names(), *(one for one in requested if isinstance(one, Baseline))]
    settings = _settings(found_problem, parse_time(options.time_limit, option="--time-limit"), options)
    budget_bytes = in_bytes(budgets, store_all_bytes(found_problem))
    log = telling(options.progress)

    def next_up(name: str, budget: int) -> None:
        log(f"{name} at {budget:,} B")
        if options.told is not None:
            options.told(name, budget)

    return run(found_problem, budget_bytes, requested, settings, next_up)


@keywords(ParetoOptions)
def pareto(problem: Solvable, options: ParetoOptions) -> Front:
    """Trace the front of least energy against RAM, from the smallest feasible budget to store-all.

    Parameters
    ----------
    problem
        As in `compare`.
    {options}

    Raises
    ------
    InfeasibleError
        If no schedule meets the deadline.
    """
    points = options.points
    if points < 2:
        raise OptionError(f"--points {points}: a front has at least two points. Give 2 or more")
    log = telling(options.progress)

    def next_up(budget: int, why: str) -> None:
        log(f"{budget:,} B: {why}")
        if options.told is not None:
            options.told(budget, why)

    time_limit_s = parse_time(options.time_limit, option="--time-limit")
    found_problem = problem_of(problem, options)
    # One point of the front gets 20 seconds.
    settings = _settings(found_problem, min(20.0, time_limit_s), options)
    return trace(found_problem, points=points, settings=settings, time_limit_s=time_limit_s, told=next_up)


def settings_of(options: MethodOptions, time_limit_s: float) -> Settings:
    """Return the settings of each solve of a comparison, without its deadline. Raises OptionError."""
    return Settings(
        time_limit_s=time_limit_s,
        gap=parse_fraction(options.gap, option="--gap"),
        threads=options.threads,
        scope=checked_scope(options.scope),
        backend=options.backend,
    )


def _settings(problem: Problem, time_limit_s: float, options: MethodOptions) -> Settings:
    limit = None if options.deadline is None else parse_deadline(options.deadline)
    limit_s = limit.times * problem.baseline_time_s if isinstance(limit, Factor) else limit
    return replace(settings_of(options, time_limit_s), deadline_s=limit_s)


Row = Callable[[int], Fits]
BATCHES = tuple(2**k for k in range(17))
"""Batches to try by default; without `overhead` only the first seven."""


def what_fits(
    model: str | os.PathLike[str],
    *,
    device: Device | str | os.PathLike[str],
    memory: Sequence[str | float] = (),
    batches: Sequence[int] = (),
    overhead: str | float | None = None,
    time_limit: str | float = 5.0,
    told: Told = silent,
    **options: Any,
) -> tuple[Fits, ...]:
    """Solve a model's step at each batch in each memory, for a few seconds each.

    Parameters
    ----------
    memory
        Sizes for the whole step; by default the device's RAM.
    batches
        By default powers of two, up to the first that doesn't fit, or to 64.
    overhead
        Search for the largest batch whose plan takes at most this share more energy than ordinary training: powers of
        two up to one that takes more or doesn't fit, then bisection.
    time_limit
        Limit of one solve; figures are those of the schedule found by then.
    options
        As for `solve`.

    Raises
    ------
    OptionError
        For a batch below 1.
    PoetError
        Other errors are those of `solve`, but a batch without a schedule is a row with the reason.
    """
    max_overhead = None if overhead is None else parse_fraction(overhead, option="--overhead")
    if max_overhead is not None and batches:
        raise OptionError("--overhead searches for a batch. Leave --batches out")
    if any(batch < 1 for batch in batches):
        raise OptionError(f"--batches {','.join(map(str, batches))}: batches must be at least 1")
    target = device if isinstance(device, Device) else device_of(device)
    sizes = [parse_size(size, option="--memory") for size in memory] or [target.ram_bytes]
    if any(size is None for size in sizes):
        raise OptionError(f"{target.name} has no size of its RAM. Give --memory")

    def row(size: int, batch: int) -> Fits:
        told(f"batch {batch} in {show_bytes(size)}")
        return _fit_of(model, target, size, batch, time_limit, options)

    rows_of = [partial(row, int(size or 0)) for size in sizes]
    return tuple(
        one
        for row_of in rows_of
        for one in (_try_batches(row_of, batches) if max_overhead is None else _search_batches(row_of, max_overhead))
    )


def _try_batches(row: Row, batches: Sequence[int]) -> Iterator[Fits]:
    for batch in batches or BATCHES[:7]:
        yield (found := row(batch))
        if not batches and found.total_ram_bytes is None:
            return


def _search_batches(row: Row, max_overhead: float) -> Sequence[Fits]:
    """Return the rows of a memory that the search for the largest batch within the overhead tried, in order."""
    rows: list[Fits] = []
    low = high = 0
    for batch in BATCHES:
        rows.append(row(batch))
        if rows[-1].cheap(max_overhead):
            low = batch
        elif low or rows[-1].overhead is None:
            high = batch
            break
    while low and high - low > 1:
        rows.append(row(middle := (low + high) // 2))
        low, high = (middle, high) if rows[-1].cheap(max_overhead) else (low, middle)
    return sorted(rows, key=lambda one: one.batch)


def _fit_of(
    model: str | os.PathLike[str],
    device: Device,
    memory: int,
    batch: int,
    time_limit: str | float,
    options: Mapping[str, Any],
) -> Fits:
    solve_options = {**options, "batch": batch}
    try:
        report = solve(model, device=device, total_ram=memory, time_limit=time_limit, gap=0.05, **solve_options)
    except (InfeasibleError, NoScheduleError) as error:
        return Fits(memory_bytes=memory, batch=batch, why=str(error))
    simulation, problem = report.solution.simulation, report.problem
    if simulation is None or report.plan is None:
        return Fits(memory_bytes=memory, batch=batch, why=report.solution.reason)
    resident = problem.parameters != "paged"
    base = problem.baseline_energy_j
    return Fits(
        memory_bytes=memory,
        batch=batch,
        ordinary_ram_bytes=problem.beside_bytes + report.solution.store_all_peak_bytes if resident else None,
        total_ram_bytes=problem.beside_bytes + (report.taken_bytes or 0),
        energy_j=(base + simulation.overhead_j) / batch,
        time_s=simulation.makespan_s / batch,
        overhead=simulation.overhead_j / base if base else 0.0,
    )
