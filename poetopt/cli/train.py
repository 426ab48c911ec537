"""`poetopt train`: epochs by a plan, checkpoints, and the trained network as ONNX."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from poetopt.autodiff.optimizers import CLIP, NAMES
from poetopt.cli.completion import choices
from poetopt.cli.console import check_outputs, doing, say, say_meanwhile, write_json
from poetopt.cli.options import (
    ALLOW_SYMLINKS,
    AUGMENT,
    METRICS,
    JsonOption,
    MeterOption,
    PlanArgument,
    PlanModelOption,
    sharing,
)
from poetopt.util.errors import ExecutionError, OptionError, OtherRuntimeError, OutputError, PlanError

if TYPE_CHECKING:
    from poetopt.api.trainer import Trainer
    from poetopt.backends.onnxruntime.prepared import Prepared
    from poetopt.training.loop import Position, Trained
    from poetopt.util.progress import Told


NEAR = 1e-3
"""Share of rows, or of a loss, by which two runtimes' sums may differ."""


@sharing(METRICS, AUGMENT, ALLOW_SYMLINKS)
def train(
    plan: PlanArgument,
    data: Annotated[
        str,
        typer.Option(
            metavar="FILE.npz|FILE.csv|FOLDER",
            help="Arrays by input names, a table, a folder of .npz files, or of a folder of images for each class.",
        ),
    ],
    out: Annotated[str, typer.Option("-o", "--out", metavar="TRAINED.onnx", help="Write the trained network there.")],
    epochs: Annotated[int, typer.Option(metavar="E", help="How often all of the data is gone through.", min=1)] = 1,
    lr: Annotated[float | None, typer.Option(metavar="X", help="The learning rate; default: 0.001.")] = None,
    lr_schedule: Annotated[
        str,
        typer.Option(
            metavar="[warmup:STEPS,]constant|cosine|step:EPOCHS:FACTOR",
            help="How it changes: step:10:0.1 takes a tenth every ten epochs, warmup:500 (or 5%) lets it rise first.",
            autocompletion=choices("constant", "cosine", "step:10:0.1", "warmup:5%,cosine"),
        ),
    ] = "constant",
    momentum: Annotated[float | None, typer.Option(metavar="M", help="The momentum, where there is one.")] = None,
    weight_decay: Annotated[
        float | None, typer.Option(metavar="W", help="The weight decay; default: the optimizer's.")
    ] = None,
    optimizer: Annotated[
        str | None,
        typer.Option(
            metavar="none|sgd|momentum|adam|adamw",
            help="The one that the plan has: it is part of the plan's step (solve --optimizer).",
            autocompletion=choices(*NAMES),
        ),
    ] = None,
    clip_norm: Annotated[
        float | None,
        typer.Option(metavar="C", help="Bound the norm of all gradients, where the plan's step clips."),
    ] = None,
    batch_order: Annotated[
        str,
        typer.Option(
            metavar="shuffle|sequential",
            help="Order of the rows; shuffled anew in each epoch, by --seed.",
            autocompletion=choices("shuffle", "sequential"),
        ),
    ] = "shuffle",
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the order.", min=0)] = 0,
    validate: Annotated[
        str | None, typer.Option(metavar="FILE|FOLDER", help="Data to evaluate after each epoch.")
    ] = None,
    checkpoint: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Keep the two newest whole checkpoints there.")
    ] = None,
    every: Annotated[
        int | None,
        typer.Option(metavar="N", help="A checkpoint every N steps; one after each epoch comes anyway.", min=1),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Go on from the newest checkpoint, if there is one, to the same bits; the data must be the same.",
        ),
    ] = False,
    keep: Annotated[
        str,
        typer.Option(
            metavar="best|last",
            help="The epoch whose parameters are written: of the least loss (of --validate, where given), or the last.",
            autocompletion=choices("best", "last"),
        ),
    ] = "best",
    patience: Annotated[
        int | None, typer.Option(metavar="N", help="End after N epochs without a better one.", min=1)
    ] = None,
    log: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.csv|FOLDER",
            help="Rate and loss of each step, and validations, as they come; a folder: for TensorBoard.",
        ),
    ] = None,
    workdir: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Where to page and unpack to; default: a temporary folder.")
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Compare a step with ordinary training first, bit by bit, in a process of its own."
        ),
    ] = False,
    keep_training_form: Annotated[
        bool,
        typer.Option(
            "--keep-training-form",
            help="Leave BatchNormalization in training mode and Dropout in -o, to train on with it; default: the form "
            "of inference.",
        ),
    ] = False,
    meter: MeterOption = None,
    model: PlanModelOption = None,
    on: Annotated[
        str | None,
        typer.Option(
            "--on",
            metavar="host|cortex-m0plus|cortex-m4|cortex-m7",
            help="Train in C by a plan of the runtime c, on this machine or an emulated board, and compare with "
            "onnxruntime's losses and parameters.",
            autocompletion=choices("host", "cortex-m0plus", "cortex-m4", "cortex-m7"),
        ),
    ] = None,
    json: JsonOption = None,
    **options: Any,
) -> int:
    """Train a network for epochs by a plan, with nothing beside the schedule, and write it as ONNX.

    Ctrl-C ends it with a checkpoint, where there is a --checkpoint. With --on, all steps are one program in C, and what
    is written are the parameters that came out of it.
    """
    metrics, augment = options.pop("metrics") or (), options.pop("augment")
    where = {"model": model, **options}
    from poetopt.report.execution import document, epoch_text, trained_text
    from poetopt.training.course_log import check_log, in_events

    events = log is not None and log != "-" and in_events(Path(log))
    check_outputs([plan, model, data, validate], {"-o": out, "--json": json, "--log": None if events else log})
    if log is not None and events:
        check_log(Path(log))
    if on is not None:
        others = {
            "--checkpoint": checkpoint is not None,
            "--every": every is not None, "--resume": resume, "--workdir": workdir is not None, "--check": check,
            "--keep": keep != "best", "--patience": patience is not None, "--with metrics": bool(metrics),
            "--with augment": augment is not None, "--log": log is not None, "--meter": meter is not None,
        }  # fmt: skip
        if asked := next((name for name, given in others.items() if given), None):
            raise OptionError(
                f"--on, {asked}: all steps in C are one program, which is always compared; {asked} is for training on "
                "onnxruntime, leave it out"
            )
        said = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, CLIP: clip_norm}
        course = {"epochs": epochs, "lr_schedule": lr_schedule, "batch_order": batch_order, "seed": seed}
        course["validate"] = validate
        course["training_form"] = keep_training_form
        return _train_in_c(plan, on, data, out, said, course, optimizer, where, json)

    def after_epoch(position: Position, of: int) -> None:
        say_meanwhile(epoch_text(position, of), unless=[json])

    with ExitStack() as stack:
        told = stack.enter_context(doing("reading the plan and its model"))
        made = stack.enter_context(_prepared(plan, where, workdir, check, validate is not None, told))
        check_outputs([made.graph.source], {"-o": out})
        check_optimizer(made.graph.optimizer, optimizer, plan)
        from poetopt.api.trainer import Trainer
        from poetopt.training.loop import DivergedError

        trainer = stack.enter_context(
            Trainer(
                made, **where, lr=lr, momentum=momentum, weight_decay=weight_decay, lr_schedule=lr_schedule,
                clip_norm=clip_norm, seed=seed, workdir=workdir, told=told,
            )
        )  # fmt: skip
        trainer.check_export(out, training_form=keep_training_form)
        diverged: DivergedError | None = None
        try:
            ended = trainer.fit(
                data, epochs=epochs, batch_order=batch_order, validate=validate, checkpoint=checkpoint, every=every,
                resume=resume, keep=keep, patience=patience, metrics=metrics, log=log, augment=augment, meter=meter,
                after_epoch=after_epoch,
                noted=lambda text: say_meanwhile(f"note: {text}", unless=[json]),
            )  # fmt: skip
        except DivergedError as error:
            if error.ended is None:
                raise
            diverged, ended = error, error.ended
        told("writing the trained network")
        try:
            trainer.export(out, training_form=keep_training_form)
        except OutputError as error:
            raise OutputError(f"{error}. {_kept(trainer, ended)}") from error
        graph = trainer.graph
        checked = 0
        if validate is not None and not keep_training_form:
            told("the written network beside what validation said")
            checked = _check_written(out, made, validate, ended, told)
    write_json(document(graph, ended, trained=out, checked_rows=checked), json)
    say(trained_text(graph, ended, out, checked), unless=[json])
    if diverged is not None:
        raise diverged
    return 0


