"""Work in processes of their own: answers, errors, and an end that isn't one."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from poetopt.util import process as apart
from poetopt.util.errors import ExecutionError, InfeasibleError
from poetopt.util.progress import Told


def doubled(number: int, *, told: Told) -> tuple[int, int]:
    os.write(1, b"noise that is no answer")
    told(f"doubling {number}")
    return 2 * number, os.getpid()


def failing(what: str, *, told: Told) -> None:
    if what == "infeasible":
        raise InfeasibleError("there is none")
    if what == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    raise ZeroDivisionError("a defect")


def test_an_answer_comes_from_another_process() -> None:
    lines: list[str] = []
    found, process = apart.call("doubling", doubled, 21, told=lines.append)
    assert found == 42
    assert process != os.getpid()
    assert lines == ["doubling 21"]


@pytest.mark.parametrize(
    ("what", "kind", "message"),
    [
        ("infeasible", InfeasibleError, "there is none"),
        ("killed", ExecutionError,
         r"the work: its process was killed by signal 9 \(often the system, for lack of memory\)"),
        ("defect", ExecutionError, "the work: its process ended with code 1: ZeroDivisionError: a defect"),
    ],
)  # fmt: skip
def test_an_end_without_an_answer_is_told(what: str, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        apart.call("the work", failing, what)


def test_the_other_process_has_this_package_and_nothing_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever lies there by the names of modules."""
    for name in ("pickle.py", "numpy.py", "poetopt.py"):
        (tmp_path / name).write_text("raise SystemExit('of the working directory')\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [path for path in sys.path if path])
    assert apart.call("doubling", doubled, 21)[0] == 42
