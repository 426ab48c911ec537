"""`poetopt formulations`, and the options that put more blocks into one."""

from __future__ import annotations

from typing import Annotated

import typer

from poetopt.commands.options import JsonOption
from poetopt.console import check_outputs, say, write_json

StaticPowerOption = Annotated[
    str | None, typer.Option(metavar="WATTS", help="Idle power: the energy minimised counts it for the whole step.")
]
EnergyLimitOption = Annotated[
    str | None,
    typer.Option(metavar="JOULES|FACTOR", help="Minimise time instead, within so much energy a step: 3J, 1.05x."),
]
FlashWearOption = Annotated[
    str | None, typer.Option(metavar="SIZE", help="Write at most so much to storage a step: 10MB.")
]
WithOption = Annotated[
    list[str] | None,
    typer.Option("--with", metavar="BLOCK=VALUE", help="One more block (`poetopt formulations`); may be repeated."),
]


def asked_blocks(
    static_power: str | None, energy_limit: str | None, flash_wear: str | None, more: list[str] | None
) -> list[str]:
    """The options above as what `po.solve(blocks=...)` takes."""
    named = {"static-power": static_power, "energy-limit": energy_limit, "flash-wear": flash_wear}
    return [*(f"{name}={value}" for name, value in named.items() if value is not None), *(more or [])]


def formulations(
    show: Annotated[
        str | None, typer.Option(metavar="NAME", help="One formulation or block: its mathematics in full.")
    ] = None,
    json: JsonOption = None,
) -> int:
    """List the formulations that are installed and the blocks for --with, or show the mathematics of one."""
    from poetopt.report.mathematics import catalogue, listing, page

    check_outputs([], {"--json": json})
    entries = catalogue(show)
    write_json(entries[0].to_dict() if show else {"formulations": [entry.to_dict() for entry in entries]}, json)
    say(page(entries[0]) if show else listing(entries), unless=json)
    return 0
