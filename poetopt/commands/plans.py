"""`poetopt run`, `poetopt emit`, `poetopt verify` and `poetopt show`: what is done with a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from poetopt.commands.completion import choices
from poetopt.commands.options import AllowSymlinksOption, JsonOption, PlanArgument
from poetopt.console import check_outputs, doing, say, write_json, write_text
from poetopt.errors import ExecutionError, OptionError

if TYPE_CHECKING:
    from poetopt.plan.codec import PlanFile


def run(
    plan: PlanArgument,
    model: Annotated[
        str | None, typer.Option(metavar="FILE", help="The model, where it is no longer where the plan says.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(metavar="FILE.npz", help="The batch (or data set), by input names; default: random.")
    ] = None,
    dump: Annotated[
        str | None, typer.Option(metavar="FILE.npz", help="Write the batch, the loss and the gradients there.")
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Train: take this many steps of gradient descent; code 0 also where the loss diverges, which is told.",
            min=1,
        ),
    ] = None,
    lr: Annotated[float | None, typer.Option(metavar="X", help="With --steps: the learning rate.")] = None,
    momentum: Annotated[
        float | None, typer.Option(metavar="M", help="With --steps: the momentum of the descent.")
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the random batch.", min=0)] = 0,
    workdir: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Where to page to; default: a temporary folder.")
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(
            "--on",
            metavar="host|cortex-m0plus|cortex-m4|cortex-m7",
            help="Where a plan of the runtime c runs: on this machine, by default, or on an emulated board.",
            autocompletion=choices("host", "cortex-m0plus", "cortex-m4", "cortex-m7"),
        ),
    ] = None,
    allow_symlinks: AllowSymlinksOption = False,
    json: JsonOption = None,
) -> int:
    """Execute a plan on onnxruntime, and compare every gradient with ordinary training, bit by bit.

    A plan of the runtime c is executed in C, on this machine or where --on says, and compared with the unscheduled step
    on the same kernels and with onnxruntime; with --steps, that many steps are.
    """
    import poetopt as po
    from poetopt.report.execution import execution_document, execution_text, training_document, training_text

    check_outputs([plan, model, data], {"--dump": dump, "--json": json})
    if (steps is None) != (lr is None) or (momentum and steps is None):
        raise OptionError("--steps, --lr: training needs both, as in --steps 100 --lr 0.01; --momentum is for it alone")
    if on is not None:
        check_on(on)
    with doing("reading the plan and its model"):
        loaded = po.load_plan(plan, model=model, allow_symlinks=allow_symlinks)
    if on is None and loaded.plan.problem.runtime == "c":
        on = "host"
    if on is not None and workdir is not None:
        raise OptionError("--workdir: a step in C is paged to a file of its own; leave it out")
    if on is not None and steps is not None and lr is not None:
        return _train_on(loaded, on, steps, lr, momentum, data, dump, seed, json)
    if on is not None:
        return _run_on(loaded, on, data, dump, seed, json)
    if steps is not None and lr is not None:
        with doing(f"training for {steps:,} steps") as told:
            ended = po.train(
                loaded, steps, lr, momentum=momentum, data=data, dump=dump, seed=seed, workdir=workdir, told=told
            )
        write_json(training_document(loaded.plan, ended), json)
        say(training_text(loaded.plan, ended), unless=[json])
        if not ended.ok:
            raise ExecutionError(ended.message)
        return 0
    with doing("executing the plan and ordinary training, and measuring both") as told:
        execution = po.execute(loaded, data=data, dump=dump, seed=seed, workdir=workdir, told=told)
    write_json(execution_document(loaded.plan, execution), json)
    say(execution_text(loaded.plan, execution), unless=[json])
    if not execution.ok:
        raise ExecutionError(execution.message)
    return 0


def check_on(on: str) -> None:
    """Raise OptionError where `--on` names nothing that a step can be run on."""
    from poetopt.backends.c.targets import target

    target(on, "--on")


def _run_on(loaded: PlanFile, on: str, data: str | None, dump: str | None, seed: int, json: str | None) -> int:
    from poetopt.api.on_device import execute_on
    from poetopt.report.on_device import device_document, device_text

    with doing(f"compiling the step for {on} and running it") as told:
        execution = execute_on(loaded, on, data=data, dump=dump, seed=seed, told=told)
    write_json(device_document(loaded.plan, execution), json)
    say(device_text(loaded.plan, execution), unless=[json])
    if not execution.ok:
        raise ExecutionError(execution.message)
    return 0


def _train_on(
    loaded: PlanFile,
    on: str,
    steps: int,
    lr: float,
    momentum: float | None,
    data: str | None,
    dump: str | None,
    seed: int,
    json: str | None,
) -> int:
    from poetopt.api.on_device import train_on
    from poetopt.report.on_device import device_training_document, device_training_text

    with doing(f"compiling {steps:,} steps for {on} and running them") as told:
        ended = train_on(loaded, on, steps, lr, momentum=momentum, data=data, dump=dump, seed=seed, told=told)
    write_json(device_training_document(loaded.plan, ended), json)
    say(device_training_text(loaded.plan, ended), unless=[json])
    if not ended.ok:
        raise ExecutionError(ended.message)
    return 0


def emit(
    plan: PlanArgument,
    out: Annotated[str, typer.Option("-o", "--out", metavar="DIR", help="Write the folder there.")],
    target: Annotated[
        str,
        typer.Option(
            metavar="linux|cortex-m0plus|cortex-m4|cortex-m7",
            help="What it is for: start-up and linker script come with a Cortex-M.",
            autocompletion=choices("linux", "cortex-m0plus", "cortex-m4", "cortex-m7"),
        ),
    ] = "linux",
    schedule: Annotated[
        str,
        typer.Option(
            metavar="code|table",
            help="The plan as calls, or as bytes that are decoded.",
            autocompletion=choices("code", "table"),
        ),
    ] = "code",
    weights: Annotated[
        str,
        typer.Option(
            metavar="flash|storage",
            help="Where the first values of the parameters are.",
            autocompletion=choices("flash", "storage"),
        ),
    ] = "flash",
    model: Annotated[
        str | None, typer.Option(metavar="FILE", help="The model, where it is no longer where the plan says.")
    ] = None,
    allow_symlinks: AllowSymlinksOption = False,
    json: JsonOption = None,
) -> int:
    """Write a plan of the runtime c as C99 without malloc: the step, its kernels, an example, and how to build it."""
    import poetopt as po
    from poetopt.api.on_device import emit as write
    from poetopt.report.on_device import emitted_text

    check_outputs([plan, model], {"--json": json})
    with doing("reading the plan and its model"):
        loaded = po.load_plan(plan, model=model, allow_symlinks=allow_symlinks)
    emitted = write(loaded, out, target=target, schedule=schedule, weights=weights)
    write_json(emitted.to_dict(), json)
    say(emitted_text(loaded.plan, emitted), unless=[json])
    return 0


def verify(
    plan: PlanArgument,
    bound: Annotated[
        bool,
        typer.Option("--bound", help="Prove its bound again, in exact arithmetic, by branching where it takes it."),
    ] = False,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="Code 5 unless all that is claimed was computed again or proven; does --bound where that takes it.",
        ),
    ] = False,
    time_limit: Annotated[str, typer.Option(metavar="TIME", help="Time for proving the bound.")] = "60s",
    model: Annotated[
        str | None, typer.Option(metavar="FILE", help="The model, where it is no longer where the plan says.")
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(metavar="NAME|FILE", help="The device, where its file is no longer where the plan says."),
    ] = None,
    profile: Annotated[
        str | None, typer.Option(metavar="FILE", help="The profile that the plan was solved with.")
    ] = None,
    no_model: Annotated[bool, typer.Option("--no-model", help="Compare the plan with no model.")] = False,
    allow_symlinks: AllowSymlinksOption = False,
    json: JsonOption = None,
) -> int:
    """Check a plan again: simulate it, and compute costs, workspaces and report anew from model, device and profile.

    What isn't there is listed as taken from the file. --bound proves the bound again, without the solver's word.
    """
    from poetopt.api.verification import verify as check
    from poetopt.units import parse_time

    check_outputs([plan, model, profile], {"--json": json})
    if no_model and model is not None:
        raise OptionError("--model, --no-model: the plan is compared with that model or with none; give one of the two")
    if no_model and (device is not None or profile is not None):
        raise OptionError("--no-model: without the model no costs are computed; leave out --device and --profile")
    with doing("checking the plan and proving its bound again" if bound or strict else "checking the plan"):
        found = check(
            plan,
            bound=bound,
            strict=strict,
            time_limit_s=parse_time(time_limit, option="--time-limit"),
            model=model,
            device=device,
            profile=profile,
            compare_model=not no_model,
            allow_symlinks=allow_symlinks,
        )
    write_json(found.to_dict(), json)
    say(str(found), unless=[json])
    if strict and not found.whole:
        raise ExecutionError(f"{plan}: {found.doubts}")
    return 0


def show(
    plan: PlanArgument,
    out: Annotated[
        str | None, typer.Option("-o", "--out", metavar="FILE|-", help="Write it there; - is stdout.")
    ] = None,
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="html|png|svg|txt|trace",
            help="Default: by the suffix of FILE, else html.",
            autocompletion=choices("html", "png", "svg", "txt", "trace"),
        ),
    ] = None,
    no_open: Annotated[bool, typer.Option("--no-open", help="Open no browser.")] = False,
    json: JsonOption = None,
) -> int:
    """Show a schedule: as a page for the browser, a picture, a text, or a trace for Perfetto."""
    from poetopt.report.show import show as display

    check_outputs([plan], {"-o": out, "--json": json}, texts=("-o", "--json"))
    shown = display(plan, out=out, form=form, browse=not no_open)
    if out == "-":
        write_text(f"{shown}\n", out, option="-o")
    write_json(shown.to_dict(), json)
    say(str(shown), unless=[out, json])
    return 0
