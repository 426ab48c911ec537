"""Options that several commands share: each is declared once, and a command names the ones that it takes.

`@sharing(READING, STEP, ...)` gives a command the options of these groups. It gets their values as `**options`, under
the names of the arguments of `po.solve` and its like; `parse_options` converts them. Options that few people need stand
in the last panel of the help, *Advanced*.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand

from poetopt.api.options import AUTO, MAX, SolveOptions
from poetopt.util.errors import OptionError
from poetopt.util.text import closest
from poetopt.util.units import parse_float32, parse_whole

ADVANCED = "Advanced"
"""The last panel of a command's help."""
RETIRED = {"--as": "--package", "--keep-training-form": "--training-mode"}
"""Options of earlier versions that are still accepted, and their successors."""
BEHIND_WITH = frozenset((
    "minimize", "energy-limit", "stream", "micro-batch-statistics", "allow-symlinks", "ignore-index", "class-weights",
    "label-smoothing", "straight-through", "separate-updates", "clip-norm", "rates", "lazy-tables", "granularity",
    "solver-option", "log", "metrics", "augment",
))  # fmt: skip
"""Options that earlier versions took as `--with NAME[=VALUE]`, which is still accepted."""


@dataclass(frozen=True)
class Option:
    """One option of several commands.

    Attributes
    ----------
    name
        The argument's name in the Python call.
    kind, default
        Type and default of the value; `read` converts the text of a number.
    words
        The metavar.
    flag
        The option on the command line, if it isn't the name.
    least, most
        Bounds of a whole number.
    """

    name: str
    kind: Any
    default: Any
    words: str
    help: str
    panel: str | None = ADVANCED
    flag: str | None = None
    least: int | None = None
    most: int | None = None

    @property
    def flags(self) -> list[str]:
        """Spellings on the command line; the last is the long one."""
        return (self.flag or f"--{self.name.replace('_', '-')}").split(" ")

    def parameter(self) -> inspect.Parameter:
        """Return the parameter that the parser takes."""
        metavar: dict[str, Any] = {"metavar": self.words} if self.words else {}
        option = typer.Option(*self.flags, help=self.help, rich_help_panel=self.panel, **metavar)
        return inspect.Parameter(
            self.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if self.default is ... else self.default,
            # The parser takes a number as text: it would accept spellings that `read` refuses.
            annotation=Annotated[{int: str, _WHOLE: _TEXT, _NUMBER: _TEXT}.get(self.kind, self.kind), option],
        )

    def read(self, text: object) -> Any:
        """Return the value of a text: a number, if the option takes one. Raises OptionError."""
        if not isinstance(text, str) or self.kind not in (int, _WHOLE, _NUMBER):
            return text
        if self.kind == _NUMBER:
            return parse_float32(text, option=self.flags[-1])
        return parse_whole(text, option=self.flags[-1], least=self.least, most=self.most)


_TEXT, _LIST, _WHOLE, _NUMBER = str | None, list[str] | None, int | None, float | None
_ARGUMENTS = {field.name: field for field in fields(SolveOptions)}


def argument(
    name: str,
    words: str,
    help: str,
    panel: str | None = ADVANCED,
    flag: str | None = None,
    least: int | None = None,
    most: int | None = None,
) -> Option:
    """Return the option of an argument of `po.solve`, with its type and default there."""
    annotation, default = str(_ARGUMENTS[name].type), _ARGUMENTS[name].default
    kind: Any = {"bool": bool, "int": int, "int | None": _WHOLE}.get(annotation, _TEXT if default is None else str)
    if "Mapping" in annotation or "Sequence[str" in annotation:
        kind, default = _LIST, None
    return Option(name, kind, default, words, help, panel, flag, least, most)


