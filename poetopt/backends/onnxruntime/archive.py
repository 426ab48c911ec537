"""An `.npz` file from an untrusted source: members are read on access, and no others.

A member's header is checked before its data is read: a kilobyte of zip can hold gigabytes of zeros, and a header of a
hundred bytes any shape.
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
"""Exceptions of zipfile and numpy for an archive that is damaged, encrypted, or compressed by an unknown method."""
_READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
"""Readers of a header, by the version of numpy's format."""


class Header(NamedTuple):
    """Shape, type and order of a member, by its header."""

    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    order: Literal["C", "F"]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


class Archive(Mapping[str, "Array"]):
    """Arrays of an open `.npz` file by name. Raise `ModelError` where one can't be read."""

    def __init__(self, shown: str, archive: zipfile.ZipFile) -> None:
        self._shown, self._archive = shown, archive
        self._members: dict[str, zipfile.ZipInfo] = {}
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            if name in self._members:
                raise ModelError(f"{shown} is no .npz file of plain arrays: it has {name!r} twice; write it again")
            self._members[name] = member

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, name: object) -> bool:
        return name in self._members

    def header(self, name: str) -> Header:
        """Return shape and type, without the data."""
        with self._open_member(name) as file:
            return self._header(name, file)

    def __getitem__(self, name: str) -> Array:
        with self._open_member(name) as file:
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
        """Yield the bytes of an array, in its order, piece by piece."""
        with self._open_member(name) as file:
            yield from _parts(name, self._header(name, file), file)

    def start(self, name: str) -> int | None:
        """Return the position in the file of an array's first byte; None where the array is compressed."""
        member = self._members[name]
        if member.compress_type != zipfile.ZIP_STORED:
            return None
        with self._open_member(name) as file:
            self._header(name, file)
            raw = self._archive.fp
            if raw is None:
                return None
            within = file.tell()
            raw.seek(member.header_offset)
            names, extra = struct.unpack("<HH", raw.read(30)[26:])
            return member.header_offset + 30 + int(names) + int(extra) + within

    @contextmanager
    def _open_member(self, name: str) -> Iterator[IO[bytes]]:
        with _explained(self._shown), self._archive.open(self._members[name]) as file:
            yield file

    def _header(self, name: str, file: IO[bytes]) -> Header:
        header = _header_of(repr(name), file, self._members[name].file_size)
        if self._members[name].compress_type != zipfile.ZIP_STORED:
            _check_size(name, header)
        return header


def _header_of(what: str, file: IO[bytes], file_bytes: int) -> Header:
    """Return the header at the start of a file of `room` bytes."""
    version = np.lib.format.read_magic(file)
    if version not in _READERS:
        raise ValueError(f"{what} is of version {version} of numpy's format")
    shape, fortran, dtype = _READERS[version](file)
    header = Header(tuple(int(n) for n in shape), dtype, "F" if fortran else "C")
    if dtype.hasobject:
        raise ValueError(f"{what} has Python objects, which could run any code")
    if any(n < 0 for n in header.shape):
        raise ValueError(f"{what} has the shape {list(header.shape)}")
    if header.nbytes > file_bytes:
        raise ValueError(f"{what} is too short for its shape {list(header.shape)}")
    return header


def array_in(path: str | os.PathLike[str]) -> tuple[Header, int]:
    """Return header and first byte of the array in an `.npy` file. Raise `ModelError` where it can't be read."""
    shown = os.fspath(path)
    with _explained(shown, "array that numpy.save wrote"), open_regular(path) as file:
        header = _header_of("it", file, os.fstat(file.fileno()).st_size)
        if header.nbytes > os.fstat(file.fileno()).st_size - file.tell():
            raise ValueError(f"it is too short for its shape {list(header.shape)}")
        return header, file.tell()


def _check_size(name: str, header: Header) -> None:
    """Raise `ValueError` for an array that would take more memory, or more bytes unpacked, than is allowed."""
    limit = allowed(ARRAY_BYTES)
    if header.nbytes > limit:
        raise ValueError(
            f"{name!r} has {show_bytes(header.nbytes)}, and at most {show_bytes(limit)} are read "
            "(poetopt --max-file-size SIZE COMMAND allows more)"
        )


def _parts(name: str, header: Header, file: IO[bytes]) -> Iterator[bytes]:
    remaining = header.nbytes
    while remaining:
        part = file.read(min(2**20, remaining))
        if not part:
            raise ValueError(f"{name!r} is cut off")
        remaining -= len(part)
        yield part
    if file.read(1):
        raise ValueError(f"{name!r} has more data than its shape {list(header.shape)}")


@contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[Archive]:
    """Open an `.npz` file. Raise `ModelError` where it can't be read as one."""
    shown = os.fspath(path)
    with _explained(shown), open_regular(path) as file:
        if not _is_archive(file):
            raise ModelError(f"{shown} is no .npz file; write one with numpy.savez(path, **arrays)")
        with zipfile.ZipFile(file) as archive:
            yield Archive(shown, archive)


@contextmanager
def _explained(shown: str, kind: str = ".npz file of plain arrays") -> Iterator[None]:
    """Turn errors into a `ModelError` that names the file."""
    try:
        yield
    except OSError as error:
        if isinstance(error, PoetError):
            raise
        reason = "it is a folder, and an .npz file is needed" if os.path.isdir(shown) else error.strerror
        raise ModelError(f"can't read {shown}: {reason or error}; numpy.savez writes one") from error
    except _DAMAGED as error:
        if isinstance(error, ModelError):
            raise
        reason = str(error) or "it doesn't fit into memory"
        raise ModelError(f"{shown} is no {kind}: {reason}; write it again") from error


def _is_archive(file: IO[bytes]) -> bool:
    """Return whether the file ends as a zip file does, with a list of members of sensible length."""
    end = file.seek(0, os.SEEK_END)
    begin = max(0, end - _TRAILER - _LARGEST_COMMENT)
    file.seek(begin)
    tail = file.read(_TRAILER + _LARGEST_COMMENT)
    file.seek(0)
    at = tail.rfind(b"PK\x05\x06")
    if at < 0 or len(tail) - at < _TRAILER:
        return False
    (directory_bytes,) = struct.unpack_from("<L", tail, at + 12)
    # zipfile reads the whole list of members; 8 MiB are about a hundred thousand of them
    if directory_bytes > 2**23:
        raise ValueError("it lists more than a hundred thousand members")
    return True
