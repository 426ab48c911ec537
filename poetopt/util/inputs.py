"""What is read: regular files and pipes, and of each no more than is sensible.

What a user names may be a pipe or `/dev/stdin`. What a *file* names (the model of a plan) must be a regular file: a
pipe would hang, and a device never ends. Refusals are OSErrors, so that they are told as any file that can't be read.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from typing import IO

from poetopt.util.units import parse_size, show_bytes

ENVIRONMENT = "POETOPT_MAX_FILE_SIZE"
"""Where `--max-file-size` stands, for workers and for Python."""

TABLE_BYTES = 2**24
"""Devices, profiles, sweeps and tables of measurements."""
PLAN_BYTES = 2**27
"""Plans and problem files; reading JSON takes ten times its size."""
STREAM_BYTES = 2**29
"""A model from a pipe, which can be read but once."""
MODEL_BYTES = 2**31
"""A model: no protobuf is larger."""
ARRAY_BYTES = 2**31
"""An array of an .npz file whose length nothing else says: a data set."""
_CHUNK = 2**20


def allowed(most: int) -> int:
    """`most`, or what the user allows where that is more. Raises OptionError."""
    asked = os.environ.get(ENVIRONMENT)
    return max(most, parse_size(asked, option="--max-file-size")) if asked else most


def allow(size: str) -> None:
    """Read files up to `size` from now on, in the processes that this one starts, too. Raises OptionError."""
    parse_size(size, option="--max-file-size")
    os.environ[ENVIRONMENT] = size


def is_regular(path: str | os.PathLike[str]) -> bool:
    """Whether a regular file is there, or a link to one."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False


def is_special(path: str | os.PathLike[str]) -> bool:
    """Whether a pipe, a device or a socket is there: neither a file nor a folder."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def open_regular(path: str | os.PathLike[str]) -> IO[bytes]:
    """Open what a file or a folder names. Raises OSError for all but a regular file, without waiting for a writer."""

    def opener(name: str, flags: int) -> int:
        return os.open(name, flags | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0))

    if is_special(path):
        raise _refusal(path, "it is a pipe or a device; only a regular file is read here")
    file = _opened(path, opener)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise _refusal(path, "it is no regular file")
    return file


def read_bytes(path: str | os.PathLike[str], most: int, *, named_by_file: bool = False) -> bytes:
    """All of a file, or of a stream, up to its end.

    most
        Bytes, unless the user allows more.

    Raises OSError where it can't be read, goes on after that many bytes, or must be a regular file and isn't one.
    """
    most = allowed(most)
    with open_regular(path) if named_by_file else _opened(path, None) as file:
        status = os.fstat(file.fileno())
        size = status.st_size if stat.S_ISREG(status.st_mode) else 0
        if size > most:
            raise _refusal(path, f"it has {show_bytes(size)}, {_advice(most)}")
        parts = [file.read(size + 1)]
        read = len(parts[0])
        while parts[-1]:
            if read > most:
                raise _refusal(path, f"it goes on and on, {_advice(most)}")
            parts.append(file.read(_CHUNK))
            read += len(parts[-1])
    return b"".join(parts) if len(parts) > 2 else parts[0]


def read_text(path: str | os.PathLike[str], most: int, *, encoding: str = "utf-8", named_by_file: bool = False) -> str:
    """As `read_bytes`, with line ends as Python has them. Raises UnicodeDecodeError for what is no text."""
    text = read_bytes(path, most, named_by_file=named_by_file).decode(encoding)
    return text.replace("\r\n", "\n").replace("\r", "\n")


def parse_toml(text: str) -> dict[str, object]:
    """The table of a TOML text. Raises ValueError, which says what is wrong with it."""
    import tomllib

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except ValueError as error:  # Python's own limit on the digits of a number
        raise ValueError("it holds a number of thousands of digits") from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def digest(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a regular file. Raises OSError."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type,unused-ignore]


def _opened(path: str | os.PathLike[str], opener: object) -> IO[bytes]:
    try:
        return open(path, "rb", opener=opener)  # type: ignore[call-overload,no-any-return]
    except ValueError as error:
        raise _refusal(path, "no path has a NUL in it") from error


def _advice(most: int) -> str:
    return f"and at most {show_bytes(most)} are read (poetopt --max-file-size SIZE COMMAND allows more)"


def _refusal(path: str | os.PathLike[str], reason: str) -> OSError:
    return OSError(errno.EINVAL, reason, os.fspath(path))
