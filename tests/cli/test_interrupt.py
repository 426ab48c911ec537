"""Ctrl-C and SIGTERM: a solve ends with the best so far, other commands at once, and leave nothing half-written."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

import poetopt as po
from poetopt import zoo
from tests.cli.support import Runner, chain, write_problem
from tests.cli.test_commands import PROGRAM
from tests.seeds import some

pytestmark = pytest.mark.skipif(os.name != "posix", reason="sends signals")

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

CALLED = """
import os, signal, sys
from poetopt.cli.app import main
*around, name = sys.argv.pop(1).split("/")
sent = signal.Signals[sys.argv.pop(1)]
def called(frame, event, argument):
    if event == "call" and frame.f_code.co_name == name:
        left = set(around)
        while frame is not None:
            left.discard(frame.f_code.co_name)
            frame = frame.f_back
        if not left:
            sys.setprofile(None)
            os.kill(os.getpid(), sent)
import highspy, pyomo.environ
sys.setprofile(called)
main()
"""
"""The same at the first call of the last of the functions, however short; everything takes longer with it.

What a solve imports is imported before, as that takes longest.
"""


TWICE = """
import os, signal, sys, threading, time
from poetopt.cli.app import main
name, wait_s = sys.argv.pop(1).split("/")
sent = signal.Signals[sys.argv.pop(1)]
def send():
    for _ in range(2):
        os.kill(os.getpid(), sent)
        time.sleep(float(wait_s))
def called(frame, event, argument):
    if event == "call" and frame.f_code.co_name == name:
        sys.setprofile(None)
        if name == "plan_text":
            send()
        else:
            threading.Thread(target=send, daemon=True).start()
import highspy, pyomo.environ
sys.setprofile(called)
main()
"""
"""The same twice, so many seconds apart: the second while the answer is put together, or with it in hand."""

LOST = """
import os, signal, sys
from poetopt.util import interrupts
from poetopt.cli.app import main
name, sent = sys.argv.pop(1), signal.Signals[sys.argv.pop(1)]
def called(frame, event, argument):
    if event == "call" and frame.f_code.co_name == name:
        sys.setprofile(None)
        try:
            os.kill(os.getpid(), sent)
            while interrupts.came() is None:
                pass
        except KeyboardInterrupt:
            pass
