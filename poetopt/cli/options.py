"""The options that several commands share: each is declared once, and commands name the ones that they take.

`@sharing(READING, STEP, ...)` gives a command the options of these groups: what was given comes as `**options`, under
the names that `po.solve` and its like have, and `asked` makes their values of it. What few people ask for has no option
of its own: `--with NAME[=VALUE]` takes it, beside the blocks of a formulation.
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


@dataclass(frozen=True)
class Option:
    """One option of several commands.

    name
        As the Python call has it.
    kind, default
        Of its value: texts, numbers that `read` makes of one, flags.
    words
        The metavar.
    flag
        Where it isn't the name; "" where only `--with` takes it.
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
    def spelled(self) -> str:
        """As it is written behind `--` or `--with`."""
        return self.name.replace("_", "-")

    def parameter(self) -> inspect.Parameter:
        """As the parser takes it."""
        given: dict[str, Any] = {"metavar": self.words} if self.words else {}
        flag = self.flag or f"--{self.spelled}"
        option = typer.Option(*flag.split(" "), help=self.help, rich_help_panel=self.panel, **given)
        return inspect.Parameter(
            self.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if self.default is ... else self.default,
            # A number is a text to the parser, which would read it in ways of its own: `read` makes a number of it.
            annotation=Annotated[{int: str, _WHOLE: _TEXT, _NUMBER: _TEXT}.get(self.kind, self.kind), option],
        )

    def read(self, text: object) -> Any:
        """Return the value that a text is, where it is a number. Raises OptionError."""
        if not isinstance(text, str) or self.kind not in (int, _WHOLE, _NUMBER):
            return text
        said = f"--with {self.spelled}=" if self.flag == "" else (self.flag or f"--{self.spelled}").split(" ")[-1]
        if self.kind == _NUMBER:
            return parse_float32(text, option=said)
        return parse_whole(text, option=said, least=self.least, most=self.most)


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
    """An option that is an argument of `po.solve`, with the type and the default that it has there."""
    annotation, default = str(_ARGUMENTS[name].type), _ARGUMENTS[name].default
    kind: Any = {"bool": bool, "int": int, "int | None": _WHOLE}.get(annotation, _TEXT if default is None else str)
    if "Mapping" in annotation or "Sequence[str" in annotation:
        kind, default = _LIST, None
    return Option(name, kind, default, words, help, panel, flag, least, most)


