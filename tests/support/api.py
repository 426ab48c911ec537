"""Small sweeps of problem files, and what they have to find."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from poetopt.api.sweeps import OF_PROBLEM, POINT, RESULT, Row, evaluate, read_sweep
from tests.support.cli import chain, write_problem

FILE = """
models = ["chain.json", { model = "short.json", name = "short" }]
devices = ["a72", "m4"]
ram = ["40%", "60%", "3MB"]
deadlines = ["none", "1.4x"]
methods = ["poet", "revolve"]
time_limit = "20s"
"""
_EVALUATED: dict[str, list[tuple[object, ...]]] = {}


def write_sweep(folder: Path, text: str = FILE) -> Path:
    """A sweep with its two problem files beside it."""
    write_problem(folder / "chain.json", chain(5))
    write_problem(folder / "short.json", chain(3))
    path = folder / "sweep.toml"
    path.write_text(text, encoding="utf-8")
    return path


def fixed(rows: Sequence[Row]) -> list[tuple[object, ...]]:
    """The columns that don't depend on the run."""
    return [tuple(row.get(name) for name in (*POINT, *RESULT, *OF_PROBLEM)) for row in rows]


def undisturbed(path: Path) -> list[tuple[object, ...]]:
    """What the sweep has to find: every point evaluated in this process, one after another; once for each text."""
    text = path.read_text(encoding="utf-8")
    if text not in _EVALUATED:
        _EVALUATED[text] = _evaluated(path)
    return _EVALUATED[text]


def _evaluated(path: Path) -> list[tuple[object, ...]]:
    return fixed([{"point": point.index, **point.said, **evaluate(point)} for point in read_sweep(path)])
