"""External data: open the file beside the model that holds a tensor's bytes, and no other file.

The model file names it, so the model's author could name any file: a path that leaves the model's folder, a link to
a secret, a pipe that never ends. The check comes after opening, on the real path of the open file. So replacing the
path in between has no effect.
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
    """Return the file of external data beside the model, the offset in bytes, and the length in bytes if stated.

    Raises
    ------
    ModelError
        For a path that isn't beside the model, or an invalid offset or length. The message begins with `what`.
    """
    entries: Mapping[str, str] = {entry.key: entry.value for entry in proto.external_data}
    location, offset, length = (entries.get(key, "") for key in ("location", "offset", "length"))
    _check_place(what, location)
    try:
        start, nbytes = read_whole(offset or 0), read_whole(length or 0)
    except ValueError as error:
        raise ModelError(f"{what}: offset or length of its external data is not a number. Export it again") from error
    if start < 0 or nbytes < 0:
        raise ModelError(f"{what}: {nbytes} bytes of external data at offset {start} can't exist. Export it again")
    return location, start, nbytes or None


@contextmanager
def opened(what: str, folder: Path, location: str, *, allow_symlinks: bool) -> Iterator[IO[bytes]]:
    """Open the file `location` of the model's `folder` for reading.

    Parameters
    ----------
    folder
        Result of `real_folder` before the model file was read: a folder that was replaced since then is refused.

    Raises
    ------
    ModelError
        For a path that isn't beside the model, for anything but a regular file, and, unless `allow_symlinks`, for a
        file outside the folder once all links are followed. The message begins with `what`.
    """
    _check_place(what, location)
    path = folder / location
    try:
        file = open_regular(path)
    except FileNotFoundError as error:
        raise ModelError(f"{what}: external data file {str(path)!r} is missing. Put it beside the model") from error
    except OSError as error:
        if not path.is_file():
            raise ModelError(
                f"{what}: external data at {str(path)!r} is not a file. Put the file beside the model"
            ) from error
        raise ModelError(f"{what}: external data file {str(path)!r} can't be read ({error.strerror})") from error
    with file:
        if not allow_symlinks and not _lies_in(folder, path, file.fileno()):
            raise ModelError(
                f"{what}: external data at {location!r} is a symbolic link out of the model's folder. Copy the file "
                "there, or allow such links with --allow-symlinks (caches such as Hugging Face's use them)"
            )
        yield file


def _check_place(what: str, location: str) -> None:
    """Raise `ModelError`, beginning with `what`, for a path that isn't beside the model."""
    relative = Path(location)
    if not location or "\0" in location or relative.is_absolute() or ".." in relative.parts:
        raise ModelError(f"{what}: external data at {location!r} is not a path beside the model. Export it again")


def _lies_in(folder: Path, path: Path, descriptor: int) -> bool:
    """Return whether the real path of the open file, found at `path`, is in `folder`."""
    real = _path_of(descriptor)
    if real is not None:
        return Path(real).is_relative_to(folder)
    # The path may have changed since: it counts only if it still leads to the open file.
    real = os.path.realpath(path)
    try:
        same = os.path.samestat(os.stat(real, follow_symlinks=False), os.fstat(descriptor))
    except OSError:
        return False
    return same and Path(real).is_relative_to(folder)


def real_folder(folder: Path) -> Path:
    """Return the real path of a folder, spelled as `_path_of` spells it (on macOS, letter case may differ)."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            return Path(_path_of(descriptor) or os.path.realpath(folder))
        finally:
            os.close(descriptor)
    return Path(os.path.realpath(folder))


def _path_of(descriptor: int) -> str | None:
    """Return the real path of an open file, or None if the system doesn't provide it."""
    if sys.platform == "darwin":
        import fcntl

        with suppress(OSError, AttributeError):
            return os.fsdecode(fcntl.fcntl(descriptor, fcntl.F_GETPATH, b"\0" * 1024).rstrip(b"\0"))
    with suppress(OSError):
        real = os.readlink(f"/proc/self/fd/{descriptor}")
        if os.path.isabs(real):
            return real
    return None