DEVICE = Option(
    "device", str, ..., "NAME|FILE", "A device (`poetopt devices`), or a TOML file of one.", None, "--device",
)  # fmt: skip
RUNTIME = argument(
    "runtime", "NAME", "What runs the operators: onnxruntime, c, or an installed one; default: the "
    "device's.",
)  # fmt: skip
PROFILE = argument("profile", "FILE", "Measured costs (`poetopt profile`), in place of estimates.")
PARAMETERS = argument(
    "parameters", "auto|resident|paged",
    "In RAM for good, or on storage and scheduled; auto: resident where that fits.",
)  # fmt: skip
STREAM = argument("stream", "auto|never", "Whether operators may stream paged operands in parts.", flag="")
BATCH_OR_MAX = argument("batch", "N|max", "Batch size; max: the largest that fits RAM and deadline.", None)
BATCH = replace(BATCH_OR_MAX, kind=_WHOLE, words="N", help="Batch size.", least=1)
MICRO_BATCH = argument(
    "micro_batch", "K|auto",
    "Cut the batch into K parts and sum their gradients; auto: the K of least energy that fits.",
)  # fmt: skip
PARTS = replace(MICRO_BATCH, words="K", help="Cut the batch into K parts and sum their gradients.")
STATISTICS = argument(
    "micro_batch_statistics", "",
    "With --micro-batch: BatchNormalization in training mode takes each part's own statistics.", flag="",
)  # fmt: skip
ALLOW_SYMLINKS = argument("allow_symlinks", "", "Read weights outside of the model's folder through links.", flag="")
METRICS = Option("metrics", str, "", "f1,top5,...", "Metrics of --validate, beside loss and accuracy.", flag="")
AUGMENT = Option("augment", _TEXT, None, "flip,crop", "How images are changed in each epoch.", flag="")
READING = (
    argument("train", "PATTERN", "Train only these parameters (fc.*); may be repeated.", None),
    Option("freeze", _LIST, None, "PATTERN", "Leave these parameters as they are (features.*); may be repeated."),
    argument("dims", "NAME=SIZE", "Size of a dimension that the file names.", flag="--dim"),
    argument("shapes", "INPUT=1x3x160x160", "Shape of an input.", flag="--shape"),
    argument("values", "INPUT=16000", "Make an input a constant of that value.", flag="--value"),
    ALLOW_SYMLINKS,
)
"""Options of reading a model's file; beside the batch."""
LOSS = (
    argument(
        "loss", "auto|cross-entropy|bce|mse|none|forward-only",
        "The loss to attach; none: the output is it; forward-only: no training, the network as it is used.", None,
    ),
    argument("output", "NAME", "The output that the loss is on, where several could have it."),
    argument("ignore_index", "-100", "The label of what cross-entropy leaves out of the mean.", flag=""),
    argument("class_weights", "W,W,...", "A weight of cross-entropy for each class.", flag=""),
    argument("label_smoothing", "0.1", "The share of a label that all classes have alike.", flag=""),
    argument(
        "straight_through", "",
        "Let gradients pass QuantizeLinear with DequantizeLinear behind it, where nothing is clipped.", flag="",
    ),
)  # fmt: skip
UPDATES = (
    argument(
        "optimizer", "none|sgd|momentum|adam|adamw",
        "Update the parameters in the step, which takes lr and its like as inputs; none: it ends with gradients.", None,
    ),
    Option("separate_updates", bool, False, "", "Updates are operators of their own.", flag=""),
    argument("clip_norm", "", "Updates clip gradients by the norm of all of them.", flag=""),
    argument("rates", "PATTERN=X", "What the learning rate of these parameters is times.", flag=""),
)  # fmt: skip
LAZY_TABLES = argument(
    "lazy_tables", "", "Rows of paged embeddings change in those steps alone that use them.", flag=""
)
GRANULARITY = argument(
    "granularity", "operator|block", "The unit of scheduling; block: a chain of cheap operators.",
    flag="",
)  # fmt: skip
RAM = argument("ram", "SIZE|PERCENT", "Budget of the schedule alone: 3MB, 300KiB, 40% of store-all.", None)
DEADLINE = argument("deadline", "TIME|FACTOR", "250ms, 3h, or 1.5x one pass; default: none.", None)
STEPS = argument(
    "steps", "N", "How many training steps an absolute deadline or limit is for.", least=1
)  # fmt: skip
DEADLINE_MODEL = argument(
    "deadline_model", "makespan|paper", "What the deadline bounds; paper: the sum of compute times."
)
SCOPE = argument("scope", "auto|depth:D|forward|full", "Which schedules the proof covers.")
SPACE = (
    argument("formulation", "NAME", "Which model is solved: retention, poet (`poetopt formulations`)."),
    SCOPE,
    Option("no_paging", bool, False, "", "Recompute only."),
    Option("no_remat", bool, False, "", "Page only."),
)  # fmt: skip
BACKEND = argument(
    "backend", "NAME", "The solver: highs, gurobi, cbc, scip, or another one that is installed.",
)  # fmt: skip
GAP = argument("gap", "PERCENT", "Stop when the overhead is proven to be this close to the least.", None)
TIME_LIMIT = argument("time_limit", "TIME", "Stop the search after that.", None)
THREADS = argument(
    "threads", "N", "Threads of the solver; 0: it chooses. Unless 1, a search of ours runs beside.", least=0
)
SEARCHING = (BACKEND, TIME_LIMIT, GAP, THREADS)
BLOCKS = argument("blocks", "BLOCK=VALUE", "A block (`poetopt formulations`).", flag="")
WITH = Option(
    "more", _LIST, None, "NAME[=VALUE]",
    "What is asked for seldom: {names}. May be repeated.", flag="--with",
)  # fmt: skip
GOALS = (
    argument(
        "total_ram", "SIZE",
        "RAM for all of the step: schedule, parameters, states; default: the device's, unless --ram is given.", None,
    ),
    STEPS,
    argument(
        "samples", "N",
        "Samples of an epoch: deadline and answer are for all of the training, in steps of a batch.", None, least=1,
    ),
    argument("epochs", "E", "With --samples: for so many epochs; default: 1.", None, least=1),
    argument("minimize", "energy|ram", "ram: the least that has a schedule.", flag=""),
    argument("energy_limit", "JOULES|FACTOR", "Least time, or RAM, within this energy.", flag=""),
)  # fmt: skip
SOLVER = (
    Option("solver_option", _LIST, None, "KEY=VALUE", "The solver's own option.", flag=""),
    argument("log", "FILE", "What the solver prints.", flag=""),
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
KEEP_FORM = Option(
    "keep_training_form", bool, False, "",
    "Leave BatchNormalization in training mode and Dropout in -o, to train on with it; default: the form of inference.",
    None,
)  # fmt: skip
WORKDIR = Option("workdir", _TEXT, None, "FOLDER", "Where to page and unpack to; default: a temporary folder.", None)
METER = Option(
    "meter", _TEXT, None, "rapl|hwmon[:LABEL]|pmic|FILE.csv", "Measure the steps' joules, beside the planned ones.",
    None,
)  # fmt: skip
ON = Option(
    "on", _TEXT, None, "host|cortex-m0plus|cortex-m4|cortex-m7",
    "Where a plan of the runtime c runs: on this machine, by default, or on an emulated board.", None,
)  # fmt: skip
PICTURE = Option("out", _TEXT, None, "PICTURE", "Draw it there: .png, .svg or .pdf.", None, "-o --out")
SEED = Option("seed", int, 0, "N", "Seed of the random batch.", None, least=0)
PLAN_MODEL = Option("model", _TEXT, None, "FILE", "The model, where it is no longer where the plan says.", None)
TRAINING = (
    Option(
        "data", str, ..., "FILE|FOLDER",
        "Arrays by input names (.npz), a table (.csv), tokens (.npy, .bin, .txt), a folder of .npz files, or of a "
        "folder of images for each class.", None,
    ),
    TRAINED,
    Option("epochs", int, 1, "E", "How often all of the data is gone through.", None, least=1),
    Option("lr", _NUMBER, None, "X", "The learning rate; default: 0.001.", None),
    Option(
        "lr_schedule", str, "constant", "[warmup:STEPS,]constant|cosine|step:EPOCHS:FACTOR",
        "How it changes: step:10:0.1 takes a tenth every ten epochs, warmup:500 (or 5%) lets it rise first.", None,
    ),
    Option("momentum", _NUMBER, None, "M", "The momentum, where there is one.", None),
    Option("weight_decay", _NUMBER, None, "W", "The weight decay; default: the optimizer's.", None),
    Option(
        "optimizer", _TEXT, None, "none|sgd|momentum|adam|adamw",
        "The one that the plan has: it is part of the plan's step (solve --optimizer).", None,
    ),
    Option("clip_norm", _NUMBER, None, "C", "Bound the norm of all gradients, where the plan's step clips.", None),
    Option(
        "batch_order", str, "shuffle", "shuffle|sequential",
        "Order of the rows; shuffled anew in each epoch, by --seed.", None,
    ),
    replace(SEED, help="Seed of the order."),
    Option("validate", _TEXT, None, "FILE|FOLDER", "Data to evaluate after each epoch.", None),
    Option("checkpoint", _TEXT, None, "FOLDER", "Keep the two newest whole checkpoints there.", None),
    Option(
        "every", _WHOLE, None, "N", "A checkpoint every N steps; one after each epoch comes anyway.", None, least=1
    ),
    Option(
        "resume", bool, False, "",
        "Go on from the newest checkpoint, if there is one, to the same bits; the data must be the same.", None,
    ),
    Option(
        "keep", str, "best", "best|last",
        "The epoch whose parameters are written: of the least loss (of --validate, where given), or the last.", None,
    ),
    Option("patience", _WHOLE, None, "N", "End after N epochs without a better one.", None, least=1),
    Option(
        "log", _TEXT, None, "FILE.csv|FOLDER",
        "Rate and loss of each step, and validations, as they come; a folder: for TensorBoard.", None,
    ),
    WORKDIR,
    Option(
        "check", bool, False, "", "Compare a step with ordinary training first, bit by bit, in a process of its own.",
        None,
    ),
    KEEP_FORM, METER, PLAN_MODEL,
    replace(
        ON, help="Train in C by a plan of the runtime c, on this machine or an emulated board, and compare with "
        "onnxruntime's losses and parameters.",
    ),
)  # fmt: skip
RUNNING = (
    PLAN_MODEL,
    Option("data", _TEXT, None, "FILE.npz", "The batch (or data set), by input names; default: random.", None),
    Option("dump", _TEXT, None, "FILE.npz", "Write the batch, the loss and the gradients there.", None),
    Option(
        "steps", _WHOLE, None, "N",
        "Train: take this many steps of gradient descent; a loss that diverges is told, with code 0, and in C, where "
        "nothing can be compared then, with 5.", None, least=1,
    ),
    Option("lr", _NUMBER, None, "X", "With --steps: the learning rate.", None),
    Option("momentum", _NUMBER, None, "M", "With --steps: the momentum of the descent.", None),
    Option(
        "check", _TEXT, None, "none|first|N",
        "Compare with ordinary training, in a process of its own: nothing, the first step, or each Nth from the first "
        "on; default: the step, and with --steps nothing.", None,
    ),
    METER, SEED, replace(WORKDIR, help="Where to page to; default: a temporary folder."), ON,
)  # fmt: skip
EMITTING = (
    Option("out", str, ..., "DIR", "Write the folder there.", None, "-o --out"),
    Option(
        "target", str, "linux", "linux|cortex-m0plus|cortex-m4|cortex-m7",
        "What it is for: start-up and linker script come with a Cortex-M.", None,
    ),
    Option("weights", str, "flash", "flash|storage", "Where the first values of the parameters are.", None),
    Option("prefix", str, "po", "NAME", "What names begin with: another one for each network in an image.", None),
    Option(
        "form", str, "plain", "plain|cmake|zephyr|arduino|platformio|esp-idf",
        "Sources with an example, or a package of that build.", None, "--as",
    ),
    Option("selftest", bool, False, "", "With po_selftest(): a batch, and what onnxruntime makes of it.", None),
    PLAN_MODEL,
)  # fmt: skip
VERIFYING = (
    Option(
        "bound", bool, False, "", "Prove its bound again, in exact arithmetic, by branching where it takes it.", None,
    ),
    Option(
        "strict", bool, False, "",
        "Code 5 unless all that is claimed was computed again or proven; does --bound where that takes it.", None,
    ),
    replace(TIME_LIMIT, help="Time for proving the bound."),
    PLAN_MODEL,
    Option("device", _TEXT, None, "NAME|FILE", "The device, where its file is no longer where the plan says.", None),
    Option("profile", _TEXT, None, "FILE", "The profile that the plan was solved with.", None),
    Option("no_model", bool, False, "", "Compare the plan with no model.", None),
)  # fmt: skip
PROFILING = (
    Option(
        "out", str, "profile.toml", "FILE.toml", "Write it there, merged into one of the same machine; - is stdout.",
        None, "-o --out",
    ),
    Option("from_csv", _TEXT, None, "FILE.csv", "Measure nothing: take a board's figures from there.", None),
    Option("template", _TEXT, None, "FILE.csv", "Measure nothing: write a CSV file to fill in.", None),
    Option(
        "power", _TEXT, None, "WATTS", "What computing draws over idling, where no counter can be read: 3W, 90mW.", None
    ),
    Option(
        "on", _TEXT, None, "cortex-m0plus|cortex-m4|cortex-m7",
        "Measure nothing: count instructions in C on an emulated core, and model their time.", None,
    ),
    Option("clock", _TEXT, None, "FREQUENCY", "With --on: the core's; default: 64MHz, M0+ 48, M7 216.", None),
    Option("dma", bool, False, "", "With --from-csv: transfers run beside the board's CPU.", None),
    Option("workdir", _TEXT, None, "FOLDER", "Measure the storage there; default: a temporary folder.", None),
)  # fmt: skip

ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="An .onnx file, a problem file (.json), or a zoo network (`poetopt zoo`).",
    ),
]
PlanArgument = Annotated[str, typer.Argument(metavar="PLAN", help="A plan that `poetopt solve -o` wrote.")]
PlanOutOption = Annotated[
    str | None, typer.Option("-o", "--out", metavar="PLAN|-", help="Write the plan there; - is stdout.")
]
JsonOption = Annotated[
    str | None, typer.Option("--json", metavar="FILE|-", help="Write one JSON object there; - is stdout.")
]


