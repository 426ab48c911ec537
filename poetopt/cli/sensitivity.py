"""What `poetopt solve --sensitivity` adds to a solve."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from poetopt.util.units import parse_time

if TYPE_CHECKING:
    from poetopt.report.report import Report

SensitivityOption = Annotated[
    bool, typer.Option("--sensitivity", help="Tell what the plan loses where the device's figures are off by up to 4x.")
]
SensitivityPlotOption = Annotated[
    str | None, typer.Option(metavar="PICTURE", help="Draw that: .png, .svg or .pdf (with --sensitivity or without).")
]
SHARE = 6
"""Each optimum may take this part of the time limit of the solve."""


def add_sensitivity(
    report: Report,
    document: dict[str, object],
    *,
    device: str,
    profile: str | None,
    deadline: str | None,
    time_limit: str,
    plot: str | None,
) -> str:
    """Solve the changed devices; put the result into `document` and the picture into `plot`. The text for people."""
    from poetopt.api.sensitivity import sensitivity
    from poetopt.report.sensitivity import save_sensitivity, sensitivity_text

    def told(text: str) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"sensitivity: {text}\n")

    found = sensitivity(
        report,
        device=device,
        profile=profile,
        deadline=deadline,
        time_limit=parse_time(time_limit, option="--time-limit") / SHARE,
        told=told,
    )
    document["sensitivity"] = found.to_dict()
    if plot is not None:
        save_sensitivity(found, report.title(), plot)
    return sensitivity_text(found)


def check_plot(path: str | None) -> None:
    """Refuse what is no picture before anything is solved. Raises as `poetopt.report.plots.check_picture`."""
    if path is not None:
        from poetopt.report.plots import check_picture

        check_picture(path, option="--sensitivity-plot")
