"""The LP file of a model's arrays, written whole: every digit of a double."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from poetopt.backends.solvers.matrix import Matrix

WIDTH = 100
"""Columns of an LP file's lines; solvers refuse very long ones."""


def lp_lines(
    matrix: Matrix, columns: Sequence[str], rows: Sequence[str], *, objective: str = "overhead_j"
) -> Iterator[str]:
    """The lines of an LP file. Names keep to letters, digits, `_` and `.`, and begin with a letter that isn't `e`."""
    used = np.flatnonzero(matrix.costs).tolist()
    yield "Minimize\n"
    costs = _sum([float(matrix.costs[x]) for x in used], [columns[x] for x in used])
    constant = f" {'-' if matrix.constant < 0 else '+'} {abs(matrix.constant)!r}" if matrix.constant else ""
    yield f" {objective}:{costs or ' 0 ' + columns[0]}{constant}\n"
    yield "Subject To\n"
    starts, indices = matrix.rows.indptr.tolist(), matrix.rows.indices.tolist()
    values = matrix.rows.data.tolist()
    for x, (low, high) in enumerate(zip(matrix.row_lower.tolist(), matrix.row_upper.tolist(), strict=True)):
        begin, end = starts[x], starts[x + 1]
        body = _sum(values[begin:end], [columns[k] for k in indices[begin:end]]) or f" 0 {columns[0]}"
        if low == high:
            yield f" {rows[x]}:{body} = {low!r}\n"
            continue
        both = np.isfinite(low) and np.isfinite(high)
        if np.isfinite(low):
            yield f" {rows[x]}{'.low' if both else ''}:{body} >= {low!r}\n"
        if np.isfinite(high):
            yield f" {rows[x]}:{body} <= {high!r}\n"
    yield "Bounds\n"
    for name, low, high in zip(columns, matrix.lower.tolist(), matrix.upper.tolist(), strict=True):
        shown_low = "-inf" if low == -np.inf else repr(low)
        shown_high = "+inf" if high == np.inf else repr(high)
        yield f" {shown_low} <= {name} <= {shown_high}\n"
    whole = [columns[x] for x in np.flatnonzero(matrix.integer).tolist()]
    if whole:
        yield "Generals\n"
        yield "".join(f" {name}\n" for name in whole)
    yield "End\n"


def _sum(coefficients: Sequence[float], names: Sequence[str]) -> str:
    """A linear expression, over several lines where it is long."""
    parts: list[str] = []
    length = 0
    for value, name in zip(coefficients, names, strict=True):
        part = f" {'-' if value < 0 else '+'} {abs(value)!r} {name}"
        if length + len(part) > WIDTH:
            parts.append("\n ")
            length = 0
        parts.append(part)
        length += len(part)
    return "".join(parts)
