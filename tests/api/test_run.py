"""Sweeps on workers: whatever happens to them, the rows are those of the points evaluated one by one."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from poetopt.api.sweeps import sweep
from poetopt.util.errors import OptionError
from tests.api.support import FILE, fixed, undisturbed, write_sweep
from tests.cli.support import Runner, runner

pytest.importorskip("distributed")
PROGRAM = [sys.executable, "-c", "from poetopt.cli.app import main; main()"]
QUIET: dict[str, Any] = {"dashboard_address": "127.0.0.1:0", "scheduler_kwargs": {"dashboard": False}}


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Runner:
    return runner(capsys)


@pytest.fixture(scope="module")
def scheduler() -> Iterator[str]:
    """A scheduler with two workers, all of them threads of this process."""
    from distributed import LocalCluster

    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=False, protocol="tcp", host="127.0.0.1", **QUIET
    ) as cluster:
        yield cluster.scheduler_address


def test_a_scheduler_that_is_there_already(tmp_path: Path, scheduler: str) -> None:
    path = write_sweep(tmp_path)
    told: list[str] = []
    found = sweep(path, scheduler=scheduler, told=told.append)
    assert fixed(found.rows) == undisturbed(path)
    assert found.path == str(tmp_path / "sweep.sqlite")
    assert (found.here, found.lost) == (found.total, ())
    assert [line.split()[0] for line in told] == [str(number) for number in range(1, found.total + 1)]
    assert told[-1].startswith("48 of 48 points: ")
    again = sweep(path, scheduler="tcp://127.0.0.1:1")
    assert (again.here, again.rows) == (0, found.rows)


def test_more_points_later(tmp_path: Path, scheduler: str) -> None:
    path = write_sweep(tmp_path, FILE.replace('"60%", ', ""))
    first = sweep(path, scheduler=scheduler)
    write_sweep(tmp_path)
    second = sweep(path, scheduler=scheduler)
    assert second.here == second.total - first.total
    assert fixed(second.rows) == undisturbed(path)


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


def test_no_temporary_file_is_left(tmp_path: Path) -> None:
    path = write_sweep(tmp_path, 'models = "chain.json"\ndevices = "a72"\nram = "100%"\nmethods = "dtr"\n')
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    subprocess.run(
        [*PROGRAM, "sweep", str(path), "--workers", "1"],
        env={**os.environ, "TMPDIR": str(temporary), "TEMP": str(temporary)},
        check=True,
        stdout=subprocess.DEVNULL,
    )
    assert not list(temporary.rglob("*"))


@pytest.mark.skipif(os.name != "posix", reason="sends SIGINT")
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


def test_what_cannot_be_solved_is_a_row(tmp_path: Path, scheduler: str, run: Runner) -> None:
    path = write_sweep(tmp_path, FILE.replace('["a72", "m4"]', '["a72", "tx2"]').replace('"40%", ', '"5%", '))
    ended = run("sweep", path, "--scheduler", scheduler, "--json", "-")
    assert ended.code == 0, ended.err
    rows: list[dict[str, Any]] = ended.document["rows"]
    assert {row["status"] for row in rows if row["device"] == "tx2"} == {"error"}
    assert all("tx2" in row["reason"] for row in rows if row["device"] == "tx2")
    small = {(row["method"], row["status"]) for row in rows if row["ram"] == "5%" and row["device"] == "a72"}
    assert small == {("poet", "infeasible"), ("revolve", "infeasible")}
    again = run("sweep", path)
    assert again.out.startswith(f"{len(rows)} of {len(rows)} rows in {tmp_path / 'sweep.sqlite'}")
    assert "error, 12 times" in again.out


def test_nothing_but_errors(tmp_path: Path, scheduler: str, run: Runner) -> None:
    model = '{ model = "lenet", name = "mine", train = ["nothing*"] }'
    path = write_sweep(tmp_path, f'models = [{model}]\ndevices = "a72"\nram = ["80%", "90%"]\n')
    ended = run("sweep", path, "--scheduler", scheduler)
    assert ended.code == 5
    assert "2 error" in ended.out
    assert "all 2 rows are errors (the first: lenet: --train" in ended.err
    assert "<model>" not in ended.out


def test_errors_of_the_command(tmp_path: Path, run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_sweep(tmp_path)
    with pytest.raises(OptionError, match="--workers: at least 1, and without --scheduler"):
        sweep(path, scheduler="tcp://127.0.0.1:1", workers=2)
    run("sweep", path, "-o", path).assert_one_message("is the input", code=2)
    monkeypatch.setattr("poetopt.api.sweeps.CONNECT_S", 1)
    for address in ("tcp://127.0.0.1:1", "nonsense://here"):
        run("sweep", path, "--scheduler", address).assert_one_message("no dask scheduler answers", address, code=6)
        assert not (tmp_path / "sweep.sqlite").exists()
    monkeypatch.setitem(sys.modules, "distributed", None)
    run("sweep", path).assert_one_message("pip install 'poetopt[dask]'", code=6)


def test_a_scheduler_without_workers(tmp_path: Path, run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    from distributed import LocalCluster

    monkeypatch.setattr("poetopt.api.sweeps.CONNECT_S", 1)
    path = write_sweep(tmp_path)
    with LocalCluster(n_workers=0, processes=False, protocol="tcp", host="127.0.0.1", **QUIET) as cluster:
        ended = run("sweep", path, "--scheduler", cluster.scheduler_address)
    ended.assert_one_message("it has no workers", code=6)


def _count(path: Path) -> int:
    """Rows that are there already."""
    if not path.exists() or not path.stat().st_size:
        return 0
    with closing(sqlite3.connect(path, timeout=30)) as connection:
        if not connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'rows'").fetchone()[0]:
            return 0
        (count,) = connection.execute("SELECT count(*) FROM rows").fetchone()
        return int(count)


def test_json_is_an_object(tmp_path: Path, scheduler: str, run: Runner) -> None:
    path = write_sweep(tmp_path, 'models = "short.json"\ndevices = "a72"\nram = "90%"\n')
    target = tmp_path / "rows.json"
    assert run("sweep", path, "--scheduler", scheduler, "--json", target).code == 0
    document = json.loads(target.read_text())
    assert (document["points"], document["new_rows"], document["lost"]) == (1, 1, [])
    assert document["rows"][0]["status"] in ("optimal", "within-gap")
