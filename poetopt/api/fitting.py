"""Batches that fit: a network's step at several batches in some memories, with what a sample then costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Unpack

from poetopt.report.goals import Fits
from poetopt.util.errors import InfeasibleError, NoScheduleError, OptionError
from poetopt.util.progress import Told, silent
from poetopt.util.units import parse_size, show_bytes

if TYPE_CHECKING:
    import os

    from poetopt.api.problems import SolveOptions
    from poetopt.devices import Device

BATCHES = (1, 2, 4, 8, 16, 32, 64)
"""Those that are tried where none are named."""


def what_fits(
    model: str | os.PathLike[str],
    *,
    device: Device | str | os.PathLike[str],
    memory: Sequence[str | float] = (),
    batches: Sequence[int] = (),
    time_limit: str | float = 5.0,
    told: Told = silent,
    **options: Unpack[SolveOptions],
) -> tuple[Fits, ...]:
    """Solve a model's step at each batch in each memory, for a few seconds each.

    memory
        Sizes for all of a step; by default the device's RAM.
    batches
        By default powers of two, up to the first that doesn't fit, or to 64.
    time_limit
        Of one solve: what is said is what a schedule takes that was found by then.
    options
        As for `solve`.

    Raises as `solve`, but for schedules that can't be, which are rows with the reason; OptionError for a batch below 1.
    """
    from poetopt.api.models import device as device_of
    from poetopt.devices import Device

    if any(batch < 1 for batch in batches):
        raise OptionError(f"--batches {','.join(map(str, batches))}: batches are whole numbers from 1 on")
    found_device = device if isinstance(device, Device) else device_of(device)
    sizes = [parse_size(size, option="--memory") for size in memory] or [found_device.ram_bytes]
    if any(size is None for size in sizes):
        raise OptionError(f"{found_device.name} says nothing of its RAM; give --memory")
    return tuple(
        row for size in sizes for row in _rows(model, found_device, int(size or 0), batches, time_limit, told, options)
    )


def _rows(
    model: str | os.PathLike[str],
    device: Device,
    memory: int,
    batches: Sequence[int],
    time_limit: str | float,
    told: Told,
    options: SolveOptions,
) -> Iterator[Fits]:
    for batch in batches or BATCHES:
        told(f"batch {batch} in {show_bytes(memory)}")
        row = _one(model, device, memory, batch, time_limit, options)
        yield row
        if not batches and row.total_ram_bytes is None:
            return


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
