"""`po.compare` and `po.pareto`: what the commands of these names do, for scripts and notebooks.

Batches that fit: a network's step at several batches in some memories, with what a sample then costs.
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
    """Methods side by side on the same budgets.

    problem
        A problem, or a model (the path of its file, a zoo network's name, what `load` or `differentiate` gave): then
        with `device`, and for a path with the options of `load` and `Model.differentiate`.
    {options}
    Raises OptionError for an unknown method or a budget that can't be understood.
    """
    ram, methods = options.ram, options.methods
    found = problem_of(problem, options)
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
    settings = _settings(found, parse_time(options.time_limit, option="--time-limit"), options)
    in_ram = in_bytes(budgets, store_all_bytes(found))
    say = telling(options.progress)

    def next_up(name: str, budget: int) -> None:
        say(f"{name} at {budget:,} B")
        if options.told is not None:
            options.told(name, budget)

    return run(found, in_ram, asked, settings, next_up)


@keywords(ParetoOptions)
def pareto(problem: Solvable, options: ParetoOptions) -> Front:
    """The front of least energy against RAM, from the smallest feasible budget to store-all.

    problem
        As in `compare`.
    {options}
    Raises InfeasibleError where no schedule keeps the deadline.
    """
    points = options.points
    if points < 2:
        raise OptionError(f"--points {points}: a front has at least its two ends")
    say = telling(options.progress)

    def next_up(budget: int, why: str) -> None:
        say(f"{budget:,} B: {why}")
        if options.told is not None:
            options.told(budget, why)

    limit = parse_time(options.time_limit, option="--time-limit")
    found = problem_of(problem, options)
    # seconds for one point of a front
    settings = _settings(found, min(20.0, limit), options)
    return trace(found, points=points, settings=settings, time_limit_s=limit, told=next_up)


def settings_of(options: MethodOptions, time_limit_s: float) -> Settings:
    """The settings of each solve of a comparison, but for its deadline. Raises OptionError."""
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
"""Those that are tried where none are named, the first seven where no overhead is."""


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

    memory
        Sizes for all of a step; by default the device's RAM.
    batches
        By default powers of two, up to the first that doesn't fit, or to 64.
    overhead
        Looks for the largest batch whose plan takes at most this share more energy than ordinary training: powers of
        two up to one that takes more or doesn't fit, and halves between.
    time_limit
        Of one solve: what is said is what a schedule takes that was found by then.
    options
        As for `solve`.

    Raises as `solve`, but for schedules that can't be, which are rows with the reason; OptionError for a batch below 1.
    """
    most = None if overhead is None else parse_fraction(overhead, option="--overhead")
    if most is not None and batches:
        raise OptionError("--overhead looks for a batch itself; leave --batches out")
    if any(batch < 1 for batch in batches):
        raise OptionError(f"--batches {','.join(map(str, batches))}: batches are whole numbers from 1 on")
    found_device = device if isinstance(device, Device) else device_of(device)
    sizes = [parse_size(size, option="--memory") for size in memory] or [found_device.ram_bytes]
    if any(size is None for size in sizes):
        raise OptionError(f"{found_device.name} says nothing of its RAM; give --memory")

    def row(size: int, batch: int) -> Fits:
        told(f"batch {batch} in {show_bytes(size)}")
        return _one(model, found_device, size, batch, time_limit, options)

    at = [partial(row, int(size or 0)) for size in sizes]
    return tuple(one for each in at for one in (_rows(each, batches) if most is None else _within(each, most)))


def _rows(row: Row, batches: Sequence[int]) -> Iterator[Fits]:
    for batch in batches or BATCHES[:7]:
        yield (found := row(batch))
        if not batches and found.total_ram_bytes is None:
            return


def _within(row: Row, most: float) -> Sequence[Fits]:
    """The rows of a memory that were looked at for the largest batch with at most this overhead, in order."""
    rows: list[Fits] = []
    low = high = 0
    for batch in BATCHES:
        rows.append(row(batch))
        if rows[-1].cheap(most):
            low = batch
        elif low or rows[-1].overhead is None:
            high = batch
            break
    while low and high - low > 1:
        rows.append(row(middle := (low + high) // 2))
        low, high = (middle, high) if rows[-1].cheap(most) else (low, middle)
    return sorted(rows, key=lambda one: one.batch)


def _one(
    model: str | os.PathLike[str],
    device: Device,
    memory: int,
    batch: int,
    time_limit: str | float,
    options: Mapping[str, Any],
) -> Fits:
    asked = {**options, "batch": batch}
    try:
        report = solve(model, device=device, total_ram=memory, time_limit=time_limit, gap=0.05, **asked)
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
