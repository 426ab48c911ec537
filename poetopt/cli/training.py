"""The work of `poetopt train`. It runs without the command line's parser, which takes 13 MB."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import poetopt as po
from poetopt.autodiff.optimizers import CLIP, NAMES
from poetopt.backends.c.targets import target
from poetopt.cli.console import check_outputs, doing, say, say_meanwhile, write_json
from poetopt.training.course_log import check_log, in_events
from poetopt.util.errors import ExecutionError, OptionError, OtherRuntimeError, OutputError, PlanError

if TYPE_CHECKING:
    from poetopt.api.trainer import Trainer
    from poetopt.backends.onnxruntime.prepared import Prepared
    from poetopt.training.loop import Position, Trained
    from poetopt.util.progress import Told


NEAR = 1e-3
"""Share of rows, or of a loss, by which the sums of two runtimes may differ."""


def work(plan: str, json: str | None, out: str, data: str, validate: str | None, **options: Any) -> int:
    """Train with the options of `poetopt train` and return the exit code."""
    where = {name: options.pop(name) for name in ("model", "allow_symlinks")}
    log, workdir, seed, optimizer = options["log"], options["workdir"], options["seed"], options["optimizer"]
    rates = {name: options[name] for name in ("lr", "momentum", "weight_decay", CLIP)}
    training_form = options["training_mode"]
    from poetopt.report.execution import document, epoch_text, trained_text

    events = log is not None and log != "-" and in_events(Path(log))
    check_outputs([plan, where["model"], data, validate], {"-o": out, "--json": json, "--log": None if events else log})
    if log is not None and events:
        check_log(Path(log))
    if options["on"] is not None:
        usual = {"resume": False, "check": False, "keep": "best", "metrics": ""}
        names = ("checkpoint", "every", "resume", "workdir", "check", "keep", "patience", "metrics", "augment", "log",
                 "meter")  # fmt: skip
        if name := next((name for name in names if options[name] != usual.get(name)), None):
            raise OptionError(
                f"--on, --{name}: --{name} is for training on onnxruntime. Steps in C are one program, which is always "
                f"compared: leave --{name} out."
            )
        course = {name: options[name] for name in ("epochs", "lr_schedule", "batch_order", "seed")}
        course |= {"validate": validate, "training_form": training_form}
        return _train_in_c(plan, options["on"], data, out, rates, course, optimizer, where, json)

    def after_epoch(position: Position, of: int) -> None:
        say_meanwhile(epoch_text(position, of), unless=[json])

    with ExitStack() as stack:
        progress = stack.enter_context(doing("reading the plan and its model"))
        prepared_step = stack.enter_context(
            _prepared(plan, where, workdir, options["check"], validate is not None, progress)
        )
        check_outputs([prepared_step.graph.source], {"-o": out})
        check_optimizer(prepared_step.graph.optimizer, optimizer, plan)
        from poetopt.training.loop import DivergedError

        schedule = options["lr_schedule"]
        trainer = stack.enter_context(
            po.Trainer(prepared_step, **where, **rates, lr_schedule=schedule, seed=seed, workdir=workdir, told=progress)
        )
        trainer.check_export(out, training_form=training_form)
        diverged: DivergedError | None = None
        fitting = (
            "epochs", "batch_order", "checkpoint", "every", "resume", "keep", "patience", "log", "augment", "meter",
        )  # fmt: skip
        try:
            result = trainer.fit(
                data, validate=validate, metrics=options["metrics"] or (), after_epoch=after_epoch,
                noted=lambda text: say_meanwhile(f"note: {text}", unless=[json]),
                **{name: options[name] for name in fitting},
            )  # fmt: skip
        except DivergedError as error:
            if error.ended is None:
                raise
            diverged, result = error, error.ended
        progress("writing the trained network")
        try:
            trainer.export(out, training_form=training_form)
        except OutputError as error:
            raise OutputError(f"{error}. {_kept(trainer, result)}") from error
        graph = trainer.graph
        checked = 0
        if validate is not None and not training_form:
            progress("checking the written network")
            checked = _check_written(out, prepared_step, validate, result, progress)
    write_json(document(graph, result, trained=out, checked_rows=checked), json)
    say(trained_text(graph, result, out, checked), unless=[json])
    if diverged is not None:
        raise diverged
    return 0


def _check_written(out: str, prepared_step: Prepared, validate: str, result: Trained, progress: Told) -> int:
    """Return the rows on which the written file alone agrees with the validation; 0 if its outputs can't be compared.

    Raises ExecutionError if they differ.
    """
    from poetopt.api import apart

    validation = next((one for one in result.validations if one["epoch"] == result.kept), None)
    evaluation = apart.evaluated(out, prepared_step, validate, told=progress)
    if evaluation is None or validation is None:
        return 0
    was, now = validation["accuracy"], evaluation.accuracy
    if was is None or now is None:
        was, now = validation["loss"] or 0.0, evaluation.loss
        near = abs(now - was) <= NEAR * abs(was)
    else:
        near = abs(now - was) * evaluation.rows <= max(1, NEAR * evaluation.rows)
    if not near:
        raise ExecutionError(
            f"{out}: alone, in onnxruntime, it gives {now:.6g} on {validate}, and the validation gave {was:.6g}. "
            "The file isn't the trained network. Please report it, with the model."
        )
    return evaluation.rows


def _kept(trainer: Trainer, result: Trained) -> str:
    """Return where the trained parameters are, if they couldn't be written as ONNX."""
    if result.checkpoint:
        return f"What was trained is in {result.checkpoint}: the same command with --resume writes it"
    try:
        saved = trainer.save(tempfile.mkdtemp(prefix="poetopt-trained-"))
    except OSError as error:
        return f"The trained parameters couldn't be saved elsewhere either ({error}). Give --checkpoint FOLDER."
    return (
        f"What was trained is in {saved}: po.Trainer(PLAN).load({str(saved.parent)!r}) reads it, and .export writes it"
    )


