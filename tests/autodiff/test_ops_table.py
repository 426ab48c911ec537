"""The page of ops, the page of training files, and gradient rules of other packages."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from poetopt.autodiff import registry
from poetopt.autodiff.registry import registered
from poetopt.cli.app import invoke
from poetopt.ops.losses.vjp import ATTACHED
from tests.support.autodiff.errors import TOLERANCE

PAGE = Path(__file__).parents[2] / "docs" / "ops.md"


def cells(columns: int) -> list[list[str]]:
    """The rows of the table with so many columns, without its head."""
    rows = [line.strip("|").split(" | ") for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row] for row in rows if len(row) == columns][1:]


def test_the_table_is_that_of_the_registry() -> None:
    listed = {row[0]: (row[1], row[2]) for row in cells(6)}
    wanted = {
        op: (", ".join(map(str, rules)), ", ".join({r.__module__.split(".")[2]: "" for r in rules.values()}))
        for (domain, op), rules in registered().items()
        if not domain and op not in ATTACHED
    }
    assert listed == wanted, "run docs/ops_table.py"
    assert [row[0] for row in cells(2)] == [op for domain, op in registered() if domain]


def test_no_error_is_above_the_tolerance() -> None:
    for row in cells(6):
        assert all(float(error) <= TOLERANCE for error in row[5:] if error), row[0]
        assert float(row[4]) >= 0


TRAINING_FILE_PAGE = (Path(__file__).resolve().parents[2] / "docs/training-file.md").read_text(encoding="utf-8")


def test_the_page_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (command,) = re.findall(r"^\$ poetopt (.*)$", TRAINING_FILE_PAGE, re.MULTILINE)
    assert invoke(command.split()) == 0
    (code,) = re.findall(r"```python\n(.*?)```", TRAINING_FILE_PAGE, re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(code, "training-file.md", "exec"), names)
    losses = names["losses"]
    assert losses[-1] < 0.3 * losses[0]
    onnx.checker.check_model("step.onnx", full_check=True)
    model = onnx.load("step.onnx")
    carried = json.loads({entry.key: entry.value for entry in model.metadata_props}["poetopt.carried"])
    assert set(names["carried"]) == set(carried)
    assert {carried[old] for old in carried} == {f"{old}.new" for old in carried}
    start = {i.name: onnx.numpy_helper.to_array(i) for i in model.graph.initializer}
    assert all(np.any(start[old] != value) for old, value in names["carried"].items())


MODULE = """
from poetopt.autodiff.registry import register_vjp

@register_vjp("OfAnotherPackage", since=1)
def rule(op, cotangents):
    return (None,)
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package with an entry point for the module `their_rules`; rules are looked for anew."""
    registry.load_rules()
    before = registry._snapshot()
    folder = tmp_path / "theirs-2.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 2.0\n", encoding="utf-8")
    (folder / "entry_points.txt").write_text("[poetopt.rules]\nany = their_rules\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(registry, "_LOADED", [])
    yield tmp_path / "their_rules.py"
    registry._restore(before)


def test_rules_of_other_packages_are_found(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package.write_text(MODULE, encoding="utf-8")
    monkeypatch.delitem(sys.modules, "their_rules", raising=False)
    assert registry.registered()["", "OfAnotherPackage"][1].__module__ == "their_rules"
