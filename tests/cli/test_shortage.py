"""What a process can't have: an stderr that takes its messages, memory, descriptors, room. One code, one message."""

from __future__ import annotations

import errno
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from poetopt.cli.console import guarded
from poetopt.util import interrupts
from poetopt.util.errors import BackendUnavailableError, ExecutionError, OutputError
from poetopt.util.files import scratch_folder
from tests.cli.test_commands import PROGRAM
from tests.cli.test_interrupt import WATCHED

EACH_COMMAND = """
import json, os, sys
from poetopt.cli.app import app, invoke
from poetopt.cli.console import own_the_process
own_the_process()
full, codes = os.open("/dev/full", os.O_WRONLY), {}
for name in (one.callback.__name__ for one in app.registered_commands):
    codes[name] = [invoke([name, "--nothing"])]
    os.dup2(full, 1)
    codes[name].append(invoke([name, "--help"]))
with open(sys.argv[1], "w") as file:
    json.dump(codes, file)
"""


def test_full_streams_keep_the_code_of_each_command(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        program = [sys.executable, "-c", EACH_COMMAND, str(tmp_path / "codes.json")]
        subprocess.run(program, stdout=full, stderr=full, check=True)
    codes = json.loads((tmp_path / "codes.json").read_text())
    assert len(codes) > 15
    assert all(found == [2, 2] for found in codes.values()), codes


@pytest.mark.parametrize("streams", ["closed", "broken"])
def test_nobody_hears_of_it_and_the_code_says_it(problem: Path, streams: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)

    def prepare() -> None:
        if streams == "closed":
            os.close(2)

    watched = [sys.executable, "-c", WATCHED, "solve", "SIGTERM"]
    try:
        for code, start, more in ((3, PROGRAM, ["--ram", "1"]), (143, watched, ["--time-limit", "60s"])):
            words = [*start, "solve", str(problem), "--device", "a72", *more]
            ended = subprocess.run(words, stdout=subprocess.PIPE, stderr=writing, preexec_fn=prepare, check=False)
            assert (ended.returncode, ended.stdout) == (code, b"")
    finally:
        os.close(writing)


def test_an_interrupt_before_all_else_without_stderr() -> None:
    code = "import sys; sys.stderr = None\nfrom poetopt.util import interrupts; interrupts.stop_here()"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 130


@pytest.mark.parametrize(
    ("line", "limit", "most", "words"),
    [
        ("inspect mlp --json out.json", resource.RLIMIT_AS, 10**8, "100 MB|ulimit -v"),
        ("run plan.json --dump out.npz", resource.RLIMIT_NOFILE, 10, " 10 |ulimit -n"),
        ("zoo mlp -o out.onnx", resource.RLIMIT_FSIZE, 100, "100 B|ulimit -f"),
    ],
)
def test_a_limit_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, limit: int, most: int, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("plan.json").touch()

    def prepare() -> None:
        resource.setrlimit(limit, (most, most))

    program = [sys.executable, "-m", "poetopt", *line.split()]
    ended = subprocess.run(program, capture_output=True, text=True, preexec_fn=prepare, check=False)
    assert (ended.returncode, ended.stdout) == (2, ""), ended.stderr
    assert ended.stderr.count("poetopt: ") == ended.stderr.count("\n") == 1
    assert all(word in ended.stderr for word in words.split("|")), ended.stderr
    assert os.listdir(tmp_path) == ["plan.json"]


def caused(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MemoryError(), "memory"),
        (caused(BackendUnavailableError("install it"), ImportError("x.so: failed to map segment")), "memory"),
        (RuntimeError("std::bad_alloc"), "memory"),
        (caused(ExecutionError("it can't be started"), OSError(errno.EMFILE, "Too many open files")), "ulimit -n"),
    ],
    ids=str,
)
def test_it_is_told_whatever_a_library_makes_of_it(
    capsys: pytest.CaptureFixture[str], error: Exception, words: str
) -> None:
    def command() -> int:
        raise error

    assert interrupts.came() is None
    assert guarded(command) == 2
    told = capsys.readouterr().err
    assert words in told
    assert "install" not in told


def test_a_temporary_folder_that_is_not_there_or_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(descriptor: int) -> None:
        with scratch_folder("test"):
            os.write(descriptor, b"x")

    def refused(act: Callable[[], None], *words: str) -> None:
        with pytest.raises(OutputError) as caught:
            act()
        assert all(word in str(caught.value) for word in (*words, "TMPDIR"))

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    refused(lambda: fill(1), "can't create a temporary folder")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with open("/dev/full", "wb") as full:
        with pytest.raises(OSError, match="No space left") as caught:
            fill(full.fileno())
        assert not isinstance(caught.value, OutputError), "the folder has room: something else is full"
        monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result((0,) * 10))
        refused(lambda: fill(full.fileno()), str(tmp_path), "full")
    assert list(tmp_path.iterdir()) == []
