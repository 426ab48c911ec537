"""Problems as `solve`, `compare` and their like take them: one, or a model (a path, a zoo name) and a device.

What people ask for, read and checked: the engine's `Options` from texts such as `40%`, `1.5x` and `60s`.

All the RAM of a step, or the schedule's alone: which of the two is asked for, and where parameters are then.

`--ram` is the budget of the schedule, as in the paper. `--total-ram`, or else the device's RAM, is for everything: then
parameters are resident where they fit beside a schedule, and otherwise paged.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from poetopt.api.models import Model, load
from poetopt.api.training import DerivedOptions, LoadOptions, ReadingOptions, Training, TrainingFile
from poetopt.devices import device as device_of
from poetopt.devices.cost import PARAMETERS, STREAM
from poetopt.graph.problem import Problem, check_problem
from poetopt.util.errors import OptionError
from poetopt.util.text import near
from poetopt.util.units import Factor, Share, parse_deadline, parse_fraction, parse_ram, parse_size, parse_time

if TYPE_CHECKING:
    import onnx

    from poetopt.devices import Device
    from poetopt.devices.profile import Profile

    Solvable = Problem | Training | TrainingFile | Model | onnx.ModelProto | str | os.PathLike[str]
    """A problem, or what is one together with a device."""
    from poetopt.backends.solvers.solver import Backend
    from poetopt.formulations.block import Block
    from poetopt.formulations.language import Formulation
    from poetopt.graph.problem import Problem
    from poetopt.search.solution import Options

MOST_THREADS = 512
"""A solver that is told to use a hundred thousand threads tries, and stops the machine."""


SCOPES = ("auto", "forward", "full")
"""Beside `depth:D`."""


def asked(
    problem: Problem,
    *,
    ram: str | float | Share | None = None,
    total: int | None = None,
    deadline: str | float | Factor | None = None,
    steps: int = 1,
    counted: bool = False,
    deadline_model: str = "makespan",
    formulation: str | Formulation | ModuleType = "retention",
    blocks: Sequence[str | Block] = (),
    backend: str | Backend = "highs",
    scope: str = "auto",
    paging: bool = True,
    remat: bool = True,
    time_limit: str | float = 60.0,
    gap: str | float = 1e-3,
    threads: int = 0,
    solver_options: Mapping[str, str] | None = None,
    log: str | os.PathLike[str] | None = None,
) -> Options:
    """The engine's `Options` of what `solve` takes: every text is read and checked. Raises OptionError, TypeError.

    counted
        Whether the steps are there for more than what they divide.
    """
    from poetopt.util import imports

    imports.check_solving()
    from poetopt.formulations import formulation as formulation_of
    from poetopt.formulations.options import with_options
    from poetopt.search.solution import DeadlineModel, Options

    check_problem(problem)
    if deadline_model not in tuple(DeadlineModel):
        raise OptionError(f"--deadline-model {deadline_model}: must be {' or '.join(DeadlineModel)}")
    if not 0 <= threads <= MOST_THREADS:
        raise OptionError(f"--threads {threads}: must be 1 to {MOST_THREADS}, or 0 to let the solver choose")
    chosen = formulation if isinstance(formulation, str) else formulation_of(formulation)
    if blocks:
        chosen = with_options(formulation_of(chosen), blocks, problem, steps)
    return Options(
        ram_bytes=_ram_bytes(problem, ram, total),
        deadline_s=_deadline_s(
            problem, None if deadline is None else parse_deadline(deadline), steps, bool(blocks) or counted
        ),
        deadline_model=DeadlineModel(deadline_model),
        formulation=chosen,
        backend=backend,
        scope=checked_scope(scope),
        paging=paging,
        remat=remat,
        time_limit_s=parse_time(time_limit, option="--time-limit"),
        gap=parse_fraction(gap, option="--gap"),
        threads=threads,
        solver_options=dict(solver_options or {}),
        log=None if log is None else os.fspath(log),
    )


def store_all_peak_bytes(problem: Problem) -> int:
    """The least budget, in bytes, of ordinary training, which keeps each tensor until its last use.

    A share such as `"40%"` of RAM is of this figure.
    """
    from poetopt.plan.assemble import store_all_bytes

    check_problem(problem)
    return store_all_bytes(problem)


def _ram_bytes(problem: Problem, ram: str | float | Share | None, total: int | None) -> int:
    """The budget in bytes; not positive where the resident region alone fills the device, or the `total`."""
    if total is not None:
        return total - problem.beside_bytes
    if ram is not None:
        found = parse_ram(ram)
        return int(found.fraction * store_all_peak_bytes(problem)) if isinstance(found, Share) else found
    if problem.device_ram_bytes is None:
        raise OptionError(f"{problem.name}: the RAM of {problem.device} is not known here; say how much with --ram")
    return problem.device_ram_bytes - problem.beside_bytes


def _deadline_s(problem: Problem, deadline: float | Factor | None, steps: int, totals: bool = False) -> float | None:
    """Seconds of a step. `totals`: whether the steps divide something else as well."""
    if steps < 1:
        raise OptionError(f"--steps {steps}: must be at least 1")
    if isinstance(deadline, Factor):
        return deadline.times * problem.baseline_time_s
    if deadline is None:
        if steps > 1 and not totals:
            raise OptionError(f"--steps {steps} divides a total deadline: give one with --deadline, as in 3h")
        return None
    return deadline / steps


def checked_scope(scope: str) -> str:
    """A scope as options spell it. Raises OptionError."""
    kind, _, depth = scope.partition(":")
    if scope in SCOPES or (kind == "depth" and re.fullmatch("0*[1-9][0-9]{0,8}", depth)):
        return scope
    digits = re.search(r"[1-9]\d*", scope)
    meant = [f"depth:{digits[0]}"] if digits else near(scope, SCOPES)
    hint = f"; did you mean {' or '.join(meant)}?" if meant else ""
    raise OptionError(f"--scope {scope}: must be auto, depth:D (D >= 1, as in depth:4), forward or full{hint}")


AUTO = "auto"
"""Resident where that fits, else paged."""
RESIDENT, PAGED = PARAMETERS


def total_bytes(total_ram: str | float | None, ram: object) -> int | None:
    """Bytes that `--total-ram` asks for; None where it isn't given.

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


