"""Blocks on the command line: what they change, what is said of it, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from poetopt.formulations import options
from tests.support.cli import Ended, chain, runner, write_problem

Solve = Callable[..., Ended]


@pytest.fixture
def solve(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Solve:
    """Solves a chain whose store-all peak is 6 kB."""
    path = write_problem(tmp_path / "chain.json", chain())
    run = runner(capsys)
    return lambda *more: run("solve", path, "--device", "a72", "--ram", 4000, "--gap", "0.0001%", *more)


def test_static_power_counts_in_what_is_minimised(solve: Solve) -> None:
    plain, found = solve("--json", "-").document, solve("--block", "static-power=10W", "--json", "-").document
    assert plain["formulation"] == "retention"
    assert plain["objective"]["name"] == "energy"
    assert plain["objective"]["overhead"] == plain["overhead_j"]
    assert found["formulation"] == "retention+static_power"
    objective = found["objective"]
    late = found["makespan_s"] - found["baseline_time_s"]
    assert objective["unit"] == "J"
    assert objective["overhead"] == pytest.approx(found["overhead_j"] + 10 * late)
    assert objective["baseline"] == pytest.approx(found["baseline_energy_j"] + 10 * found["baseline_time_s"])
    assert objective["bound"] <= objective["overhead"] * (1 + 1e-9)
    assert found["overhead_bound_j"] is None
    assert found["status"] == "optimal"
    assert found["overhead_j"] >= plain["overhead_j"] - 1e-9


def test_formulations_lists_all_and_shows_each(capsys: pytest.CaptureFixture[str]) -> None:
    run = runner(capsys)
    listed = run("formulations").out
    document = run("formulations", "--json", "-").document["formulations"]
    names = [entry["name"] for entry in document]
    assert names[:2] == ["retention", "poet"]
    assert set(options.HOMES) <= set(names)
    for entry in document:
        assert f"{entry['kind']} {entry['name']}: " in listed
        shown = run("formulations", "--show", entry["name"])
        assert shown.code == 0
        assert run("formulations", "--show", entry["name"], "--json", "-").document == entry
        for block in entry["blocks"]:
            assert block["mathematics"], f"{block['name']} has no docstring"
            assert f"--- {block['name']} " in shown.out
            assert "\\begin" not in shown.out
    power = next(entry for entry in document if entry["name"] == "static-power")
    assert {"symbol": "P", "attribute": "-", "unit": "W",
            "meaning": "power that is drawn whatever the device does"} in (power["blocks"][0]["symbols"])  # fmt: skip
    run("formulations", "--show", "retension").assert_one_message("unknown formulation or block 'retension'", code=2)
