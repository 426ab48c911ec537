"""A plan's sensitivity for people: a table, a sentence, and a picture."""

from __future__ import annotations

import os
from math import isclose

from poetopt.compare.sensitivity import FACTORS, Change, Sensitivity
from poetopt.report.plots import check_picture, save_figure
from poetopt.util.units import show_joules, show_seconds, show_share

STYLES = {
    "storage throughput": ("#1f6f8b", "s", "-", 11.0),
    "storage power": ("#b5651d", "^", "--", 8.0),
    "CPU rate": ("#000000", "o", ":", 4.5),
}
"""Colour, marker, line and marker size: lines lie on each other where nothing is lost."""
HEADING = ("changed", "factor", "overhead", "best there", "bound there", "loss of energy", "at most", "plain plan", "")
OPEN = 0.01
"""A part of the overhead that is open there, from which on it is told in words."""
LEAST = 1e-4
"""Losses in percent below this are drawn as this: a logarithmic axis has no zero."""


def sensitivity_text(found: Sensitivity) -> str:
    """A row for each parameter and factor, and what follows in a sentence."""
    rows: list[tuple[str, ...]] = [HEADING]
    here = next((change.deadline_s for change in found.changes if change.factor == 1.0), None)
    rows += [_row(change, here) for change in found.changes]
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    lines = ["  " + "  ".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(["If the device's figures are off", *lines, found.sentence, *_open(found)])


def _open(found: Sensitivity) -> list[str]:
    """What the searches for the best plans have left open, where that is worth a line."""
    widest = found.most_open
    if widest is None or (widest.open_share or 0.0) <= OPEN:
        return []
    return [
        f"The best there are what short searches found: with {widest.parameter} x{widest.factor:g} up to "
        f"{show_share(widest.open_share or 0.0)} of",
        "that overhead is open. 'At most' is the loss against the bound, below which no plan is there.",
    ]


def _row(change: Change, deadline_s: float | None) -> tuple[str, ...]:
    loss = "-" if change.loss is None else show_share(change.loss) if change.loss else "none"
    remarks = ["transfers timed anew"] if change.retimed else [] if change.in_time else ["late"]
    if change.deadline_s is not None and deadline_s is not None and not isclose(change.deadline_s, deadline_s):
        remarks.append(f"deadline {show_seconds(change.deadline_s)}")
    remarks += [f"{change.alternative} is as good"] if change.overtaken else []
    return (
        change.parameter,
        f"x{change.factor:g}",
        show_joules(change.energy_j - change.baseline_j),
        "-" if change.optimum_j is None else show_joules(max(0.0, change.optimum_j - change.baseline_j)),
        "-" if change.bound_j is None else show_joules(max(0.0, change.bound_j - change.baseline_j)),
        loss,
        "-" if change.most_loss is None else show_share(change.most_loss) if change.most_loss > 1e-9 else "none",
        "-" if change.least_alternative_j is None else show_joules(change.least_alternative_j - change.baseline_j),
        ", ".join(remarks),
    )


def save_sensitivity(found: Sensitivity, title: str, path: str | os.PathLike[str]) -> None:
    """Draw the losses over the factors. Raises as `check_picture`, and OutputError."""
    check_picture(path, option="--with sensitivity")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.4, 4.4), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    for parameter in dict.fromkeys(change.parameter for change in found.changes):
        changes = [change for change in found.changes if change.parameter == parameter and change.loss is not None]
        if not changes:
            continue
        colour, marker, line, size = STYLES[parameter.partition(",")[0]]
        losses = [max(100 * (change.loss or 0.0), LEAST) for change in changes]
        axes.plot(
            [change.factor for change in changes], losses, color=colour, marker=marker, linestyle=line,
            markersize=size, markerfacecolor="none", label=parameter,
        )  # fmt: skip
        overtaken = [k for k, change in enumerate(changes) if change.overtaken]
        axes.plot(
            [changes[k].factor for k in overtaken], [losses[k] for k in overtaken], color="#c0392b", marker="x",
            linestyle="none", markersize=11, label="_nolegend_",
        )  # fmt: skip
    if any(change.overtaken for change in found.changes):
        axes.plot([], [], color="#c0392b", marker="x", linestyle="none", markersize=9, label="a plain plan is as good")
    for change in found.late:  # at the top: where nothing is in time there is no loss to draw it at
        colour, _, _, size = STYLES[change.parameter.partition(",")[0]]
        axes.plot(
            [change.factor], [0.97], color=colour, marker="+", markersize=size + 4, linestyle="none",
            transform=axes.get_xaxis_transform(), label="_nolegend_",
        )  # fmt: skip
    if found.late:
        words = "misses its deadline (above, in the line's colour)"
        axes.plot([], [], color="#777777", marker="+", linestyle="none", markersize=9, label=words)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_ylim(bottom=LEAST / 2)
    axes.set_xticks(FACTORS, [f"x{factor:g}" for factor in FACTORS])
    axes.minorticks_off()
    axes.set_xlabel("figure of the device, against what the plan was made for")
    axes.set_ylabel("energy above the best plan there, %")
    axes.axhline(LEAST, color="#bbbbbb", linewidth=0.8)
    axes.annotate(f"{LEAST:g} % or less", (0.71, LEAST / 1.12), ha="center", va="top",
                  color="#777777", fontsize=8)  # fmt: skip
    axes.set_title(title, loc="left", fontsize=11)
    axes.legend(frameon=False, fontsize=9, loc="best")
    save_figure(figure, path)
