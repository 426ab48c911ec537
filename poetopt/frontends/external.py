"""External data: the file beside the model that holds a tensor's bytes, opened so that it can't be another one.

A model file names it, so whoever wrote the model could name any file: a path that leaves the model's folder, a link to
a secret, a pipe that never ends. What is opened is judged afterwards, by the real path of the open file, so that
exchanging the path in between is of no use.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

from poetopt.util.errors import ModelError
from poetopt.util.files import open_regular
from poetopt.util.numbers import read_whole

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from onnx import TensorProto


def place_of(what: str, proto: TensorProto) -> tuple[str, int, int | None]:
    """The file of external data beside the model, where it begins, and its bytes, where they are said.

    Raises `ModelError`, beginning with `what`, for what is no such place.
    """
    entries: Mapping[str, str] = {entry.key: entry.value for entry in proto.external_data}
    location, offset, length = (entries.get(key, "") for key in ("location", "offset", "length"))
    _check_place(what, location)
    try:
        start, nbytes = read_whole(offset or 0), read_whole(length or 0)
    except ValueError as error:
        raise ModelError(f"{what}: offset or length of its external data is not a number") from error
    if start < 0 or nbytes < 0:
        raise ModelError(f"{what}: external data of {nbytes} bytes at offset {start}, which can't be; export it again")
    return location, start, nbytes or None


@contextmanager
def opened(what: str, folder: Path, location: str, *, allow_symlinks: bool) -> Iterator[IO[bytes]]:
    """The file `location` of the model's `folder`, open for reading.

    folder
        As `real_folder` gave it before the model file was read: a folder that is exchanged since then is another one.

    Raises `ModelError`, beginning with `what`, for a path that isn't one beside the model, for what is no regular file,
    and, unless `allow_symlinks`, for a file that isn't in the folder once all links are followed.
    """
    _check_place(what, location)
    path = folder / location
    try:
        file = open_regular(path)
    except FileNotFoundError as error:
        raise ModelError(f"{what}: external data file {str(path)!r} is missing; put it beside the model") from error
    except OSError as error:
        if not path.is_file():
            raise ModelError(
                f"{what}: external data at {str(path)!r} is no file; put the file beside the model"
            ) from error
        raise ModelError(f"{what}: external data file {str(path)!r} can't be read ({error.strerror})") from error
    with file:
        if not allow_symlinks and not _lies_in(folder, path, file.fileno()):
            raise ModelError(
                f"{what}: external data at {location!r} is a symbolic link out of the model's folder; copy the file "
                "there, or read it all the same with --with allow-symlinks (caches, as Hugging Face's, keep files so)"
            )
        yield file


def _check_place(what: str, location: str) -> None:
    """Raise `ModelError`, beginning with `what`, for a path that isn't one beside the model."""
    relative = Path(location)
    if not location or "\0" in location or relative.is_absolute() or ".." in relative.parts:
        raise ModelError(f"{what}: external data at {location!r} is not a path beside the model, which ONNX requires")


def _lies_in(folder: Path, path: Path, descriptor: int) -> bool:
    """Says whether the open file, found at `path`, is in `folder` by its real path."""
    real = _path_of(descriptor)
    if real is not None:
        return Path(real).is_relative_to(folder)
    # The path is followed again; only what leads to the very file that is open counts.
    real = os.path.realpath(path)
    try:
        same = os.path.samestat(os.stat(real, follow_symlinks=False), os.fstat(descriptor))
    except OSError:
        return False
    return same and Path(real).is_relative_to(folder)


def real_folder(folder: Path) -> Path:
    """Finds where a folder really is, as `_path_of` writes it: perhaps in other letters than the path was given in."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            return Path(_path_of(descriptor) or os.path.realpath(folder))
        finally:
            os.close(descriptor)
    return Path(os.path.realpath(folder))


def _path_of(descriptor: int) -> str | None:
    """The real path of an open file, where the system tells it."""
    if sys.platform == "darwin":
        import fcntl

        with suppress(OSError, AttributeError):
            return os.fsdecode(fcntl.fcntl(descriptor, fcntl.F_GETPATH, b"\0" * 1024).rstrip(b"\0"))
    with suppress(OSError):
        found = os.readlink(f"/proc/self/fd/{descriptor}")
        if os.path.isabs(found):
            return found
    return None
