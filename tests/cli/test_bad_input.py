"""Whatever is wrong with input or outputs: one message that says what, where and the remedy, and the exit code."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import Runner, chain, write_problem

SOLVE = ("--device", "a72", "--ram", "50%")


@pytest.mark.parametrize("number", [math.nan, -1.0, math.inf, None, "1"])
@pytest.mark.parametrize("column", ["compute_s", "page_in_j"])
def test_costs_that_are_no_costs(run: Runner, tmp_path: Path, number: object, column: str) -> None:
    content = chain()
    content["costs"]["a72"][column][2] = number
    path = write_problem(tmp_path / "bad.json", content)
    run("solve", path, *SOLVE).assert_one_message("bad.json", f"{column}[2]", code=2)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--ram", "3 parsec"), ("--ram", "-1"), ("--ram", "nan"), ("--ram", "300kb"), ("--deadline", "soon"),
        ("--deadline", "0x"), ("--deadline", "-1s"), ("--time-limit", "0"), ("--gap", "5"), ("--gap", "x"),
        ("--scope", "deep"), ("--scope", "depth:x"), ("--formulation", "retentoin"), ("--deadline-model", "wall"),
        ("--steps", "0"), ("--steps", "3"), ("--batch", "0"), ("--loss", "hinge"),
        ("--threads", "-1"), ("--nothing", "1"),
    ],
)  # fmt: skip
def test_options_that_make_no_sense(run: Runner, option: str, value: str) -> None:
    ended = run("solve", "mlp", *SOLVE, option, value)
    ended.assert_one_message(code=2)
    assert option in ended.err or value in ended.err


def test_unwritable_output_is_found_before_the_solve(run: Runner, tmp_path: Path, problem: Path) -> None:
    missing = tmp_path / "none" / "plan.json"
    for option in ("-o", "--json"):
        run("solve", problem, *SOLVE, "--ram", "1B", option, missing).assert_one_message(str(missing), code=2)
    run("solve", problem, *SOLVE, "-o", tmp_path).assert_one_message("it is a folder", code=2)
    if os.geteuid():
        tmp_path.chmod(0o500)
        run("solve", problem, *SOLVE, "-o", tmp_path / "plan.json").assert_one_message("plan.json", code=2)
        tmp_path.chmod(0o700)


def test_outputs_do_not_overwrite_the_input_or_each_other(run: Runner, tmp_path: Path, problem: Path) -> None:
    before = problem.read_bytes()
    run("solve", problem, *SOLVE, "-o", problem).assert_one_message("input", code=2)
    assert problem.read_bytes() == before
    both = tmp_path / "both.json"
    run("solve", problem, *SOLVE, "-o", both, "--json", both).assert_one_message("-o", code=2)
    assert not both.exists()


@pytest.mark.parametrize("target", ["-", "file"])
def test_budget_below_what_any_schedule_needs(run: Runner, tmp_path: Path, problem: Path, target: str) -> None:
    place = "-" if target == "-" else tmp_path / "report.json"
    ended = run("solve", problem, "--device", "a72", "--ram", "1500", "--json", place)
    assert ended.code == 3
    assert ended.err.count("poetopt: ") == 1
    assert "3,000" in ended.err
    document: dict[str, Any] = ended.document if target == "-" else json.loads(Path(place).read_text())
    assert document["status"] == "infeasible"
    assert document["ram_bound_bytes"] == document["least_ram_bytes"] == 3000
    assert document["reason"]
    assert document["energy_j"] is None


def test_the_deadlines_that_it_names_are_feasible(run: Runner, tmp_path: Path) -> None:
    """One pass, and the quickest within the RAM: neither is rounded down."""
    content = chain()
    content["costs"]["a72"]["compute_s"][3] += 4e-7
    path = write_problem(tmp_path / "chain.json", content)
    for asked, ram, words in (("0.9x", "100%", "one pass over all operators, "), ("1.001x", "60%", "feasible is ")):
        ended = run("solve", path, "--device", "a72", "--ram", ram, "--deadline", asked)
        assert ended.code == 3, ended.err
        named = ended.err.split(words)[1].split(" s")[0]
        assert run("solve", path, "--device", "a72", "--ram", ram, "--deadline", f"{named}s").code == 0
