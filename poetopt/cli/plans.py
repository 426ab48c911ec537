"""`poetopt run`, `train`, `emit`, `restore`, `verify` and `show`: the uses of a plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

import poetopt as po
from poetopt.backends.c.targets import LINUX, target
from poetopt.cli import training
from poetopt.cli.console import check_outputs, doing, say, without_parser, write_json, write_text
from poetopt.cli.options import (
    ALLOW_SYMLINKS,
    AUGMENT,
    EMITTING,
    METRICS,
    PLAN_MODEL,
    RUNNING,
    TRAINED,
    TRAINING,
    TRAINING_MODE,
    VERIFYING,
    JsonOption,
    Option,
    PlanArgument,
    sharing,
)
from poetopt.util.errors import ExecutionError, OptionError, OtherRuntimeError
from poetopt.util.units import parse_time, parse_whole

if TYPE_CHECKING:
    from poetopt.backends.c.execution import DeviceExecution, DeviceTraining
    from poetopt.plan.instructions import Plan
    from poetopt.report.verification import Verification


@sharing(*RUNNING, ALLOW_SYMLINKS)
def run(plan: PlanArgument, json: JsonOption = None, **options: Any) -> int:
    """Execute a plan and compare every gradient with ordinary training, bit by bit.

    The process that takes the steps needs the plan's memory, Python and onnxruntime, and no more.
    A plan of the runtime c runs in C, on this machine or where --on says. It is compared with the unscheduled step on
    the
    same kernels, and with onnxruntime.
    """
    names = ("dump", "steps", "lr", "momentum", "check", "meter", "workdir", "on")
    dump, steps, lr, momentum, check, meter, workdir, on = map(options.pop, names)
    batch = {name: options.pop(name) for name in ("data", "seed")}
    check_outputs([plan, options["model"], batch["data"]], {"--dump": dump, "--json": json})
    if (steps is None) != (lr is None) or (momentum and steps is None):
        raise OptionError("--steps, --lr: training needs both, as in --steps 100 --lr 0.01. So does --momentum.")
    if meter is not None and steps is None:
        raise OptionError("--meter: a single step is too short to measure. Give --steps 1000 --lr 0.001, or use train.")
    course = None if steps is None or lr is None else (steps, lr, momentum)
    if on is not None:
        target(on, "--on")
    else:
        every = _every(check, steps)
        try:
            if course is not None:
                settings = {"check": every, "dump": dump, "workdir": workdir, "meter": meter}
                return _train(plan, {**options, **batch}, course, settings, json)
            if every is None and dump is not None:
                raise OptionError("--dump: the comparison writes it. Leave out --check none.")
            return _run_step(plan, {**options, **batch}, every is not None, workdir, dump, json)
        except OtherRuntimeError:
            on = "host"
    if meter is not None:
        raise OptionError("--meter: it measures steps on onnxruntime. Measure a board with a meter of its own.")
    if workdir is not None:
        raise OptionError("--workdir: a step in C is paged to a temporary file. Leave the option out.")
    if check is not None:
        raise OptionError("--check: a step in C is always compared. Leave the option out.")
    return _run_in_c(plan, options, on, course, {**batch, "dump": dump}, json)


def _run_in_c(
    plan: str,
    where: Mapping[str, Any],
    on: str,
    course: tuple[int, float, float | None] | None,
    batch: Mapping[str, Any],
    json: str | None,
) -> int:
    """Execute a step in C, or as many steps as `course` has; it holds learning rate and momentum too."""
    from poetopt.report import on_device as report
    from poetopt.report.execution import document

    with doing("reading the plan and its model"):
        loaded = po.load_plan(plan, **where)
    result: DeviceExecution | DeviceTraining
    if course is None:
        with doing(f"compiling the step for {on} and running it") as progress:
            result = po.execute_on(loaded, on, **batch, told=progress)
        text = report.device_text(loaded.plan, result, _training_command(plan, loaded.plan, on))
    else:
        steps, lr, momentum = course
        with doing(f"compiling {steps:,} steps for {on} and running them") as progress:
            result = po.train_on(loaded, on, steps, lr, momentum=momentum, **batch, told=progress)
        text = report.device_training_text(loaded.plan, result, (), _training_command(plan, loaded.plan, on))
    return _shown(document(loaded.plan.problem.graph, result), text, result.message, json)


def _shown(document: Mapping[str, object], text: str, wrong: str, json: str | None) -> int:
    """Write the results of a run, for programs and for people. Raises ExecutionError with the message `wrong`."""
    write_json(document, json)
    say(text, unless=[json])
    if wrong:
        raise ExecutionError(wrong)
    return 0


def _every(check: str | None, steps: int | None) -> int | None:
    """Return the distance of the steps that are compared; None: no step is. Raises OptionError."""
    if check in (None, "none"):
        return 1 if check is None and steps is None else None
    if check == "first":
        return steps or 1
    try:
        return parse_whole(check, option="--check", least=1)
    except OptionError as error:
        raise OptionError(f"{error}. Or give none or first.") from None


def _train(
    plan: str,
    read: Mapping[str, Any],
    course: tuple[int, float, float | None],
    settings: Mapping[str, Any],
    json: str | None,
) -> int:
    from poetopt.api.apart import prepared

    steps, lr, momentum = course
    with (
        doing(f"training for {steps:,} steps") as progress,
        prepared(plan, **read, told=progress) as (prepared_step, _),
    ):
        result = po.train(prepared_step, steps, lr, momentum=momentum, **settings, told=progress)
        from poetopt.report.execution import document, training_text

        after = _training_command(plan, prepared_step.plan)
        figures, text = (
            document(prepared_step.plan.problem.graph, result),
            training_text(prepared_step.plan, result, after),
        )
    return _shown(figures, text, result.message, json)


def _run_step(
    plan: str, read: Mapping[str, Any], check: bool, workdir: str | None, dump: str | None, json: str | None
) -> int:
    from poetopt.api.apart import prepared
    from poetopt.backends.onnxruntime.training import run_alone

    work = "executing the plan and ordinary training, and measuring both" if check else "executing the plan"
    with (
        doing(work) as progress,
        prepared(plan, **read, check=check, dump=dump, workdir=workdir, told=progress) as (prepared_step, compared),
    ):
        alone = run_alone(prepared_step, workdir=workdir, told=progress)
        from poetopt.report.execution import alone_rows, alone_text
        from poetopt.report.layout import answer, table
    if compared is None:
        return _shown(
            alone.figures, alone_text(prepared_step.plan, alone, _training_command(plan, prepared_step.plan)), "", json
        )
    wrong = [name for name, value in compared.digests.items() if alone.digests[name] != value]
    other_bits = (
        f"the schedule alone, in another process, gives different bits for {', '.join(map(repr, wrong[:5]))}. "
        "Please report it, with the plan file."
    )
    first, details = compared.rows[:3], compared.rows[3:]
    after = answer(after=_training_command(plan, prepared_step.plan))
    text = table(compared.title, [*first, *after, *alone_rows(alone), *details])
    return _shown({**compared.document, **alone.figures}, text, compared.message or (other_bits if wrong else ""), json)


def _training_command(file: str, plan: Plan, on: str = "") -> str:
    """Return the command that trains by a plan; "" for a plan without a loss, and for one in C without updates."""
    graph = plan.problem.graph
    if graph is None or graph.forward_only or (on and graph.optimizer == "none"):
        return ""
    where = f" --on {on}" if on else ""
    return f"poetopt train {file}{where} --data train.npz -o trained.onnx"


@sharing(*EMITTING, ALLOW_SYMLINKS)
def emit(plan: PlanArgument, json: JsonOption = None, **options: Any) -> int:
    """Write a plan of the runtime c as C99 without malloc: the step, its kernels, an example, and a README."""
    from poetopt.report.on_device import emitted_text

    check_outputs([plan, options["model"]], {"--json": json})
    out, form = options.pop("out"), {one.name: options.pop(one.name) for one in EMITTING[1:-1]}
    with doing("reading the plan and its model"):
        loaded = po.load_plan(plan, **options)
    emitted = po.emit(loaded, out, **form)
    write_json(emitted.to_dict(), json)
    where = "host" if emitted.target == LINUX else emitted.target
    say(emitted_text(loaded.plan, emitted, f"poetopt run {plan} --on {where} executes and checks it"), unless=[json])
    return 0


@sharing(TRAINED, TRAINING_MODE, PLAN_MODEL, ALLOW_SYMLINKS)
def restore(
    plan: PlanArgument,
    storage: Annotated[
        str, typer.Argument(metavar="STORAGE", help="A copy of the device's storage from its first block.")
    ],
    **options: Any,
) -> int:
    """Write the network that an emitted program has trained and saved (po_save), from a copy of its storage."""
    out, training_form = options.pop("out"), options.pop("training_mode")
    check_outputs([plan, options["model"], storage], {"-o": out})
    with doing("reading the plan and its model"):
        loaded = po.load_plan(plan, **options)
        number = po.restore(loaded, storage, out, training_form=training_form, **options)
    say(f"generation {number:,} of {storage}: {out}")
    return 0


@sharing(*VERIFYING, ALLOW_SYMLINKS)
def verify(plan: PlanArgument, json: JsonOption = None, **options: Any) -> int:
    """Check a plan again: simulate it, and recompute costs and report from model, device and profile.

    A figure of the file that differs from the recomputed one ends with code 5. Facts that can't be recomputed are
    listed.
    --bound proves the bound again, without the solver.
    """
    no_model, limit_s = options.pop("no_model"), parse_time(options.pop("time_limit"), option="--time-limit")
    check_outputs([plan, options["model"], options["profile"]], {"--json": json})
    if no_model and options["model"] is not None:
        raise OptionError("--model, --no-model: they contradict each other. Give one of them.")
    if no_model and (options["device"] is not None or options["profile"] is not None):
        raise OptionError("--no-model: costs can't be computed without the model. Leave out --device and --profile.")
    strict = options["strict"]
    with doing("checking the plan and proving its bound again" if options["bound"] or strict else "checking the plan"):
        verification = po.verify(plan, time_limit_s=limit_s, compare_model=not no_model, **options)
    write_json(verification.to_dict(), json)
    say(verification.text(after=_after_verifying(plan, verification)), unless=[json])
    if verification.differs or (strict and not verification.whole):
        raise ExecutionError(f"{plan}: {verification.doubts}{'; solve again' if verification.differs else ''}")
    return 0


def _after_verifying(plan: str, verification: Verification) -> str:
    if verification.differs:
        return "solve again: the file's report isn't that of its plan"
    if verification.uncertified and verification.certificate is None:
        return f"poetopt verify {plan} --bound proves the bound in exact arithmetic"
    return f"poetopt run {plan}"


@sharing(*TRAINING, METRICS, AUGMENT, ALLOW_SYMLINKS)
def train(plan: PlanArgument, json: JsonOption = None, **options: Any) -> int:
    """Train a network for epochs by a plan, and write it as ONNX.

    Ctrl-C ends the training with a checkpoint, if there is a --checkpoint. With --on, all steps are one program in C,
    whose
    parameters are written.
    """
    return without_parser(training, {"plan": plan, "json": json, **options})


@sharing(
    Option("out", str | None, None, "FILE|-", "Write to this file; - is stdout.", None, "-o --out"),
    Option(
        "form",
        str | None,
        None,
        "html|png|svg|txt",
        "The format; default: by the suffix of FILE, else html.",
        None,
        "--format",
    ),
)
def show(plan: PlanArgument, json: JsonOption = None, **options: Any) -> int:
    """Show a schedule as a page for the browser, a picture, or a text."""
    out = options["out"]
    check_outputs([plan], {"-o": out, "--json": json}, texts=("-o", "--json"))
    shown = po.show(plan, **options)
    if out == "-":
        write_text(f"{shown}\n", out, option="-o")
    write_json(shown.to_dict(), json)
    say(str(shown), unless=[out, json])
    return 0