def _check_written(out: str, made: Prepared, validate: str, ended: Trained, told: Told) -> int:
    """Number of rows on which the written file, alone, is what validation said; 0 where its outputs don't tell."""
    from poetopt.api import apart

    said = next((one for one in ended.validations if one["epoch"] == ended.kept), None)
    found = apart.evaluated(out, made, validate, told=told)
    if found is None or said is None:
        return 0
    was, now = said["accuracy"], found.accuracy
    if was is None or now is None:
        was, now = said["loss"] or 0.0, found.loss
        near = abs(now - was) <= NEAR * abs(was)
    else:
        near = abs(now - was) * found.rows <= max(1, NEAR * found.rows)
    if not near:
        raise ExecutionError(
            f"{out}: alone, in onnxruntime, it gives {now:.6g} on {validate}, and validation said {was:.6g}; what "
            "it holds isn't what was trained: report it, with the model"
        )
    return found.rows


def _kept(trainer: Trainer, ended: Trained) -> str:
    """The place of the trained parameters, though they couldn't be written as ONNX."""
    if ended.checkpoint:
        return f"What was trained is in {ended.checkpoint}: the same command with --resume writes it"
    import tempfile

    try:
        kept = trainer.save(tempfile.mkdtemp(prefix="poetopt-trained-"))
    except OSError as error:
        return f"What was trained couldn't be kept elsewhere either ({error}): give --checkpoint FOLDER"
    return f"What was trained is in {kept}: po.Trainer(PLAN).load({str(kept.parent)!r}) reads it, and .export writes it"