DEVICE = Option(
    "device", str, ..., "NAME|FILE", "A device (`poetopt devices`), or a TOML file of one.", None, "--device",
)  # fmt: skip
RUNTIME = argument(
    "runtime", "NAME", "Runtime of the operators: onnxruntime, c, or an installed one; default: the device's.",
)  # fmt: skip
PROFILE = argument("profile", "FILE", "Use measured costs (`poetopt profile`) instead of estimates.")
PARAMETERS = argument(
    "parameters", "auto|resident|paged",
    "Keep parameters in RAM, or on storage and schedule them; auto: resident if they fit.",
)  # fmt: skip
STREAM = argument("stream", "auto|never", "Whether operators may stream paged operands in parts.")
BATCH_OR_MAX = argument("batch", "N|max", "Batch size; max: the largest that fits RAM and deadline.", None)
BATCH = replace(BATCH_OR_MAX, kind=_WHOLE, words="N", help="Batch size.", least=1)
MICRO_BATCH = argument(
    "micro_batch", "K|auto",
    "Cut the batch into K parts and sum their gradients; auto: the K of least energy that fits.",
)  # fmt: skip
PARTS = replace(MICRO_BATCH, words="K", help="Cut the batch into K parts and sum their gradients.")
STATISTICS = argument(
    "micro_batch_statistics", "",
    "With --micro-batch: let BatchNormalization in training mode use the statistics of each part.",
)  # fmt: skip
ALLOW_SYMLINKS = argument("allow_symlinks", "", "Read weights outside of the model's folder through symbolic links.")
METRICS = Option("metrics", str, "", "f1,top5,...", "Metrics of --validate, beside loss and accuracy.")
AUGMENT = Option("augment", _TEXT, None, "flip,crop", "Random changes of the images in each epoch.")
READING = (
    argument("train", "PATTERN", "Train only these parameters (fc.*); may be repeated.", None),
    Option("freeze", _LIST, None, "PATTERN", "Don't train these parameters (features.*); may be repeated."),
    argument("dims", "NAME=SIZE", "Set the size of a dimension that the file names.", flag="--dim"),
    argument("shapes", "INPUT=1x3x160x160", "Set the shape of an input.", flag="--shape"),
    argument("values", "INPUT=16000", "Make an input a constant of that value.", flag="--value"),
    ALLOW_SYMLINKS,
)
"""Options of reading a model's file, without the batch."""
LOSS = (
    argument(
        "loss", "auto|cross-entropy|bce|mse|none|forward-only",
        "The loss to attach; none: the model's output is the loss; forward-only: plan inference, not training.", None,
    ),
    argument("output", "NAME", "The output that the loss is on, if the model has several."),
    argument("ignore_index", "-100", "Leave rows with this label out of the mean of cross-entropy."),
    argument("class_weights", "W,W,...", "Weights of the classes in cross-entropy."),
    argument("label_smoothing", "0.1", "Spread this share of each label over all classes."),
    argument(
        "straight_through", "",
        "Let gradients pass QuantizeLinear and DequantizeLinear where nothing is clipped (straight-through).",
    ),
)  # fmt: skip
OPTIMIZERS = "none|sgd|momentum|adam|adamw"
UPDATES = (
    argument(
        "optimizer", OPTIMIZERS,
        "Update the parameters in the step, with lr and the like as inputs; none: the step ends with gradients.", None,
    ),
    Option("separate_updates", bool, False, "", "Make the updates operators of their own."),
    argument("clip_norm", "", "Clip gradients by the norm of all of them."),
    argument("rates", "PATTERN=X", "Multiply the learning rate of these parameters by X; may be repeated."),
)  # fmt: skip
LAZY_TABLES = argument("lazy_tables", "", "Update a row of a paged embedding only in the steps that use it.")
GRANULARITY = argument(
    "granularity", "operator|block", "The unit of scheduling; block: a chain of cheap operators.",
)  # fmt: skip
RAM = argument("ram", "SIZE|PERCENT", "Budget of the schedule alone: 3MB, 300KiB, 40% of store-all.", None)
DEADLINE = argument(
    "deadline", "TIME|FACTOR", "Deadline of a step: 250ms, 3h, or 1.5x (times one pass); default: none.", None
)
STEPS = argument("steps", "N", "The deadline or limit is for N training steps.", least=1)
DEADLINE_MODEL = argument(
    "deadline_model", "makespan|paper", "The deadline bounds the makespan or, as in the paper, the sum of computes."
)
SCOPE = argument("scope", "auto|depth:D|forward|full", "The schedules that are searched, and that the proof covers.")
SPACE = (
    argument("formulation", "NAME", "The model that is solved: retention, poet (`poetopt formulations`)."),
    SCOPE,
    Option("no_paging", bool, False, "", "Recompute only."),
    Option("no_remat", bool, False, "", "Page only."),
)  # fmt: skip
BACKEND = argument(
    "backend", "NAME", "The solver: highs, gurobi, cbc, scip, or another one that is installed.",
)  # fmt: skip
GAP = argument("gap", "PERCENT", "Stop when no schedule can save more than this share of the overhead.", None)
TIME_LIMIT = argument("time_limit", "TIME", "Stop the search after this time.", None)
THREADS = argument(
    "threads", "N", "Threads of the solver; 0: the solver chooses. With more than one thread, poetopt's own search "
    "runs in parallel.", least=0,
)  # fmt: skip
SEARCHING = (BACKEND, TIME_LIMIT, GAP, THREADS)
BLOCKS = argument(
    "blocks", "NAME[=VALUE]", "Add a block to the formulation (`poetopt formulations`); may be repeated.",
    flag="--block",
)  # fmt: skip
GOALS = (
    argument(
        "total_ram", "SIZE", "Limit the RAM of the whole step; default: the device's RAM, unless --ram is given.", None,
    ),
    STEPS,
    argument(
        "samples", "N", "Samples of an epoch: the deadline and the answer are for the whole training.", None, least=1,
    ),
    argument("epochs", "E", "With --samples: the number of epochs; default: 1.", None, least=1),
    argument("minimize", "energy|ram", "Minimize energy, or the RAM of a schedule."),
    argument("energy_limit", "JOULES|FACTOR", "Minimize time, or RAM, within this energy."),
)  # fmt: skip
SOLVER = (
    Option("solver_option", _LIST, None, "KEY=VALUE", "Set an option of the solver; may be repeated."),
    argument("log", "FILE", "Write what the solver prints."),
)

