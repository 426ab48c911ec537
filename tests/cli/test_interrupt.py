"""Ctrl-C and SIGTERM: a solve ends with the best so far, other commands at once, and leave nothing half-written."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from unittest.mock import patch

import onnx
import pytest

import poetopt as po
from poetopt import zoo
from poetopt.util import interrupts
from tests.cli.test_commands import PROGRAM
from tests.support.cli import Runner, chain, write_problem

WATCHED = """
import os, signal, sys, threading, time
from poetopt.cli.app import main
inside, main_thread = set(sys.argv.pop(1).split("/")), threading.get_ident()
sent = signal.Signals[sys.argv.pop(1)]
def watch():
    left = set(inside)
    while left:
        time.sleep(0.002)
        frame, left = sys._current_frames().get(main_thread), set(inside)
        while frame is not None:
            left.discard(frame.f_code.co_name)
            frame = frame.f_back
    os.kill(os.getpid(), sent)
threading.Thread(target=watch, daemon=True).start()
main()
"""
"""The program, which gets a signal once its main thread is inside of all functions that the first argument names.

The second argument is the signal.
"""


@contextmanager
def signal_at(inside: str, sent: str = "SIGINT", *, wait_s: float | None = None, lost: bool = False) -> Iterator[None]:
    """This process gets a signal at the first call of the last function that `inside` names, within the others.

    wait_s: it gets a second one so long after the first; the two of a `deepen` come while it goes on. lost: the
    exception is swallowed there, as finalizers and libraries do.
    """
    *around, name = inside.split("/")
    helpers: list[threading.Thread] = []

    def send() -> None:
        os.kill(os.getpid(), signal.Signals[sent])
        if wait_s is not None:
            time.sleep(wait_s)
            os.kill(os.getpid(), signal.Signals[sent])

    def called(frame: FrameType | None, event: str, _: object) -> None:
        if frame is None or event != "call" or frame.f_code.co_name != name:
            return
        left = set(around)
        while frame is not None:
            left.discard(frame.f_code.co_name)
            frame = frame.f_back
        if left:
            return
        sys.setprofile(None)
        if name == "deepen" and wait_s is not None:
            helpers.append(threading.Thread(target=send))
            helpers[0].start()
        else:
            with suppress(*([KeyboardInterrupt] if lost else [])):
                send()
                while lost and interrupts.came() is None:
                    pass

    before = {number: signal.getsignal(number) for number in interrupts.CODES}
    with patch("poetopt.util.interrupts._state", interrupts._State()):
        interrupts.install()
        sys.setprofile(called)
        try:
            yield
        finally:
            sys.setprofile(None)
            for helper in helpers:
                helper.join()
            for number, handler in before.items():
                signal.signal(number, handler)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a command line runs: `chain.json` in it is a problem."""
    write_problem(tmp_path / "chain.json", chain(24))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def command(line: str) -> list[str]:
    return [*line.split(), "--device", "m4", "--json", "made.json"]


INTERRUPTED = (130, "", "poetopt: interrupted\n")


@pytest.mark.parametrize(
    ("inside", "line"),
    [
        ("pareto/deepen", "pareto chain.json --gap 0"),
        ("compare/deepen", "compare chain.json --methods poet --gap 0 --plans made"),
        ("compare/deepen", "compare chain.json --methods checkmate"),
        ("pareto/_heuristic_fits", "pareto chain.json"),
        ("remedies/_heuristic_fits", "compare chain.json --ram 20% --deadline 1x --methods poet"),
        # with nothing in hand, also where the search is over without an answer, and what would help is looked for
        ("first_schedules/greedy", "solve chain.json --ram 30% --deadline 1.05x --time-limit 10s"),
        ("_attempt/model_of", "solve chain.json --ram 30% --deadline 1.05x --time-limit 10s"),
        ("remedies", "solve chain.json --ram 30% --deadline 1.05x --time-limit 1ms"),
        ("_try_without_each", "solve chain.json --ram 30% --deadline 1.05x --time-limit 1ms"),
    ],
)
def test_what_has_no_answer_yet_ends_at_once(run: Runner, folder: Path, inside: str, line: str) -> None:
    with signal_at(inside):
        ended = run(*command(line))
    assert (ended.code, ended.out, ended.err) == INTERRUPTED
    assert os.listdir(folder) == ["chain.json"]


