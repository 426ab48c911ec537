"""Problems for `solve`, `compare` and similar functions: a problem, or a model (a path, a zoo name) and a device.

The RAM budget is for the whole step or for the schedule only, which also decides on the place of parameters. `--ram` is
the budget of the schedule, as in the paper. `--total-ram`, or else the device's RAM, limits the whole step: parameters
are then resident if they fit beside a schedule, and otherwise paged.
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
    """A problem, or an object that becomes one on a device."""


def store_all_peak_bytes(problem: Problem) -> int:
    """Return the least budget, in bytes, of ordinary training, which keeps each tensor until its last use.

    A share such as `"40%"` of RAM refers to this figure.
    """
    check_problem(problem)
    return store_all_bytes(problem)


RESIDENT, PAGED = PARAMETERS


def costed(
    step: Problem | Training | TrainingFile, options: SolvingOptions, *, roomiest: bool = False
) -> Iterator[Problem]:
    """Yield the problems to solve: the next one if the one before has no schedule.

    Parameters
    ----------
    roomiest
        Whether the problem that leaves the most RAM to the schedule comes first, if parameters may be paged.

    Raises
    ------
    OptionError
        For invalid words, and for options that a Problem already has.
    PoetError
        Other errors are those of `Training.cost`.
    """
    device, profile, runtime = options.device, options.profile, options.runtime
    parameters, stream, total_ram_bytes, ram = options.parameters, options.stream, total_bytes(options), options.ram
    if stream not in STREAM:
        raise OptionError(f"--stream {stream}: must be {' or '.join(STREAM)}")
    if parameters not in (AUTO, *PARAMETERS):
        raise OptionError(f"--parameters {parameters}: must be {AUTO}, {RESIDENT} or {PAGED}")
    if isinstance(step, Problem):
        cost_options = [device, profile, runtime, None if parameters in (AUTO, step.parameters) else parameters]
        if any(one is not None for one in cost_options):
            raise OptionError(
                "device, profile, runtime, parameters: a Problem has its costs already. Leave them out, or give a "
                "Training"
            )
        yield step
        return
    target = checked_device(device)
    if parameters != AUTO:
        yield step.cost(target, profile=profile, runtime=runtime, parameters=parameters, stream=stream)
        return
    if roomiest and ram is None and isinstance(step, Training) and _load_device(target).storage is not None:
        yield step.cost(target, profile=profile, runtime=runtime, parameters=PAGED, stream=stream)
        yield step.cost(target, profile=profile, runtime=runtime)
        return
    resident = step.cost(target, profile=profile, runtime=runtime)
    ram_bytes = total_ram_bytes if total_ram_bytes is not None else resident.device_ram_bytes
    may_page = ram is None and ram_bytes is not None and isinstance(step, Training) and resident.paging
    if not may_page or ram_bytes is None:
        yield resident
        return
    if resident.least_ram_bytes <= ram_bytes - resident.beside_bytes:
        yield resident
    yield step.cost(target, profile=profile, runtime=runtime, parameters=PAGED, stream=stream)


def total_bytes(options: SolvingOptions) -> int | None:
    """Return the bytes of `--total-ram`, or None if it isn't given.

    Raises OptionError for an invalid size, and if `--ram` is given too.
    """
    if options.total_ram is None:
        return None
    if options.ram is not None:
        raise OptionError("--total-ram limits the whole step, --ram only the schedule. Give one of them")
    return parse_size(options.total_ram, option="--total-ram")


def _load_device(device: Device | str | os.PathLike[str]) -> Device:
    return device_of(device) if isinstance(device, str | os.PathLike) else device


def problem_of(given: Solvable, options: MethodOptions) -> Problem:
    """Return the problem that `given` is, or becomes on a device.

    Raises
    ------
    OptionError
        For a missing device, and for options that come too late.
    PoetError
        Other errors are those of `load`, `Model.differentiate` and `Training.cost`.
    """
    step = step_of(given, options)
    if isinstance(step, Problem):
        if changed(options, CostOptions):
            raise OptionError(
                "device, profile, runtime: a Problem has its costs already. Leave them out, or give a Training"
            )
        return step
    return step.cost(checked_device(options.device), profile=options.profile, runtime=options.runtime)


def step_of(given: Solvable, options: TrainingOptions) -> Problem | Training | TrainingFile:
    """Return the training step that `given` is, or becomes with its options; a problem is one already.

    Raises
    ------
    OptionError
        For options that come too late.
    PoetError
        Other errors are those of `load` and `Model.differentiate`.
    """
    return differentiated(read(given, options), options)


def read(given: Solvable, options: TrainingOptions) -> Problem | Training | TrainingFile | Model:
    """Return the model that `given` is, or the file that is read. Raises OptionError, and errors of `load`."""
    if not isinstance(given, Problem | Training | TrainingFile | Model) and _is_model(given):
        return load(given, **part(options, ReadingOptions))
    late_options = changed(options, ReadingOptions)
    if not isinstance(given, Model | TrainingFile):
        late_options += changed(options, TrainingOptions)
    if late_options:
        raise OptionError(
            f"{', '.join(late_options)}: too late for a {type(given).__name__}, which is made with such options. Give "
            "the model's path with them"
        )
    if not isinstance(given, Problem | Training | TrainingFile | Model):
        check_problem(given)
    return given  # type: ignore[return-value]


def differentiated(
    model: Problem | Training | TrainingFile | Model, options: TrainingOptions
) -> Problem | Training | TrainingFile:
    """Return the training step of a model. Raises OptionError, and errors of `Model.differentiate`."""
    if isinstance(model, Model | TrainingFile):
        return model.differentiate(**part(options, TrainingOptions))
    return model


def checked_device(device: Device | str | os.PathLike[str] | None) -> Device | str | os.PathLike[str]:
    """Return `device`. Raises OptionError if it is None."""
    if device is None:
        raise OptionError('device: none is given. Give its name, as in device="a72" (po.devices.names())')
    return device


def _is_model(given: object) -> bool:
    """Return whether `load` takes it; an onnx.ModelProto is recognized by its attributes, without importing onnx."""
    return isinstance(given, str | os.PathLike) or (hasattr(given, "graph") and hasattr(given, "SerializeToString"))
