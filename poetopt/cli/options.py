"""The arguments and options that several commands share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from poetopt.autodiff.optimizers import NAMES
from poetopt.cli import completion
from poetopt.cli.completion import choices
from poetopt.util.errors import OptionError

if TYPE_CHECKING:
    from poetopt.frontends.reading import ReadOptions

ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="An .onnx file, a problem file (.json), or a zoo network (`poetopt zoo`).",
        autocompletion=completion.models,
    ),
]


DeviceOption = Annotated[
    str,
    typer.Option(
        "--device",
        metavar="NAME|FILE",
        help="A device (`poetopt devices`), or a TOML file of one.",
        autocompletion=completion.devices,
    ),
]
RuntimeOption = Annotated[
    str | None,
    typer.Option(
        "--runtime",
        metavar="NAME",
        help="What runs the operators: onnxruntime, c, or an installed one; default: the device's.",
        autocompletion=completion.runtimes,
    ),
]
BatchOption = Annotated[int | None, typer.Option("--batch", metavar="N", help="Batch size.", min=1)]
BatchOrMaxOption = Annotated[
    str | None,
    typer.Option("--batch", metavar="N|max", help="Batch size; max: the largest that fits RAM and deadline."),
]
MicroBatchOption = Annotated[
    int | None,
    typer.Option("--micro-batch", metavar="K", help="Cut the batch into K parts and sum their gradients.", min=1),
]
MicroBatchOrAutoOption = Annotated[
    str | None,
    typer.Option(
        "--micro-batch",
        metavar="K|auto",
        help="Cut the batch into K parts and sum their gradients; auto: the K of least energy that fits.",
        autocompletion=choices("auto"),
    ),
]
MicroBatchStatisticsOption = Annotated[
    bool,
    typer.Option(
        "--micro-batch-statistics",
        help="With --micro-batch: BatchNormalization in training mode takes each part's own statistics.",
    ),
]
TrainOption = Annotated[
    list[str] | None,
    typer.Option("--train", metavar="PATTERN", help="Train only these parameters (fc.*); may be repeated."),
]
DimOption = Annotated[
    list[str] | None,
    typer.Option("--dim", metavar="NAME=SIZE", help="Size of a dimension that the file names; may be repeated."),
]
ShapeOption = Annotated[
    list[str] | None,
    typer.Option("--shape", metavar="INPUT=1x3x160x160", help="Shape of an input; may be repeated."),
]
ValueOption = Annotated[
    list[str] | None,
    typer.Option("--value", metavar="INPUT=16000", help="Make an input a constant of that value; may be repeated."),
]
PlanModelOption = Annotated[
    str | None,
    typer.Option("--model", metavar="FILE", help="The model, where it is no longer where the plan says."),
]
AllowSymlinksOption = Annotated[
    bool,
    typer.Option("--allow-symlinks", help="Read weights outside of the model's folder through symbolic links."),
]
LossOption = Annotated[
    str,
    typer.Option(
        "--loss",
        metavar="auto|cross-entropy|bce|mse|none",
        help="The loss to attach.",
        autocompletion=choices("auto", "cross-entropy", "bce", "mse", "none"),
    ),
]
OutputOption = Annotated[
    str | None,
    typer.Option("--output", metavar="NAME", help="The output that the loss is on, where several could have it."),
]
StraightThroughOption = Annotated[
    bool,
    typer.Option(
        "--straight-through",
        help="Let gradients pass QuantizeLinear with DequantizeLinear behind it, where nothing is clipped.",
    ),
]
OptimizerOption = Annotated[
    str,
    typer.Option(
        "--optimizer",
        metavar="none|sgd|momentum|adam|adamw",
        help="Update the parameters in the step, which takes lr and its like as inputs; none: it ends with gradients.",
        autocompletion=choices(*NAMES),
    ),
]
SeparateUpdatesOption = Annotated[
    bool,
    typer.Option(
        "--separate-updates",
        help="With --optimizer: updates are operators of their own, so that whole gradients exist for a while.",
    ),
]
ClipNormOption = Annotated[
    bool,
    typer.Option(
        "--clip-norm",
        help="With --optimizer: updates wait for the norm of all gradients, and clip them to the step's `clip_norm`.",
    ),
]
LazyTablesOption = Annotated[
    bool,
    typer.Option(
        "--lazy-tables",
        help="With paged parameters: a row of an embedding and its momentum or moments change in those steps alone "
        "that use it, and go to and from storage row by row.",
    ),
]
GranularityOption = Annotated[
    str,
    typer.Option(
        "--granularity",
        metavar="operator|block",
        help="The unit of scheduling; block: a chain of cheap operators is one.",
        autocompletion=choices("operator", "block"),
    ),
]
DeadlineOption = Annotated[
    str | None, typer.Option("--deadline", metavar="TIME|FACTOR", help="250ms, 3h, or 1.5x one pass; default: none.")
]
ThreadsOption = Annotated[
    int,
    typer.Option(
        "--threads",
        metavar="N",
        help="Threads of the solver; 0: it chooses. Unless 1, a search of ours runs beside.",
        min=0,
    ),
]
BackendOption = Annotated[
    str,
    typer.Option(
        "--backend",
        metavar="NAME",
        help="The solver: highs, gurobi, cbc, scip, or an installed one.",
        autocompletion=completion.backends,
    ),
]
SolverOption = Annotated[
    list[str] | None,
    typer.Option("--solver-option", metavar="KEY=VALUE", help="The solver's own option; may be repeated."),
]
LogOption = Annotated[
    str | None, typer.Option("--log", metavar="FILE", help="Write what the solver prints there, as it goes.")
]
RamOption = Annotated[
    str | None,
    typer.Option(
        "--ram",
        metavar="SIZE|PERCENT",
        help="Budget of the schedule alone: 3MB, 300KiB, 40% of store-all.",
    ),
]
TotalRamOption = Annotated[
    str | None,
    typer.Option(
        "--total-ram",
        metavar="SIZE",
        help="RAM for all of the step: schedule, parameters, states; default: the device's, unless --ram is given.",
    ),
]
ParametersOption = Annotated[
    str,
    typer.Option(
        "--parameters",
        metavar="auto|resident|paged",
        help="In RAM for good, or on storage and scheduled; auto: resident where that fits.",
        autocompletion=choices("auto", "resident", "paged"),
    ),
]
StreamOption = Annotated[
    str,
    typer.Option(
        "--stream",
        metavar="auto|never",
        help="With paged parameters, operators may stream operands chunk by chunk, where the runtime has ways; or not.",
        autocompletion=choices("auto", "never"),
    ),
]
StepsOption = Annotated[
    int,
    typer.Option("--steps", metavar="N", help="How many training steps an absolute deadline or limit is for.", min=1),
]
EpochsOption = Annotated[
    int | None,
    typer.Option(
        "--epochs", metavar="E", help="With --samples: the deadline is for so many epochs; default: 1.", min=1
    ),
]
SamplesOption = Annotated[
    int | None,
    typer.Option(
        "--samples",
        metavar="N",
        help="Samples of an epoch: deadline and answer are for all of the training, in steps of a batch.",
        min=1,
    ),
]
BatteryOption = Annotated[
    str | None,
    typer.Option("--battery", metavar="CHARGE", help="Which share of a battery it takes: 3000mAh@3.7V, 11.1Wh, 40kJ."),
]
DeadlineModelOption = Annotated[
    str,
    typer.Option(
        "--deadline-model",
        metavar="makespan|paper",
        help="What the deadline bounds; paper: the sum of compute times.",
        autocompletion=choices("makespan", "paper"),
    ),
]
FormulationOption = Annotated[
    str,
    typer.Option(
        "--formulation",
        metavar="NAME",
        help="Which model is solved: retention, poet (`poetopt formulations`).",
        autocompletion=completion.formulations,
    ),
]
NoPagingOption = Annotated[bool, typer.Option("--no-paging", help="Recompute only.")]
NoRematOption = Annotated[bool, typer.Option("--no-remat", help="Page only.")]
ProfileOption = Annotated[
    str | None,
    typer.Option("--profile", metavar="FILE", help="Measured costs (`poetopt profile`), in place of estimates."),
]
StaticPowerOption = Annotated[
    str | None,
    typer.Option(metavar="WATTS", help="Idle power; it counts for the whole step in the energy that is minimised."),
]
EnergyLimitOption = Annotated[
    str | None,
    typer.Option(
        metavar="JOULES|FACTOR",
        help="Minimise time (or with --minimize ram the RAM), not energy, within this energy a step: 3J, 1.05x, 105%.",
    ),
]
MinimizeOption = Annotated[
    str,
    typer.Option(
        "--minimize",
        metavar="energy|ram",
        help="ram: the least RAM that has a schedule within --energy-limit and --deadline.",
        autocompletion=choices("energy", "ram"),
    ),
]
FlashWearOption = Annotated[
    str | None, typer.Option(metavar="SIZE", help="Write at most this much to storage a step: 10MB.")
]
WithOption = Annotated[
    list[str] | None,
    typer.Option(
        "--with",
        metavar="BLOCK=VALUE",
        help="One more block (`poetopt formulations`); may be repeated.",
        autocompletion=completion.blocks,
    ),
]
PlanArgument = Annotated[str, typer.Argument(metavar="PLAN", help="A plan that `poetopt solve -o` wrote.")]
PlanOutOption = Annotated[
    str | None, typer.Option("-o", "--out", metavar="PLAN|-", help="Write the plan there; - is stdout.")
]
CsvOption = Annotated[
    str | None, typer.Option("--csv", metavar="FILE|-", help="Write all rows there as CSV; - is stdout.")
]
JsonOption = Annotated[
    str | None, typer.Option("--json", metavar="FILE|-", help="Write one JSON object there; - is stdout.")
]


def asked_blocks(
    static_power: str | None, energy_limit: str | None, flash_wear: str | None, more: list[str] | None
) -> list[str]:
    """`--static-power`, `--energy-limit`, `--flash-wear` and `--with` as what `po.solve(blocks=...)` takes."""
    named = {"static-power": static_power, "energy-limit": energy_limit, "flash-wear": flash_wear}
    return [*(f"{name}={value}" for name, value in named.items() if value is not None), *(more or [])]


def batch_size(text: str | None) -> int | None:
    """`--batch`, where it isn't `max`. Raises OptionError."""
    if text is None:
        return None
    if not text.strip().isdecimal() or int(text) < 1:
        raise OptionError(f"--batch {text}: must be a whole number from 1 on, or max for the largest that fits")
    return int(text)


