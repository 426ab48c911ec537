"""Comparisons, fronts and tables of batches as text for people."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from poetopt.comparison.compare import Comparison
from poetopt.comparison.pareto import Front, FrontPoint
from poetopt.comparison.rows import ComparisonRow
from poetopt.formulations.scope import kind_words, scope_option
from poetopt.graph.problem import Problem
from poetopt.report.goals import Fits, advice, advised
from poetopt.report.layout import LEAST, aligned, answer, table, terminal_width, wrapped
from poetopt.report.proof import Claim
from poetopt.search.solution import OPTIMAL_GAP, Status
from poetopt.util.notes import all_shown
from poetopt.util.units import show_bytes, show_joules, show_seconds, show_share

FRONT_HEADER = ("overhead", "of baseline", "at least", "gap", "makespan", "moves", "took", "proof")
LEGEND = "moves: recomputes + page-ins; at least: no schedule has less overhead"


def front_lines(front: Front, after: str = "") -> list[str]:
    """Return the front for people: the answer in four lines, then a table; `after` is what to do next."""
    problem = front.problem
    cells: list[tuple[str, ...]] = [("RAM", "of store-all", *FRONT_HEADER)]
    for point in front.points:
        of_all = show_share(point.ram_budget_bytes / front.store_all_peak_bytes)
        ram = f"{point.ram_budget_bytes:,} B" if all_shown() else show_bytes(point.ram_budget_bytes, 4)
        cells.append((ram, of_all, *_front_cells(point, problem)))
    title = f"{problem.name} on {problem.device}: {len(front.points)} points in {show_seconds(front.total_s)}"
    rows = answer(_front_fit(front), _front_cost(front), _front_proof(front), after)
    legend = kinds_legend(point.scope for point in front.points)[1:]
    return [*table(title, rows).split("\n"), "", *columns(cells), LEGEND, *legend]


def _front_fit(front: Front) -> str:
    least, store_all = show_bytes(front.least_ram_bytes, 4), show_bytes(front.store_all_peak_bytes, 4)
    if front.least_is_proven:
        return f"schedules exist from {least} on, by proof not below; store-all takes {store_all}"
    bound = show_bytes(front.ram_bound_bytes, 4)
    return f"schedules are known from {least} on, none exists below {bound}; store-all takes {store_all}"


def _front_cost(front: Front) -> str:
    if not front.points:
        return ""
    first, last = front.points[0], front.points[-1]
    most, ram = show_joules(first.overhead_j), show_bytes(first.ram_budget_bytes, 4)
    more_share = share(first.overhead_j, front.problem.baseline_energy_j)
    least, last_ram = show_joules(last.overhead_j), show_bytes(last.ram_budget_bytes, 4)
    return f"{most} ({more_share}) more energy a step than store-all in {ram}, {least} in {last_ram}"


def _front_proof(front: Front) -> str:
    optimal = sum(point.overhead_gap <= OPTIMAL_GAP for point in front.points)
    widest = max((point.overhead_gap for point in front.points), default=0.0)
    text = f"{optimal} of {len(front.points)} points are optimal"
    return text if widest <= OPTIMAL_GAP else f"{text}; the others are within {show_share(widest)} of their overhead"


def _front_cells(point: FrontPoint, problem: Problem) -> tuple[str, ...]:
    return (
        show_joules(point.overhead_j),
        share(point.overhead_j, problem.baseline_energy_j),
        show_joules(point.overhead_bound_j),
        show_share(point.overhead_gap if point.overhead_gap > OPTIMAL_GAP else 0.0),
        show_seconds(point.makespan_s),
        f"{point.recomputes} + {point.page_ins}",
        show_seconds(point.solve_s),
        Claim.of(vars(point)).in_table(point.status, gap=False),
    )


HEADER = ("method", "energy", "overhead", "of baseline", "peak", "makespan", "recomputes", "paged", "took", "proof")
SAME = 1e-9
"""Relative difference of sums of the same joules in another order."""


def comparison_lines(comparison: Comparison, after: str = "") -> list[str]:
    """Return a comparison for people: the answer in four lines, all overheads side by side, with `--verbose` the rest.

    Parameters
    ----------
    after
        What to do next.
    """
    problem = comparison.problem
    title = f"{problem.name} on {problem.device}: {len(problem.operators)} operators"
    title += f", {len(comparison.rows)} rows in {show_seconds(comparison.total_s)}"
    rows = answer(_comparison_fit(comparison), _comparison_cost(comparison), _comparison_proof(comparison), after)
    lines = [*table(title, rows).split("\n"), ""]
    lines += ["energy over store-all's in %, by RAM in % of store-all", *_summary(comparison)]
    if not all_shown():
        return [*lines, "--verbose adds a table for each budget: peaks, times, moves, proofs, and reasons of failures"]
    for budget in comparison.budgets:
        rows_of_budget = [row for row in comparison.rows if row.ram_budget_bytes == budget]
        of_all = show_share(budget / comparison.store_all_peak_bytes) if comparison.store_all_peak_bytes else ""
        lines += ["", f"RAM {budget:,} B ({show_bytes(budget)}, {of_all} of store-all)"]
        lines += columns([HEADER, *different]) if (different := [*_different(rows_of_budget, comparison)]) else []
        lines += _reasons(rows_of_budget)
    return [*lines, *kinds_legend(row.scope for row in comparison.rows)]


def _comparison_fit(comparison: Comparison) -> str:
    problem, solved = comparison.problem, [row for row in comparison.rows if row.energy_j is not None]
    energy, time = show_joules(problem.baseline_energy_j), show_seconds(problem.baseline_time_s)
    text = f"store-all takes {show_bytes(comparison.store_all_peak_bytes, 4)}, {energy} and {time}"
    if not solved:
        return f"{text}; no method found a plan"
    least = min(row.ram_budget_bytes for row in solved)
    fitting = [row.method for row in solved if row.ram_budget_bytes == least]
    return f"{text}; {len(fitting)} of {len(comparison.methods)} methods have a plan in {show_bytes(least, 4)}"


def _comparison_cost(comparison: Comparison) -> str:
    """Return the methods of least overhead in the smallest budget with a plan."""
    solved = [row for row in comparison.rows if row.overhead_j is not None]
    least = min((row.ram_budget_bytes for row in solved), default=0)
    ranked = sorted((row for row in solved if row.ram_budget_bytes == least), key=lambda row: row.overhead_j or 0.0)
    cells = [f"{row.method} {share(row.overhead_j or 0.0, comparison.problem.baseline_energy_j)}" for row in ranked[:2]]
    return f"in {show_bytes(least, 4)} more energy than store-all: {', then '.join(cells)}" if cells else ""


def _comparison_proof(comparison: Comparison) -> str:
    solved = sum(row.energy_j is not None for row in comparison.rows)
    optimal = sum(row.status == Status.OPTIMAL for row in comparison.rows)
    close = sum(row.status == Status.WITHIN_GAP for row in comparison.rows)
    text = f"{optimal} of {solved} plans are optimal"
    return f"{text}, {close} more within the gap" if close else text


def kinds_legend(scopes: Iterable[str | None]) -> list[str]:
    """Return the line that explains the scopes of proofs in a table, if there are any."""
    named = sorted({scope for scope in scopes if scope and scope != "store-all"})
    kinds = "; ".join(f"{scope_option(scope)}: {kind_words(scope)}" for scope in named)
    return ["", f"kinds of schedules that proofs are about: {kinds}"] if kinds else []


def _cells(row: ComparisonRow, comparison: Comparison) -> tuple[str, ...]:
    assert row.energy_j is not None
    assert row.overhead_j is not None
    assert row.peak_bytes is not None
    assert row.makespan_s is not None
    proof = Claim.of(vars(row)).in_table(row.status)
    return (
        row.method,
        show_joules(row.energy_j),
        show_joules(row.overhead_j),
        share(row.overhead_j, comparison.problem.baseline_energy_j),
        show_bytes(row.peak_bytes),
        show_seconds(row.makespan_s),
        str(row.recomputes),
        show_bytes(row.bytes_paged or 0),
        show_seconds(row.solve_s),
        proof,
    )


TOOK = HEADER.index("took")


def _different(rows: Sequence[ComparisonRow], comparison: Comparison) -> Iterator[tuple[str, ...]]:
    """Yield the cells of each row with a plan; a row like an earlier one names that one's method instead."""
    first: dict[tuple[str, ...], str] = {}
    for row in rows:
        if row.energy_j is not None:
            method, *figures = _cells(row, comparison)
            same = first.setdefault((*figures[: TOOK - 1], *figures[TOOK:]), method)
            yield (
                (method, *figures) if same == method else (method, *[""] * (TOOK - 1), figures[TOOK - 1], f"as {same}")
            )