class TrainingOptions(LoadOptions, DerivedOptions, total=False):
    """The options of the training step: those of `load` and of `Model.differentiate`."""


class SolveOptions(ReadingOptions, DerivedOptions, total=False):
    """The same for `solve`, which takes `max` for the largest batch that fits, and `auto` for the parts of one."""

    batch: int | str | None
    micro_batch: int | str | None


class CostOptions(TrainingOptions, total=False):
    """The options that make a problem of a model: the options of `TrainingOptions` and of `Training.cost`."""

    device: Device | str | os.PathLike[str] | None
    profile: Profile | str | os.PathLike[str] | None
    runtime: str | None


class CompareOptions(CostOptions, total=False):
    """The same, and what is asked of each solve of a comparison or a front, as in `solve`."""

    deadline: str | float | Factor | None
    gap: str | float
    threads: int
    backend: str
    scope: str


OF_TRAINING = {
    **{
        name: f"it is given with each step: po.Trainer(report, {name}=...)"
        for name in ("lr", "momentum", "weight_decay", "lr_schedule", "seed")
    },
    **dict.fromkeys(("validate", "data"), "data are given to po.Trainer(report).fit(data, validate=...)"),
}
"""Advice on options that are of the training, not of the plan."""
READ = tuple(LoadOptions.__annotations__)
DERIVED = tuple(DerivedOptions.__annotations__)


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


def taken(given: Solvable, options: Mapping[str, Any]) -> tuple[Problem, dict[str, Any]]:
    """The problem that `given` becomes by its options, and the other ones. Raises as `problem_of`."""
    others = {name: value for name, value in options.items() if name not in CostOptions.__annotations__}
    return problem_of(given, **{name: options[name] for name in options if name not in others}), others


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
            later = OF_TRAINING.get(wrong) or f"a model takes {', '.join(known)}"
            raise TypeError(f"unknown option {wrong!r}; {later}")
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
    """Tell whether `load` takes it; an onnx.ModelProto is known by its graph, without importing onnx."""
    return isinstance(given, str | os.PathLike) or (hasattr(given, "graph") and hasattr(given, "SerializeToString"))
