"""Blocks on the command line: what they change, what is said of it, and what is refused."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from poetopt.cli.app import invoke
from poetopt.formulations import options
from tests.cli.support import Ended, chain, runner, write_problem

ROOT = Path(__file__).resolve().parents[2]
Solve = Callable[..., Ended]


@pytest.fixture
def solve(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Solve:
    """Solves a chain whose store-all peak is 6 kB."""
    path = write_problem(tmp_path / "chain.json", chain())
    run = runner(capsys)
    return lambda *more: run("solve", path, "--device", "a72", "--ram", 4000, "--gap", "0.0001%", *more)


def test_static_power_counts_in_what_is_minimised(solve: Solve) -> None:
    plain, found = solve("--json", "-").document, solve("--with", "static-power=10W", "--json", "-").document
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


def test_an_energy_limit_swaps_the_objective(solve: Solve) -> None:
    plain = solve("--json", "-").document
    found = solve("--with", "energy-limit=2x", "--json", "-").document
    assert found["objective"]["name"] == "time"
    assert found["objective"]["unit"] == "s"
    assert found["objective"]["overhead"] == pytest.approx(found["makespan_s"] - found["baseline_time_s"])
    assert found["makespan_s"] <= plain["makespan_s"] + 1e-9
    assert found["energy_j"] <= 2 * found["baseline_energy_j"]
    told = solve("--with", "energy-limit=2x").out
    assert "asked" in told
    assert "the least time within" in told
    assert "minimised" in told


def test_flash_wear_bounds_what_is_written(solve: Solve) -> None:
    free = solve("--json", "-").document
    assert free["page_outs"] > 0
    spared = solve("--with", "flash-wear=0", "--json", "-").document
    assert spared["page_outs"] == 0
    assert spared["overhead_j"] > free["overhead_j"]
    assert spared["asks"] == ["at most 0 B written to storage a step"]
    assert spared["objective"]["bound"] == spared["overhead_bound_j"]
    divided = solve("--with", "flash-wear=1.5kB", "--steps", 2, "--json", "-").document
    assert divided["page_outs"] == 0


def test_blocks_together_with_a_deadline(solve: Solve) -> None:
    found = solve("--with", "flash-wear=1kB", "--with", "static-power=1W", "--deadline", "1.5x", "--json", "-").document
    assert found["formulation"] == "retention+flash_wear+static_power"
    assert found["makespan_s"] <= found["deadline_s"]
    assert found["page_outs"] <= 1


def test_poet_takes_them_too(solve: Solve) -> None:
    found = solve("--formulation", "poet", "--with", "flash-wear=0", "--json", "-").document
    assert found["formulation"] == "poet+flash_wear"
    assert found["page_outs"] == 0


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        (["--with", "static-power=warm"], "no finite number"),
        (["--with", "static-power=0W"], "not a power"),
        (["--with", "energy-limit=3bananas"], "not an energy"),
        (["--with", "flash-wear=-1"], "negative"),
        (["--with", "flesh-wear=3"], "closest: flash-wear"),
        (["--with", "flash-wear"], "no finite number"),
        (["--with", "flash-wear=1kB", "--with", "flash-wear=2kB"], "already"),
        (["--with", "energy-limit=2x", "--with", "energy-limit=3J"], "already"),
    ],
)
def test_what_can_not_be_read(solve: Solve, asked: list[str], complaint: str) -> None:
    solve(*asked).assert_one_message(complaint, code=2)


def test_a_plan_with_blocks_is_verified_and_shown(
    solve: Solve, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plan = tmp_path / "plan.json"
    assert solve("--with", "energy-limit=2x", "-o", plan).code == 0
    run = runner(capsys)
    assert run("verify", plan).code == 0
    certified = run("verify", plan, "--bound")
    assert certified.code == 0, certified.err
    assert "energy_budget left out" in certified.out
    assert "time, of which nothing is certified" in certified.out
    assert run("show", plan, "--format", "txt", "-o", tmp_path / "plan.txt").code == 0
    assert "optimal: no schedule takes less time" in (tmp_path / "plan.txt").read_text(encoding="utf-8")
    document = json.loads(plan.read_text(encoding="utf-8"))
    document["report"]["objective"]["overhead"] *= 2
    plan.write_text(json.dumps(document), encoding="utf-8")
    assert run("show", plan, "--format", "txt", "-o", tmp_path / "plan.txt").code == 0
    assert "nothing is proven" in (tmp_path / "plan.txt").read_text(encoding="utf-8")


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
    assert {
        "symbol": "P",
        "attribute": "-",
        "unit": "W",
        "meaning": "power that is drawn whatever the device does",
    } in (power["blocks"][0]["symbols"])
    run("formulations", "--show", "retension").assert_one_message("unknown formulation or block 'retension'", code=2)


def test_every_block_of_the_house_has_its_table(capsys: pytest.CaptureFixture[str]) -> None:
    document = runner(capsys)("formulations", "--json", "-").document["formulations"]
    without = {
        block["name"] for entry in document for block in entry["blocks"] if not block["symbols"] and block["requires"]
    }
    assert without <= {"paging_source", "rounding", "chain_cuts"}, without


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("poetopt formul", "formulations"),
        ("poetopt solve --total", "--total-ram"),
    ],
)
def test_the_shell_completes(
    line: str, expected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in completing(line).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit):
        invoke([])
    assert expected in capsys.readouterr().out.split()


def completing(line: str) -> dict[str, str]:
    """What bash sets to ask for the rest of a line."""
    return {"_POETOPT_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}


def test_the_version_is_said_and_cited(capsys: pytest.CaptureFixture[str]) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert runner(capsys)("--version").out.strip() == f"poetopt {version}"
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
