"""What `solve`, `compare` and their like take as a problem: one, or a model (a path, a zoo name) and a device."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypedDict

from poetopt.api.models import Model, load
from poetopt.api.training import Training, TrainingFile
from poetopt.graph.problem import Problem, check_problem
from poetopt.util.errors import OptionError

if TYPE_CHECKING:
    import onnx

    from poetopt.devices import Device
    from poetopt.devices.profile import Profile

    Solvable = Problem | Training | TrainingFile | Model | onnx.ModelProto | str | os.PathLike[str]
    """A problem, or what is one together with a device."""


class _Read(TypedDict, total=False):
    train: str | Sequence[str] | None
    dims: Mapping[str, int | str] | None
    shapes: Mapping[str, str | Sequence[int | None]] | None
    values: Mapping[str, object] | None
    allow_symlinks: bool
    micro_batch_statistics: bool


class LoadOptions(_Read, total=False):
    """How a model's file is read: the options of `load`."""

    batch: int | None
    micro_batch: int | None


class _Derived(TypedDict, total=False):
    loss: str
    output: str | None
    granularity: str
    straight_through: bool
    optimizer: str
    fuse: bool
    clip_norm: bool
    lazy_tables: bool


class TrainingOptions(LoadOptions, _Derived, total=False):
    """What the training step is: the options of `load` and of `Model.differentiate`."""


class SolveOptions(_Read, _Derived, total=False):
    """The same for `solve`, which takes `max` for the largest batch that fits, and `auto` for the parts of one."""

    batch: int | str | None
    micro_batch: int | str | None


READ = tuple(LoadOptions.__annotations__)
DERIVED = tuple(_Derived.__annotations__)


def problem_of(
    given: Solvable,
    *,
    device: Device | str | os.PathLike[str] | None = None,
    profile: Profile | str | os.PathLike[str] | None = None,
    runtime: str | None = None,
    **options: object,
) -> Problem:
    """The problem that `given` is, or becomes on `device`.

    options
        Those of `TrainingOptions`.

    Raises OptionError for a device that is missing, and for options that come too late; else as `load`,
    `Model.differentiate` and `Training.cost`.
    """
    found = step_of(given, **options)
    if isinstance(found, Problem):
        if device is not None or profile is not None or runtime is not None:
            raise OptionError(
                "device, profile, runtime: a Problem has its costs already; leave them out, or give a Training"
            )
        return found
    return found.cost(checked_device(device), profile=profile, runtime=runtime)


def step_of(given: Solvable, **options: object) -> Problem | Training | TrainingFile:
    """The training step that `given` is, or becomes with the options of `TrainingOptions`; a problem is one already.

    Raises OptionError for options that come too late, TypeError for unknown ones; else as `load` and
    `Model.differentiate`.
    """
    found: object = given
    if not isinstance(found, Problem | Training | TrainingFile | Model) and _is_model(found):
        found = load(found, **{name: options.pop(name) for name in READ if name in options})  # type: ignore[arg-type]
    if isinstance(found, Model | TrainingFile):
        mine = {name: options.pop(name) for name in DERIVED if name in options}
        found = found.differentiate(**mine)  # type: ignore[arg-type]
    if options:
        known = (*READ, *DERIVED)
        wrong = next((name for name in options if name not in known), None)
        if wrong is not None:
            raise TypeError(f"unknown option {wrong!r}; a model takes {', '.join(known)}")
        raise OptionError(
            f"{', '.join(options)}: too late for a {type(found).__name__}, which is made with such options; give the "
            "model's path with them"
        )
    if isinstance(found, Problem | Training | TrainingFile):
        return found
    check_problem(found)
    raise AssertionError


def checked_device(device: Device | str | os.PathLike[str] | None) -> Device | str | os.PathLike[str]:
    """`device`. Raises OptionError where there is none."""
    if device is None:
        raise OptionError('device: which one is it to be? Give its name, as in device="a72" (po.devices.names())')
    return device


def _is_model(given: object) -> bool:
    """Whether `load` takes it; an onnx.ModelProto is known by its graph, without importing onnx."""
    return isinstance(given, str | os.PathLike) or (hasattr(given, "graph") and hasattr(given, "SerializeToString"))
