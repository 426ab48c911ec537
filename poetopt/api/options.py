"""Options of reading a model, of its training step, and of solving, each declared once.

`keywords` turns them into arguments of `po.solve` and similar functions, for callers, type checkers and `help`.
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
"""Words that `--batch` and `--micro-batch` take besides numbers."""


@dataclass(frozen=True, kw_only=True)
class _FileOptions:
    """Options of a model's file that don't concern its batch.

    Parameters
    ----------
    train
        Pattern, or patterns, of the parameters to train (`fc.*`); all of them by default.
    dims
        Sizes of dimensions that the file names: `{"height": 160}`.
    shapes
        Whole shapes of inputs, as numbers or in a text: `{"input": "1x3x160x160"}`; None, or `?`, for a size that the
        file, `batch` or `dims` defines.
    values
        Inputs that become constants: `{"sr": 16000}`. A number fills an input of any size; lists and arrays are whole.
    allow_symlinks
        Whether files of weights may be outside of the model's folder, behind symbolic links.
    micro_batch_statistics
        Whether BatchNormalization in training mode may compute statistics of each part.
    """

    train: str | Sequence[str] | None = None
    dims: Mapping[str, int | str] | None = None
    shapes: Mapping[str, str | Sequence[int | None]] | None = None
    values: Mapping[str, object] | None = None
    allow_symlinks: bool = False
    micro_batch_statistics: bool = False


@dataclass(frozen=True, kw_only=True)
class ReadingOptions(_FileOptions):
    """Options of `load`: how a model's file is read.

    Parameters
    ----------
    batch
        Size of the batch axis, if the file leaves it open, or to change it.
    micro_batch
        Number of equal parts that the batch is cut into. The network is that of one part, and its training step sums
        the gradients of all. Rejected if the result would differ from that of the whole batch.
    """

    batch: int | None = None
    micro_batch: int | None = None


@dataclass(frozen=True, kw_only=True)
class StepOptions:
    """Options of the training graph that is derived from a network.

    Parameters
    ----------
    loss
        `cross-entropy`, `bce`, `mse`, `none` (the model's output is the loss), or `auto`, which chooses by the model's
        last operator and the output's shape. `forward-only`: no loss and no backward operators; the step only runs the
        network.
    output
        Output of the loss, if several are possible.
    ignore_index, class_weights, label_smoothing
        Options of an attached cross-entropy, as in `torch.nn.CrossEntropyLoss`: the label that the mean leaves out
        (-100), a weight for each class, and the share of a label that is spread over all classes.
    straight_through
        Whether gradients pass QuantizeLinear followed by DequantizeLinear unchanged, where nothing is clipped.
    optimizer
        `sgd`, `momentum`, `adam` or `adamw`: its updates are part of the step (see `poetopt.autodiff.optimizers`). With
        `none`, the step ends with the gradients.
    fuse
        Whether an update is one operator with the gradient that only it reads.
    clip_norm
        Whether updates clip the gradients by the norm of all of them. Each step gets the bound (`clip_norm`), like a
        learning rate; each gradient waits for that norm.
    rates
        Factor of the learning rate of some parameters, by pattern: `{"features.*": 0.1}`. The first match counts.
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
    """Options of `Model.differentiate`: the training step as it is scheduled.

    Parameters
    ----------
    granularity
        `operator`, or `block`: chains of cheap operators are scheduled as one (see `poetopt.autodiff.passes.blocks`).
    lazy_tables
        Whether a row of an embedding and its optimizer states change only in steps that use it, if parameters are
        paged. Momentum and Adam then page such tables by rows, as SGD always does.
    """

    granularity: str = "operator"
    lazy_tables: bool = False


@dataclass(frozen=True, kw_only=True)
class ModelOptions(ReadingOptions, TrainingOptions):
    """Options of the training step: those of `load` and of `Model.differentiate`."""


@dataclass(frozen=True, kw_only=True)
class CostOptions:
    """Device of a problem.

    Parameters
    ----------
    device, profile, runtime
        As for `Training.cost`.
    """

    device: Device | str | os.PathLike[str] | None = None
    profile: Profile | str | os.PathLike[str] | None = None
    runtime: str | None = None


@dataclass(frozen=True, kw_only=True)
class SolvingOptions(CostOptions):
    """Options of the search.

    Parameters
    ----------
    ram
        Budget of the schedule only, as in the paper: bytes, a size (`"300KiB"`) or a share of the store-all peak
        (`"40%"`). By default the RAM limits the whole step.
    total_ram
        Bytes, or a size, for the whole step: schedule, parameters, gradients, optimizer states, constants. By default
        the device's RAM.
    parameters
        `resident`, `paged` (their home is storage, and they are scheduled like other tensors), or `auto`: resident if
        they fit or `ram` is given. Paged parameters are updated in the step, by `sgd` if no optimizer is named.
    stream
        `auto`: if parameters are paged, operators may stream operands from storage and outputs to it, in chunks, as the
        runtime's variants allow (`c` has some). `never`: operators run with all operands in RAM.
    deadline
        Seconds, a time (`"250ms"`) or a multiple of one compute of each operator (`"1.5x"`). By default there is none.
    steps
        Number of training steps that an absolute deadline covers, and totals of blocks (joules, bytes).
    epochs, samples
        The number of steps as epochs (1 by default) of so many samples, divided by the batch.
    deadline_model
        `makespan`, or `paper` (the sum of compute times).
    minimize
        `energy`, or `ram`: the least budget with a schedule within `energy_limit` and the deadline, at most `ram` if
        that is given. Status, gap and bound then refer to that budget: `ram_bound_bytes` is proven.
    energy_limit
        Joules (`"3J"`) or a multiple of one compute of each operator (`"1.1x"`, `"110%"`) that a step may take. With
        `minimize="energy"` the search minimizes time within it.
    formulation
        Its name, the object (`po.formulations.retention.with_block(...)`) or a module with an object of its name.
    blocks
        More blocks: objects, or texts such as `"static-power=0.5W"`, `"energy-limit=3J"`, `"flash-wear=10MB"`.
    backend
        Name of a solver (`highs`, `gurobi`, `cbc`, `scip`, any that Pyomo knows, or a package registers), or the
        object.
    scope
        `auto`, `depth:D`, `forward` or `full`: the space that the proof covers.
    paging, remat
        False forbids it.
    time_limit, gap
        When to stop: after this time, or with an overhead proven to be this close to the least.
    threads
        Threads of the solver; 0 lets it choose. With more than one thread, poetopt's own search runs in parallel, in
        one more. With 1, a solve that its time limit doesn't end gives the same plan every time.
    solver_options
        Options of the solver, by its own names: `{"mip_heuristic_effort": "0.2"}`.
    log
        File for the output of the solver, which is overwritten.
    listener
        Function that is called with each `Progress`.
    progress
        Whether to write a line to stderr for each news. Listeners to the log `poetopt` at INFO get them there.
    begin
        Moment (of `time.monotonic`) at which the time limit begins; by default now, so that reading a model from its
        path counts.
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
    """Options of `solve`.

    Parameters
    ----------
    batch
        As for `load`, or `"max"`: the largest one that fits the RAM and the deadline; `report.largest` has the reason
        against more.
    micro_batch
        As for `load`, or `"auto"`: the number of parts that takes the least energy; `report.tried` has all numbers.
    """

    batch: int | str | None = None
    micro_batch: int | str | None = None


@dataclass(frozen=True, kw_only=True)
class MethodOptions(ReadingOptions, TrainingOptions, CostOptions):
    """Options of each solve of a comparison or a front.

    Parameters
    ----------
    deadline
        Deadline of all plans: seconds, a time, or a multiple of one pass.
    gap, threads, backend, scope
        Options of one solve, as in `solve`.
    progress
        Whether to write each next solve to stderr. Listeners to the log `poetopt` at INFO get it there.
    """

    deadline: str | float | Factor | None = None
    gap: str | float = "0.1%"
    threads: int = 0
    backend: str = "highs"
    scope: str = "auto"
    progress: bool = False


@dataclass(frozen=True, kw_only=True)
class CompareOptions(MethodOptions):
    """Options of `compare`.

    Parameters
    ----------
    ram
        Budgets: `"20%..100%/9"`, `"3MB,40%"`, or a sequence of single ones.
    methods
        Names separated by commas, a `Baseline`, or a sequence of both; `"all"` stands for every method, also among
        others.
    time_limit
        Limit of one solve, for methods that solve an integer program.
    told
        Function that is called with the next method and budget.
    """

    ram: str | int | Share | Sequence[str | int | Share] = "20%..100%/9"
    methods: str | Baseline | Sequence[str | Baseline] = "all"
    time_limit: str | float = "12s"
    told: ToldMethod | None = None


@dataclass(frozen=True, kw_only=True)
class ParetoOptions(MethodOptions):
    """Options of `pareto`; the gap is 2 % by default.

    Parameters
    ----------
    points
        Maximum number of points.
    time_limit
        Seconds after which no new point is begun.
    told
        Function that is called with the next budget and the reason for it.
    """

    points: int = 14
    time_limit: str | float = "230s"
    gap: str | float = "2%"
    told: ToldPoint | None = None


def names_of(options: type) -> tuple[str, ...]:
    """Return the names of a class of options."""
    return tuple(field.name for field in fields(options))


def part(options: object, kind: type) -> dict[str, Any]:
    """Return the values of those options that `kind` has, by name."""
    return {name: getattr(options, name) for name in names_of(kind)}


def changed(options: object, kind: type) -> list[str]:
    """Return the names of those options of `kind` that differ from their defaults."""
    return [field.name for field in fields(kind) if not _is_default(getattr(options, field.name), field.default)]


def _is_default(value: object, default: object) -> bool:
    """Return whether a value is the default, or empty like it; an array is neither."""
    if not default and isinstance(value, Sequence | Mapping) and not value:
        return True
    return (value == default) is True


READ, DERIVED = names_of(ReadingOptions), names_of(TrainingOptions)
OF_TRAINING = {
    **{
        name: f"it is an option of training: po.Trainer(report, {name}=...)"
        for name in ("lr", "momentum", "weight_decay", "lr_schedule", "seed")
    },
    **dict.fromkeys(("validate", "data"), "give data to po.Trainer(report).fit(data, validate=...)"),
}
"""Advice on options of the training, not of the plan."""

AS_IN = {
    "device": ', as in device="a72" (po.devices.names())',
    "optimizer": ". Its hyperparameters are those of the Trainer, as in po.Trainer(report, lr=0.01)",
}
"""Additions to messages about a wrong type."""

P = ParamSpec("P")
Given = TypeVar("Given")
Options = TypeVar("Options")
Result = TypeVar("Result")


def keywords(
    options: Callable[P, Options],
) -> Callable[[Callable[[Given, Options], Result]], Callable[Concatenate[Given, P], Result]]:
    """Give a function of a subject and an object of options the arguments of that class of options.

    The line `{options}` in its docstring is replaced by the docstrings of the options. The function raises TypeError
    for an unknown option.
    """
    options_class: Any = options
    known, texts = names_of(options_class), texts_of(options_class)

    def decorate(function: Callable[[Given, Options], Result]) -> Callable[Concatenate[Given, P], Result]:
        first, second = inspect.signature(function).parameters.values()

        own = inspect.signature(options_class)
        signature = own.replace(
            parameters=[first, *own.parameters.values()], return_annotation=function.__annotations__["return"]
        )

        @wraps(function)
        def call(*given: Any, **named: Any) -> Result:
            unknown = next((name for name in named if name not in (*known, first.name)), None)
            if unknown is not None:
                advice = OF_TRAINING.get(unknown) or f"there are {', '.join(known)}"
                raise TypeError(f"unknown option {unknown!r}{closest(unknown, known)}; {advice}")
            arguments = signature.bind(*given, **named).arguments
            subject = arguments.pop(first.name)
            for name, value in arguments.items():
                if not matches(value, texts[name]):
                    shown = shortened(repr(value))
                    raise OptionError(
                        f"{name}={shown}: must be {described(evaluated(texts[name]))}{AS_IN.get(name, '')}"
                    )
            return function(subject, options_class(**arguments))

        annotations = {name: (text, function.__module__) for name, text in function.__annotations__.items()}
        del annotations[second.name]
        call.__annotations__ = LazyHints(annotations | texts)
        call.__signature__ = signature  # type: ignore[attr-defined]
        call.__doc__ = inspect.cleandoc(function.__doc__ or "").replace("{options}", _docs_of(options_class))
        return call

    return decorate


def texts_of(options: type) -> dict[str, Text]:
    """Return the annotations of a class of options, by name."""
    annotations: dict[str, Text] = {}
    for one in reversed(options.__mro__):
        annotations |= {name: (text, one.__module__) for name, text in inspect.get_annotations(one).items()}
    return annotations


_PARAMETERS = "Parameters\n----------\n"


def _docs_of(options: type) -> str:
    """Return the parameters in the docstrings of options, in the order of the arguments."""
    docstrings = [inspect.cleandoc(one.__doc__ or "") for one in reversed(options.__mro__[:-1])]
    return "\n".join(text.partition(_PARAMETERS)[2] for text in docstrings if _PARAMETERS in text)
