"""Problems as `solve`, `compare` and their like take them: one, or a model (a path, a zoo name) and a device.

All the RAM of a step, or the schedule's alone: which of the two is asked for, and where parameters are then.

`--ram` is the budget of the schedule, as in the paper. `--total-ram`, or else the device's RAM, is for everything: then
parameters are resident where they fit beside a schedule, and otherwise paged.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from poetopt.api.models import Model, load
from poetopt.api.options import (
    AUTO,
    CostOptions,
    MethodOptions,
    ReadingOptions,
    SolvingOptions,
    TrainingOptions,
    changed,
    part,
)
from poetopt.api.training import Training, TrainingFile
from poetopt.devices import device as device_of
from poetopt.devices.cost import PARAMETERS, STREAM
from poetopt.graph.problem import Problem, check_problem
from poetopt.plan.assemble import store_all_bytes
from poetopt.util.errors import OptionError
from poetopt.util.units import parse_size

if TYPE_CHECKING:
    import onnx

    from poetopt.devices import Device

    Solvable = Problem | Training | TrainingFile | Model | onnx.ModelProto | str | os.PathLike[str]
    """A problem, or what is one together with a device."""


def store_all_peak_bytes(problem: Problem) -> int:
    """The least budget, in bytes, of ordinary training, which keeps each tensor until its last use.

    A share such as `"40%"` of RAM is of this figure.
    """
    check_problem(problem)
    return store_all_bytes(problem)


RESIDENT, PAGED = PARAMETERS


def costed(
    step: Problem | Training | TrainingFile, options: SolvingOptions, *, roomiest: bool = False
) -> Iterator[Problem]:
    """The problems to solve: the next one where the one before has no schedule.

    roomiest
        Whether the one that leaves the most RAM to the schedule comes first, if parameters may be paged.

    Raises OptionError for other words, and for what a Problem has already; else as `Training.cost`.
    """
    device, profile, runtime = options.device, options.profile, options.runtime
    parameters, stream, total, ram = options.parameters, options.stream, total_bytes(options), options.ram
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


def total_bytes(options: SolvingOptions) -> int | None:
    """Bytes that `--total-ram` asks for; None where it isn't given.

    Raises OptionError for what is no size, and where `--ram` is given as well.
    """
    if options.total_ram is None:
        return None
    if options.ram is not None:
        raise OptionError("--total-ram is for all of the step, --ram for the schedule alone: give one of them")
    return parse_size(options.total_ram, option="--total-ram")


def _found(on: Device | str | os.PathLike[str]) -> Device:
    return device_of(on) if isinstance(on, str | os.PathLike) else on


def problem_of(given: Solvable, options: MethodOptions) -> Problem:
    """The problem that `given` is, or becomes on a device.

    Raises OptionError for a device that is missing, and for options that come too late; else as `load`,
    `Model.differentiate` and `Training.cost`.
    """
    found = step_of(given, options)
    if isinstance(found, Problem):
        if changed(options, CostOptions):
            raise OptionError(
                "device, profile, runtime: a Problem has its costs already; leave them out, or give a Training"
            )
        return found
    return found.cost(checked_device(options.device), profile=options.profile, runtime=options.runtime)


def step_of(given: Solvable, options: TrainingOptions) -> Problem | Training | TrainingFile:
    """The training step that `given` is, or becomes with its options; a problem is one already.

    Raises OptionError for options that come too late; else as `load` and `Model.differentiate`.
    """
    return differentiated(read(given, options), options)


def read(given: Solvable, options: TrainingOptions) -> Problem | Training | TrainingFile | Model:
    """The model that `given` is, or its file as it is read. Raises OptionError, and as `load`."""
    if not isinstance(given, Problem | Training | TrainingFile | Model) and _is_model(given):
        return load(given, **part(options, ReadingOptions))
    late = changed(options, ReadingOptions)
    if not isinstance(given, Model | TrainingFile):
        late += changed(options, TrainingOptions)
    if late:
        raise OptionError(
            f"{', '.join(late)}: too late for a {type(given).__name__}, which is made with such options; give the "
            "model's path with them"
        )
    if not isinstance(given, Problem | Training | TrainingFile | Model):
        check_problem(given)
    return given  # type: ignore[return-value]


def differentiated(
    model: Problem | Training | TrainingFile | Model, options: TrainingOptions
) -> Problem | Training | TrainingFile:
    """The training step of a model. Raises OptionError, and as `Model.differentiate`."""
    if isinstance(model, Model | TrainingFile):
        return model.differentiate(**part(options, TrainingOptions))
    return model


def checked_device(device: Device | str | os.PathLike[str] | None) -> Device | str | os.PathLike[str]:
    """`device`. Raises OptionError where there is none."""
    if device is None:
        raise OptionError('device: which one is it to be? Give its name, as in device="a72" (po.devices.names())')
    return device


def _is_model(given: object) -> bool:
    """Tell whether `load` takes it; an onnx.ModelProto is known by its graph, without importing onnx."""
    return isinstance(given, str | os.PathLike) or (hasattr(given, "graph") and hasattr(given, "SerializeToString"))
