"""`poetopt export`, `poetopt import-solution`, and the solver's own options."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.support import Runner
from tests.search.test_model_files import by_highs

ASKED = ("mlp", "--device", "a72", "--ram", "80%")


def test_out_and_back(run: Runner, tmp_path: Path) -> None:
    model, solution, plan = tmp_path / "m.mps", tmp_path / "m.sol", tmp_path / "m.plan"
    written = run("export", *ASKED, "-o", model, "--json", "-").document
    assert written["scope"] == "depth:8"
    assert model.read_text().count("recompute.s") > written["columns"] / 4
    by_highs(model, solution)
    taken = run("import-solution", ASKED[0], solution, *ASKED[1:], "-o", plan, "--json", "-").document
    solved = run("solve", *ASKED, "--json", "-").document
    assert taken["status"] == "feasible"
    assert taken["energy_j"] == pytest.approx(solved["energy_j"], rel=1e-6)
    assert run("verify", plan, "--strict").code == 0


def test_what_is_refused(run: Runner, tmp_path: Path) -> None:
    run("export", *ASKED, "-o", tmp_path / "m.txt").assert_one_message(".mps, .lp, .nl", code=2)
    wrong = tmp_path / "wrong.sol"
    wrong.write_text("x 1\n")
    run("import-solution", ASKED[0], wrong, *ASKED[1:]).assert_one_message("no variable of this model", code=2)
    run("import-solution", ASKED[0], tmp_path / "none.sol", *ASKED[1:]).assert_one_message("none.sol", code=2)
    run("export", *ASKED[:-1], "1KB", "-o", tmp_path / "m.mps").assert_one_message("below the", code=3)
    assert [path.name for path in tmp_path.iterdir()] == ["wrong.sol"]


@pytest.mark.parametrize("option", ["presolve", "=off", "presolve=", ""])
def test_solver_options_that_say_nothing(run: Runner, option: str) -> None:
    run("solve", *ASKED, "--with", f"solver-option={option}").assert_one_message(
        "--with solver-option", "KEY=VALUE" if not option else "presolve=off", code=2
    )


def test_solver_options_and_log(run: Runner, tmp_path: Path) -> None:
    twice = ("--with", "solver-option=presolve=off", "--with", "solver-option=presolve=on")
    run("solve", *ASKED, *twice).assert_one_message("given twice", code=2)
    run("solve", *ASKED, "--with", f"log={tmp_path / 'no' / 'solver.log'}").assert_one_message("solver.log", code=2)
    log = tmp_path / "solver.log"
    log.write_text("of an earlier run")
    ended = run("solve", *ASKED, "--with", "solver-option=presolve=off", "--with", f"log={log}", "--json", "-")
    assert json.loads(ended.out)["status"] == "optimal"
    assert "HiGHS" in log.read_text()
    assert "earlier" not in log.read_text()
