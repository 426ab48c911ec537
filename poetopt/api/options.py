"""The options of reading a model, of its training step, and of solving: each is declared once.

`keywords` makes the arguments of `po.solve` and its like of them, for callers, type checkers and `help`.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import wraps
from types import ModuleType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from poetopt.util.errors import OptionError
from poetopt.util.hints import LazyHints, Text, described, evaluated, matches
from poetopt.util.text import closest, shortened

if TYPE_CHECKING:
    from poetopt.backends.solvers.solver import Backend
    from poetopt.comparison.baselines import Baseline
    from poetopt.comparison.compare import Told as ToldMethod
    from poetopt.comparison.pareto import Told as ToldPoint
    from poetopt.devices import Device
    from poetopt.devices.profile import Profile
    from poetopt.formulations.block import Block
    from poetopt.formulations.language import Formulation
    from poetopt.search.solution import Listener
    from poetopt.util.units import Factor, Share

MAX, AUTO = "max", "auto"
"""Words that `--batch` and `--micro-batch` take beside numbers."""


@dataclass(frozen=True, kw_only=True)
class _FileOptions:
    """The options of a model's file that don't concern its batch.

    train
        Pattern, or patterns, of the parameters to train (`fc.*`); all of them by default.
    dims
        Sizes of dimensions that the file names: `{"height": 160}`.
    shapes
        Whole shapes of inputs, as numbers or in a text: `{"input": "1x3x160x160"}`; None, or `?`, for a size that the
        file, `batch` or `dims` says.
    values
        Inputs that become constants: `{"sr": 16000}`. A number fills an input of any size; lists and arrays are whole.
    allow_symlinks
        Whether weights in files of their own may lie outside of the model's folder, behind symbolic links.
    micro_batch_statistics
        Whether BatchNormalization in training mode may take statistics of each part.
    """

    train: str | Sequence[str] | None = None
    dims: Mapping[str, int | str] | None = None
    shapes: Mapping[str, str | Sequence[int | None]] | None = None
    values: Mapping[str, object] | None = None
    allow_symlinks: bool = False
    micro_batch_statistics: bool = False


@dataclass(frozen=True, kw_only=True)
class ReadingOptions(_FileOptions):
    """The options of `load`: a model's file as it is read.

    batch
        The size of the batch axis where the file leaves it open, or is to be changed.
    micro_batch
        Into how many parts of one size the batch is cut; the network is that of one part, and what is made of it sums
        the gradients of all. Refused where that isn't what the whole batch gives.
    """

    batch: int | None = None
    micro_batch: int | None = None


@dataclass(frozen=True, kw_only=True)
class StepOptions:
    """The options of the training graph that is derived of a network.

    loss
        `cross-entropy`, `bce`, `mse`, `none` (the model's output is the loss), or `auto`, which picks by what the
        model does last and by the output's shape. `forward-only`: none, and no backward operators; the step is the
        network as it is used.
    output
        The output that the loss is on, where several could have it.
    ignore_index, class_weights, label_smoothing
        Of a cross-entropy that is attached, as of `torch.nn.CrossEntropyLoss`: the label of what is left out of the
        mean (-100), a weight for each class, and the share of a label that all classes have in equal parts.
    straight_through
        Whether gradients pass QuantizeLinear with DequantizeLinear behind it, where nothing is clipped.
    optimizer
        `sgd`, `momentum`, `adam` or `adamw`: its updates are part of the step (see `poetopt.autodiff.optimizers`).
        With `none`, the step ends with the gradients.
    fuse
        Whether an update is one operator with the gradient that it alone reads.
    clip_norm
        Whether updates clip the gradients by the norm of all of them. The bound is given with each step
        (`clip_norm`), as a learning rate is; each gradient waits for that norm.
    rates
        What the learning rate of some parameters is multiplied with, by pattern: `{"features.*": 0.1}`. The first
        that matches counts.
    """

    loss: str = "auto"
    output: str | None = None
    ignore_index: int | str | None = None
    class_weights: Sequence[float] | str | None = None
    label_smoothing: float | str = 0.0
    straight_through: bool = False
    optimizer: str = "none"
    fuse: bool = True
    clip_norm: bool = False
    rates: Mapping[str, float] | str | Sequence[str] | None = None


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(StepOptions):
    """The options of `Model.differentiate`: the training step as it is scheduled.

    granularity
        `operator`, or `block`: chains of cheap operators are scheduled as one (see
        `poetopt.autodiff.passes.blocks`).
    lazy_tables
        Whether, where parameters are paged, a row of an embedding and its optimizer states change in those steps
        alone that use it, so that momentum and Adam page such tables by rows, as SGD does in any case.
    """

    granularity: str = "operator"
    lazy_tables: bool = False


@dataclass(frozen=True, kw_only=True)
class ModelOptions(ReadingOptions, TrainingOptions):
    """The options of the training step: those of `load` and of `Model.differentiate`."""


@dataclass(frozen=True, kw_only=True)
class CostOptions:
    """The device of a problem.

    device, profile, runtime
        As for `Training.cost`.
    """

    device: Device | str | os.PathLike[str] | None = None
    profile: Profile | str | os.PathLike[str] | None = None
    runtime: str | None = None


@dataclass(frozen=True, kw_only=True)
class SolvingOptions(CostOptions):
    """The options of the search.

    ram
        The budget of the schedule alone, as in the paper: bytes, a size (`"300KiB"`) or a share of the store-all peak
        (`"40%"`). By default the RAM is for all of the step.
    total_ram
        Bytes, or a size, for all that the step takes: schedule, parameters, gradients, optimizer states, constants. By
        default the device's RAM.
    parameters
        `resident`, `paged` (they have their home on storage, and are scheduled like everything else), or `auto`:
        resident where that fits, or where `ram` is given. Paged ones are updated in the step, by `sgd` where no
        optimizer is named.
    stream
        `auto`: where parameters are paged, operators may stream operands from storage and outputs to it, chunk by
        chunk, in the ways that the runtime has (`c` has some). `never`: they run with all of them in RAM.
    deadline
        Seconds, a time (`"250ms"`) or a multiple of one compute of each operator (`"1.5x"`). By default there is none.
    steps
        How many training steps an absolute deadline is for, and totals that blocks are given (joules, bytes).
    epochs, samples
        The same in epochs (1 by default) of so many samples, divided by the batch.
    deadline_model
        `makespan`, or `paper` (the sum of compute times).
    minimize
        `energy`, or `ram`: the least budget that has a schedule within `energy_limit` and the deadline, no more than
        `ram` where that is given. Status, gap and bound are then of that budget: `ram_bound_bytes` is proven.
    energy_limit
        Joules (`"3J"`) or a multiple of one compute of each operator (`"1.1x"`, `"110%"`) that a step may take. With
        `minimize="energy"` the least time within it is looked for.
    formulation
        Its name, the object (`po.formulations.retention.with_block(...)`) or a module with an object of its name.
    blocks
        More blocks: objects, or texts such as `"static-power=0.5W"`, `"energy-limit=3J"`, `"flash-wear=10MB"`.
    backend
        A solver's name (`highs`, `gurobi`, `cbc`, `scip`, any that Pyomo knows, or a package registers), or the object.
    scope
        `auto`, `depth:D`, `forward` or `full`: the space that the proof is for.
    paging, remat
        False forbids it.
    time_limit, gap
        When to stop: after this many seconds, or with an overhead proven to be that close to the least.
    threads
        How many the solver uses; 0 lets it choose. Unless it is 1, a search of ours runs beside the solver's, in one
        thread more; with 1, a solve that isn't ended by its time limit gives the same plan every time.
    solver_options
        The solver's own options, by its own names: `{"mip_heuristic_effort": "0.2"}`.
    log
        A file for what the solver prints. It is begun anew.
    listener
        Called with each `Progress`.
    progress
        Write a line to stderr where something is new. Whoever listens to the log `poetopt` at INFO gets them there.
    begin
        The moment (of `time.monotonic`) at which the time limit begins; by default now, so that reading a model that is
        given by its path counts.
    """

    ram: str | float | Share | None = None
    total_ram: str | float | None = None
    parameters: str = "auto"
    stream: str = "auto"
    deadline: str | float | Factor | None = None
    steps: int = 1
    epochs: int | None = None
    samples: int | None = None
    deadline_model: str = "makespan"
    minimize: str = "energy"
    energy_limit: str | float | Factor | None = None
    formulation: str | Formulation | ModuleType = "retention"
    blocks: Sequence[str | Block] = ()
    backend: str | Backend = "highs"
    scope: str = "auto"
    paging: bool = True
    remat: bool = True
    time_limit: str | float = "60s"
    gap: str | float = "0.1%"
    threads: int = 0
    solver_options: Mapping[str, str] | None = None
    log: str | os.PathLike[str] | None = None
    listener: Listener | None = None
    progress: bool = False
    begin: float | None = None


@dataclass(frozen=True, kw_only=True)
class SolveOptions(_FileOptions, TrainingOptions, SolvingOptions):
    """The options of `solve`.

    batch
        As for `load`, or `"max"`: the largest one that fits the RAM, and the deadline; `report.largest` says what
        refuses more.
    micro_batch
        As for `load`, or `"auto"`: the batch in as many parts as take the least energy; `report.tried` has them all.
    """

    batch: int | str | None = None
    micro_batch: int | str | None = None


@dataclass(frozen=True, kw_only=True)
class MethodOptions(ReadingOptions, TrainingOptions, CostOptions):
    """The options of each solve of a comparison or a front.

    deadline
        A deadline that all plans keep: seconds, a time, or a multiple of one pass.
    gap, threads, backend, scope
        Of one solve, as in `solve`.
    progress
        Write to stderr what is next. Whoever listens to the log `poetopt` at INFO gets it there.
    """

    deadline: str | float | Factor | None = None
    gap: str | float = "0.1%"
    threads: int = 0
    backend: str = "highs"
    scope: str = "auto"
    progress: bool = False


@dataclass(frozen=True, kw_only=True)
class CompareOptions(MethodOptions):
    """The options of `compare`.

    ram
        Budgets: `"20%..100%/9"`, `"3MB,40%"`, or a sequence of single ones.
    methods
        Names separated by commas, a `Baseline`, or a sequence of both; `"all"` stands for every method, also beside
        others.
    time_limit
        Of one solve, for the methods that solve an integer program.
    told
        Called with the method and the budget that are next.
    """

    ram: str | int | Share | Sequence[str | int | Share] = "20%..100%/9"
    methods: str | Baseline | Sequence[str | Baseline] = "all"
    time_limit: str | float = "12s"
    told: ToldMethod | None = None


@dataclass(frozen=True, kw_only=True)
class ParetoOptions(MethodOptions):
    """The options of `pareto`; the gap is 2 % by default.

    points
        At most this many of them.
    time_limit
        No new point is taken up after this many seconds.
    told
        Called with a budget and why it is next.
    """

    points: int = 14
    time_limit: str | float = "230s"
    gap: str | float = "2%"
    told: ToldPoint | None = None


def names_of(options: type) -> tuple[str, ...]:
    """The names of a class of options."""
    return tuple(field.name for field in fields(options))


def part(options: object, kind: type) -> dict[str, Any]:
    """The values of those options that `kind` has, by name."""
    return {name: getattr(options, name) for name in names_of(kind)}


def changed(options: object, kind: type) -> list[str]:
    """The names of those options of `kind` that aren't as they are by default."""
    return [field.name for field in fields(kind) if not _is_default(getattr(options, field.name), field.default)]


def _is_default(value: object, usual: object) -> bool:
    """Return whether a value is the default, or as empty as that; an array is neither."""
    if not usual and isinstance(value, Sequence | Mapping) and not value:
        return True
    return (value == usual) is True


READ, DERIVED = names_of(ReadingOptions), names_of(TrainingOptions)
OF_TRAINING = {
    **{
        name: f"it is given with each step: po.Trainer(report, {name}=...)"
        for name in ("lr", "momentum", "weight_decay", "lr_schedule", "seed")
    },
    **dict.fromkeys(("validate", "data"), "data are given to po.Trainer(report).fit(data, validate=...)"),
}
"""Advice on options that are of the training, not of the plan."""

AS_IN = {
    "device": ', as in device="a72" (po.devices.names())',
    "optimizer": "; its numbers are the Trainer's, as in po.Trainer(report, lr=0.01)",
}
"""What is added where another type is given."""

P = ParamSpec("P")
Given = TypeVar("Given")
Options = TypeVar("Options")
Result = TypeVar("Result")


def keywords(
    options: Callable[P, Options],
) -> Callable[[Callable[[Given, Options], Result]], Callable[Concatenate[Given, P], Result]]:
    """Give a function of something and a class of options the arguments of that class.

    Its docstring gets what the class says of each where it has the line `{options}`. The function raises TypeError for
    an option that there isn't.
    """
    asked: Any = options
    known, texts = names_of(asked), texts_of(asked)

    def taking(function: Callable[[Given, Options], Result]) -> Callable[Concatenate[Given, P], Result]:
        first, second = inspect.signature(function).parameters.values()

        own = inspect.signature(asked)
        signature = own.replace(
            parameters=[first, *own.parameters.values()], return_annotation=function.__annotations__["return"]
        )

        @wraps(function)
        def call(*given: Any, **named: Any) -> Result:
            wrong = next((name for name in named if name not in (*known, first.name)), None)
            if wrong is not None:
                later = OF_TRAINING.get(wrong) or f"there are {', '.join(known)}"
                raise TypeError(f"unknown option {wrong!r}{closest(wrong, known)}; {later}")
            arguments = signature.bind(*given, **named).arguments
            subject = arguments.pop(first.name)
            for name, value in arguments.items():
                if not matches(value, texts[name]):
                    shown = shortened(repr(value))
                    raise OptionError(
                        f"{name}={shown}: must be {described(evaluated(texts[name]))}{AS_IN.get(name, '')}"
                    )
            return function(subject, asked(**arguments))

        written = {name: (text, function.__module__) for name, text in function.__annotations__.items()}
        del written[second.name]
        call.__annotations__ = LazyHints(written | texts)
        call.__signature__ = signature  # type: ignore[attr-defined]
        call.__doc__ = inspect.cleandoc(function.__doc__ or "").replace("{options}", f"{_said(asked)}\n")
        return call

    return taking


def texts_of(options: type) -> dict[str, Text]:
    """The annotations of a class of options, by name."""
    found: dict[str, Text] = {}
    for one in reversed(options.__mro__):
        found |= {name: (text, one.__module__) for name, text in inspect.get_annotations(one).items()}
    return found


def _said(options: type) -> str:
    """The docstrings of options, in the order of the arguments."""
    found = [inspect.cleandoc(one.__doc__ or "") for one in reversed(options.__mro__[:-1])]
    return "\n".join(text.partition("\n\n")[2] for text in found if "\n\n" in text)
