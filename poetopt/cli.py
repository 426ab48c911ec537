"""The command line. Commands import what they need when they run, so that `--help` is instant."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from poetopt.commands.blocks import EnergyLimitOption, FlashWearOption, StaticPowerOption, WithOption, asked_blocks
from poetopt.commands.blocks import formulations as formulations_command
from poetopt.commands.compare import compare, pareto
from poetopt.commands.exchange import export, import_solution
from poetopt.commands.options import (
    BackendOption,
    BatchOption,
    DeadlineOption,
    DeviceOption,
    GranularityOption,
    JsonOption,
    LogOption,
    LossOption,
    ModelArgument,
    OutputOption,
    SolverOption,
    ThreadsOption,
    TrainOption,
    pairs,
    patterns,
)
from poetopt.commands.profile import profile as profile_command
from poetopt.commands.sensitivity import (
    SensitivityOption,
    SensitivityPlotOption,
    add_sensitivity,
    check_plot,
    storage_share,
)
from poetopt.commands.sweep import sweep as sweep_command
from poetopt.console import (
    INTERRUPTED,
    check_outputs,
    complain,
    guarded,
    live_progress,
    own_the_process,
    say,
    write_json,
)
from poetopt.errors import ExecutionError, InfeasibleError, ModelError, NoScheduleError, OptionError

app = typer.Typer(
    name="poetopt",
    help="Plan the training of a network on a device with too little RAM for it; prove and execute the plan.",
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command()
def solve(
    model: ModelArgument,
    device: DeviceOption,
    ram: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE|PERCENT", help="Budget: 3MB, 300KiB, 40% of store-all; default: what the device has left."
        ),
    ] = None,
    deadline: DeadlineOption = None,
    steps: Annotated[int, typer.Option(metavar="N", help="Training steps that the deadline is for.", min=1)] = 1,
    deadline_model: Annotated[
        str, typer.Option(metavar="makespan|paper", help="What the deadline bounds; paper: the sum of compute times.")
    ] = "makespan",
    batch: BatchOption = None,
    train: TrainOption = None,
    loss: LossOption = "auto",
    output: OutputOption = None,
    granularity: GranularityOption = "operator",
    formulation: Annotated[str, typer.Option(metavar="NAME", help="The mathematics: retention, poet.")] = "retention",
    static_power: StaticPowerOption = None,
    energy_limit: EnergyLimitOption = None,
    flash_wear: FlashWearOption = None,
    blocks: WithOption = None,
    backend: BackendOption = "highs",
    scope: Annotated[str, typer.Option(metavar="auto|depth:D|forward|full", help="The space of the proof.")] = "auto",
    no_paging: Annotated[bool, typer.Option("--no-paging", help="Recompute only.")] = False,
    no_remat: Annotated[bool, typer.Option("--no-remat", help="Page only.")] = False,
    time_limit: Annotated[str, typer.Option(metavar="TIME", help="Stop the search after that.")] = "60s",
    gap: Annotated[
        str, typer.Option(metavar="PERCENT", help="Stop when the overhead is proven to be so close.")
    ] = "0.1%",
    order: Annotated[
        str, typer.Option(metavar="given|search", help="Of the operators; search: look for a better one.")
    ] = "given",
    threads: ThreadsOption = 0,
    solver_option: SolverOption = None,
    log: LogOption = None,
    profile: Annotated[
        str | None, typer.Option(metavar="FILE", help="Measured costs (`poetopt profile`), in place of estimates.")
    ] = None,
    sensitivity: SensitivityOption = False,
    sensitivity_plot: SensitivityPlotOption = None,
    timing: Annotated[bool, typer.Option("--timing", help="Tell the seconds and the memory of each phase.")] = False,
    out: Annotated[str | None, typer.Option("-o", "--out", metavar="PLAN", help="Write the plan there.")] = None,
    json: JsonOption = None,
) -> int:
    """Find the schedule of least energy that keeps a RAM budget and a deadline."""
    import poetopt as po

    check_outputs([model, profile], {"-o": out, "--json": json, "--log": log, "--sensitivity-plot": sensitivity_plot})
    check_plot(sensitivity_plot)
    with live_progress() as listener:
        training = po.load(model, batch=batch, train=patterns(train)).differentiate(
            loss=loss, output=output, granularity=granularity
        )
        problem = training.cost(device, profile=profile)
        try:
            report = po.solve(
                problem,
                ram=ram,
                deadline=deadline,
                steps=steps,
                deadline_model=deadline_model,
                formulation=formulation,
                blocks=asked_blocks(static_power, energy_limit, flash_wear, blocks),
                backend=backend,
                scope=scope,
                paging=not no_paging,
                remat=not no_remat,
                time_limit=time_limit,
                gap=gap,
                order=order,
                threads=threads,
                solver_options=pairs(solver_option),
                log=log,
                listener=listener,
            )
        except (InfeasibleError, NoScheduleError) as error:
            if error.report is not None:
                write_json(error.report, json)
            raise
    if out is not None:
        report.save(out)
    document = report.to_dict()
    more = []
    if sensitivity or sensitivity_plot is not None:
        share = storage_share(device)
        more.append(
            add_sensitivity(report, document, time_limit=time_limit, storage_share=share, plot=sensitivity_plot)
        )
    write_json(document, json)
    say("\n\n".join([str(report), *more]), unless=json)
    if timing:
        say(report.timing_text(), unless=json)
    return 0


@app.command()
def run(
    plan: Annotated[str, typer.Argument(metavar="PLAN", help="A plan that `poetopt solve -o` wrote.")],
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
        int | None, typer.Option(metavar="N", help="Train: take so many steps of gradient descent.", min=1)
    ] = None,
    lr: Annotated[float | None, typer.Option(metavar="X", help="With --steps: the learning rate.")] = None,
    momentum: Annotated[float, typer.Option(metavar="M", help="With --steps: of the descent.")] = 0.0,
    seed: Annotated[int, typer.Option(metavar="N", help="Of the random batch.", min=0)] = 0,
    workdir: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Where to page to; default: a temporary folder.")
    ] = None,
    json: JsonOption = None,
) -> int:
    """Execute a plan on onnxruntime, and compare every gradient with ordinary training, bit by bit."""
    import poetopt as po
    from poetopt.report.execution import execution_text, training_text

    check_outputs([plan, model, data], {"--dump": dump, "--json": json})
    if (steps is None) != (lr is None) or (momentum and steps is None):
        raise OptionError("--steps, --lr: training needs both, as in --steps 100 --lr 0.01; --momentum is for it alone")
    loaded = po.load_plan(plan, model=model)
    if steps is not None and lr is not None:
        ended = po.train(loaded, steps, lr, momentum=momentum, data=data, dump=dump, seed=seed, workdir=workdir)
        write_json(ended.to_dict(), json)
        say(training_text(loaded.plan, ended), unless=json)
        if not ended.ok:
            raise ExecutionError(ended.message)
        return 0
    execution = po.execute(loaded, data=data, dump=dump, seed=seed, workdir=workdir)
    write_json(execution.to_dict(), json)
    say(execution_text(loaded.plan, execution), unless=json)
    if not execution.ok:
        raise ExecutionError(execution.message)
    return 0


@app.command()
def verify(
    plan: Annotated[str, typer.Argument(metavar="PLAN", help="A plan that `poetopt solve -o` wrote.")],
    bound: Annotated[bool, typer.Option("--bound", help="Prove its bound again, in exact arithmetic.")] = False,
    time_limit: Annotated[str, typer.Option(metavar="TIME", help="For the bound.")] = "60s",
    json: JsonOption = None,
) -> int:
    """Check a plan again, and with --bound its proof, trusting neither the solver nor the file."""
    from poetopt.report.verification import verify as check
    from poetopt.units import parse_time

    check_outputs([plan], {"--json": json})
    found = check(plan, bound=bound, time_limit_s=parse_time(time_limit, option="--time-limit"))
    write_json(found.to_dict(), json)
    say(str(found), unless=json)
    return 0


@app.command()
def show(
    plan: Annotated[str, typer.Argument(metavar="PLAN", help="A plan that `poetopt solve -o` wrote.")],
    out: Annotated[str | None, typer.Option("-o", "--out", metavar="FILE", help="Write it there.")] = None,
    form: Annotated[
        str | None,
        typer.Option("--format", metavar="html|png|svg|txt|trace", help="Default: by the suffix of FILE, else html."),
    ] = None,
    no_open: Annotated[bool, typer.Option("--no-open", help="Open no browser.")] = False,
    json: JsonOption = None,
) -> int:
    """Show a schedule: as a page for the browser, a picture, a text, or a trace for Perfetto."""
    from poetopt.report.show import show as display

    check_outputs([plan], {"-o": out, "--json": json})
    shown = display(plan, out=out, form=form, browse=not no_open)
    write_json(shown.to_dict(), json)
    say(str(shown), unless=json)
    return 0


app.command()(compare)
app.command()(pareto)
app.command("profile")(profile_command)
app.command()(export)
app.command("import-solution")(import_solution)
app.command("formulations")(formulations_command)
app.command("sweep")(sweep_command)


@app.command()
def inspect(
    model: ModelArgument,
    device: Annotated[
        str | None, typer.Option("--device", metavar="NAME|FILE", help="Compare with what this device has.")
    ] = None,
    batch: BatchOption = None,
    train: TrainOption = None,
    loss: LossOption = "auto",
    output: OutputOption = None,
    json: JsonOption = None,
) -> int:
    """Show what a model consists of and what training it takes, without solving anything."""
    import poetopt as po
    from poetopt.report.inspection import inspect as look

    check_outputs([model], {"--json": json})
    found = look(po.load(model, batch=batch, train=patterns(train)), device=device, loss=loss, output=output)
    write_json(found.to_dict(), json)
    say(str(found), unless=json)
    return 0


@app.command()
def grad(
    model: ModelArgument,
    out: Annotated[str, typer.Option("-o", "--out", metavar="TRAIN.onnx", help="Write the training graph there.")],
    batch: BatchOption = None,
    train: TrainOption = None,
    loss: LossOption = "auto",
    output: OutputOption = None,
    json: JsonOption = None,
) -> int:
    """Write the training graph (forward, loss, backward) as one standard ONNX file."""
    import poetopt as po
    from poetopt.frontends.proto import save_model
    from poetopt.frontends.summary import summary

    check_outputs([model], {"-o": out, "--json": json})
    training = po.load(model, batch=batch, train=patterns(train)).differentiate(loss=loss, output=output)
    if not isinstance(training, po.Training):
        raise ModelError(
            f"{model}: a problem file has sizes and costs only, and no network to write; give an ONNX model"
        )
    save_model(training.graph, out)
    graph = training.graph
    write_json(
        {**summary(graph), "loss": graph.loss_kind, "gradients": dict(graph.gradients), "states": dict(graph.states)},
        json,
    )
    say(
        f"{out}: {len(graph.operators)} operators; loss {graph.loss_kind}, {len(graph.gradients)} gradients, "
        f"{len(graph.states)} updated statistics; inputs {', '.join(graph.inputs)}",
        unless=json,
    )
    return 0


@app.command()
def devices(
    show: Annotated[
        str | None, typer.Option(metavar="NAME|FILE", help="One device: each figure with its source.")
    ] = None,
    json: JsonOption = None,
) -> int:
    """List the devices that are known, or show one with the sources of its figures."""
    from poetopt.report.catalogue import device_document, device_lines, table_lines

    check_outputs([], {"--json": json})
    from poetopt import devices as catalogue

    shown = [catalogue.device(name) for name in ([show] if show else catalogue.names())]
    documents = [device_document(device) for device in shown]
    write_json(documents[0] if show else {"devices": documents}, json)
    say("\n".join(device_lines(shown[0]) if show else table_lines(shown)), unless=json)
    return 0


@app.command()
def zoo(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="A network; without one, they are listed.")
    ] = None,
    out: Annotated[
        str | None, typer.Option("-o", "--out", metavar="FILE.onnx", help="Write the network there.")
    ] = None,
    batch: BatchOption = None,
) -> int:
    """List the built-in networks, or write one as an ONNX file."""
    from poetopt.frontends import zoo as networks

    if name is None:
        if out is not None:
            raise OptionError(f"-o {out}: say which network: {', '.join(networks.names())}")
        width = max(map(len, networks.names()))
        say("\n".join(f"{known:<{width}}  {networks.ZOO[known].about}" for known in networks.names()))
        return 0
    if out is None:
        raise OptionError(f"say where to write {name}, as in: poetopt zoo {name} -o {name}.onnx")
    check_outputs([], {"-o": out})
    from poetopt.files import write_atomically

    write_atomically(out, networks.build(name, batch).SerializeToString())
    say(f"{out}: {networks.ZOO[name].about}")
    return 0


def _version(wanted: bool) -> None:
    if wanted:
        from poetopt import __version__

        say(f"poetopt {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        say(context.get_help())


def invoke(arguments: list[str]) -> int:
    """Run one command line (without the program's name); the exit code. Errors have been told on stderr."""

    def command() -> int:
        try:
            # Not through `app(...)`, which would put an exception hook of its own in place.
            code = typer.main.get_command(app).main(arguments, prog_name="poetopt", standalone_mode=False)
        except typer.TyperException as error:
            context = getattr(error, "ctx", None)
            path = context.command_path if context is not None else "poetopt"
            complain(f"{error.format_message().rstrip('.')}; see {path} --help")
            return OptionError.exit_code
        if code == INTERRUPTED:
            # typer has turned the exception into a code.
            raise KeyboardInterrupt
        return code if isinstance(code, int) else 0

    return guarded(command)


def main() -> None:
    """Entry point of the program `poetopt`."""
    own_the_process()
    sys.exit(invoke(sys.argv[1:]))