def _reasons(rows: Sequence[ComparisonRow]) -> list[str]:
    """Return the reasons of the methods without a plan, each once."""
    alike: dict[str, list[str]] = {}
    for row in rows:
        if row.energy_j is None:
            alike.setdefault(f"{row.status}, {row.reason}", []).append(row.method)
    return [
        f"  {'all methods' if len(names) == len(rows) > 1 else ', '.join(names)}: {why}" for why, names in alike.items()
    ]


def _summary(comparison: Comparison) -> list[str]:
    by_cell = {(row.method, row.ram_budget_bytes): row for row in comparison.rows}
    head = ("method", *(f"{100 * budget / comparison.store_all_peak_bytes:.4g}" for budget in comparison.budgets))
    overheads = [head]
    for name in comparison.methods:
        cells = []
        for budget in comparison.budgets:
            row = by_cell[name, budget]
            if row.overhead_j is None:
                cells.append("none" if row.status == "infeasible" else "failed")
            else:
                cells.append(f"{100 * row.overhead_j / (comparison.problem.baseline_energy_j or 1.0):.3g}")
        overheads.append((name, *cells))
    legend = "none: it has no plan there, by proof; failed: it found none, and one may exist"
    groups: dict[str, list[str]] = {}
    for name, other in coinciding(comparison).items():
        groups.setdefault(other, [other]).append(name)
    same = [f"the same at every budget: {' = '.join(group)}" for group in groups.values()]
    return [*columns(overheads), *same, legend]


