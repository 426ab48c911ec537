"""Outputs are written whole or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from poetopt.util.errors import OutputError
from poetopt.util.files import LEFT_S, check_folder, check_writable, replacing, write_atomically


def test_writes_and_replaces(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    write_atomically(path, "ä")
    write_atomically(path, b"second")
    assert path.read_bytes() == b"second"
    assert os.listdir(tmp_path) == ["plan.json"]


def test_keeps_mode_and_links(tmp_path: Path) -> None:
    path = tmp_path / "real"
    write_atomically(path, b"1")
    path.chmod(0o640)
    link = tmp_path / "link"
    link.symlink_to(path)
    write_atomically(link, b"2")
    assert link.is_symlink()
    assert path.read_bytes() == b"2"
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_failing_body_leaves_the_old_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"old")

    def write_half() -> None:
        with replacing(path) as beside:
            assert beside.suffix == ".onnx"
            beside.write_bytes(b"half")
            raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        write_half()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["model.onnx"]


def test_says_what_can_not_be_written(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"can't write .*missing/plan.json: there is no folder"):
        write_atomically(tmp_path / "missing" / "plan.json", b"")
    with pytest.raises(OutputError, match="it is a folder"):
        write_atomically(tmp_path, b"")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OutputError, match="file is a file, no folder"):
        write_atomically(tmp_path / "file" / "plan.json", b"")


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="no /dev/full here")
def test_a_full_disk_is_reported_and_a_device_survives() -> None:
    with pytest.raises(OutputError, match="No space left"):
        write_atomically("/dev/full", b"x")
    assert Path("/dev/full").is_char_device()


def test_a_pipe_without_a_name_is_written_to() -> None:
    read, write = os.pipe()
    write_atomically(f"/proc/self/fd/{write}", "text")
    os.close(write)
    with open(read, encoding="utf-8") as file:
        assert file.read() == "text"


def test_check_writable_leaves_nothing_behind(tmp_path: Path) -> None:
    there = tmp_path / "there.json"
    there.write_text("before")
    check_writable(there)
    check_writable(tmp_path / "new.json")
    assert [path.name for path in tmp_path.iterdir()] == ["there.json"]
    assert there.read_text() == "before"
    with pytest.raises(OutputError, match=r"none.*new\.json"):
        check_writable(tmp_path / "none" / "new.json")


def test_check_folder_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    check_folder(tmp_path / "there")
    check_folder(tmp_path / "new" / "deep")
    assert [path.name for path in tmp_path.rglob("*")] == ["there"]
    (tmp_path / "file").write_text("before")
    with pytest.raises(OutputError, match=r"into the folder .*file.deep: Not a directory"):
        check_folder(tmp_path / "file" / "deep")


@pytest.mark.skipif(os.name != "posix", reason="asks for processes")
def test_only_old_leftovers_of_dead_processes_are_removed(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    old, dead, alive = time.time() - LEFT_S - 60, f".poetopt-{ended.pid}", f".poetopt-{os.getpid()}"
    for name in (f"{dead}-0.npz", f"{dead}-1", f"{alive}-7.npz", "x.npz", f"x{dead}-0.npz", f"{dead}.npz"):
        (tmp_path / name).write_bytes(b"half")
        os.utime(tmp_path / name, (old, old))
    (tmp_path / f"{dead}-2.npz").write_bytes(b"of today")
    write_atomically(tmp_path / "plan.json", "{}")
    kept = {f"{alive}-7.npz", "x.npz", f"x{dead}-0.npz", f"{dead}.npz", f"{dead}-2.npz", "plan.json"}
    assert set(os.listdir(tmp_path)) == kept


@pytest.mark.skipif(os.name != "posix", reason="locks are the system's")
def test_a_locked_leftover_goes_with_its_process(tmp_path: Path) -> None:
    """What a process that was killed while it wrote has left is gone at the next write there, however fresh."""
    code = (
        "import sys, time\nfrom poetopt.util.files import replacing\n"
        "with replacing(sys.argv[1]) as place:\n place.write_bytes(b'half')\n print(flush=True)\n time.sleep(600)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "plan.json")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        (half,) = os.listdir(tmp_path)
        write_atomically(tmp_path / "other.json", "{}")
        assert half in os.listdir(tmp_path)
        writer.kill()
    write_atomically(tmp_path / "other.json", "{}")
    assert os.listdir(tmp_path) == ["other.json"]
