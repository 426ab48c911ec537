"""The paper's tables and figures, from the rows that `benchmarks.paper.measure` wrote.

    python -m benchmarks.paper.draw

Writes `benchmarks/results/paper/tables.md`, and `fig3-`, `fig4-`, `fig5-paper|grounded` as PNG and SVG beside it.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.paper.measure import DEVICES, FIG3, RESULTS
from poetopt.comparison.baselines import METHODS
from poetopt.comparison.rows import FAILED
from poetopt.report.plots import STYLES, logarithmic

CONSTANTS = ("paper", "grounded")
Record = dict[str, str]


def main() -> None:
    parts = ["# The paper's evaluation on our graphs", "", *claims(), "", *table1()]
    for constants in CONSTANTS:
        for experiment, draw in (("fig3", fig3), ("fig4", fig4), ("fig5", fig5)):
            found = rows(experiment, constants)
            if found:
                save(draw(found, constants), RESULTS / f"{experiment}-{constants}")
    for title, experiment, columns in (
        ("Fig. 3: overhead, % of one pass", "fig3", ("model", "device")),
        ("DTR at its tightest budgets: ResNet-18 on TX2", "dtr", ()),
        ("Fig. 4: ablations over deadlines, VGG16", "fig4", ("device", "deadline")),
        ("Fig. 5: Capuchin, ResNet-18 on A72", "fig5", ()),
        ("Table 3: POFO, ResNet-18 on TX2", "table3", ()),
        ("DTR's time at 42 %: ResNet-18 on TX2", "in-dtr-time", ("deadline",)),
        ("LP rounding: ResNet-18 on A72, batch 8", "rounding", ()),
        ("Batch size: ResNet-18 on A72 at 40 %", "batch", ("batch",)),
    ):
        for constants in CONSTANTS:
            found = rows(experiment, constants)
            if found:
                command = f"`python -m benchmarks.paper.measure --only {experiment} --constants {constants}`"
                parts += ["", f"## {title}, {constants} constants", "", command, ""]
                parts += overheads(found, columns) if experiment in ("fig3", "fig4") else full(found, columns)
    parts += [
        "",
        "none: the method has no plan there, by proof (of the scope `full`, or by an argument that needs no scope); "
        "failed: it found none, and one may exist.",
    ]
    (RESULTS / "tables.md").write_text("\n".join(parts) + "\n", encoding="utf-8")


def claims() -> list[str]:
    """What the paper claims, and the same figure of ours."""
    cells = []
    for constants in CONSTANTS:
        for model in ("resnet18-cifar", "vgg16-cifar", "bert-base"):
            here = [row for row in rows("fig3", constants) if (row["model"], row["device"]) == (model, "tx2")]
            if here:
                cells.append((constants, f"less energy than DTR, {model} on TX2", "up to 35 %", saved(here, ("dtr",))))
        here = rows("dtr", constants)
        if here:
            cells.append((constants, "the same for ResNet-18 at 38 to 44 % RAM", "up to 35 %", saved(here, ("dtr",))))
        here = rows("fig5", constants)
        if here:
            cells.append((constants, "Capuchin's overhead, ResNet-18 on A72", "73 to 141 %", span(here, "capuchin")))
            first = span(here, "capuchin-paging-first")
            cells.append((constants, "the same, paging first", "73 to 141 %", first))
            cells.append((constants, "POET's overhead there", "under 1 %", span(here, "poet")))
        here = rows("fig4", constants)
        if here:
            ablations = ("poet-paging-only", "poet-remat-only")
            cells.append((constants, "less energy than either ablation, VGG16", "up to 40 %", saved(here, ablations)))
            either = saved(here, ablations, "overhead_j")
            cells.append((constants, "less overhead than either ablation, VGG16", "", either))
        here = rows("table3", constants)
        for name, words, claim in (
            ("poet-less-memory", "POFO's time with 8.3 % less memory", "yes"),
            ("poet-less-time", "POFO's memory with 13 % less time", "yes"),
            ("poet-both", "both at once", "yes"),
        ):
            asked = [row for row in here if row["method"] == name]
            if asked:
                able = sum(bool(row["overhead_j"]) for row in asked)
                cells.append((constants, words, claim, f"at {able} of {len(asked)} plans of POFO"))
    return ["## Claims", "", *table(["constants", "claim", "paper", "here"], cells)]


def saved(here: Sequence[Record], others: Sequence[str], key: str = "energy_j") -> str:
    """How much less than the others POET takes, over all problems where both have plans."""

    def where(row: Record) -> tuple[str, ...]:
        return (row["model"], row["device"], row["deadline"], row["ram_budget_bytes"])

    best = {where(row): float(row[key]) for row in here if row["method"] == "poet" and row[key]}
    # Against the better of the others: less than either of them.
    other: dict[tuple[str, ...], float] = {}
    for row in here:
        if row["method"] in others and row[key] and where(row) in best:
            other[where(row)] = min(float(row[key]), other.get(where(row), math.inf))
    parts = [100 * (1 - best[place] / value) for place, value in other.items() if value]
    alone = len(best) - len(other)
    text = f"{min(parts):.3g} to {max(parts):.3g} %" if parts else "no plan of theirs"
    return f"{text}; at {alone} points POET alone has a plan" if alone else text


def span(here: Sequence[Record], method: str) -> str:
    """The overheads of a method, least to most."""
    found = [value for row in here if row["method"] == method and (value := percent(row)) is not None]
    return f"{min(found):.2g} to {max(found):.2g} %" if found else "no plan"


def table1() -> list[str]:
    """Features, as each baseline declares them."""

    def mark(flag: bool) -> str:
        return "yes" if flag else "no"

    head = ["method", "source", "general graphs", "compute aware", "memory aware", "power aware", "paging", "proof"]
    cells = [
        (
            found.name,
            found.source,
            *map(
                mark,
                (
                    found.features.general_graphs,
                    found.features.compute_aware,
                    found.features.memory_aware,
                    found.features.power_aware,
                    found.features.paging,
                    found.features.proof,
                ),
            ),
        )
        for found in METHODS.values()
    ]
    words = (
        "As implemented here, for unequal operators. The original of `revolve` takes steps and states for "
        "equal; here its recurrence weighs segments in joules, and states in bytes as well as in slots. "
        "What `pofo` recomputes within RAM is weighed in joules too, where the original counts seconds."
    )
    return ["## Table 1: what each method looks at", "", words, "", *table(head, cells)]


def rows(experiment: str, constants: str) -> list[Record]:
    """What was measured; nothing where it was not."""
    path = RESULTS / f"{experiment}-{constants}.csv"
    if not path.exists():
        return []
    with open(path, encoding="utf-8") as file:
        return list(csv.DictReader(file))


def share(row: Record) -> float:
    """RAM in % of store-all."""
    return 100 * float(row["ram_budget_bytes"]) / float(row["store_all_peak_bytes"])


def unknown(row: Record) -> bool:
    """Whether there is neither a plan nor a proof that there is none."""
    return row["status"] == FAILED


def percent(row: Record) -> float | None:
    """Overhead in % of one pass."""
    return 100 * float(row["overhead_j"]) / float(row["baseline_energy_j"]) if row["overhead_j"] else None


def passes(row: Record) -> float:
    """Makespan in passes."""
    return float(row["makespan_s"]) / float(row["baseline_time_s"])


def overheads(found: Sequence[Record], columns: Sequence[str]) -> list[str]:
    """A line a problem and budget, a column a method: overhead %, and the gap where it is open by more than 1 %."""
    methods = list(dict.fromkeys(row["method"] for row in found))
    lines: dict[tuple[str, ...], dict[str, str]] = {}
    for row in found:
        where = (*(row[name] for name in columns), f"{share(row):.0f} %")
        cell = percent(row)
        text = "none" if row["status"] == "infeasible" else "failed"
        if cell is not None:
            text = f"{cell:.3g}"
            if row["overhead_gap"] and float(row["overhead_gap"]) > 0.01:
                text += f" ({100 * float(row['overhead_gap']):.0f} % open)"
        lines.setdefault(where, {})[row["method"]] = text
    return table(
        [*columns, "RAM", *methods], [(*where, *(cells.get(m, "") for m in methods)) for where, cells in lines.items()]
    )


def full(found: Sequence[Record], columns: Sequence[str]) -> list[str]:
    """A line a row: energy, time and memory."""
    head = [
        *columns,
        "RAM",
        "method",
        "overhead, % of one pass",
        "makespan, passes",
        "peak",
        "recomputes",
        "page-ins",
        "proof",
    ]
    cells = []
    for row in found:
        overhead = percent(row)
        where = (*(row[name] for name in columns), f"{share(row):.0f} %", row["method"])
        if overhead is None:
            cells.append((*where, row["status"], "", "", "", "", row["reason"].replace("|", "/")))
            continue
        gap = f", {100 * float(row['overhead_gap']):.2g} % open" if row["overhead_gap"] else ""
        peak = f"{int(row['peak_bytes']) / 1e6:.3g} MB"
        proof = row["status"] + gap
        cells.append((*where, f"{overhead:.3g}", f"{passes(row):.4f}", peak, row["recomputes"], row["page_ins"], proof))
    return table(head, cells)


def table(head: Sequence[str], cells: Iterable[Sequence[str]]) -> list[str]:
    """Markdown."""
    return [f"| {' | '.join(head)} |", "|---" * len(head) + "|", *(f"| {' | '.join(row)} |" for row in cells)]


def fig3(found: Sequence[Record], constants: str) -> Figure:
    """Networks down, devices across: overhead against RAM."""
    models = list(dict.fromkeys(row["model"] for row in found))
    figure = Figure(figsize=(12.5, 2.6 * len(models) + 1.0), layout="constrained")
    grid = figure.subplots(len(models), len(DEVICES), squeeze=False)
    for model, line in zip(models, grid, strict=True):
        for device, axes in zip(DEVICES, line, strict=True):
            here = [row for row in found if (row["model"], row["device"]) == (model, device)]
            axes.set_title(f"{model} on {device}", fontsize=9, loc="left")
            for budget in sorted({share(row) for row in here}):
                axes.axvline(budget, color="#dddddd", linewidth=0.8, zorder=0)
            for method in FIG3:
                curve(axes, [row for row in here if row["method"] == method], method, share)
            scale(axes)
        line[0].set_ylabel("energy overhead, % of one pass (log)", fontsize=8)
    for axes in grid[-1]:
        axes.set_xlabel("RAM, % of store-all", fontsize=9)
    finish(
        figure, f"Fig. 3 with the {constants} constants, batch 1; no marker: the method has no plan there", len(FIG3)
    )
    return figure


def fig4(found: Sequence[Record], constants: str) -> Figure:
    """Devices across, budgets down: overhead against the deadline, with either move and with both."""
    devices = list(dict.fromkeys(row["device"] for row in found))
    budgets = sorted({round(share(row)) for row in found})
    figure = Figure(figsize=(9.0, 2.8 * len(budgets) + 1.0), layout="constrained")
    grid = figure.subplots(len(budgets), len(devices), squeeze=False)
    for budget, line in zip(budgets, grid, strict=True):
        for device, axes in zip(devices, line, strict=True):
            here = [row for row in found if row["device"] == device and round(share(row)) == budget]
            axes.set_title(f"VGG16 on {device}, RAM {budget} % of store-all", fontsize=9, loc="left")
            for method in ("poet-paging-only", "poet-remat-only", "poet"):
                curve(
                    axes, [row for row in here if row["method"] == method], method, lambda row: float(row["deadline"])
                )
            axes.axvline(1.0, color="black", linestyle="--", linewidth=0.8)
            scale(axes)
            for row in filter(unknown, here):
                place = (float(row["deadline"]), 0.04)
                axes.annotate("?", place, xycoords=("data", "axes fraction"), ha="center", fontsize=12)
        line[0].set_ylabel("energy overhead, % of one pass (log)", fontsize=8)
    for axes in grid[-1]:
        axes.set_xlabel("deadline, times one pass (dashed: one pass)", fontsize=9)
    words = "no marker: the method has no schedule, by proof"
    if any(map(unknown, found)):
        words += "; ?: POET found none, and one may exist"
    finish(figure, f"Fig. 4 with the {constants} constants, batch 1\n{words}", 3)
    return figure


def fig5(found: Sequence[Record], constants: str) -> Figure:
    """Capuchin's two readings and POET: overhead and makespan against RAM."""
    figure = Figure(figsize=(9.0, 4.0), layout="constrained")
    left, right = figure.subplots(1, 2)
    for method in ("capuchin", "capuchin-paging-first", "poet"):
        here = [row for row in found if row["method"] == method]
        curve(left, here, method, share)
        curve(right, here, method, share, lambda row: 100 * (passes(row) - 1))
    for axes, words in ((left, "energy overhead, % of one pass (log)"), (right, "time overhead, % of one pass")):
        for budget in sorted({share(row) for row in found}):
            axes.axvline(budget, color="#dddddd", linewidth=0.8, zorder=0)
        axes.set_xlabel("RAM, % of store-all", fontsize=9)
        axes.set_ylabel(words, fontsize=9)
        scale(axes)
    right.set_yscale("linear")
    right.set_ylim(-0.2, 1.1 * max(100 * (passes(row) - 1) for row in found if row["overhead_j"]))
    finish(figure, f"Fig. 5 with the {constants} constants: ResNet-18 on A72, batch 1", 3)
    return figure