@pytest.mark.parametrize("inside", ["remedies", "_try_without_each"])
def test_a_proof_stands_though_the_search_for_remedies_is_cut_short(run: Runner, folder: Path, inside: str) -> None:
    with signal_at(f"_search_remedies/{inside}"):
        ended = run(*command("solve chain.json --ram 20% --deadline 1x --time-limit 60s"))
    assert ended.code == 3, ended.err
    assert "search for a remedy was interrupted" in ended.err
    assert ended.err.count("poetopt: ") == 1


def test_an_interrupt_whose_exception_is_lost_is_none_lost(run: Runner, folder: Path) -> None:
    with signal_at("greedy", lost=True):
        ended = run(*command("solve chain.json --ram 20% --deadline 1x --time-limit 600s"))
    assert (ended.code, ended.out, ended.err) == INTERRUPTED


@pytest.mark.parametrize("inside", ["solve/failure_words", "solve/write_json"])
def test_a_proof_is_told_though_the_signal_comes_as_it_is_written(run: Runner, folder: Path, inside: str) -> None:
    with signal_at(inside):
        ended = run(*command("solve chain.json --ram 20% --deadline 1x --time-limit 600s"))
    assert ended.code == 3
    assert sorted(os.listdir(folder)) == ["chain.json", "made.json"]


@pytest.mark.parametrize(("inside", "wait_s"), [("solve/plan_text", None), ("plan_text", 0.0), ("deepen", 0.02)])
def test_a_plan_is_written_though_a_signal_comes_then_or_twice(
    run: Runner, folder: Path, inside: str, wait_s: float | None
) -> None:
    """Terminals send it to a group, and a wrapper in the group passes it on."""
    with signal_at(inside, wait_s=wait_s):
        ended = run(*command("solve chain.json --ram 40% --gap 5% -o plan.json"))
    assert (ended.code, ended.err) == (0, "")
    assert sorted(os.listdir(folder)) == ["chain.json", "made.json", "plan.json"]


def test_a_second_signal_ends_a_solve_without_its_plan(run: Runner, folder: Path) -> None:
    with signal_at("plan_text", wait_s=0.7):
        ended = run(*command("solve chain.json --ram 60% --gap 50% -o plan.json"))
    assert (ended.code, ended.out, ended.err) == INTERRUPTED
    assert os.listdir(folder) == ["chain.json"]


def test_a_signal_after_the_end_changes_nothing() -> None:
    program = "import atexit, os, signal\nfrom poetopt.cli.app import main\n"
    program += "atexit.register(os.kill, os.getpid(), signal.SIGTERM)"
    line = [sys.executable, "-c", f"{program}\nmain()", "devices"]
    ended = subprocess.run(line, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "a72" in ended.stdout


def test_a_terminated_run_leaves_no_half_written_dump(run: Runner, folder: Path) -> None:
    onnx.save(zoo.build("lenet", 4), "lenet.onnx")
    assert run("solve", "lenet.onnx", "--device", "a72", "--ram", "100%", "-o", "plan.json").code == 0
    with signal_at("copyfile", "SIGTERM"):
        ended = run("run", "plan.json", "--dump", "step.npz")
    assert (ended.code, ended.err) == (143, "poetopt: terminated\n")
    assert sorted(os.listdir(folder)) == ["chain.json", "lenet.onnx", "plan.json"]


def test_a_terminated_solve_gives_the_best_so_far_as_at_ctrl_c(folder: Path) -> None:
    line = [sys.executable, "-c", WATCHED, "deepen", "SIGTERM"]
    line += ["solve", "chain.json", "--device", "m4", "--ram", "40%", "--gap", "0", "-o", "plan.json"]
    ended = subprocess.run(line, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert sorted(os.listdir(folder)) == ["chain.json", "plan.json"]


def test_a_terminal_that_hangs_up_leaves_the_best_plan(tmp_path: Path) -> None:
    """As SIGTERM does, though nothing can be told any more.

    Children inherit signals that are ignored, and `nohup` ignores this one: they would go on.
    """
    plan = tmp_path / "plan.json"
    ours, theirs = pty.openpty()
    command = (*PROGRAM, "solve", "resnet18-cifar", "--device", "m4", "--ram", "35%", "--gap", "0", "-o", str(plan))
    environment = {**os.environ, "TERM": "xterm"}
    inherited = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    process = subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environment, start_new_session=True)
    signal.signal(signal.SIGHUP, inherited)
    with process:
        os.close(theirs)
        shown = b""
        while b"overhead" not in shown:  # there is a plan
            shown += os.read(ours, 10_000)
        process.send_signal(signal.SIGHUP)
        os.close(ours)
        assert process.wait(60) == 0
    assert po.load_plan(plan).report["status"] in ("feasible", "within-gap", "optimal")
