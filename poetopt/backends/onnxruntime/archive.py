"""An `.npz` file that anybody may have written: members are read when they are asked for, and no others.

What a member says of itself is checked first: a kilobyte of zip can hold gigabytes of zeros, and a header of a hundred
bytes any shape.
"""

from __future__ import annotations

import math
import os
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from poetopt.util.errors import ModelError, PoetError
from poetopt.util.files import ARRAY_BYTES, allowed, open_regular
from poetopt.util.units import show_bytes

if TYPE_CHECKING:
    from poetopt.graph import Array

_TRAILER = 22
"""Bytes of the record at a zip file's end, without its comment."""
_LARGEST_COMMENT = 2**16
_DAMAGED = (
    ValueError, EOFError, RuntimeError, NotImplementedError, MemoryError, OverflowError, SyntaxError,
    zipfile.BadZipFile, zlib.error, struct.error, tokenize.TokenError, UnicodeError, KeyError,
)  # fmt: skip
"""What zipfile and numpy raise where an archive is damaged, encrypted, or packed as neither can unpack."""
_READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
"""Readers of a header, by the version of numpy's format."""


class Header(NamedTuple):
    """Holds what a member says of itself."""

    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    order: Literal["C", "F"]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


class Archive(Mapping[str, "Array"]):
    """The arrays of an open `.npz` file by name. Raises ModelError where one can't be read."""

    def __init__(self, shown: str, archive: zipfile.ZipFile) -> None:
        self._shown, self._archive = shown, archive
        self._members: dict[str, zipfile.ZipInfo] = {}
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            if name in self._members:
                raise ModelError(f"{shown} is no .npz file of plain arrays: it holds {name!r} twice; write it again")
            self._members[name] = member

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, name: object) -> bool:
        return name in self._members

    def header(self, name: str) -> Header:
        """Shape and type, without the data."""
        with self._opened(name) as file:
            return self._header(name, file)

    def __getitem__(self, name: str) -> Array:
        with self._opened(name) as file:
            header = self._header(name, file)
            _check_size(name, header)
            data = np.empty(header.shape, header.dtype, order=header.order)
            flat = data.reshape(-1, order="A").view(np.uint8)
            done = 0
            for part in _parts(name, header, file):
                flat[done : done + len(part)] = np.frombuffer(part, np.uint8)
                done += len(part)
            return data

    def parts(self, name: str) -> Iterator[bytes]:
        """The bytes of an array, in its order, piece by piece."""
        with self._opened(name) as file:
            yield from _parts(name, self._header(name, file), file)

    def start(self, name: str) -> int | None:
        """Says where the bytes of an array begin in the file; None where they are compressed."""
        member = self._members[name]
        if member.compress_type != zipfile.ZIP_STORED:
            return None
        with self._opened(name) as file:
            self._header(name, file)
            raw = self._archive.fp
            if raw is None:
                return None
            within = file.tell()
            raw.seek(member.header_offset)
            names, extra = struct.unpack("<HH", raw.read(30)[26:])
            return member.header_offset + 30 + int(names) + int(extra) + within

    @contextmanager
    def _opened(self, name: str) -> Iterator[IO[bytes]]:
        with _explained(self._shown), self._archive.open(self._members[name]) as file:
            yield file

    def _header(self, name: str, file: IO[bytes]) -> Header:
        found = _header_of(repr(name), file, self._members[name].file_size)
        if self._members[name].compress_type != zipfile.ZIP_STORED:
            _check_size(name, found)
        return found


def _header_of(what: str, file: IO[bytes], room: int) -> Header:
    """The header that a file of so many bytes begins with."""
    version = np.lib.format.read_magic(file)
    if version not in _READERS:
        raise ValueError(f"{what} is of version {version} of numpy's format")
    shape, fortran, dtype = _READERS[version](file)
    found = Header(tuple(int(n) for n in shape), dtype, "F" if fortran else "C")
    if dtype.hasobject:
        raise ValueError(f"{what} holds Python objects, which could run anything")
    if any(n < 0 for n in found.shape):
        raise ValueError(f"{what} says that its shape is {list(found.shape)}")
    if found.nbytes > room:
        raise ValueError(f"{what} is too short for its shape {list(found.shape)}")
    return found


def array_in(path: str | os.PathLike[str]) -> tuple[Header, int]:
    """Header and first byte of the array in an `.npy` file. Raises ModelError where it can't be read as one."""
    shown = os.fspath(path)
    with _explained(shown, "array that numpy.save wrote"), open_regular(path) as file:
        found = _header_of("it", file, os.fstat(file.fileno()).st_size)
        if found.nbytes > os.fstat(file.fileno()).st_size - file.tell():
            raise ValueError(f"it is too short for its shape {list(found.shape)}")
        return found, file.tell()


def _check_size(name: str, header: Header) -> None:
    """Refuse what would take more memory, or more room unpacked, than is allowed."""
    most = allowed(ARRAY_BYTES)
    if header.nbytes > most:
        raise ValueError(
            f"{name!r} has {show_bytes(header.nbytes)}, and at most {show_bytes(most)} are read "
            "(poetopt --max-file-size SIZE COMMAND allows more)"
        )


def _parts(name: str, header: Header, file: IO[bytes]) -> Iterator[bytes]:
    left = header.nbytes
    while left:
        part = file.read(min(2**20, left))
        if not part:
            raise ValueError(f"{name!r} is cut off")
        left -= len(part)
        yield part
    if file.read(1):
        raise ValueError(f"{name!r} has more data than its shape {list(header.shape)}")


@contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[Archive]:
    """Open an `.npz` file. Raises ModelError where it can't be read as one."""
    shown = os.fspath(path)
    with _explained(shown), open_regular(path) as file:
        if not _is_archive(file):
            raise ModelError(f"{shown} is no .npz file; write one with numpy.savez(path, **arrays)")
        with zipfile.ZipFile(file) as archive:
            yield Archive(shown, archive)


@contextmanager
def _explained(shown: str, kind: str = ".npz file of plain arrays") -> Iterator[None]:
    """Have what goes wrong be a ModelError of the file."""
    try:
        yield
    except OSError as error:
        if isinstance(error, PoetError):
            raise
        what = "it is a folder; give the .npz file" if os.path.isdir(shown) else error.strerror
        raise ModelError(f"can't read {shown}: {what or error}; numpy.savez writes one") from error
    except _DAMAGED as error:
        if isinstance(error, ModelError):
            raise
        what = str(error) or "there is too little memory for it"
        raise ModelError(f"{shown} is no {kind}: {what}; write it again") from error


def _is_archive(file: IO[bytes]) -> bool:
    """Says whether it ends as a zip file does, with a list of members of sensible length."""
    end = file.seek(0, os.SEEK_END)
    begin = max(0, end - _TRAILER - _LARGEST_COMMENT)
    file.seek(begin)
    tail = file.read(_TRAILER + _LARGEST_COMMENT)
    file.seek(0)
    at = tail.rfind(b"PK\x05\x06")
    if at < 0 or len(tail) - at < _TRAILER:
        return False
    (directory_bytes,) = struct.unpack_from("<L", tail, at + 12)
    # a zip file's list of members is read whole: this is a hundred thousand of them
    if directory_bytes > 2**23:
        raise ValueError("it says that it has more than a hundred thousand members")
    return True
