"""`poetopt verify`: a plan is believed again only after it was simulated again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import poetopt as po
from poetopt.cli import invoke


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("verify") / "plan.json"
    report = po.solve(po.load("mlp").differentiate().cost("a72"), ram="92%")
    report.save(path)
    return path


def test_the_bound_is_certified(plan: Path, tmp_path: Path) -> None:
    out = tmp_path / "verified.json"
    assert invoke(["verify", str(plan), "--bound", "--json", str(out)]) == 0
    found = json.loads(out.read_text())
    assert found["valid"] is True
    assert found["certificate"]["bound_j"] <= found["overhead_j"]


def test_a_plan_whose_figures_are_not_its_own_is_refused(
    plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.loads(plan.read_text())
    document["report"]["energy_j"] *= 0.5
    forged = tmp_path / "forged.json"
    forged.write_text(json.dumps(document))
    assert invoke(["verify", str(forged)]) == 2
    assert "energy_j" in capsys.readouterr().err


def test_a_missing_plan_is_one_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["verify", str(tmp_path / "none.json")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