def _train_in_c(
    plan: str,
    on: str,
    data: str,
    out: str,
    rates: Mapping[str, float | None],
    course: Mapping[str, Any],
    optimizer: str | None,
    where: Mapping[str, Any],
    json: str | None,
) -> int:
    from poetopt.report.execution import document
    from poetopt.report.on_device import device_fit_text

    target(on, "--on")
    hyperparameters = {name: value for name, value in rates.items() if value is not None}
    with doing("reading the plan and its model") as progress:
        loaded = po.load_plan(plan, **where)
        graph = loaded.plan.problem.graph
        if graph is not None:
            check_outputs([graph.source], {"-o": out})
            check_optimizer(graph.optimizer, optimizer, plan)
        progress(f"compiling the steps for {on} and running them")
        result = po.fit_on(
            loaded, on, data, hyperparameters=hyperparameters, out=out, **where, told=progress,
            **course,
        )  # fmt: skip
    write_json(document(loaded.plan.problem.graph, result, trained=out if result.steps.ok else None), json)
    say(device_fit_text(loaded.plan, result, out), unless=[json])
    if not result.steps.ok:
        raise ExecutionError(result.steps.message)
    return 0


@contextmanager
def _prepared(
    plan: str, where: Mapping[str, Any], workdir: str | None, check: bool, evaluates: bool, progress: Told
) -> Iterator[Prepared]:
    """Yield the step, prepared and, if asked for, compared with ordinary training, in another process."""
    from poetopt.api import apart

    try:
        with apart.prepared(
            plan, **where, workdir=workdir, check=check, evaluates=evaluates, told=progress
        ) as (prepared_step, compared):  # fmt: skip
            if compared is not None and compared.message:
                raise ExecutionError(compared.message)
            yield prepared_step
    except OtherRuntimeError as error:
        raise PlanError(
            f"{plan}: the plan is for kernels in C, which onnxruntime lacks. Add --on host, or solve with "
            "--runtime onnxruntime"
        ) from error


def check_optimizer(has: str, requested: str | None, plan: str) -> None:
    """Raise OptionError if the requested optimizer isn't that of the plan's step."""
    if requested is None or requested == has or (requested, has) == ("sgd", "none"):
        return
    description = "ends with gradients, and plain descent follows it" if has == "none" else f"updates by {has}"
    remedy = (
        f"solve again with --optimizer {requested}" if requested in NAMES[1:] else f"leave --optimizer {requested} out"
    )
    raise OptionError(
        f"--optimizer {requested}: the step of {plan} {description}; {remedy}, or train with the plan's optimizer"
    )