SOLVING = (
    DEVICE, RAM, *GOALS, DEADLINE, DEADLINE_MODEL, RUNTIME, PARAMETERS, STREAM, BATCH_OR_MAX, MICRO_BATCH, STATISTICS,
    *READING, *LOSS, *UPDATES, LAZY_TABLES, GRANULARITY, *SPACE, *SEARCHING, *SOLVER, PROFILE, BLOCKS,
)  # fmt: skip
FITTING = (DEVICE, PARTS, STATISTICS, *READING, *LOSS, *UPDATES, GRANULARITY, THREADS, RUNTIME, PROFILE)
COMPARING = (
    DEVICE, DEADLINE, BATCH, PARTS, STATISTICS, *READING, *LOSS, *UPDATES, GRANULARITY, SCOPE, BACKEND, THREADS,
    RUNTIME, PROFILE,
)  # fmt: skip

TRAINED = Option("out", str, ..., "TRAINED.onnx", "Write the trained network there.", None, "-o --out")
TRAINING_MODE = Option(
    "training_mode", bool, False, "",
    "Write the network in training mode, with Dropout, to train it further; default: for inference.", None,
)  # fmt: skip
WORKDIR = Option("workdir", _TEXT, None, "FOLDER", "Page and unpack to this folder; default: a temporary one.", None)
METER = Option(
    "meter", _TEXT, None, "rapl|hwmon[:LABEL]|pmic|FILE.csv", "Measure the joules of the steps.", None,
)  # fmt: skip
ON = Option(
    "on", _TEXT, None, "host|cortex-m0plus|cortex-m4|cortex-m7",
    "Run a plan of the runtime c on this machine (default) or on an emulated board.", None,
)  # fmt: skip
PICTURE = Option("out", _TEXT, None, "PICTURE", "Draw a picture: .png, .svg or .pdf.", None, "-o --out")
SEED = Option("seed", int, 0, "N", "Seed of the random batch.", None, least=0)
PLAN_MODEL = Option("model", _TEXT, None, "FILE", "The model, if it was moved since the plan was made.", None)
TRAINING = (
    Option(
        "data", str, ..., "FILE|FOLDER",
        "Arrays by input names (.npz), a table (.csv), tokens (.npy, .bin, .txt), a folder of .npz files, or one "
        "with a folder of images for each class.", None,
    ),
    TRAINED,
    Option("epochs", int, 1, "E", "Number of passes over the data.", None, least=1),
    Option("lr", _NUMBER, None, "X", "The learning rate; default: 0.001.", None),
    Option(
        "lr_schedule", str, "constant", "[warmup:STEPS,]constant|cosine|step:EPOCHS:FACTOR",
        "Schedule of the learning rate: step:10:0.1 takes a tenth every ten epochs, warmup:500 (or 5%) rises first.",
        None,
    ),
    Option("momentum", _NUMBER, None, "M", "The momentum, if the optimizer has one.", None),
    Option("weight_decay", _NUMBER, None, "W", "The weight decay; default: the optimizer's.", None),
    Option(
        "optimizer", _TEXT, None, OPTIMIZERS,
        "The optimizer of the plan, which `solve --optimizer` sets.", None,
    ),
    Option("clip_norm", _NUMBER, None, "C", "Bound of the norm of all gradients, if the plan clips them.", None),
    Option(
        "batch_order", str, "shuffle", "shuffle|sequential",
        "Order of the rows; they are shuffled anew in each epoch.", None,
    ),
    replace(SEED, help="Seed of the order."),
    Option("validate", _TEXT, None, "FILE|FOLDER", "Data to evaluate after each epoch.", None),
    Option("checkpoint", _TEXT, None, "FOLDER", "Write checkpoints there; the two newest are kept.", None),
    Option("every", _WHOLE, None, "N", "Write a checkpoint every N steps, and after each epoch.", None, least=1),
    Option(
        "resume", bool, False, "", "Continue from the newest checkpoint, if there is one, with the same data.", None,
    ),
    Option(
        "keep", str, "best", "best|last",
        "Write the parameters of the epoch with the least loss (of --validate, if given), or the last.", None,
    ),
    Option("patience", _WHOLE, None, "N", "Stop after N epochs without improvement.", None, least=1),
    Option(
        "log", _TEXT, None, "FILE.csv|FOLDER",
        "Log rate and loss of each step, and validations; a folder is for TensorBoard.", None,
    ),
    WORKDIR,
    Option(
        "check", bool, False, "", "Compare one step with ordinary training first, bit by bit, in another process.",
        None,
    ),
    TRAINING_MODE, METER, PLAN_MODEL,
    replace(
        ON, help="Train in C by a plan of the runtime c, on this machine or an emulated board, and compare with "
        "onnxruntime.",
    ),
)  # fmt: skip
RUNNING = (
    PLAN_MODEL,
    Option("data", _TEXT, None, "FILE.npz", "The batch (or data set), by input names; default: random.", None),
    Option("dump", _TEXT, None, "FILE.npz", "Write the batch, the loss and the gradients.", None),
    Option("steps", _WHOLE, None, "N", "Take N training steps of gradient descent.", None, least=1),
    Option("lr", _NUMBER, None, "X", "With --steps: the learning rate.", None),
    Option("momentum", _NUMBER, None, "M", "With --steps: the momentum of the descent.", None),
    Option(
        "check", _TEXT, None, "none|first|N",
        "Compare steps with ordinary training in another process: none, the first, or each Nth; default: the step, "
        "with --steps none.", None,
    ),
    METER, SEED, replace(WORKDIR, help="Page to this folder; default: a temporary one."), ON,
)  # fmt: skip
EMITTING = (
    Option("out", str, ..., "DIR", "Write the sources to this folder.", None, "-o --out"),
    Option(
        "target", str, "linux", "linux|cortex-m0plus|cortex-m4|cortex-m7",
        "The processor; a Cortex-M gets start-up code and a linker script.", None,
    ),
    Option("weights", str, "flash", "flash|storage", "The place of the parameters' first values.", None),
    Option("prefix", str, "po", "NAME", "Prefix of all names: each network in a program needs its own.", None),
    Option(
        "form", str, "plain", "plain|cmake|zephyr|arduino|platformio|esp-idf",
        "Write plain sources with an example, or a package for this build system.", None, "--package",
    ),
    Option("selftest", bool, False, "", "Add po_selftest(): a batch, and the results of onnxruntime.", None),
    PLAN_MODEL,
)  # fmt: skip
VERIFYING = (
    Option("bound", bool, False, "", "Prove the bound again in exact arithmetic, with branching where needed.", None),
    Option(
        "strict", bool, False, "",
        "Exit with 5 unless every claim is recomputed or proven. Implies --bound where needed.", None,
    ),
    replace(TIME_LIMIT, help="Time for proving the bound."),
    PLAN_MODEL,
    Option("device", _TEXT, None, "NAME|FILE", "The device, if its file was moved since the plan was made.", None),
    Option("profile", _TEXT, None, "FILE", "The profile that the plan was solved with.", None),
    Option("no_model", bool, False, "", "Don't compare the plan with a model.", None),
)  # fmt: skip
PROFILING = (
    Option(
        "out", str, "profile.toml", "FILE.toml",
        "Write the profile, merged into an earlier one of this machine; - is stdout.", None, "-o --out",
    ),
    Option("from_csv", _TEXT, None, "FILE.csv", "Read a board's figures instead of measuring.", None),
    Option("template", _TEXT, None, "FILE.csv", "Write a CSV file to fill in instead of measuring.", None),
    Option("power", _TEXT, None, "WATTS", "Power of computing over idling, if no counter can be read: 3W, 90mW.", None),
    Option(
        "on", _TEXT, None, "cortex-m0plus|cortex-m4|cortex-m7",
        "Count instructions on an emulated core and model their time instead of measuring.", None,
    ),
    Option("clock", _TEXT, None, "FREQUENCY", "With --on: clock of the core; default: 64MHz, M0+ 48, M7 216.", None),
    Option("dma", bool, False, "", "With --from-csv: the board transfers by DMA, while its CPU computes.", None),
    Option("workdir", _TEXT, None, "FOLDER", "Measure the storage of this folder; default: a temporary one.", None),
)  # fmt: skip

ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="An .onnx file, a problem file (.json), or a zoo network (`poetopt zoo`).",
    ),
]
PlanArgument = Annotated[str, typer.Argument(metavar="PLAN", help="A plan file of `poetopt solve -o`.")]
PlanOutOption = Annotated[
    str | None, typer.Option("-o", "--out", metavar="PLAN|-", help="Write the plan; - is stdout.")
]
JsonOption = Annotated[
    str | None, typer.Option("--json", metavar="FILE|-", help="Write every figure as JSON; - is stdout.")
]