def curve(axes: Axes, here: Sequence[Record], method: str, x: Any, y: Any = percent) -> None:
    """One method's line, as `poetopt compare -o` draws it."""
    there = [row for row in here if row["overhead_j"]]
    colour, marker, line = STYLES[method]
    heavy = method == "poet"
    axes.plot(
        [x(row) for row in there],
        [y(row) for row in there],
        color=colour,
        marker=marker,
        linestyle=line,
        linewidth=2.2 if heavy else 1.2,
        # Ablations often coincide with the whole: their rings go around its dots.
        markersize=6 if heavy else 9 if method.startswith("poet-") else 5.5,
        markerfacecolor=colour if heavy else "none" if method.startswith("poet-") else "white",
        zorder=3 if heavy else 2,
        label=method,
    )


def scale(axes: Axes) -> None:
    """Decades with room for zero; a panel without any line says so."""
    # Budgets and deadlines are lines without a label.
    curves = [line for line in axes.get_lines() if not str(line.get_label()).startswith("_")]
    values = [float(value) for line in curves for value in np.asarray(line.get_ydata(), dtype=float) if value > 0]
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
    if not values:
        axes.text(0.5, 0.5, "no schedule", transform=axes.transAxes, ha="center", fontsize=9)
        return
    logarithmic(axes, values)


def finish(figure: Figure, title: str, columns: int) -> None:
    """One legend for all panels, below."""
    labels: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            labels.setdefault(label, handle)
    figure.legend(labels.values(), labels.keys(), loc="outside lower center", ncols=columns, frameon=False, fontsize=9)
    figure.suptitle(title, fontsize=10)


def save(figure: Figure, path: Path) -> None:
    """As PNG and SVG, the same bytes from the same rows."""
    with mpl.rc_context({"svg.hashsalt": "poetopt"}):
        figure.savefig(path.with_suffix(".png"), dpi=110, metadata={"Software": "poetopt"})
        figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})


if __name__ == "__main__":
    main()
