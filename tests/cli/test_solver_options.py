"""The solver's own options, and its log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.support import Runner

ASKED = ("mlp", "--device", "a72", "--ram", "80%")


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
