"""Sweeps on workers: whatever happens to them, the rows are those of the points evaluated one by one."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from poetopt.api.sweeps import sweep
from tests.support.api import fixed, undisturbed, write_sweep

pytest.importorskip("distributed")
PROGRAM = [sys.executable, "-c", "from poetopt.cli.app import main; main()"]


def test_killed_and_resumed(tmp_path: Path) -> None:
    path = write_sweep(tmp_path)
    out = tmp_path / "rows.sqlite"
    process = subprocess.Popen([*PROGRAM, "sweep", str(path), "-o", str(out), "--workers", "1"], start_new_session=True)
    while process.poll() is None and _count(out) < 3:
        time.sleep(0.01)
    process.kill()
    process.wait()
    before = _count(out)
    found = sweep(path, out=out, workers=1)
    assert fixed(found.rows) == undisturbed(path)
    assert found.here == found.total - before


def test_a_worker_that_dies(tmp_path: Path) -> None:
    path = write_sweep(tmp_path)
    killed: list[int] = []

    def told(line: str) -> None:
        if line.startswith("3 of") and not killed:
            from distributed import default_client

            killed.extend(default_client().run(os.getpid).values())
            os.kill(killed[0], signal.SIGKILL)

    found = sweep(path, workers=1, told=told)
    assert killed
    assert fixed(found.rows) == undisturbed(path)
    assert found.lost == ()


def test_ctrl_c_is_one_line_and_keeps_the_rows(tmp_path: Path) -> None:
    """As a terminal sends it: to the workers as well, one of which is deep in a solve."""
    path = write_sweep(
        tmp_path,
        'models = ["chain.json", "resnet18-cifar"]\ndevices = "a72"\nram = "40%"\nmethods = "poet"\ngap = 0\n'
        'scope = "full"\n',
    )
    out = tmp_path / "rows.sqlite"
    with subprocess.Popen(
        [*PROGRAM, "sweep", str(path), "-o", str(out), "--workers", "1"],
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        while process.poll() is None and _count(out) < 1:
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)
        said = process.communicate()
    assert (process.returncode, *said) == (130, "", "poetopt: interrupted\n")
    assert _count(out) == 1


def _count(path: Path) -> int:
    """Rows that are there already."""
    if not path.exists() or not path.stat().st_size:
        return 0
    with closing(sqlite3.connect(path, timeout=30)) as connection:
        if not connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'rows'").fetchone()[0]:
            return 0
        (count,) = connection.execute("SELECT count(*) FROM rows").fetchone()
        return int(count)
