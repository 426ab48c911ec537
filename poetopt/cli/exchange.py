"""`poetopt export` and `poetopt import-solution`: a model out for another solver, and its solution back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from poetopt.cli.completion import SCOPES, choices
from poetopt.cli.console import check_outputs, say, write_json, write_text
from poetopt.cli.options import (
    AllowSymlinksOption,
    BatchOption,
    DeadlineModelOption,
    DeadlineOption,
    DeviceOption,
    DimOption,
    EnergyLimitOption,
    FlashWearOption,
    FormulationOption,
    GranularityOption,
    JsonOption,
    LossOption,
    ModelArgument,
    NoPagingOption,
    NoRematOption,
    OutputOption,
    PlanOutOption,
    ProfileOption,
    RamOption,
    ShapeOption,
    StaticPowerOption,
    StepsOption,
    StraightThroughOption,
    TrainOption,
    ValueOption,
    WithOption,
    asked_blocks,
    reading,
)

ScopeOption = Annotated[
    str,
    typer.Option(
        "--scope",
        metavar="depth:D|needed|forward|full",
        help="Which schedules the model has; auto is depth:8.",
        autocompletion=choices(*SCOPES),
    ),
]


def _files(out: str) -> dict[str, str]:
    """What an export to `out` writes: an NL file has the names of its columns and rows beside it."""
    beside = (".col", ".row") if Path(out).suffix.lower() == ".nl" else ()
    return {"-o": out} | {f"-o (its {suffix})": str(Path(out).with_suffix(suffix)) for suffix in beside}


def export(
    model: ModelArgument,
    device: DeviceOption,
    out: Annotated[
        str, typer.Option("-o", "--out", metavar="FILE.mps|.lp|.nl", help="Write the model there, in that format.")
    ],
    also: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SOLUTION",
            help="A solution that import-solution refused: add the rows that it breaks. May be repeated.",
        ),
    ] = None,
    time_limit: Annotated[
        str, typer.Option(metavar="TIME", help="Time for finding cuts, which are written with the model.")
    ] = "20s",
    ram: RamOption = None,
    deadline: DeadlineOption = None,
    steps: StepsOption = 1,
    deadline_model: DeadlineModelOption = "makespan",
    formulation: FormulationOption = "retention",
    static_power: StaticPowerOption = None,
    energy_limit: EnergyLimitOption = None,
    flash_wear: FlashWearOption = None,
    blocks: WithOption = None,
    scope: ScopeOption = "auto",
    no_paging: NoPagingOption = False,
    no_remat: NoRematOption = False,
    profile: ProfileOption = None,
    batch: BatchOption = None,
    train: TrainOption = None,
    dims: DimOption = None,
    shapes: ShapeOption = None,
    values: ValueOption = None,
    allow_symlinks: AllowSymlinksOption = False,
    loss: LossOption = "auto",
    output: OutputOption = None,
    straight_through: StraightThroughOption = False,
    granularity: GranularityOption = "operator",
    json: JsonOption = None,
) -> int:
    """Write the model of a schedule as an MPS, LP or NL file, for a solver of your own."""
    import poetopt as po
    from poetopt.api.models import read

    options = reading(batch, train, dims, shapes, values, allow_symlinks)
    check_outputs([model, profile, *(also or [])], {**_files(out), "--json": json})
    training = read(model, options).differentiate(
        loss=loss, output=output, straight_through=straight_through, granularity=granularity
    )
    written = po.export(
        training.cost(device, profile=profile),
        out,
        also=also or (),
        time_limit=time_limit,
        ram=ram,
        deadline=deadline,
        steps=steps,
        deadline_model=deadline_model,
        formulation=formulation,
        blocks=asked_blocks(static_power, energy_limit, flash_wear, blocks),
        scope=scope,
        paging=not no_paging,
        remat=not no_remat,
    )
    write_json(written.to_dict(), json)
    say(str(written), unless=[json])
    return 0


def import_solution(
    model: ModelArgument,
    solution: Annotated[
        str,
        typer.Argument(
            metavar="SOLUTION", help="A solution of HiGHS, Gurobi, CBC, SCIP, CPLEX or AMPL, or lines `name value`."
        ),
    ],
    device: DeviceOption,
    out: PlanOutOption = None,
    ram: RamOption = None,
    deadline: DeadlineOption = None,
    steps: StepsOption = 1,
    deadline_model: DeadlineModelOption = "makespan",
    formulation: FormulationOption = "retention",
    static_power: StaticPowerOption = None,
    energy_limit: EnergyLimitOption = None,
    flash_wear: FlashWearOption = None,
    blocks: WithOption = None,
    scope: ScopeOption = "auto",
    no_paging: NoPagingOption = False,
    no_remat: NoRematOption = False,
    profile: ProfileOption = None,
    batch: BatchOption = None,
    train: TrainOption = None,
    dims: DimOption = None,
    shapes: ShapeOption = None,
    values: ValueOption = None,
    allow_symlinks: AllowSymlinksOption = False,
    loss: LossOption = "auto",
    output: OutputOption = None,
    straight_through: StraightThroughOption = False,
    granularity: GranularityOption = "operator",
    json: JsonOption = None,
) -> int:
    """Read a solver's solution of an exported model back as a simulated plan; give the options of the export."""
    import poetopt as po
    from poetopt.api.models import read

    options = reading(batch, train, dims, shapes, values, allow_symlinks)
    check_outputs([model, solution, profile], {"-o": out, "--json": json}, texts=("-o", "--json"))
    training = read(model, options).differentiate(
        loss=loss, output=output, straight_through=straight_through, granularity=granularity
    )
    report = po.import_solution(
        training.cost(device, profile=profile),
        solution,
        ram=ram,
        deadline=deadline,
        steps=steps,
        deadline_model=deadline_model,
        formulation=formulation,
        blocks=asked_blocks(static_power, energy_limit, flash_wear, blocks),
        scope=scope,
        paging=not no_paging,
        remat=not no_remat,
    )
    if out is not None:
        write_text(report.plan_text(), out, option="-o")
    write_json(report.to_dict(), json)
    say(str(report), unless=[out, json])
    return 0