def sharing(*options: Option) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Return a decorator that gives a command these options, which it takes as `**options`."""

    def decorate(command: Callable[..., int]) -> Callable[..., int]:
        hints = get_type_hints(command, include_extras=True)
        parameters_of_command = list(inspect.signature(command).parameters.values())[:-1]
        command_parameters = [
            each.replace(annotation=hints[each.name], kind=inspect.Parameter.KEYWORD_ONLY)
            for each in parameters_of_command
        ]
        required = [each for each in command_parameters if each.default is inspect.Parameter.empty]
        optional = [each for each in command_parameters if each not in required]
        parameters = [*required, *(option.parameter() for option in options), *optional]
        parameters.sort(key=lambda each: each.default is not inspect.Parameter.empty)

        def run(**values: Any) -> int:
            arguments = {each.name: values.pop(each.name) for each in parameters_of_command}
            return command(**arguments, **parse_options(values, options))

        run.__name__, run.__doc__, run.__module__ = command.__name__, command.__doc__, command.__module__
        run.__annotations__ = {each.name: each.annotation for each in parameters} | {"return": int}
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.options = options  # type: ignore[attr-defined]
        return run

    return decorate


def parse_options(values: Mapping[str, Any], options: Sequence[Option]) -> dict[str, Any]:
    """Return the values of a command's options as the Python calls take them. Raises OptionError."""
    parsed = dict(values)
    for option in options:  # the parser makes lists and texts of defaults
        value = parsed[option.name]
        if value == [] or (option.default is not None and value == str(option.default)):
            parsed[option.name] = option.default
    if BLOCKS.name in parsed:
        parsed[BLOCKS.name] = list(parsed[BLOCKS.name] or ())
    for option in options:
        if option.name in parsed:
            parsed[option.name] = option.read(parsed[option.name])
    for name, negated in (("no_paging", "paging"), ("no_remat", "remat"), ("separate_updates", "fuse")):
        if name in parsed:
            parsed[negated] = not parsed.pop(name)
    if frozen := parsed.pop("freeze", None):
        parsed["train"] = [
            *(parsed.get("train") or ()),
            *(f"!{one.strip()}" for text in frozen for one in text.split(",")),
        ]
    if parsed.get("train"):
        parsed["train"] = ",".join(parsed["train"])
    for name, option_name, example in (
        ("dims", "--dim", "height=160"), ("shapes", "--shape", "input=1x3x160x160"), ("values", "--value", "sr=16000"),
    ):  # fmt: skip
        if name in parsed:
            parsed[name] = named(option_name, parsed[name], example)
    if "solver_option" in parsed:
        parsed["solver_options"] = named("--solver-option", parsed.pop("solver_option"), "presolve=off", first=True)
    for name, word, of in (("batch", MAX, "the largest that fits"), ("micro_batch", AUTO, "the best number of parts")):
        if isinstance(parsed.get(name), str):
            text = parsed[name].strip()
            try:
                parsed[name] = (
                    text if text == word else parse_whole(text, option=f"--{name.replace('_', '-')}", least=1)
                )
            except OptionError as error:
                raise OptionError(f"{error}, or {word} for {of}") from None
    return parsed


