"""One input's rows: in memory, or in an open file, of which only those asked for are read."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol

import numpy as np

from poetopt.errors import ModelError, OutputError
from poetopt.files import write_all

if TYPE_CHECKING:
    from poetopt.graph import Array


class Column(Protocol):
    """Rows of one shape and type."""

    @property
    def rows(self) -> int:
        """How many."""

    def take(self, rows: Array) -> Array:
        """These rows, in this order."""


@dataclass(frozen=True)
class InMemory:
    """Rows of an array."""

    array: Array

    @property
    def rows(self) -> int:
        return len(self.array)

    def take(self, rows: Array) -> Array:
        found: Array = self.array[rows]
        return found


@dataclass(frozen=True)
class InFile:
    """Rows in a file, one after the other from the byte `start` on.

    path
        Where the file is; it is opened for each batch. Where `file` is given, what messages call it.
    shape
        Of a row.
    file
        An open file without a name, which other columns may share.
    """

    path: str
    start: int
    rows: int
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    file: IO[bytes] | None = None

    def take(self, rows: Array) -> Array:
        found = np.empty((len(rows), *self.shape), self.dtype)
        row_bytes = found.nbytes // max(1, len(rows))
        if not row_bytes:
            return found
        flat = found.reshape(-1).view(np.uint8)
        try:
            if self.file is not None:
                self._read(self.file, rows, row_bytes, flat)
            else:
                with open(self.path, "rb", buffering=0) as file:
                    self._read(file, rows, row_bytes, flat)
        except OSError as error:
            raise ModelError(f"can't read {self.path}: {error.strerror or error}") from error
        return found

    def _read(
        self, file: IO[bytes], rows: Array, row_bytes: int, flat: np.ndarray[tuple[int], np.dtype[np.uint8]]
    ) -> None:
        done = 0
        for first, count in runs(rows.tolist()):
            file.seek(self.start + first * row_bytes)
            left = flat[done * row_bytes : (done + count) * row_bytes].data
            done += count
            while left:
                got = file.readinto(left)  # type: ignore[attr-defined]
                if not got:
                    raise ModelError(f"{self.path} is shorter than when training began; something else has changed it")
                left = left[got:]


def runs(rows: Sequence[int]) -> Iterator[tuple[int, int]]:
    """First row and length of each run of consecutive ones."""
    start = 0
    for k in range(1, len(rows) + 1):
        if k == len(rows) or rows[k] != rows[k - 1] + 1:
            yield rows[start], k - start
            start = k


def unpacked(parts: Iterable[bytes], shown: str, workdir: Path | None, file: IO[bytes] | None = None) -> IO[bytes]:
    """A file without a name, or the end of `file`, that holds `parts`. Raises OutputError where there is no room."""
    folder = Path(tempfile.gettempdir() if workdir is None else workdir)
    try:
        if file is None:
            file = tempfile.TemporaryFile(prefix="poetopt-", dir=folder, buffering=0)  # noqa: SIM115
        file.seek(0, os.SEEK_END)
        for part in parts:
            write_all(file, part)
    except OSError as error:
        raise OutputError(
            f"can't unpack {shown} into {folder}: {error.strerror or os.strerror(error.errno or 0)}; make room there, "
            "or name another folder with --workdir"
        ) from error
    return file
