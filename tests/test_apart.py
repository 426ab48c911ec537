"""Work in processes of their own: answers, errors, and an end that isn't one."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from pathlib import Path

import pytest

import poetopt as po
from poetopt.api.apart import _prepare, prepared
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
        (
            "killed",
            ExecutionError,
            r"the work: its process was ended by signal 9 \(often the system, for lack of memory\)",
        ),
        ("defect", ExecutionError, "the work: its process ended with code 1: ZeroDivisionError: a defect"),
    ],
)
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


def test_a_temporary_folder_without_room_is_told_of_by_the_process_that_writes_there(tmp_path: Path) -> None:
    report = po.solve("lenet", device="a72", batch=1, ram="100%")
    report.save(tmp_path / "plan.json")
    asked = (tmp_path / "plan.json", None, False, None, 0, False, tmp_path / "gone")
    with pytest.raises(ExecutionError, match=r"can't be made ready in the temporary folder: No such.*\(TMPDIR\)"):
        apart.call("reading the plan", _prepare, *asked)


def test_what_fails_with_the_step_in_hand_keeps_its_own_words(tmp_path: Path) -> None:
    """Only what makes it ready speaks of the temporary folder."""
    report = po.solve("lenet", device="a72", batch=1, ram="100%")
    report.save(tmp_path / "plan.json")
    with pytest.raises(PermissionError), prepared(tmp_path / "plan.json"):
        raise PermissionError("of something else")


def test_no_room_for_what_a_process_says_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(ExecutionError, match=r"the work needs a process.*can't be started: .*No such"):
        apart.call("the work", doubled, 21)
