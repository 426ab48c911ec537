"""Batches that fit: a network's step at several batches in some memories, with what a sample then costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Unpack

from poetopt.report.goals import Fits
from poetopt.util.errors import InfeasibleError, NoScheduleError, OptionError
from poetopt.util.progress import Told, silent
from poetopt.util.units import parse_fraction, parse_size, show_bytes

if TYPE_CHECKING:
    import os

    from poetopt.api.problems import SolveOptions
    from poetopt.devices import Device

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
    **options: Unpack[SolveOptions],
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
    from poetopt.api.models import device as device_of
    from poetopt.devices import Device

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
    options: SolveOptions,
) -> Fits:
    from poetopt.api.solving import solve

    asked: SolveOptions = {**options, "batch": batch}
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
