"""`poetopt solve`: a model in, a plan with a proof out."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from poetopt.cli.completion import SCOPES, choices
from poetopt.cli.console import check_outputs, complain, live_progress, say, write_json, write_text
from poetopt.cli.options import (
    AllowSymlinksOption,
    BackendOption,
    BatchOrMaxOption,
    BatteryOption,
    ClipNormOption,
    DeadlineModelOption,
    DeadlineOption,
    DeviceOption,
    DimOption,
    EnergyLimitOption,
    EpochsOption,
    FlashWearOption,
    FormulationOption,
    GranularityOption,
    JsonOption,
    LazyTablesOption,
    LogOption,
    LossOption,
    MicroBatchOrAutoOption,
    MicroBatchStatisticsOption,
    MinimizeOption,
    ModelArgument,
    NoPagingOption,
    NoRematOption,
    OptimizerOption,
    OutputOption,
    ParametersOption,
    PlanOutOption,
    ProfileOption,
    RamOption,
    RuntimeOption,
    SamplesOption,
    SeparateUpdatesOption,
    ShapeOption,
    SolverOption,
    StaticPowerOption,
    StepsOption,
    StraightThroughOption,
    StreamOption,
    ThreadsOption,
    TotalRamOption,
    TrainOption,
    ValueOption,
    WithOption,
    asked_blocks,
    batch_size,
    micro_batches,
    pairs,
    reading,
)
from poetopt.cli.sensitivity import (
    SensitivityOption,
    SensitivityPlotOption,
    add_sensitivity,
    check_plot,
)
from poetopt.util.errors import InfeasibleError, NoScheduleError, OptionError

if TYPE_CHECKING:
    from poetopt.api.problems import SolveOptions
    from poetopt.api.training import Training, TrainingFile


def solve(
    model: ModelArgument,
    device: DeviceOption,
    runtime: RuntimeOption = None,
    ram: RamOption = None,
    total_ram: TotalRamOption = None,
    parameters: ParametersOption = "auto",
    stream: StreamOption = "auto",
    deadline: DeadlineOption = None,
    steps: StepsOption = 1,
    epochs: EpochsOption = None,
    samples: SamplesOption = None,
    battery: BatteryOption = None,
    deadline_model: DeadlineModelOption = "makespan",
    batch: BatchOrMaxOption = None,
    micro_batch: MicroBatchOrAutoOption = None,
    micro_batch_statistics: MicroBatchStatisticsOption = False,
    train: TrainOption = None,
    dims: DimOption = None,
    shapes: ShapeOption = None,
    values: ValueOption = None,
    allow_symlinks: AllowSymlinksOption = False,
    loss: LossOption = "auto",
    output: OutputOption = None,
    straight_through: StraightThroughOption = False,
    optimizer: OptimizerOption = "none",
    separate_updates: SeparateUpdatesOption = False,
    clip_norm: ClipNormOption = False,
    lazy_tables: LazyTablesOption = False,
    granularity: GranularityOption = "operator",
    formulation: FormulationOption = "retention",
    static_power: StaticPowerOption = None,
    minimize: MinimizeOption = "energy",
    energy_limit: EnergyLimitOption = None,
    flash_wear: FlashWearOption = None,
    blocks: WithOption = None,
    backend: BackendOption = "highs",
    scope: Annotated[
        str,
        typer.Option(
            metavar="auto|depth:D|needed|forward|full",
            help="Which schedules the proof covers.",
            autocompletion=choices(*SCOPES),
        ),
    ] = "auto",
    no_paging: NoPagingOption = False,
    no_remat: NoRematOption = False,
    time_limit: Annotated[str, typer.Option(metavar="TIME", help="Stop the search after that.")] = "60s",
    gap: Annotated[
        str, typer.Option(metavar="PERCENT", help="Stop when the overhead is proven to be this close to the least.")
    ] = "0.1%",
    threads: ThreadsOption = 0,
    solver_option: SolverOption = None,
    log: LogOption = None,
    profile: ProfileOption = None,
    sensitivity: SensitivityOption = False,
    sensitivity_plot: SensitivityPlotOption = None,
    timing: Annotated[bool, typer.Option("--timing", help="Tell the seconds and the memory of each phase.")] = False,
    out: PlanOutOption = None,
    json: JsonOption = None,
) -> int:
    """Find the schedule of least energy that keeps a RAM budget and a deadline."""
    begin = time.monotonic()
    import poetopt as po
    from poetopt.api.models import read
    from poetopt.util import interrupts

    asked = asked_blocks(static_power, None if minimize == "ram" else energy_limit, flash_wear, blocks)
    outputs = {"-o": out, "--json": json, "--log": log, "--sensitivity-plot": sensitivity_plot}
    largest = batch is not None and batch.strip() == "max"
    parts = micro_batch is not None and micro_batch.strip() == "auto"
    if largest and micro_batch is not None:
        raise OptionError("--micro-batch: cuts a batch of a known size; give a number with --batch")
    options = reading(
        None if largest else batch_size(batch), train, dims, shapes, values, allow_symlinks,
        micro_batch=None if parts else micro_batches(micro_batch), micro_batch_statistics=micro_batch_statistics,
    )  # fmt: skip
    check_outputs([model, profile], outputs, texts=("-o", "--json"))
    check_plot(sensitivity_plot)
    if minimize == "ram" and (sensitivity or sensitivity_plot is not None):
        raise OptionError("--sensitivity: is of the least energy; leave out --minimize ram")
    if (largest or parts) and (sensitivity or sensitivity_plot is not None):
        found = "--batch max" if largest else "--micro-batch auto"
        raise OptionError(f"--sensitivity: is of one problem; give what {found} finds, as a number")
    step: SolveOptions = {
        "loss": loss,
        "output": output,
        "straight_through": straight_through,
        "granularity": granularity,
        "optimizer": optimizer,
        "fuse": not separate_updates,
        "clip_norm": clip_norm,
        "lazy_tables": lazy_tables,
    }
    with live_progress() as listener:
        given: str | Training | TrainingFile = model
        if largest:
            step |= {"batch": "max", **options.named()}  # type: ignore[typeddict-item]
        elif parts:
            step |= {"batch": options.batch, "micro_batch": "auto", **options.named()}  # type: ignore[typeddict-item]
        else:
            given, step = read(model, options).differentiate(**step), {}  # type: ignore[misc]
        if sensitivity or sensitivity_plot is not None:
            from poetopt.compare.sensitivity import check_goal
            from poetopt.formulations.options import with_options

            assert not isinstance(given, str)
            problem = given.cost(device, profile=profile, runtime=runtime)
            check_goal(with_options(po.formulations.formulation(formulation), asked, problem, steps))
        try:
            report = po.solve(
                given,
                device=device,
                profile=profile,
                runtime=runtime,
                ram=ram,
                total_ram=total_ram,
                parameters=parameters,
                stream=stream,
                deadline=deadline,
                steps=steps,
                epochs=epochs,
                samples=samples,
                battery=battery,
                deadline_model=deadline_model,
                minimize=minimize,
                energy_limit=energy_limit if minimize == "ram" else None,
                formulation=formulation,
                blocks=asked,
                backend=backend,
                scope=scope,
                paging=not no_paging,
                remat=not no_remat,
                time_limit=time_limit,
                gap=gap,
                threads=threads,
                solver_options=pairs(solver_option),
                log=log,
                listener=listener,
                begin=begin,
                **step,
            )
        except (InfeasibleError, NoScheduleError) as error:
            if error.report is not None:
                write_json(error.report, json)
            raise
    if out is not None:
        write_text(report.plan_text(), out, option="-o")
    document = report.to_dict()
    more = []
    if (sensitivity or sensitivity_plot is not None) and not report.solution.interrupted:
        interrupts.let_go()
        told = add_sensitivity(
            report,
            document,
            device=device,
            profile=profile,
            deadline=deadline,
            time_limit=time_limit,
            plot=sensitivity_plot,
        )
        more.append(told)
    write_json(document, json)
    say("\n\n".join([str(report), *more]), unless=[out, json])
    if report.warning and "-" in (out, json):  # the summary isn't shown
        complain(f"warning: {report.warning}")
    if timing:
        say(report.timing_text(), unless=[out, json])
    return 0
