"""A comparison as text for people, and as CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence

from poetopt.compare.compare import Comparison
from poetopt.compare.rows import COLUMNS, Row, proof_words
from poetopt.formulations.scope import kind_words
from poetopt.util.units import show_bytes, show_joules, show_seconds, show_share

HEADER = ("method", "energy", "overhead", "of baseline", "peak", "makespan", "recomputes", "paged", "took", "proof")
SAME = 1e-9
"""Relative: sums of the same joules in another order."""


def comparison_csv(found: Comparison) -> str:
    """All rows, with the keys of `--json` as columns; what is not there is empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(
        {key: "" if value is None else value for key, value in row.to_dict().items()} for row in found.rows
    )
    return text.getvalue()


def comparison_lines(found: Comparison) -> list[str]:
    """A table a budget, then all overheads side by side, then the findings."""
    problem = found.problem
    lines = [
        f"{problem.name} on {problem.device}: {len(problem.operators)} operators; store-all takes "
        f"{show_bytes(found.store_all_peak_bytes)}, {show_joules(problem.baseline_energy_j)} and "
        f"{show_seconds(problem.baseline_time_s)}"
    ]
    for budget in found.budgets:
        rows = [row for row in found.rows if row.ram_budget_bytes == budget]
        of_all = show_share(budget / found.store_all_peak_bytes) if found.store_all_peak_bytes else ""
        lines += ["", f"RAM {budget:,} B ({show_bytes(budget)}, {of_all} of store-all)"]
        lines += columns([HEADER, *(_cells(row, found) for row in rows if row.energy_j is not None)])
        lines += [f"  {row.method}: {row.status}, {row.reason}" for row in rows if row.energy_j is None]
    lines += ["", "overhead, % of the baseline energy, by RAM in % of store-all", *_summary(found)]
    for finding in found.findings:
        lines += ["", f"finding: {finding}"]
    lines += kinds_legend(row.scope for row in found.rows)
    lines += ["", f"{len(found.rows)} rows in {show_seconds(found.total_s)}"]
    return lines


def kinds_legend(scopes: Iterable[str | None]) -> list[str]:
    """What the scopes of proofs in a table are, in a line; none where there is nothing to explain."""
    named = sorted({scope for scope in scopes if scope and scope != "store-all"})
    kinds = "; ".join(f"{scope}: {kind_words(scope)}" for scope in named)
    return ["", f"kinds of schedules that proofs are about: {kinds}"] if kinds else []


def _cells(row: Row, found: Comparison) -> tuple[str, ...]:
    assert row.energy_j is not None
    assert row.overhead_j is not None
    assert row.peak_bytes is not None
    assert row.makespan_s is not None
    proof = proof_words(row)
    return (
        row.method,
        show_joules(row.energy_j),
        show_joules(row.overhead_j),
        share(row.overhead_j, found.problem.baseline_energy_j),
        show_bytes(row.peak_bytes),
        show_seconds(row.makespan_s),
        str(row.recomputes),
        show_bytes(row.bytes_paged or 0),
        show_seconds(row.solve_s),
        proof,
    )


def _summary(found: Comparison) -> list[str]:
    by_cell = {(row.method, row.ram_budget_bytes): row for row in found.rows}
    head = ("method", *(f"{100 * budget / found.store_all_peak_bytes:.4g}" for budget in found.budgets))
    table = [head]
    for name in found.methods:
        cells = []
        for budget in found.budgets:
            row = by_cell[name, budget]
            if row.overhead_j is None:
                cells.append("none" if row.status == "infeasible" else "failed")
            else:
                cells.append(f"{100 * row.overhead_j / (found.problem.baseline_energy_j or 1.0):.3g}")
        table.append((name, *cells))
    legend = "none: it has no plan there, by proof; failed: it found none, and one may exist"
    groups: dict[str, list[str]] = {}
    for name, other in coinciding(found).items():
        groups.setdefault(other, [other]).append(name)
    same = [f"the same at every budget: {' = '.join(group)}" for group in groups.values()]
    return [*columns(table), *same, legend]


def coinciding(found: Comparison) -> dict[str, str]:
    """Methods whose overheads are those of an earlier one at every budget, and that one; not those without plans."""
    cells = {(row.method, row.ram_budget_bytes): row.overhead_j for row in found.rows}
    overheads = {name: [cells.get((name, budget)) for budget in found.budgets] for name in found.methods}
    told = [name for name in found.methods if any(overhead is not None for overhead in overheads[name])]
    first = {name: next(other for other in told if _close(overheads[name], overheads[other])) for name in told}
    return {name: other for name, other in first.items() if other != name}


def _close(some: Sequence[float | None], others: Sequence[float | None]) -> bool:
    return all(
        one == other or (one is not None and other is not None and math.isclose(one, other, rel_tol=SAME))
        for one, other in zip(some, others, strict=True)
    )


def share(part: float, whole: float) -> str:
    """`1.86 %`, or a dash where there is no whole."""
    return show_share(part / whole) if whole else "-"


def columns(table: Sequence[Sequence[str]]) -> list[str]:
    """Left-aligned names and proofs, right-aligned figures."""
    widths = [max(len(row[k]) for row in table) for k in range(len(table[0]))]
    words = {0} | {k for k, name in enumerate(table[0]) if name == "proof"}
    return [
        "  "
        + "  ".join(
            cell.ljust(width) if k in words else cell.rjust(width)
            for k, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]