def named(option: str, texts: Sequence[str] | None, example: str, *, first: bool = False) -> dict[str, str]:
    """Return the values of a repeated NAME=VALUE by name, split at the last `=`, or at the `first`.

    Raises OptionError for a text without name or value, and for a name that is given twice.
    """
    by_name: dict[str, str] = {}
    for text in texts or ():
        name, equals, value = text.partition("=") if first else text.rpartition("=")
        name, value = (name.strip(), value.strip()) if first else (name, value)
        if not equals or not name or not value.strip():
            raise OptionError(f"{option} {text}: give a name and a value, as in {option} {example}")
        if name in by_name:
            raise OptionError(f"{option} {text}: {name} is given twice")
        by_name[name] = value
    return by_name


def current_options(arguments: Sequence[str], flags: Mapping[str, bool]) -> list[str]:
    """Return the arguments of a command with today's options in place of those of earlier versions.

    Parameters
    ----------
    flags
        The options of the command; True: it takes no value.

    Raises
    ------
    OptionError
        A `--with` names no option of this command.
    """
    current: list[str] = []
    remaining = list(arguments)
    while remaining:
        argument = remaining.pop(0)
        option, equals, value = argument.partition("=")
        if argument == "--":
            return [*current, argument, *remaining]
        if RETIRED.get(option) in flags:
            current.append(f"{RETIRED[option]}{equals}{value}")
        elif option == "--with" and (equals or remaining):
            current += _without_with(value if equals else remaining.pop(0), flags)
        else:
            current.append(argument)
    return current


