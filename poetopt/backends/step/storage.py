"""The paging file: a slot for each tensor that is paged, moved straight between file and arena.

The file is private and has no name (or is removed with the last handle, where the system wants one), so that
nothing remains of it, however the process ends. Its whole size is claimed before the step begins: a full disk shows
then, and not halfway. Each tensor's CRC-32 is kept in memory and compared when it comes back.
"""

from __future__ import annotations

import errno
import os
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from poetopt.backends.step.memory import PIECE, pieces
from poetopt.ops.runtimes.sliced import SliceWindow
from poetopt.util.errors import ExecutionError, OutputError
from poetopt.util.files import Closing, write_all

SLOT_ALIGNMENT = 4096

Bytes = NDArray[np.uint8]


class PageFile(Closing):
    """Storage for paged tensors during an execution; a context manager.

    sizes
        Bytes of each tensor that is paged, by name.
    folder
        Where the file lies; by default the system's temporary folder.

    Raises `OutputError` where no file can be made there; all methods `ExecutionError` where the storage fails.
    """

    def __init__(self, sizes: Mapping[str, int], folder: Path | None = None) -> None:
        self.folder = Path(tempfile.gettempdir() if folder is None else folder)
        self._slots: dict[str, int] = {}
        self._sums: dict[str, int] = {}
        self._slices: dict[str, dict[SliceWindow, int]] = {}
        self._rows: dict[str, tuple[tuple[int, ...], int]] = {}
        self._zero: frozenset[str] = frozenset()
        end = 0
        for name, nbytes in sizes.items():
            self._slots[name] = end
            end += -(-nbytes // SLOT_ALIGNMENT) * SLOT_ALIGNMENT
        self.nbytes = end
        try:
            self.file = tempfile.TemporaryFile(prefix="poetopt-", dir=self.folder, buffering=0)  # noqa: SIM115
        except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
            raise OutputError(
                f"can't create the paging file in {self.folder}: {error.strerror}; name a folder that is there "
                "and may be written to (--workdir, TMPDIR)"
            ) from error
        except OSError as error:
            raise self._failure("can't create the paging file", error) from error
        try:
            self._claim()
        except OSError as error:
            self.close()
            raise self._failure(f"can't claim {self.nbytes:,} B for the paging file", error) from error

    def choose(self, name: str, rows: Sequence[int], row_bytes: int) -> None:
        """Let a tensor be these rows of the table in its slot, until others are chosen."""
        self._rows[name] = tuple(rows), row_bytes

    def choose_all(self, name: str) -> None:
        """Let a tensor be all that is in its slot, until rows are chosen."""
        self._rows.pop(name, None)

    def zeros(self, names: Iterable[str]) -> None:
        """Let what is read of these tensors be zero, without a transfer, until others are named."""
        self._zero = frozenset(names)

    def write(self, name: str, source: Bytes) -> None:
        """Copy a tensor's bytes to its slot."""
        if name in self._rows:
            self._each_row(name, source, self._put)
            return
        self._slices.pop(name, None)
        at, sum_ = self._slots[name], 0
        try:
            for piece in pieces(source):
                self._put(at, piece)
                at, sum_ = at + piece.size, zlib.crc32(piece.data, sum_)
            self._sums[name] = sum_
        except OSError as error:
            raise self._failure(f"can't page out {name!r}", error) from error

    def _each_row(self, name: str, array: Bytes, move: Callable[[int, Bytes], None]) -> None:
        rows, row_bytes = self._rows[name]
        try:
            for k, row in enumerate(rows):
                move(self._slots[name] + row * row_bytes, array[k * row_bytes : (k + 1) * row_bytes])
        except OSError as error:
            raise self._failure(f"can't move rows of {name!r}", error) from error

    def _put(self, place: int, source: Bytes) -> None:
        self.file.seek(place)
        write_all(self.file, source.data)

    def _get(self, place: int, target: Bytes, what: str = "") -> None:
        self.file.seek(place)
        left = target.data
        while left:
            count = self.file.readinto(left)
            if not count:
                raise ExecutionError(
                    f"{what}the paging file in {self.folder} ends {len(left):,} B too early; "
                    "something else has cut it short"
                )
            left = left[count:]

    def read(self, name: str, target: Bytes) -> None:
        """Copy a tensor's bytes back from its slot, and check that they are those that were written."""
        if name in self._zero:
            target.fill(0)
            return
        if name in self._rows:
            target.fill(0)  # as many rows as a batch may use at most
            self._each_row(name, target, self._get)
            return
        try:
            self._get(self._slots[name], target, f"can't page in {name!r}: ")
        except OSError as error:
            raise self._failure(f"can't page in {name!r}", error) from error
        if name not in self._slices:
            self._check(name, zlib.crc32(target.data), self._sums.get(name))
        for window, sum_ in self._slices.get(name, {}).items():
            self._check(name, _crc(pieces_of(target, window)), sum_)

    def pieces(self, name: str, nbytes: int) -> Iterator[Bytes]:
        """A tensor's bytes in order, some at a time and unchecked, each over the one before."""
        room = np.empty(min(PIECE, nbytes), np.uint8)
        try:
            for start in range(0, nbytes, PIECE):
                piece = room[: nbytes - start]
                self._get(self._slots[name] + start, piece)
                yield piece
        except OSError as error:
            raise self._failure(f"can't read {name!r}", error) from error

    def write_slice(self, name: str, window: SliceWindow, source: Bytes) -> None:
        """Copy a slice to its place in a tensor's slot: its pieces lie side by side in `source`."""
        known = self._slices.setdefault(name, {})
        if not window.start and window not in known:
            known.clear()  # it was cut otherwise, and is written anew, from its first slice on
        known[window] = zlib.crc32(source.data)
        self._each_piece(name, window, source, self._put)

    def read_slice(self, name: str, window: SliceWindow, target: Bytes) -> None:
        """Copy a slice from a tensor's slot, and check it where it was written as such."""
        if name in self._zero:
            target.fill(0)
            return
        self._each_piece(name, window, target, self._get)
        known = self._slices.get(name, {})
        if window in known:
            self._check(name, zlib.crc32(target.data), known[window])

    def read_rows(self, name: str, ids: NDArray[np.int64], nbytes: int, target: NDArray[np.uint8]) -> None:
        """Copy rows of a table of so many bytes, each to a row of `target`; numbers below 0 count from the end."""
        size = target.shape[1]
        try:
            for k, row in enumerate(ids.reshape(-1).tolist()):
                self._get(self._slots[name] + row * size + (nbytes if row < 0 else 0), target[k])
        except OSError as error:
            raise self._failure(f"can't read rows of {name!r}", error) from error

    def _each_piece(self, name: str, window: SliceWindow, array: Bytes, move: Callable[[int, Bytes], None]) -> None:
        at, size = self._slots[name] + window.start, window.nbytes
        try:
            for k in range(window.pieces):
                move(at + k * window.apart, array[k * size : (k + 1) * size])
        except OSError as error:
            raise self._failure(f"can't move a slice of {name!r}", error) from error

    def _check(self, name: str, found: int, written: int | None) -> None:
        if found != written:
            raise ExecutionError(
                f"{name!r} came back from the paging file in {self.folder} other than it was written "
                "(its CRC-32 differs); check that storage, or name another folder"
            )

    def close(self) -> None:
        """Remove the file."""
        self.file.close()

    def _claim(self) -> None:
        if not self.nbytes:
            return
        if hasattr(os, "posix_fallocate"):
            try:
                os.posix_fallocate(self.file.fileno(), 0, self.nbytes)
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                    raise
            else:
                return
        self.file.truncate(self.nbytes)

    def _failure(self, what: str, error: OSError) -> ExecutionError:
        return ExecutionError(
            f"{what} in {self.folder}: {error.strerror or error}; make room and rights there, or name another folder"
        )


def pieces_of(whole: Bytes, window: SliceWindow) -> NDArray[np.uint8]:
    """The bytes of a slice in those of its tensor, a row for each piece, without a copy."""
    if window.pieces == 1:
        return whole[window.start : window.start + window.nbytes].reshape(1, -1)
    apart = whole[: window.pieces * window.apart].reshape(window.pieces, window.apart)
    return apart[:, window.start : window.start + window.nbytes]


def _crc(pieces: NDArray[np.uint8]) -> int:
    found = 0
    for piece in pieces:
        found = zlib.crc32(piece.data, found)
    return found


def put_rows(
    made: NDArray[np.uint8],
    data: NDArray[np.uint8],
    ids: NDArray[np.int64],
    rows: NDArray[np.uint8],
    begin: int,
    count: int,
) -> None:
    """`data`, a slice of a table of `count` rows from the row `begin` on, with those of `rows` that belong there."""
    np.copyto(made, data)
    for k, row in enumerate(ids.reshape(-1).tolist()):
        at = row + (count if row < 0 else 0) - begin
        if 0 <= at < len(made):
            made[at] = rows[k]
