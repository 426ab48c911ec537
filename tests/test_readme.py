"""The README's Python works as it stands, its commands exist; and what the solver's guard calls a fault."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.guard import Cell, wrong
from poetopt.cli.app import invoke

PAGE = (Path(__file__).resolve().parents[1] / "README.md").read_text(encoding="utf-8")


def test_python() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), names)
    assert "nothing to save" not in str(names["report"])
    assert getattr(names["execution"], "bit_identical", False)


def test_commands_exist() -> None:
    for command in sorted(set(re.findall(r"(?:`|\$ |, )poetopt ([a-z-]+)\b", PAGE))):
        assert invoke([command, "--help"]) == 0, command
    shown = re.findall(r"<!-- output: poetopt (\w+) .*? -->\n```\n\$ poetopt \1", PAGE)
    assert shown == ["solve", "run"]


CELL = Cell("net", "a72", 0.5, "depth:8", "a plan", overhead_j=2.0, bound_j=1.999, gap=1e-3)


@pytest.mark.parametrize(
    ("overhead_j", "bound_j", "gap", "told"),
    [(2.0, 1.999, 5e-4, ""), (2.001, 2.0, 5e-4, ""), (None, None, None, "no plan"), (2.0, None, None, "all is open"),
     (2.0, 1.9, 0.05, "5.000% is open"), (2.1, 2.0, 5e-4, "2 J is known"), (1.9, 1.9, 0.0, "below 1.999 J"),
     (2.001, 2.0005, 5e-4, "above the 2 J of a known plan")],
)  # fmt: skip
def test_what_is_wrong(overhead_j: float | None, bound_j: float | None, gap: float | None, told: str) -> None:
    found = wrong(CELL, overhead_j, bound_j, gap)
    assert told in found
    assert bool(found) == bool(told)
