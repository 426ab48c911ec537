"""Pictures of comparisons and fronts: the paper's Fig. 3, and energy against RAM with its proven band.

They can be read in grey: methods differ by marker and line, and POET's line is the heavy one. matplotlib is an extra.
"""

from __future__ import annotations

import io
import itertools
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from poetopt.comparison.compare import Comparison
from poetopt.comparison.pareto import Front, FrontPoint
from poetopt.formulations.scope import scope_option
from poetopt.graph.problem import Problem
from poetopt.report.comparison import coinciding
from poetopt.util.errors import BackendUnavailableError, OptionError
from poetopt.util.files import write_atomically
from poetopt.util.units import show_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".pdf")
LineStyle = str | tuple[int, tuple[float, ...]]
STYLES: dict[str, tuple[str, str, LineStyle]] = {
    "checkpoint-all": ("#000000", "*", "none"),
    "chen-sqrtn": ("#b8b8b8", "v", ":"),
    "chen-greedy": ("#808080", "^", (0, (5, 1.5))),
    "revolve": ("#404040", "<", (0, (3, 1.5, 1, 1.5, 1, 1.5))),
    "checkmate": ("#1f6f8b", "s", "-"),
    "checkmate-lp-rounding": ("#74b6cc", "D", "--"),
    "dtr": ("#c4762f", "P", "-."),
    "capuchin": ("#5b2c6f", "X", "-."),
    "capuchin-paging-first": ("#b07cc6", "x", (0, (8, 2))),
    "nntrainer": ("#2b3f8c", "4", (0, (1, 1))),
    "pofo": ("#2e7d32", "h", (0, (7, 2, 1, 2))),
    "poet-paging-only": ("#8e2a20", ">", "--"),
    "poet-remat-only": ("#e0806f", "p", (0, (2, 1))),
    "poet": ("#000000", "o", "-"),
}
"""Colour, marker and line. Without colour, methods that belong together (three greys, two readings, two ablations)
still differ by lightness and line, not by markers alone."""
OTHERS: tuple[tuple[str, str, LineStyle], ...] = (
    ("#444444", "d", "--"), ("#888888", "8", "-."), ("#666666", "H", ":"), ("#aaaaaa", "1", "-"),
)  # fmt: skip


def check_picture(path: str | os.PathLike[str]) -> None:
    """Raise OptionError for a suffix of no picture, BackendUnavailableError without matplotlib."""
    if Path(path).suffix.lower() not in FORMATS:
        raise OptionError(f"-o {os.fspath(path)}: the suffix of a picture must be one of {', '.join(FORMATS)}")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise BackendUnavailableError(
            "matplotlib is not installed. Install it with: pip install 'poetopt[plot]'"
        ) from error


def save_comparison(comparison: Comparison, path: str | os.PathLike[str]) -> None:
    """Draw a comparison to a file. Raises the errors of `check_picture`, and OutputError."""
    save_figure(_comparison(comparison, path), path)


def save_front(front: Front, path: str | os.PathLike[str]) -> None:
    """Draw a front to a file. Raises the errors of `check_picture`, and OutputError."""
    save_figure(_budgets(front, path), path)


def _comparison(comparison: Comparison, path: str | os.PathLike[str]) -> Figure:
    figure, axes = _axes(path, 8.6, 5.0)
    peak, base = comparison.store_all_peak_bytes, comparison.problem.baseline_energy_j or 1.0
    spare = iter(OTHERS * len(comparison.methods))
    groups = _drawn_once(comparison.methods, coinciding(comparison))
    overheads = [100 * row.overhead_j / base for row in comparison.rows if row.overhead_j]
    _overhead_scale(axes, overheads)
    for budget in comparison.budgets:
        axes.axvline(100 * budget / peak, color="#dddddd", linewidth=0.8, zorder=0)
    for name, others in groups.items():
        rows = [row for row in comparison.rows if row.method == name and row.overhead_j is not None]
        colour, marker, line = STYLES[name] if name in STYLES else next(spare)
        heavy = name == "poet"
        notes = [] if rows else ["no plan"]
        if 0 < len(rows) < len(comparison.budgets):
            notes.append(f"from {100 * rows[0].ram_budget_bytes / peak:.3g} %")
        label = "\n= ".join([name + (f" ({', '.join(notes)})" if notes else ""), *others])
        axes.plot(
            [100 * row.ram_budget_bytes / peak for row in rows],
            [100 * (row.overhead_j or 0.0) / base for row in rows],
            color=colour,
            marker=marker,
            linestyle=line,
            linewidth=2.4 if heavy else 1.2,
            markersize=6 if heavy else 5.5,
            markerfacecolor=colour if heavy else "white",
            zorder=3 if heavy else 2,
            label=label,
        )
    axes.set_title(f"{comparison.problem.name} on {comparison.problem.device}", loc="left", fontsize=11)
    _ram_axis(axes, peak)
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False, fontsize=8.5)
    return figure


