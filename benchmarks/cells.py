"""Tables with a row for each cell, which a module measures in a process of its own, as a user would.

The module runs as `python -m MODULE --cell JSON` there, and prints what it found as JSON; `table` is its `main`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Cell = TypeVar("Cell", bound="DataclassInstance")
ROOT = Path(__file__).resolve().parents[1]


class EndedError(Exception):
    """The process of a cell ended without figures; its last words."""


def table(
    doc: str,
    make: Callable[..., Cell],
    measure: Callable[[Cell], dict[str, Any]],
    heading: str,
    cells: Iterable[Cell],
    row: Callable[[Cell], str],
) -> None:
    """What a module does on the command line: its table, or the figures of one cell.

    make
        The class of the cells.
    row
        A cell's row, measured.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", help="cells whose text contains this; may be repeated")
    parser.add_argument("--output", type=Path, help="write the table here (Markdown)")
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.cell:
        print(json.dumps(measure(make(**json.loads(arguments.cell)))))
    else:
        put_rows(heading, map(row, chosen(cells, arguments.only)), arguments.output)


def name_of(cell: DataclassInstance) -> str:
    """All that a cell asks for, in one line."""
    return " ".join(map(str, asdict(cell).values()))


def chosen(cells: Iterable[Cell], only: list[str] | None) -> Iterator[Cell]:
    """Those whose text contains one of `only`; all without it."""
    return (cell for cell in cells if not only or any(wanted in name_of(cell) for wanted in only))


def measured(module: str, cell: DataclassInstance) -> dict[str, Any]:
    """What the module finds for a cell. Raises `EndedError`."""
    command = [sys.executable, "-m", module, "--cell", json.dumps(asdict(cell))]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode:
        raise EndedError((done.stderr.strip().splitlines() or ["ended"])[-1])
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def row_of(module: str, line: Callable[[Cell, dict[str, Any]], str], cell: Cell, name: str | None = None) -> str:
    """The row of a cell, or why there is none; `name` is what the latter says it of."""
    try:
        return line(cell, measured(module, cell))
    except EndedError as error:
        return f"| {name or name_of(cell)} | {error} |"


def put_rows(heading: str, rows: Iterable[str], output: Path | None) -> None:
    """Print a table row by row, and write what there is of it after each."""
    lines = [heading, "|---" * (heading.count("|") - 1) + "|"]
    print("\n".join(lines), flush=True)
    for row in rows:
        lines.append(row)
        print(row, flush=True)
        if output:
            output.write_text("\n".join(lines) + "\n")


def figure(row: dict[str, Any], key: str, form: str) -> str:
    """One of a row's figures; - where it has none."""
    value = row.get(key)
    return format(value, form) if isinstance(value, int | float) else "-"
