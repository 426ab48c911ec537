"""Outputs are written whole or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from poetopt.util.errors import OutputError
from poetopt.util.files import LEFT_S, replacing, write_atomically


def test_writes_and_replaces(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    write_atomically(path, "ä")
    write_atomically(path, b"second")
    assert path.read_bytes() == b"second"
    assert os.listdir(tmp_path) == ["plan.json"]


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


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="no /dev/full here")
def test_a_full_disk_is_reported_and_a_device_survives() -> None:
    with pytest.raises(OutputError, match="No space left"):
        write_atomically("/dev/full", b"x")
    assert Path("/dev/full").is_char_device()


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