def micro_batches(text: str | None) -> int | None:
    """`--micro-batch`, where it isn't `auto`. Raises OptionError."""
    if text is None:
        return None
    if not text.strip().isdecimal() or int(text) < 1:
        raise OptionError(f"--micro-batch {text}: must be a whole number of parts from 1 on, or auto")
    return int(text)


def reading(
    batch: int | None,
    train: list[str] | None,
    dims: list[str] | None,
    shapes: list[str] | None,
    values: list[str] | None,
    allow_symlinks: bool,
    *,
    micro_batch: int | None = None,
    micro_batch_statistics: bool = False,
) -> ReadOptions:
    """The options that say how MODEL is read. Raises OptionError."""
    from poetopt.frontends.reading import read_options

    return read_options(
        batch=batch,
        train=",".join(train) if train else None,
        dims=_named("--dim", dims, "height=160"),
        shapes=_named("--shape", shapes, "input=1x3x160x160"),
        values=_named("--value", values, "sr=16000"),
        allow_symlinks=allow_symlinks,
        micro_batch=micro_batch,
        micro_batch_statistics=micro_batch_statistics,
    )


def _named(option: str, texts: list[str] | None, example: str) -> dict[str, str]:
    """Repeated NAME=VALUE; names may have = in them."""
    found: dict[str, str] = {}
    for text in texts or []:
        name, equals, value = text.rpartition("=")
        if not equals or not name or not value.strip():
            raise OptionError(f"{option} {text}: say which and how much, as in {option} {example}")
        if name in found:
            raise OptionError(f"{option} {text}: {name} is given twice")
        found[name] = value
    return found


def pairs(options: list[str] | None) -> dict[str, str]:
    """Repeated `--solver-option` options as a mapping. Raises OptionError for one that isn't `key=value`."""
    found: dict[str, str] = {}
    for text in options or []:
        key, equals, value = text.partition("=")
        if not equals or not key.strip() or not value.strip():
            raise OptionError(f"--solver-option {text}: say KEY=VALUE, with the solver's own names, as in presolve=off")
        if key.strip() in found:
            raise OptionError(f"--solver-option {text}: {key.strip()} is given twice")
        found[key.strip()] = value.strip()
    return found