def sharing(*options: Option) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Give a command these options, which it takes as `**options`; those without a flag are behind `--with`."""
    named = [option for option in options if option.flag != ""]
    behind = _behind(options)
    if behind or BLOCKS in options:
        words = [f"{name}{f'={one.words}' if one.words else ''}" for name, one in behind.items()]
        words += ["a block (`poetopt formulations`)"] if BLOCKS in options else []
        named.append(replace(WITH, help=WITH.help.format(names=", ".join(words))))

    def taking(command: Callable[..., int]) -> Callable[..., int]:
        hints = get_type_hints(command, include_extras=True)
        own = list(inspect.signature(command).parameters.values())[:-1]
        mine = [each.replace(annotation=hints[each.name], kind=inspect.Parameter.KEYWORD_ONLY) for each in own]
        required = [each for each in mine if each.default is inspect.Parameter.empty]
        rest = [each for each in mine if each not in required]
        parameters = [*required, *(option.parameter() for option in named), *rest]
        parameters.sort(key=lambda each: each.default is not inspect.Parameter.empty)

        def run(**given: Any) -> int:
            taken = {each.name: given.pop(each.name) for each in own}
            more = given.pop(WITH.name, None)
            return command(**taken, **asked(given, options, more, blocks=BLOCKS in options))

        run.__name__, run.__doc__, run.__module__ = command.__name__, command.__doc__, command.__module__
        run.__annotations__ = {each.name: each.annotation for each in parameters} | {"return": int}
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.options = options  # type: ignore[attr-defined]
        return run

    return taking


def _behind(options: Sequence[Option]) -> dict[str, Option]:
    """Those that `--with` takes, beside blocks."""
    return {option.spelled: option for option in options if option.flag == "" and option is not BLOCKS}


def asked(
    given: Mapping[str, Any], options: Sequence[Option], more: Sequence[str] | None, *, blocks: bool
) -> dict[str, Any]:
    """Values given to a command, as the Python calls take it. Raises OptionError.

    options, more
        The command's, and what was given to `--with`.
    """
    behind = _behind(options)
    found: dict[str, Any] = {option.name: option.default for option in behind.values()} | dict(given)
    asked_blocks = []
    for text in more or ():
        name, equals, value = text.partition("=")
        option = behind.get(name.strip())
        if option is None:
            if not blocks:
                known = closest(name, behind) or f": it takes {', '.join(behind)}"
                raise OptionError(f"--with {text}: {name} is nothing that this command takes{known}")
            asked_blocks.append(text)
        elif option.kind is bool:
            if equals:
                raise OptionError(f"--with {text}: it takes no value; write --with {option.spelled}")
            found[option.name] = True
        elif not value.strip():
            raise OptionError(f"--with {text}: say --with {option.spelled}={option.words}")
        elif option.kind == _LIST:
            found[option.name] = [*(found[option.name] or ()), value]
        elif found[option.name] != option.default:
            raise OptionError(f"--with {text}: {option.spelled} is given already")
        else:
            found[option.name] = value
    if blocks:
        found["blocks"] = asked_blocks
    for option in options:
        if option.name in found:
            found[option.name] = option.read(found[option.name])
    for name, negated in (("no_paging", "paging"), ("no_remat", "remat"), ("separate_updates", "fuse")):
        if name in found:
            found[negated] = not found.pop(name)
    if frozen := found.pop("freeze", None):
        found["train"] = [
            *(found.get("train") or ()),
            *(f"!{one.strip()}" for text in frozen for one in text.split(",")),
        ]
    if found.get("train"):
        found["train"] = ",".join(found["train"])
    for name, option_name, example in (
        ("dims", "--dim", "height=160"), ("shapes", "--shape", "input=1x3x160x160"), ("values", "--value", "sr=16000"),
    ):  # fmt: skip
        if name in found:
            found[name] = named(option_name, found[name], example)
    if "solver_option" in found:
        found["solver_options"] = named("--with solver-option", found.pop("solver_option"), "presolve=off", first=True)
    for name, word, of in (("batch", MAX, "the largest that fits"), ("micro_batch", AUTO, "the best number of parts")):
        if isinstance(found.get(name), str):
            text = found[name].strip()
            try:
                found[name] = text if text == word else parse_whole(text, option=f"--{name.replace('_', '-')}", least=1)
            except OptionError as error:
                raise OptionError(f"{error}, or {word} for {of}") from None
    return found


def named(option: str, texts: Sequence[str] | None, example: str, *, first: bool = False) -> dict[str, str]:
    """Repeated NAME=VALUE; names may have = in them, or values where the `first` one parts them. Raises OptionError."""
    found: dict[str, str] = {}
    for text in texts or ():
        name, equals, value = text.partition("=") if first else text.rpartition("=")
        name, value = (name.strip(), value.strip()) if first else (name, value)
        if not equals or not name or not value.strip():
            raise OptionError(f"{option} {text}: say which and how much, as in {option} {example}")
        if name in found:
            raise OptionError(f"{option} {text}: {name} is given twice")
        found[name] = value
    return found


class Paneled(TyperCommand):
    """A command whose help has its options in panels: those that most people need, then the others."""

    def format_options(self, context: Any, formatter: Any) -> None:
        """Write them."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(context):
            record = parameter.get_help_record(context)
            if record is not None:
                argument = parameter.param_type_name == "argument"
                panel = "Arguments" if argument else getattr(parameter, "rich_help_panel", None) or "Options"
                panels.setdefault(panel, []).append(record)
        for panel in sorted(panels, key=lambda name: ("Arguments", "Options", ADVANCED).index(name)):
            with formatter.section(panel):
                formatter.write_dl(panels[panel])
