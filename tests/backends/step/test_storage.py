"""The paging file: what comes back is what was written, or an error; and nothing remains of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from poetopt.backends.step.storage import SLOT_ALIGNMENT, PageFile
from poetopt.ops.runtimes.sliced import SliceWindow
from poetopt.util.errors import ExecutionError


def some_bytes(count: int, seed: int = 0) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.random.default_rng(seed).integers(0, 256, count, dtype=np.uint8)


def test_everything_comes_back(tmp_path: Path) -> None:
    sizes = {"a": 1, "b": 10_000, "empty": 0, "c": 4096}
    with PageFile(sizes, tmp_path) as pages:
        written = {name: some_bytes(count, count) for name, count in sizes.items()}
        for name, source in written.items():
            pages.write(name, source)
        pages.write("b", written["b"])
        for name in ("c", "b", "a", "empty", "b"):
            target = np.zeros(sizes[name], np.uint8)
            pages.read(name, target)
            assert np.array_equal(target, written[name])
        assert list(tmp_path.iterdir()) == []
    assert list(tmp_path.iterdir()) == []


def test_a_flipped_bit_is_noticed(tmp_path: Path) -> None:
    with PageFile({"a": 100, "b": 5000}, tmp_path) as pages:
        source = some_bytes(5000)
        pages.write("b", source)
        pages.file.seek(SLOT_ALIGNMENT + 4999)
        pages.file.write(bytes([source[4999] ^ 1]))
        with pytest.raises(ExecutionError, match=r"'b' changed in the paging file"):
            pages.read("b", np.zeros(5000, np.uint8))


@pytest.mark.parametrize("pieces", [1, 3])
def test_slices_come_back_and_a_flipped_bit_in_one_is_noticed(tmp_path: Path, pieces: int) -> None:
    """In runs of bytes or in pieces, whatever was written before, and read in the same slices, or whole."""
    whole = some_bytes(120 * pieces)
    with PageFile({"a": 50, "b": whole.size}, tmp_path) as pages:
        pages.write("b", whole[::-1].copy())
        for count in (50, 40):
            for begin in range(0, 120, count):
                window = SliceWindow(begin, min(count, 120 - begin), pieces, 120 if pieces > 1 else 0)
                part = whole.reshape(pieces, 120)[:, begin : begin + count].reshape(-1).copy()
                pages.write_slice("b", window, part)
                found = np.zeros_like(part)
                pages.read_slice("b", window, found)
                assert np.array_equal(found, part)
        target = np.zeros_like(whole)
        pages.read("b", target)
        assert np.array_equal(target, whole)
        pages.file.seek(SLOT_ALIGNMENT + 119)
        pages.file.write(bytes([whole[119] ^ 1]))
        with pytest.raises(ExecutionError, match=r"'b' changed in the paging file"):
            pages.read("b", target)
        with pytest.raises(ExecutionError, match=r"'b' changed in the paging file"):
            pages.read_slice("b", window, found)


def test_a_file_cut_short_is_noticed(tmp_path: Path) -> None:
    with PageFile({"a": 100}, tmp_path) as pages:
        pages.write("a", some_bytes(100))
        pages.file.truncate(60)
        with pytest.raises(ExecutionError, match="ends 40 B too early"):
            pages.read("a", np.zeros(100, np.uint8))


LIMITED = """
import resource, signal, sys
from pathlib import Path
from poetopt.backends.step.storage import PageFile
from poetopt.util.errors import ExecutionError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
with PageFile({"a": 10_000}, Path(sys.argv[1])):
    pass
try:
    PageFile({"a": 10_000, "b": 30_000}, Path(sys.argv[1]))
except ExecutionError as error:
    print(error)
"""


def test_no_room_shows_before_the_step(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", LIMITED, str(tmp_path)], capture_output=True, text=True, check=True)
    assert "can't claim 45,056 B for the paging file" in done.stdout
    assert list(tmp_path.iterdir()) == []
