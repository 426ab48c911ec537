"""The live line: there on a terminal and only there, and never on stdout."""

from __future__ import annotations

import os
import pty
import subprocess
from pathlib import Path

import pytest

from poetopt.cli.console import live_progress
from poetopt.report.layout import progress_line
from poetopt.search.solution import Progress
from tests.cli.support import REPORT_KEYS, Runner
from tests.cli.test_commands import PROGRAM


@pytest.mark.parametrize(
    ("overhead", "bound", "text"),
    [
        (None, 0.0, "1.5 s  no schedule yet: search, up to 4 operators recomputed in a row"),
        (0.0117, 0.0, "1.5 s  overhead 11.7 mJ: search, up to 4 operators recomputed in a row"),
        (
            0.02,
            0.015,
            "1.5 s  overhead 20.0 mJ, bound 15.0 mJ, gap 25 %: search, up to 4 operators recomputed in a row",
        ),
        (0.0, 0.0, "1.5 s  overhead 0 J: search, up to 4 operators recomputed in a row"),
    ],
)
def test_the_line(overhead: float | None, bound: float, text: str) -> None:
    assert progress_line(Progress(1.5, "search", "depth<=4", overhead, bound)) == text


def test_there_is_none_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with live_progress() as listener:
        assert listener is None
    assert capsys.readouterr().err == ""


def test_a_terminal_gets_it_on_stderr(problem: Path) -> None:
    ours, theirs = pty.openpty()
    command = (*PROGRAM, "solve", str(problem), "--device", "a72", "--ram", "80%", "--json", "-")
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=theirs, text=True, env={**os.environ, "TERM": "xterm"}
    ) as p:
        out, _ = p.communicate()
    os.close(theirs)
    shown = os.read(ours, 100_000).decode()
    os.close(ours)
    assert "reading the model" in shown
    assert out.startswith("{")
    assert all(f'"{key}"' in out for key in REPORT_KEYS)


def test_what_takes_long_is_told_on_a_terminal(run: Runner, problem: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    assert run("solve", problem, "--device", "a72", "--ram", "80%", "-o", plan).code == 0
    ours, theirs = pty.openpty()
    subprocess.run((*PROGRAM, "verify", plan, "--bound"), stdout=subprocess.DEVNULL, stderr=theirs, check=True)
    os.close(theirs)
    shown = os.read(ours, 100_000).decode()
    os.close(ours)
    assert shown == "checking the plan and proving its bound again ...\r\x1b[2K"