import highspy, pyomo.environ
sys.setprofile(called)
main()
"""
"""The same at a place that swallows the exception, as finalizers and libraries do."""


def interrupted(inside: str, command: str, folder: Path, program: str = WATCHED) -> subprocess.CompletedProcess[str]:
    """Run a command line in `folder`, where `chain.json` is a problem, with Ctrl-C inside of functions."""
    write_problem(folder / "chain.json", chain(24))
    arguments = [
        sys.executable,
        "-c",
        program,
        inside,
        "SIGINT",
        *command.split(),
        "--device",
        "m4",
        "--json",
        "made.json",
    ]
    return subprocess.run(arguments, cwd=folder, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("inside", "command"),
    [
        ("pareto/deepen", "pareto chain.json --gap 0"),
        ("unhurried/deepen", "pareto chain.json --against deadline --ram 30%"),
        ("compare/deepen", "compare chain.json --methods poet --gap 0 --plans made"),
        ("compare/deepen", "compare chain.json --methods checkmate"),
        ("sensitivity/deepen", "solve chain.json --ram 40% --with sensitivity"),
    ],
)
def test_many_solves_end_at_once(tmp_path: Path, inside: str, command: str) -> None:
    ended = interrupted(inside, command, tmp_path)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "poetopt: interrupted\n")
    assert os.listdir(tmp_path) == ["chain.json"]


@pytest.mark.parametrize(
    ("inside", "command"),
    [
        ("pareto/_heuristic_fits", "pareto chain.json"),
        ("remedies/_heuristic_fits", "compare chain.json --ram 20% --deadline 1x --methods poet"),
    ],
)
def test_many_solves_end_at_once_between_two(tmp_path: Path, inside: str, command: str) -> None:
    ended = interrupted(inside, command, tmp_path, CALLED)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "poetopt: interrupted\n")
    assert os.listdir(tmp_path) == ["chain.json"]


@pytest.mark.parametrize("inside", ["remedies", "_tried"])
def test_a_proof_stands_though_the_search_for_remedies_is_cut_short(tmp_path: Path, inside: str) -> None:
    command = "solve chain.json --ram 20% --deadline 1x --time-limit 60s"
    ended = interrupted(f"_helped/{inside}", command, tmp_path, CALLED)
    assert ended.returncode == 3, ended.stderr
    assert "interrupted in looking for what would help" in ended.stderr
    assert ended.stderr.count("poetopt: ") == 1


@pytest.mark.parametrize("inside", ["first_schedules/greedy", "_attempt/model_of", "remedies", "_tried"])
def test_an_interrupt_with_nothing_in_hand_is_one_at_every_moment(tmp_path: Path, inside: str) -> None:
    """Also where the search is over without an answer, and what would help is looked for."""
    command = "solve chain.json --ram 30% --deadline 1.05x --time-limit 10s"
    if inside in ("remedies", "_tried"):
        command = "solve chain.json --ram 30% --deadline 1.05x --time-limit 1ms"
    ended = interrupted(inside, command, tmp_path, CALLED)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "poetopt: interrupted\n")
    assert os.listdir(tmp_path) == ["chain.json"]


def test_an_interrupt_whose_exception_is_lost_is_none_lost(tmp_path: Path) -> None:
    ended = interrupted("greedy", "solve chain.json --ram 20% --deadline 1x --time-limit 600s", tmp_path, LOST)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "poetopt: interrupted\n")


@pytest.mark.parametrize("inside", ["solve/failure_words", "solve/write_json"])
def test_a_proof_is_told_though_the_signal_comes_as_it_is_written(tmp_path: Path, inside: str) -> None:
    ended = interrupted(inside, "solve chain.json --ram 20% --deadline 1x --time-limit 600s", tmp_path, CALLED)
    assert ended.returncode == 3
    assert sorted(os.listdir(tmp_path)) == ["chain.json", "made.json"]


def test_a_plan_is_written_though_the_signal_comes_then(tmp_path: Path) -> None:
    command = "solve chain.json --ram 60% --gap 50% -o plan.json"
    ended = interrupted("solve/plan_text", command, tmp_path, CALLED)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert sorted(os.listdir(tmp_path)) == ["chain.json", "made.json", "plan.json"]


@pytest.mark.parametrize("inside", [*(f"deepen/{wait_s}" for wait_s in some((0, 0.02, 0.005, 0.05), 2)), "plan_text/0"])
def test_a_signal_that_is_sent_twice_is_one(tmp_path: Path, inside: str) -> None:
    """Terminals send it to a group, and a wrapper in the group passes it on."""
    ended = interrupted(inside, "solve chain.json --ram 40% --gap 0 -o plan.json", tmp_path, TWICE)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert sorted(os.listdir(tmp_path)) == ["chain.json", "made.json", "plan.json"]


def test_a_second_signal_ends_a_solve_without_its_plan(tmp_path: Path) -> None:
    ended = interrupted("plan_text/0.7", "solve chain.json --ram 60% --gap 50% -o plan.json", tmp_path, TWICE)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "poetopt: interrupted\n")
    assert os.listdir(tmp_path) == ["chain.json"]


@pytest.mark.parametrize("sent", ["SIGINT", "SIGTERM"])
def test_a_signal_after_the_end_changes_nothing(sent: str) -> None:
    program = "import atexit, os, signal\nfrom poetopt.cli.app import main\n"
    program += f"atexit.register(os.kill, os.getpid(), signal.{sent})"
    line = [sys.executable, "-c", f"{program}\nmain()", "devices"]
    ended = subprocess.run(line, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "a72" in ended.stdout


def terminated(folder: Path, inside: str, *arguments: str, program: str = WATCHED) -> subprocess.CompletedProcess[str]:
    """Run a command line in `folder`, with SIGTERM inside of functions."""
    line = [sys.executable, "-c", program, inside, "SIGTERM", *arguments]
    return subprocess.run(line, cwd=folder, capture_output=True, text=True)


def test_a_terminated_run_leaves_no_half_written_dump(run: Runner, tmp_path: Path) -> None:
    model, plan = tmp_path / "lenet.onnx", tmp_path / "plan.json"
    onnx.save(zoo.build("lenet", 4), model)
    assert run("solve", model, "--device", "a72", "--ram", "100%", "-o", plan).code == 0
    ended = terminated(tmp_path, "copyfile", "run", "plan.json", "--dump", "step.npz", program=CALLED)
    assert (ended.returncode, ended.stderr) == (143, "poetopt: terminated\n")
    assert sorted(os.listdir(tmp_path)) == ["lenet.onnx", "plan.json"]


def test_a_terminated_solve_gives_the_best_so_far_as_at_ctrl_c(tmp_path: Path) -> None:
    write_problem(tmp_path / "chain.json", chain(24))
    arguments = ("solve", "chain.json", "--device", "m4", "--ram", "40%", "--gap", "0", "-o", "plan.json")
    ended = terminated(tmp_path, "deepen", *arguments)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert sorted(os.listdir(tmp_path)) == ["chain.json", "plan.json"]


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
