"""`poetopt export` and `poetopt import-solution`: a model out for another solver, and its solution back."""

from __future__ import annotations

from typing import Annotated

import typer

from poetopt.commands.blocks import EnergyLimitOption, FlashWearOption, StaticPowerOption, WithOption, asked_blocks
from poetopt.commands.options import (
    BatchOption,
    DeadlineOption,
    DeviceOption,
    JsonOption,
    LossOption,
    ModelArgument,
    OutputOption,
    TrainOption,
    patterns,
)
from poetopt.console import check_outputs, say, write_json

RamOption = Annotated[
    str | None, typer.Option("--ram", metavar="SIZE|PERCENT", help="Budget; default: what the device has left.")
]
StepsOption = Annotated[
    int, typer.Option("--steps", metavar="N", help="Training steps that the deadline is for.", min=1)
]
DeadlineModelOption = Annotated[
    str, typer.Option("--deadline-model", metavar="makespan|paper", help="What the deadline bounds.")
]
FormulationOption = Annotated[str, typer.Option("--formulation", metavar="NAME", help="The mathematics.")]
ScopeOption = Annotated[
    str, typer.Option("--scope", metavar="depth:D|forward|full", help="The space of the model; auto is depth:8.")
]
NoPagingOption = Annotated[bool, typer.Option("--no-paging", help="Recompute only.")]
NoRematOption = Annotated[bool, typer.Option("--no-remat", help="Page only.")]
ProfileOption = Annotated[str | None, typer.Option("--profile", metavar="FILE", help="Measured costs.")]


def export(
    model: ModelArgument,
    device: DeviceOption,
    out: Annotated[
        str, typer.Option("-o", "--out", metavar="FILE.mps|.lp|.nl", help="Write the model there, in that format.")
    ],
    also: Annotated[
        list[str] | None,
        typer.Option(metavar="SOLUTION", help="A solution that import-solution refused: add the rows that it breaks."),
    ] = None,
    time_limit: Annotated[
        str, typer.Option(metavar="TIME", help="For the cuts that are written with the model.")
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
    loss: LossOption = "auto",
    output: OutputOption = None,
    json: JsonOption = None,
) -> int:
    """Write the model of a schedule as an MPS, LP or NL file, for a solver of your own."""
    import poetopt as po

    check_outputs([model, profile, *(also or [])], {"-o": out, "--json": json})
    training = po.load(model, batch=batch, train=patterns(train)).differentiate(loss=loss, output=output)
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
    say(str(written), unless=json)
    return 0


def import_solution(
    model: ModelArgument,
    solution: Annotated[
        str,
        typer.Argument(metavar="SOLUTION", help="Of HiGHS, Gurobi, CBC, SCIP, CPLEX, AMPL, or plain."),
    ],
    device: DeviceOption,
    out: Annotated[str | None, typer.Option("-o", "--out", metavar="PLAN", help="Write the plan there.")] = None,
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
    loss: LossOption = "auto",
    output: OutputOption = None,
    json: JsonOption = None,
) -> int:
    """Read a solver's solution of an exported model back as a simulated plan; give the options of the export."""
    import poetopt as po

    check_outputs([model, solution, profile], {"-o": out, "--json": json})
    training = po.load(model, batch=batch, train=patterns(train)).differentiate(loss=loss, output=output)
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
        report.save(out)
    write_json(report.to_dict(), json)
    say(str(report), unless=json)
    return 0
