"""The paging file: a slot for each paged tensor, moved straight between file and arena.

The file is private and has no name (or, on systems without that, is removed with the last handle), so that nothing
remains of it, however the process ends. Its whole size is claimed before the step begins: a full disk shows then, and
not halfway. Each tensor's CRC-32 is kept in memory and compared when the tensor is read back.
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

    Parameters
    ----------
    sizes
        Bytes of each paged tensor, by name.
    folder
        Folder of the file; by default the system's temporary folder.

    Raises
    ------
    OutputError
        The file can't be created there.
    ExecutionError
        From all methods, where the storage fails.
    """

    def __init__(self, sizes: Mapping[str, int], folder: Path | None = None) -> None:
        self.folder = Path(tempfile.gettempdir() if folder is None else folder)
        self._slots: dict[str, int] = {}
        self._checksums: dict[str, int] = {}
        self._slice_checksums: dict[str, dict[SliceWindow, int]] = {}
        self._selected_rows: dict[str, tuple[tuple[int, ...], int]] = {}
        self._zero_names: frozenset[str] = frozenset()
        end = 0
        for name, nbytes in sizes.items():
            self._slots[name] = end
            end += -(-nbytes // SLOT_ALIGNMENT) * SLOT_ALIGNMENT
        self.nbytes = end
        try:
            self.file = tempfile.TemporaryFile(prefix="poetopt-", dir=self.folder, buffering=0)  # noqa: SIM115
        except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
            raise OutputError(
                f"can't create the paging file in {self.folder}: {error.strerror}; name a folder that exists "
                "and is writable (--workdir, TMPDIR)"
            ) from error
        except OSError as error:
            raise self._failure("can't create the paging file", error) from error
        try:
            self._claim()
        except OSError as error:
            self.close()
            raise self._failure(f"can't claim {self.nbytes:,} B for the paging file", error) from error

    def choose(self, name: str, rows: Sequence[int], row_bytes: int) -> None:
        """Map a tensor to these rows of the table in its slot, until other rows are chosen."""
        self._selected_rows[name] = tuple(rows), row_bytes

    def choose_all(self, name: str) -> None:
        """Map a tensor to its whole slot, until rows are chosen."""
        self._selected_rows.pop(name, None)

    def zeros(self, names: Iterable[str]) -> None:
        """Read these tensors as zeros, without a transfer, until other names are set."""
        self._zero_names = frozenset(names)

    def write(self, name: str, source: Bytes) -> None:
        """Copy a tensor's bytes to its slot."""
        if name in self._selected_rows:
            self._move_rows(name, source, self._write_at)
            return
        self._slice_checksums.pop(name, None)
        position, checksum = self._slots[name], 0
        try:
            for piece in pieces(source):
                self._write_at(position, piece)
                position, checksum = position + piece.size, zlib.crc32(piece.data, checksum)
            self._checksums[name] = checksum
        except OSError as error:
            raise self._failure(f"can't page out {name!r}", error) from error

    def _move_rows(self, name: str, array: Bytes, move: Callable[[int, Bytes], None]) -> None:
        rows, row_bytes = self._selected_rows[name]
        try:
            for k, row in enumerate(rows):
                move(self._slots[name] + row * row_bytes, array[k * row_bytes : (k + 1) * row_bytes])
        except OSError as error:
            raise self._failure(f"can't move rows of {name!r}", error) from error

    def _write_at(self, position: int, source: Bytes) -> None:
        self.file.seek(position)
        write_all(self.file, source.data)

    def _read_at(self, position: int, target: Bytes, what: str = "") -> None:
        self.file.seek(position)
        remaining = target.data
        while remaining:
            count = self.file.readinto(remaining)
            if not count:
                raise ExecutionError(
                    f"{what}the paging file in {self.folder} ends {len(remaining):,} B too early; "
                    "another program has truncated it"
                )
            remaining = remaining[count:]

    def read(self, name: str, target: Bytes) -> None:
        """Copy a tensor's bytes back from its slot, and check that they are those that were written."""
        if name in self._zero_names:
            target.fill(0)
            return
        if name in self._selected_rows:
            target.fill(0)  # the target has room for the most rows that a batch may use
            self._move_rows(name, target, self._read_at)
            return
        try:
            self._read_at(self._slots[name], target, f"can't page in {name!r}: ")
        except OSError as error:
            raise self._failure(f"can't page in {name!r}", error) from error
        if name not in self._slice_checksums:
            self._check(name, zlib.crc32(target.data), self._checksums.get(name))
        for window, checksum in self._slice_checksums.get(name, {}).items():
            self._check(name, _crc(pieces_of(target, window)), checksum)

    def pieces(self, name: str, nbytes: int) -> Iterator[Bytes]:
        """Yield a tensor's bytes in order, unchecked; each piece overwrites the one before."""
        buffer = np.empty(min(PIECE, nbytes), np.uint8)
        try:
            for start in range(0, nbytes, PIECE):
                piece = buffer[: nbytes - start]
                self._read_at(self._slots[name] + start, piece)
                yield piece
        except OSError as error:
            raise self._failure(f"can't read {name!r}", error) from error

    def write_slice(self, name: str, window: SliceWindow, source: Bytes) -> None:
        """Copy a slice, whose pieces lie side by side in `source`, to its place in a tensor's slot."""
        checksums = self._slice_checksums.setdefault(name, {})
        if not window.start and window not in checksums:
            checksums.clear()  # the tensor was sliced differently, and is now written again from its first slice
        checksums[window] = zlib.crc32(source.data)
        self._move_pieces(name, window, source, self._write_at)

    def read_slice(self, name: str, window: SliceWindow, target: Bytes) -> None:
        """Copy a slice from a tensor's slot, and check it where the same slice was written."""
        if name in self._zero_names:
            target.fill(0)
            return
        self._move_pieces(name, window, target, self._read_at)
        checksums = self._slice_checksums.get(name, {})
        if window in checksums:
            self._check(name, zlib.crc32(target.data), checksums[window])

    def read_rows(self, name: str, ids: NDArray[np.int64], nbytes: int, target: NDArray[np.uint8]) -> None:
        """Copy rows of a table of `nbytes` bytes, each to a row of `target`; negative numbers count from the end."""
        size = target.shape[1]
        try:
            for k, row in enumerate(ids.reshape(-1).tolist()):
                self._read_at(self._slots[name] + row * size + (nbytes if row < 0 else 0), target[k])
        except OSError as error:
            raise self._failure(f"can't read rows of {name!r}", error) from error

    def _move_pieces(self, name: str, window: SliceWindow, array: Bytes, move: Callable[[int, Bytes], None]) -> None:
        start, size = self._slots[name] + window.start, window.nbytes
        try:
            for k in range(window.pieces):
                move(start + k * window.apart, array[k * size : (k + 1) * size])
        except OSError as error:
            raise self._failure(f"can't move a slice of {name!r}", error) from error

    def _check(self, name: str, checksum: int, written: int | None) -> None:
        if checksum != written:
            raise ExecutionError(
                f"{name!r} changed in the paging file in {self.folder} (its CRC-32 differs); check that storage, or "
                "name another folder"
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
            f"{what} in {self.folder}: {error.strerror or error}; free space and check permissions there, or name "
            "another folder"
        )


def pieces_of(tensor_bytes: Bytes, window: SliceWindow) -> NDArray[np.uint8]:
    """Return the bytes of a slice as a view of its tensor's bytes, one row for each piece."""
    if window.pieces == 1:
        return tensor_bytes[window.start : window.start + window.nbytes].reshape(1, -1)
    strided = tensor_bytes[: window.pieces * window.apart].reshape(window.pieces, window.apart)
    return strided[:, window.start : window.start + window.nbytes]


def _crc(pieces: NDArray[np.uint8]) -> int:
    checksum = 0
    for piece in pieces:
        checksum = zlib.crc32(piece.data, checksum)
    return checksum


def put_rows(
    target: NDArray[np.uint8],
    data: NDArray[np.uint8],
    ids: NDArray[np.int64],
    rows: NDArray[np.uint8],
    begin: int,
    count: int,
) -> None:
    """Write `data` to `made`, with those of `rows` that belong there.

    `data` is a slice of a table of `count` rows that starts at row `begin`.
    """
    np.copyto(target, data)
    for k, row in enumerate(ids.reshape(-1).tolist()):
        index = row + (count if row < 0 else 0) - begin
        if 0 <= index < len(target):
            target[index] = rows[k]
