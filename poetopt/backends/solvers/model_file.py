"""MPS and LP files of a model's arrays, written whole: every digit of a double, names as they are given."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyomo.environ as pyo
from pyomo.core.expr.numeric_expr import LinearExpression
from pyomo.repn.plugins.nl_writer import NLWriter

from poetopt.backends.solvers.matrix import Matrix
from poetopt.formulations.rows import Row
from poetopt.util.files import write_atomically

WIDTH = 100
"""Columns of an LP file's lines; solvers refuse very long ones."""


def mps_lines(
    matrix: Matrix,
    columns: Sequence[str],
    rows: Sequence[str],
    *,
    objective: str = "overhead_j",
) -> Iterator[str]:
    """The lines of a free-format MPS file. Names hold no blanks."""
    lower, upper = matrix.row_lower, matrix.row_upper
    kinds = np.where(lower == upper, "E", np.where(np.isfinite(upper), "L", np.where(np.isfinite(lower), "G", "N")))
    yield f"NAME poetopt FREE\nROWS\n N {objective}\n"
    yield "".join(f" {kind} {name}\n" for kind, name in zip(kinds.tolist(), rows, strict=True))
    yield "COLUMNS\n"
    by_column = matrix.rows.tocsc()
    starts, indices, values = by_column.indptr.tolist(), by_column.indices.tolist(), by_column.data.tolist()
    costs, whole = matrix.costs.tolist(), matrix.integer
    inside, markers = False, 0
    for x, name in enumerate(columns):
        if whole[x] != inside:
            inside = bool(whole[x])
            yield f" MARKER{markers} 'MARKER' '{'INTORG' if inside else 'INTEND'}'\n"
            markers += 1
        begin, end = starts[x], starts[x + 1]
        if costs[x] or begin == end:
            yield f" {name} {objective} {costs[x]!r}\n"
        yield "".join(f" {name} {rows[indices[k]]} {values[k]!r}\n" for k in range(begin, end))
    if inside:
        yield f" MARKER{markers} 'MARKER' 'INTEND'\n"
    yield "RHS\n"
    if matrix.constant:
        yield f" RHS {objective} {-matrix.constant!r}\n"
    sides = np.where(np.isfinite(upper), upper, np.where(np.isfinite(lower), lower, 0.0)).tolist()
    yield "".join(f" RHS {name} {side!r}\n" for name, side in zip(rows, sides, strict=True) if side)
    ranged = np.flatnonzero(np.isfinite(lower) & np.isfinite(upper) & (lower != upper)).tolist()
    if ranged:
        yield "RANGES\n"
        yield "".join(f" RANGE {rows[x]} {float(upper[x] - lower[x])!r}\n" for x in ranged)
    yield "BOUNDS\n"
    yield from _bounds(matrix, columns)
    yield "ENDATA\n"


def _bounds(matrix: Matrix, columns: Sequence[str]) -> Iterator[str]:
    for name, low, high in zip(columns, matrix.lower.tolist(), matrix.upper.tolist(), strict=True):
        if low == high:
            yield f" FX BOUND {name} {low!r}\n"
            continue
        if low == -np.inf and high == np.inf:
            yield f" FR BOUND {name}\n"
            continue
        if low == -np.inf:
            yield f" MI BOUND {name}\n"
        elif low or high == np.inf:
            # always said: an integer without a bound is a binary to some readers
            yield f" LO BOUND {name} {low!r}\n"
        yield f" PL BOUND {name}\n" if high == np.inf else f" UP BOUND {name} {high!r}\n"


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


_TAG = re.compile(r"\((\d[a-z])[,)]")
LONGEST = 100
"""Characters of a name; formats allow 255, and some programs less."""
_OTHER = re.compile(r"[^A-Za-z0-9_.]+")
_NUMBER_LIKE = re.compile(r"[eE][0-9.]|[eE]$|[^A-Za-z]|(?:[iI]nf|[fF]ree|[sS]t$|[eE]nd$)")


def column_names(matrix: Matrix, labels: Sequence[tuple[Any, Sequence[str]]]) -> list[str]:
    """One name a column: its label where it has one, else Pyomo's; letters, digits, `_` and `.`, all different."""
    known: dict[int, str] = {}
    for variable, names in labels:
        known.update((id(entry), name) for entry, name in zip(variable.values(), names, strict=True))
    variables = matrix.columns.variables
    return distinct([known.get(id(variable)) or variable.name for variable in variables])


def row_names(matrix: Matrix, added: Sequence[Row]) -> list[str]:
    """One name a row: Pyomo's of a constraint; of rows that separators found, their kind and a number.

    Where a constraint's `doc` begins with the paper's number, so does the name: `eq1b.residency.occupancy.relu1_5`.
    """
    tags: dict[int, str] = {}
    proper = []
    for constraint in matrix.constraints:
        family = constraint.parent_component()
        if id(family) not in tags:
            number = _TAG.match(family.doc or "")
            tags[id(family)] = f"eq{number[1]}." if number is not None else ""
        proper.append(tags[id(family)] + constraint.name)
    return distinct([*proper, *(f"found.{row.block or 'row'}.{row.kind}.{x}" for x, row in enumerate(added))])


def distinct(names: Sequence[str]) -> list[str]:
    """The names as files take them. Where two become one, the later gets a number."""
    found: list[str] = []
    counts: dict[str, int] = {}
    for name in names:
        plain = _OTHER.sub("_", name.replace("[", ".").replace("]", ""))[:LONGEST]
        if not plain or _NUMBER_LIKE.match(plain):
            plain = f"v_{plain}"
        while plain in counts:
            counts[plain] += 1
            plain = f"{plain}_{counts[plain]}"
        counts[plain] = 1
        found.append(plain)
    return found


def write_nl(
    path: str, model: Any, matrix: Matrix, added: Sequence[Row], names: Mapping[int, str], *, objective: str
) -> None:
    """Write `path`, and beside it the names of its columns (`.col`) and rows (`.row`), one a line.

    matrix
        The model's arrays: their objective is the one that is written, under the name `objective`.
    added
        Further rows; they and the objective are put on the model for as long as it takes.
    names
        By the id of a variable.
    """
    found = pyo.Block(concrete=True)
    found.row = pyo.Constraint(pyo.RangeSet(0, len(added) - 1), rule=lambda _, x: _expression(added[x]))
    found.objective = pyo.Objective(
        expr=LinearExpression(
            constant=matrix.constant, linear_coefs=matrix.costs.tolist(), linear_vars=list(matrix.columns.variables)
        )
    )
    own = list(model.component_data_objects(pyo.Objective, active=True))
    for entry in own:
        entry.deactivate()
    model.add_component("found_rows", found)
    try:
        text = io.StringIO(newline="")
        info = NLWriter().write(model, text, linear_presolve=False, symbolic_solver_labels=False)
    finally:
        model.del_component("found_rows")
        for entry in own:
            entry.activate()
    rows = [constraint.name for constraint in info.constraints]
    write_atomically(Path(path).with_suffix(".col"), _lines([names[id(variable)] for variable in info.variables]))
    write_atomically(Path(path).with_suffix(".row"), _lines([*distinct(rows), objective]))
    write_atomically(path, text.getvalue())


def _expression(row: Row) -> Any:
    body = LinearExpression(linear_coefs=list(row.coefficients), linear_vars=list(row.variables))
    lower = None if row.lower == -float("inf") else row.lower
    upper = None if row.upper == float("inf") else row.upper
    return (lower, body, upper) if lower != upper else (body, upper)


def _lines(names: Sequence[str]) -> str:
    return "".join(f"{name}\n" for name in names)
