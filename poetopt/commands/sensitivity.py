"""What `poetopt solve --sensitivity` adds to a solve."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from poetopt.units import Factor, parse_deadline, parse_time

if TYPE_CHECKING:
    from poetopt.devices.model import Storage
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
    from poetopt.comparison.sensitivity import sensitivity
    from poetopt.report.sensitivity import save_sensitivity, sensitivity_text

    def told(text: str) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"sensitivity: {text}\n")

    storage = storage_of(device, profile) if report.problem.graph is not None else None
    found = sensitivity(
        report.problem,
        report.solution,
        time_limit_s=parse_time(time_limit, option="--time-limit") / SHARE,
        storage_share=storage_share(storage),
        latencies_s=None if storage is None else (storage.page_in_latency_s, storage.page_out_latency_s),
        relative_deadline=deadline is not None and isinstance(parse_deadline(deadline), Factor),
        told=told,
    )
    document["sensitivity"] = found.to_dict()
    if plot is not None:
        save_sensitivity(found, report.title(), plot)
    return sensitivity_text(found)


def storage_share(storage: Storage | None) -> float:
    """The part of a transfer's power that is the storage's; 1 where that isn't known."""
    total = storage.power_w + storage.cpu_power_w if storage is not None else 0.0
    return storage.power_w / total if storage is not None and total else 1.0


def storage_of(device: str, profile: str | None) -> Storage | None:
    """The storage of `device`, as the profile measured it where there is one; None: not known."""
    import poetopt as po
    from poetopt.devices.profile import load_profile, measured_device
    from poetopt.errors import DeviceError

    try:
        found = po.device(device)
    except DeviceError:
        return None  # a problem file has devices of its own
    return (found if profile is None else measured_device(found, load_profile(profile))).storage


def check_plot(path: str | None) -> None:
    """Refuse what is no picture before anything is solved. Raises as `poetopt.report.plots.check_picture`."""
    if path is not None:
        from poetopt.report.plots import check_picture

        check_picture(path, option="--sensitivity-plot")
