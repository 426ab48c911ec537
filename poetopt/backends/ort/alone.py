"""A plan's step with nothing beside it: what it gives, how long it takes, and what its process takes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from statistics import median

from poetopt.backends.ort.batch import batch_of
from poetopt.backends.ort.clock import Clock
from poetopt.backends.ort.prepared import Prepared
from poetopt.backends.ort.stepping import ScheduledStep
from poetopt.plan.layout import arena_bytes, taken_bytes
from poetopt.plan.simulate import simulate
from poetopt.process import peak_bytes, resident_bytes
from poetopt.telling import Told, silent

STEPS = 3
"""How many are taken, and timed."""


@dataclass(frozen=True, kw_only=True)
class Alone:
    """Some steps of a plan.

    loss
        Of the first one.
    digests
        Of what the first one gives, by the names of `Execution.results`.
    alone_step_s
        Median seconds of a step, from a batch to its loss.
    arena_bytes, bytes_paged, bytes_streamed
        As in `Execution`.
    total_ram_bytes, process_base_bytes, process_peak_bytes
        As in `TrainingRun`.
    """

    loss: float
    digests: Mapping[str, bytes]
    alone_step_s: float
    arena_bytes: int
    bytes_paged: int
    bytes_streamed: int
    total_ram_bytes: int
    process_base_bytes: int | None
    process_peak_bytes: int | None


def run_alone(
    made: Prepared,
    *,
    data: Mapping[str, object] | str | os.PathLike[str] | None = None,
    seed: int = 0,
    workdir: str | os.PathLike[str] | None = None,
    told: Told = silent,
) -> Alone:
    """Take a few steps on one batch.

    Arguments and errors are those of `execute`.
    """
    simulation = simulate(made.plan, ram_bytes=made.ram_bytes)
    base = resident_bytes()
    batch = batch_of(made.graph.whole, made.fed if data is None else data, seed)
    with Clock() as clock, ScheduledStep(made, ram_bytes=made.ram_bytes, workdir=workdir, told=told) as step:
        told("the schedule alone")
        loss, seconds = clock.call(partial(step.run, batch))
        found = step.digests()
        times = [seconds, *(clock.time(partial(step.run, batch)) for _ in range(STEPS - 1))]
        peak = peak_bytes()
    return Alone(
        loss=loss,
        digests=found,
        alone_step_s=median(times),
        arena_bytes=arena_bytes(made.plan),
        bytes_paged=simulation.bytes_paged,
        bytes_streamed=simulation.bytes_streamed,
        total_ram_bytes=made.plan.problem.beside_bytes + taken_bytes(made.plan, simulation.peak_bytes),
        process_base_bytes=base,
        process_peak_bytes=peak,
    )