def coinciding(comparison: Comparison) -> dict[str, str]:
    """Return the methods whose overheads are those of an earlier method at every budget, with that method.

    Methods without plans are left out.
    """
    cells = {(row.method, row.ram_budget_bytes): row.overhead_j for row in comparison.rows}
    overheads = {name: [cells.get((name, budget)) for budget in comparison.budgets] for name in comparison.methods}
    solved = [name for name in comparison.methods if any(overhead is not None for overhead in overheads[name])]
    first = {name: next(other for other in solved if _close(overheads[name], overheads[other])) for name in solved}
    return {name: other for name, other in first.items() if other != name}


def _close(some: Sequence[float | None], others: Sequence[float | None]) -> bool:
    return all(
        one == other or (one is not None and other is not None and math.isclose(one, other, rel_tol=SAME))
        for one, other in zip(some, others, strict=True)
    )


def share(part: float, whole: float) -> str:
    """Return a share as text: `1.86 %`, or a dash if the whole is 0."""
    return show_share(part / whole) if whole else "-"


EXPENDABLE = ("took", "of baseline", "recomputes", "of store-all", "of a pass")
"""Columns that a narrow terminal leaves out, in this order; JSON has them."""


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table: names and proofs on the left, figures on the right of their columns.

    The last column is text, which continues under its own start. If the terminal is too narrow, some columns are left
    out.
    """
    left_out = []
    while max(len(head) + min(len(text), LEAST // 2) for head, text in _heads(rows)) > terminal_width():
        name = next((name for name in EXPENDABLE if name in rows[0]), None)
        if name is None:
            break
        place = rows[0].index(name)
        rows = [[*row[:place], *row[place + 1 :]] for row in rows]
        left_out.append(name)
    lines: list[str] = []
    for head, text in _heads(rows):
        lines += wrapped(text, terminal_width(), head, " " * len(head)) or [head.rstrip()]
    return [*lines, f"  no room here, in --json: {', '.join(left_out)}"] if left_out else lines


def _heads(rows: Sequence[Sequence[str]]) -> list[tuple[str, str]]:
    """Return each row without its last cell, aligned, and that cell."""
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    words = {0} | {k for k, name in enumerate(rows[0]) if name == "proof"}
    pads = [str.ljust if k in words else str.rjust for k in range(len(widths))]
    cells = [[pad(cell, size) for cell, size, pad in zip(row, widths, pads, strict=True)] for row in rows]
    heads = (row[:-1] if any(map(str.strip, row[1:-1])) else row[:1] for row in cells)
    return [(f"  {'  '.join(head)}  ", row[-1].rstrip()) for head, row in zip(heads, cells, strict=True)]


def fits_lines(title: str, rows: Sequence[Fits], most: float, command: str) -> list[str]:
    """Return the table of `poetopt fit`, behind the largest batch with little overhead in each memory.

    Parameters
    ----------
    most
        The share of more energy that is little.
    command
        `poetopt solve MODEL --device DEVICE`, which batch and memory are added to.
    """
    head = ("memory", "batch", "step takes", "store-all", "energy/sample", "overhead", "time/sample")
    cells: list[tuple[str, ...]] = [head]
    for row in rows:
        is_solved = row.energy_j is not None and row.time_s is not None and row.overhead is not None
        figures = (
            show_bytes(row.total_ram_bytes or 0),
            "" if row.ordinary_ram_bytes is None else show_bytes(row.ordinary_ram_bytes),
            show_joules(row.energy_j or 0.0),
            show_share(row.overhead or 0.0),
            show_seconds(row.time_s or 0.0),
        )
        shown = figures if is_solved else ("doesn't fit", *[""] * (len(figures) - 1))
        cells.append((show_bytes(row.memory_bytes), str(row.batch), *shown))
    memories = dict.fromkeys(row.memory_bytes for row in rows)
    advices = {size: advised([row for row in rows if row.memory_bytes == size], most) for size in memories}
    fit = "; ".join(f"{show_bytes(size)}: {advice(found, most)}" for size, found in advices.items())
    cost, after = "", ""
    if chosen := [found for found in advices.values() if found is not None]:
        best = chosen[-1]
        cost = f"batch {best.batch} takes {show_joules(best.energy_j or 0.0)} and {show_seconds(best.time_s or 0.0)} "
        cost += "a sample"
        after = f"{command} --batch {best.batch} --total-ram {best.memory_bytes} -o plan.json"
    reasons = [f"batch {row.batch} in {show_bytes(row.memory_bytes)}: {row.why}" for row in rows if row.why][:1]
    return [
        *table(title, answer(fit, cost, after=after)).split("\n"),
        "",
        *aligned(cells),
        *(line for why in reasons for line in wrapped(why, terminal_width(), "  ", "  ")),
    ]