def _drawn_once(shown: Sequence[str], same: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the methods to draw, in the order of `shown`, each with those that coincide with it.

    POET stands for its group.

    Parameters
    ----------
    same
        Methods that coincide with an earlier one, and that one.
    """
    members: dict[str, list[str]] = {}
    for name in shown:
        members.setdefault(same.get(name, name), []).append(name)
    stands = {("poet" if "poet" in group else group[0]): group for group in members.values()}
    return {name: [other for other in stands[name] if other != name] for name in shown if name in stands}


def _budgets(front: Front, path: str | os.PathLike[str]) -> Figure:
    figure, axes = _axes(path, 7.4, 4.6)
    peak = front.store_all_peak_bytes
    _band(axes, front.problem, front.points, [100 * point.ram_budget_bytes / peak for point in front.points])
    words = "smallest feasible RAM" if front.least_is_proven else "no schedule has less"
    _limit(axes, 100 * front.ram_bound_bytes / peak, words)
    axes.set_title(f"{front.problem.name} on {front.problem.device}", loc="left", fontsize=11)
    _ram_axis(axes, peak)
    axes.legend(loc="upper right", frameon=False, fontsize=9)
    return figure


def _band(axes: Axes, problem: Problem, points: Sequence[FrontPoint], limits: Sequence[float]) -> None:
    """Draw the plans, their bounds, and the band in between that holds the front.

    Each bound holds in the scope of its point.
    """
    base = problem.baseline_energy_j or 1.0
    energy = [100 * point.overhead_j / base for point in points]
    bound = [100 * point.overhead_bound_j / base for point in points]
    _overhead_scale(axes, [value for value in energy if value])
    # Between two limits: at most what the smaller one takes, at least what is proven for the larger one.
    for k, (left, right) in enumerate(itertools.pairwise(limits)):
        label = "" if k else _proof(points)
        axes.fill_between([left, right], bound[k + 1], energy[k], color="#d4d4d4", linewidth=0, label=label)
    axes.plot(limits, energy, color="black", marker="o", linewidth=1.8, label="best plan", drawstyle="steps-post")
    axes.plot(limits, bound, color="#555555", marker="_", linestyle="none", markersize=10, label="bound")


def _proof(points: Sequence[FrontPoint]) -> str:
    """Return in which scopes the bounds of the band hold: `within each point's scope (depth:4 to depth:12)`."""
    # Store-all needs no bound. Narrow ones first: depths, then forward, then full.
    scopes = {point.scope for point in points} - {"store-all"}
    depths = sorted((name for name in scopes if name.startswith("depth")), key=lambda name: (len(name), name))
    names = [scope_option(name) for name in (*depths, *sorted(scopes.difference(depths)))]
    if not names:
        return "where the front is proven to lie"
    if len(names) == 1:
        return f"proven within the scope {names[0]}"
    return f"proven within each point's scope\n({names[0]} to {names[-1]})"


def _limit(axes: Axes, place: float, words: str) -> None:
    """Draw a dashed line; nothing is possible to the left of it."""
    axes.axvline(place, color="black", linestyle="--", linewidth=1)
    axes.annotate(
        words, (place, 0.03), xycoords=("data", "axes fraction"), rotation=90,
        xytext=(3, 0), textcoords="offset points", fontsize=8, va="bottom",
    )  # fmt: skip


def _axes(path: str | os.PathLike[str], width: float, height: float) -> tuple[Figure, Axes]:
    """Return a figure without a window, and its axes."""
    check_picture(path)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes: Axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9)
    return figure, axes


def _overhead_scale(axes: Axes, positive: list[float]) -> None:
    """Set decades with room for zero below them; a plain scale if all values are of one size."""
    least = min(positive, default=1.0)
    # overheads that differ by less than that are drawn on a plain scale
    if max(positive, default=1.0) < 12.0 * least:
        axes.set_ylabel("energy overhead, % of one pass")
        axes.set_ylim(bottom=0.0, top=max(positive, default=1.0) * 1.25)
        return
    axes.set_ylabel("energy overhead, % of one pass (log scale)")
    logarithmic(axes, positive)


def logarithmic(axes: Axes, positive: Sequence[float]) -> None:
    """Set decades on the vertical axis for these values (at least one), with room for zero below them."""
    from matplotlib.ticker import FuncFormatter, NullFormatter, SymmetricalLogLocator

    decade, top = 10.0 ** math.floor(math.log10(min(positive))), 2 * max(positive)
    axes.set_yscale("symlog", linthresh=decade, linscale=0.5)
    axes.set_ylim(bottom=-0.15 * decade, top=top)
    # axes that span less have labels between the powers of ten: one label, or two, don't say how long a decade is
    labelled = (1, 2, 5) if math.log10(top / decade) < 2.2 else (1,)
    axes.yaxis.set_major_locator(SymmetricalLogLocator(base=10, linthresh=decade, subs=labelled))
    axes.yaxis.set_minor_locator(SymmetricalLogLocator(base=10, linthresh=decade, subs=range(2, 10)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.6g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _ram_axis(axes: Axes, peak: int) -> None:
    axes.set_xlabel(f"RAM budget, % of store-all ({show_bytes(peak)})")

    name, unit = ("MB", 1e6) if peak >= 2e6 else ("kB", 1e3)

    def size(share: Any) -> Any:
        return share * (peak / 100 / unit)

    def share(size: Any) -> Any:
        return size * (100 * unit / peak)

    top = axes.secondary_xaxis("top", functions=(size, share))
    top.set_xlabel(f"RAM budget, {name}", fontsize=9)
    top.tick_params(labelsize=8)


def save_figure(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write a figure in the format of its suffix, whole or not at all. Raises OutputError."""
    import matplotlib

    # Neither a date nor random identifiers: the same figures give the same file. To memory first: matplotlib's own
    # writers don't survive a full disk.
    drawn = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "poetopt"}):
        kind = Path(path).suffix.lower().removeprefix(".")
        metadata = {"png": {"Software": "poetopt"}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}[kind]
        figure.savefig(drawn, format=kind, dpi=160, metadata=metadata)
    write_atomically(path, drawn.getvalue())