def _without_with(text: str, flags: Mapping[str, bool]) -> list[str]:
    """Return the option of `--with NAME[=VALUE]`. Raises OptionError."""
    name, equals, value = text.partition("=")
    option = f"--{name.strip()}"
    if name.strip() not in BEHIND_WITH or option not in flags:
        if BLOCKS.flags[-1] in flags:
            return [BLOCKS.flags[-1], text]
        names = [one for one in sorted(BEHIND_WITH) if f"--{one}" in flags]
        raise OptionError(f"--with {text}: this command has no such option{closest(name, names)}; see --help")
    if flags[option]:
        if equals:
            raise OptionError(f"--with {text}: it takes no value; write {option}")
        return [option]
    if not value.strip():
        raise OptionError(f"--with {text}: its value is missing; write {option} VALUE")
    return [f"{option}={value}"]


class Paneled(TyperCommand):
    """A command whose help has its options in panels, *Advanced* last; options of earlier versions work too."""

    def parse_args(self, context: Any, args: list[str]) -> list[str]:
        """Parse the arguments. Raises OptionError for a `--with` that names no option."""
        flags = {flag: getattr(one, "is_flag", False) for one in self.get_params(context) for flag in one.opts}
        return super().parse_args(context, current_options(args, flags))

    def format_options(self, context: Any, formatter: Any) -> None:
        """Write the options of each panel."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(context):
            record = parameter.get_help_record(context)
            if record is not None:
                argument = parameter.param_type_name == "argument"
                panel = "Arguments" if argument else getattr(parameter, "rich_help_panel", None) or "Options"
                panels.setdefault(panel, []).append(record)
        panels.setdefault("Options", []).append(("-v, --verbose", "Show every figure and exact byte counts."))
        for panel in sorted(panels, key=lambda name: ("Arguments", "Options", ADVANCED).index(name)):
            with formatter.section(panel):
                formatter.write_dl(panels[panel])
