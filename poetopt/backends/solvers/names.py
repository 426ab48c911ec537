"""Names for a model's columns and rows that people can read and every solver's file formats take."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from poetopt.backends.solvers.matrix import Matrix
from poetopt.formulations.rows import Row

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