def _train_in_c(
    plan: str,
    on: str,
    data: str,
    out: str,
    said: Mapping[str, float | None],
    course: Mapping[str, Any],
    optimizer: str | None,
    where: Mapping[str, Any],
    json: str | None,
) -> int:
    import poetopt as po
    from poetopt.cli.plans import check_on
    from poetopt.report.execution import document
    from poetopt.report.on_device import device_fit_text

    check_on(on)
    given = {name: value for name, value in said.items() if value is not None}
    with doing("reading the plan and its model") as told:
        loaded = po.load_plan(plan, **where)
        graph = loaded.plan.problem.graph
        if graph is not None:
            check_outputs([graph.source], {"-o": out})
            check_optimizer(graph.optimizer, optimizer, plan)
        told(f"compiling the steps for {on} and running them")
        ended = po.fit_on(
            loaded, on, data, hyperparameters=given, out=out, **where, told=told,
            **course,
        )  # fmt: skip
    write_json(document(loaded.plan.problem.graph, ended, trained=out if ended.steps.ok else None), json)
    say(device_fit_text(loaded.plan, ended, out), unless=[json])
    if not ended.steps.ok:
        raise ExecutionError(ended.steps.message)
    return 0


@contextmanager
def _prepared(
    plan: str, where: Mapping[str, Any], workdir: str | None, check: bool, evaluates: bool, told: Told
) -> Iterator[Prepared]:
    """The step, made ready in a process of its own, and compared with ordinary training there where that is asked."""
    from poetopt.api import apart

    try:
        if not check:
            with apart.prepared(plan, **where, evaluates=evaluates, told=told) as made:
                yield made
            return
        with apart.compared(plan, **where, workdir=workdir, told=told) as (
            made,
            found,
        ):
            if found.message:
                raise ExecutionError(found.message)
            yield made
    except OtherRuntimeError as error:
        raise PlanError(
            f"{plan}: it is a plan for kernels in C, which onnxruntime lacks; add --on host, or solve with "
            "--runtime onnxruntime"
        ) from error


def check_optimizer(has: str, asked: str | None, plan: str) -> None:
    """Raise OptionError where another optimizer is asked for than the plan's step has."""
    if asked is None or asked == has or (asked, has) == ("sgd", "none"):  # plain descent
        return
    what = "ends with gradients, and plain descent follows it" if has == "none" else f"updates by {has}"
    remedy = f"solve again with --optimizer {asked}" if asked in NAMES[1:] else f"leave --optimizer {asked} out"
    raise OptionError(f"--optimizer {asked}: the step of {plan} {what}; {remedy}, or train with what the plan has")
