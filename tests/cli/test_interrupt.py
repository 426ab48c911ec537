"""Ctrl-C: a solve ends with the best so far, a command of many solves ends at once, and leaves nothing half-written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.support import chain, write_problem

pytestmark = pytest.mark.skipif(os.name != "posix", reason="sends SIGINT")

WATCHED = """
import os, signal, sys, threading, time
from poetopt.cli import main
inside, main_thread = set(sys.argv.pop(1).split("/")), threading.get_ident()
def watch():
    left = set(inside)
    while left:
        time.sleep(0.002)
        frame, left = sys._current_frames().get(main_thread), set(inside)
        while frame is not None:
            left.discard(frame.f_code.co_name)
            frame = frame.f_back
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=watch, daemon=True).start()
main()
"""
"""The program, which gets a SIGINT once its main thread is inside of all functions that the first argument names."""


def interrupted(inside: str, command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command line in `folder`, where `chain.json` is a problem, with Ctrl-C inside of functions."""
    write_problem(folder / "chain.json", chain(24))
    arguments = [sys.executable, "-c", WATCHED, inside, *command.split(), "--device", "m4", "--json", "made.json"]
    return subprocess.run(arguments, cwd=folder, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("inside", "command"),
    [
        ("pareto/through_scopes", "pareto chain.json --gap 0"),
        ("unhurried/through_scopes", "pareto chain.json --against deadline --ram 30%"),
        ("pareto/_heuristic_fits", "pareto chain.json"),
        ("compare/through_scopes", "compare chain.json --methods poet --gap 0 --plans made"),
        ("compare/through_scopes", "compare chain.json --methods checkmate"),
        ("remedies/_heuristic_fits", "compare chain.json --ram 20% --deadline 1x --methods poet"),
        ("sensitivity/through_scopes", "solve chain.json --ram 40% --sensitivity"),
    ],
)
def test_many_solves_end_at_once(tmp_path: Path, inside: str, command: str) -> None:
    ended = interrupted(inside, command, tmp_path)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "poetopt: interrupted\n")
    assert os.listdir(tmp_path) == ["chain.json"]


@pytest.mark.parametrize("inside", ["remedies", "_tried"])
def test_a_proof_stands_though_the_search_for_remedies_is_cut_short(tmp_path: Path, inside: str) -> None:
    command = "solve chain.json --ram 20% --deadline 1x"
    ended = interrupted(f"_helped/{inside}", command, tmp_path)
    assert ended.returncode == 3, ended.stderr
    assert "interrupted in looking for what would help" in ended.stderr
    assert ended.stderr.count("poetopt: ") == 1
