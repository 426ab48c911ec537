"""All the RAM of a step, or the schedule's alone: which of the two is asked for, and where parameters are then.

`--ram` is the budget of the schedule, as in the paper. `--total-ram`, or else the device's RAM, is for everything: then
parameters are resident where they fit beside a schedule, and otherwise paged.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from poetopt.api.problems import checked_device
from poetopt.api.training import Training, TrainingFile
from poetopt.devices import device as device_of
from poetopt.devices.homes import PARAMETERS, STREAM
from poetopt.graph.problem import Problem
from poetopt.util.errors import OptionError
from poetopt.util.units import parse_size

if TYPE_CHECKING:
    from poetopt.devices import Device
    from poetopt.devices.profile import Profile

AUTO = "auto"
"""Resident where that fits, else paged."""
RESIDENT, PAGED = PARAMETERS


def total_bytes(total_ram: str | float | None, ram: object) -> int | None:
    """What `--total-ram` asks for, in bytes; None where it isn't given.

    Raises OptionError for what is no size, and where `--ram` is given as well.
    """
    if total_ram is None:
        return None
    if ram is not None:
        raise OptionError("--total-ram is for all of the step, --ram for the schedule alone: give one of them")
    return parse_size(total_ram, option="--total-ram")


def problems(
    step: Problem | Training | TrainingFile,
    *,
    device: Device | str | os.PathLike[str] | None,
    profile: Profile | str | os.PathLike[str] | None,
    runtime: str | None,
    parameters: str,
    stream: str,
    total: int | None,
    ram: object,
    roomiest: bool = False,
) -> Iterator[Problem]:
    """The problems to solve: the next one where the one before has no schedule.

    parameters
        `auto`, `resident` or `paged`.
    stream
        See `Training.cost`.
    total
        All of the RAM, in bytes; None: the device's.
    ram
        Whatever `--ram` asks for: then parameters are resident unless it is said otherwise.
    roomiest
        Whether the one that leaves the most RAM to the schedule comes first, if parameters may be paged.

    Raises OptionError for other words, and for what a Problem has already; else as `Training.cost`.
    """
    if stream not in STREAM:
        raise OptionError(f"--with stream={stream}: must be {' or '.join(STREAM)}")
    if parameters not in (AUTO, *PARAMETERS):
        raise OptionError(f"--parameters {parameters}: must be {AUTO}, {RESIDENT} or {PAGED}")
    if isinstance(step, Problem):
        given = [device, profile, runtime, None if parameters in (AUTO, step.parameters) else parameters]
        if any(one is not None for one in given):
            raise OptionError(
                "device, profile, runtime, parameters: a Problem has its costs already; leave them out, or give a "
                "Training"
            )
        yield step
        return
    on = checked_device(device)
    if parameters != AUTO:
        yield step.cost(on, profile=profile, runtime=runtime, parameters=parameters, stream=stream)
        return
    if roomiest and ram is None and isinstance(step, Training) and _found(on).storage is not None:
        yield step.cost(on, profile=profile, runtime=runtime, parameters=PAGED, stream=stream)
        yield step.cost(on, profile=profile, runtime=runtime)
        return
    resident = step.cost(on, profile=profile, runtime=runtime)
    whole = total if total is not None else resident.device_ram_bytes
    may_page = ram is None and whole is not None and isinstance(step, Training) and resident.paging
    if not may_page or whole is None:
        yield resident
        return
    if resident.least_ram_bytes <= whole - resident.beside_bytes:
        yield resident
    yield step.cost(on, profile=profile, runtime=runtime, parameters=PAGED, stream=stream)


def _found(on: Device | str | os.PathLike[str]) -> Device:
    return device_of(on) if isinstance(on, str | os.PathLike) else on
