"""Write outputs atomically, read inputs with limits, and clean up temporary folders.

Outputs are written to a file beside the target and renamed, so that no partial output is ever visible.

Inputs are regular files and pipes, with a limit of bytes. A path from the user may be a pipe or `/dev/stdin`. A path in
a *file* (the model of a plan) must be a regular file: a pipe would hang, and a device never ends. Refusals are
OSErrors, so that callers handle them like any unreadable file.

Temporary folders of a killed process are removed by the next process that needs one. A living process holds a lock in
its folder, which the system releases however the process ends. Process ids wouldn't identify a process in another
container that shares the folder.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import itertools
import os
import re
import shutil
import stat
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from poetopt.util.errors import OutputError, PoetError
from poetopt.util.units import parse_size, show_bytes

LEFTOVER = re.compile(r"\.poetopt-([1-9]\d*)-\d+(l?)(\..*)?$")
"""Name of a temporary file: the process id, and whether that process locks it while it lives."""
LEFT_S = 24 * 3600
"""Age in seconds after which an unlocked temporary file is removed."""


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield an empty temporary file beside `path`, with its suffix, that replaces `path` if the body succeeds.

    This is for libraries that write files by name; with bytes in memory, `write_atomically` is simpler. If `path` is a
    device or a pipe, which a rename would destroy, the body writes to it directly. If it is a symbolic link, the target
    is replaced.

    Raises
    ------
    OutputError
        If the file can't be written, also for OSErrors of the body. Then the temporary file is removed, and `path`
        doesn't change.
    """
    shown = os.fspath(path)
    # The target of /dev/stdout may have no name: only links to regular files are followed.
    target = Path(os.path.realpath(shown)) if os.path.isfile(shown) or not os.path.exists(shown) else Path(shown)
    temporary: Path | None = None
    lock: int | None = None
    try:
        previous = _status(target)
        if previous is not None and stat.S_ISDIR(previous.st_mode):
            raise IsADirectoryError(None, "it is a directory")
        if previous is not None and not os.access(target, os.W_OK):
            raise PermissionError(None, "it exists and is not writable")
        if previous is not None and not stat.S_ISREG(previous.st_mode):
            yield target
            return
        _remove_leftovers(target.parent)
        temporary, lock = _create_beside(target)
        yield temporary
        _flush(temporary)
        if previous is not None:
            temporary.chmod(stat.S_IMODE(previous.st_mode))
        os.replace(temporary, target)
        temporary = None
    except OSError as error:
        if isinstance(error, OutputError):
            raise
        raise OutputError(f"can't write {shown}: {_explain(target, error)}") from error
    finally:
        if temporary is not None:
            with suppress(OSError):
                temporary.unlink()
        if lock is not None:
            os.close(lock)


def write_all(file: IO[bytes], data: bytes | memoryview) -> None:
    """Write all of `data` to an unbuffered file, which may accept less per call. Raise OSError if it accepts none."""
    remaining = memoryview(data)
    while remaining:
        remaining = remaining[file.write(remaining) :]


def _explain(target: Path, error: OSError) -> str:
    """Return why a file can't be written, and what to do."""
    if isinstance(error, FileNotFoundError) and not target.parent.exists():
        return f"there is no folder {target.parent}. Create it, or give another path"
    if isinstance(error, NotADirectoryError) or (target.parent.exists() and not target.parent.is_dir()):
        return f"{target.parent} is a file, not a folder. Give another path"
    if isinstance(error, IsADirectoryError):
        return "it is a folder. Give the path of a file"
    return f"{error.strerror or error}. Give another path, or free space and check permissions there"


def write_atomically(path: str | os.PathLike[str], data: bytes | str) -> None:
    """Write `data` (text as UTF-8) to `path`, completely or not at all.

    Raise OutputError if that fails (no such folder, no permission, no space).
    """
    content = data.encode("utf-8") if isinstance(data, str) else data
    with replacing(path) as temporary, open(temporary, "wb") as file:
        file.write(content)


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _create_beside(target: Path) -> tuple[Path, int | None]:
    """Create an empty file in the folder of `target`, with default permissions; return its path and its lock."""
    sign = "l"
    for attempt in itertools.count():
        candidate = target.parent / f".poetopt-{os.getpid()}-{attempt}{sign}{target.suffix}"
        try:
            descriptor = os.open(candidate, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        except FileExistsError:
            continue
        if not sign or lock_file(descriptor):
            return candidate, descriptor
        os.close(descriptor)
        candidate.unlink()
        sign = ""  # this file system has no locks
    raise AssertionError("unreachable: the counter has no end")


def _remove_leftovers(folder: Path) -> None:
    """Remove temporary files of killed processes.

    Processes of another host or container that shares the folder are invisible. So a file without a lock, by its name,
    is removed only if nobody has written to it for a day.
    """
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if (match := LEFTOVER.match(entry.name)) and not _alive(int(match[1])):
                with suppress(OSError):
                    is_old = time.time() - entry.stat(follow_symlinks=False).st_mtime > LEFT_S
                    if is_old or (match[2] and _unlocked(entry.path)):
                        os.unlink(entry.path)


def lock_file(descriptor: int) -> bool:
    """Lock an open file until the process ends; return whether that succeeded."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _unlocked(path: str) -> bool:
    descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        return lock_file(descriptor)
    finally:
        os.close(descriptor)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # a process of another user
        pass
    return True


def _flush(path: Path) -> None:
    """Wait until the content is on the disk: a full disk may report it only then."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raise OutputError if `replacing(path)` would; to be called before a long computation.

    It doesn't change `path`, and leaves no new file.
    """

    class Enough(Exception):  # noqa: N818 - a signal, not an error
        pass

    with suppress(Enough), replacing(path):
        raise Enough


def check_folder(path: str | os.PathLike[str]) -> None:
    """Raise OutputError if no file could be created in the folder `path`, which need not exist.

    It doesn't change `path`, and removes the folders that it creates for the check.
    """
    missing: list[Path] = []
    folder_path = Path(path)
    while not folder_path.exists() and folder_path != folder_path.parent:
        missing.append(folder_path)
        folder_path = folder_path.parent
    created: list[Path] = []
    try:
        for folder in reversed(missing):
            folder.mkdir()
            created.append(folder)
        file, lock = _create_beside(Path(path, "file"))
        file.unlink()
        if lock is not None:
            os.close(lock)
    except OSError as error:
        raise OutputError(
            f"can't write into the folder {os.fspath(path)}: {error.strerror or error}. Give another folder"
        ) from error
    finally:
        for folder in reversed(created):
            with suppress(OSError):
                folder.rmdir()


ENVIRONMENT = "POETOPT_MAX_FILE_SIZE"
"""Environment variable with the value of `--max-file-size`, for worker processes and for Python."""

TABLE_BYTES = 2**24
"""Limit of devices, profiles, sweeps and tables of measurements."""
PLAN_BYTES = 2**27
"""Limit of plans and problem files; reading JSON takes ten times its size."""
STREAM_BYTES = 2**29
"""Limit of a model from a pipe, which is held in memory."""
MODEL_BYTES = 2**31
"""Limit of a model: no protobuf is larger."""
ARRAY_BYTES = 2**31
"""Limit of a data set in an .npz file, whose length nothing else states."""


def allowed(most: int) -> int:
    """Return `most` bytes, or the user's limit if it is larger. Raise OptionError for an invalid limit."""
    text = os.environ.get(ENVIRONMENT)
    return max(most, parse_size(text, option="--max-file-size")) if text else most


def allow(size: str) -> None:
    """Raise the limit of files to `size`, also for child processes. Raise OptionError for an invalid size."""
    parse_size(size, option="--max-file-size")
    os.environ[ENVIRONMENT] = size


def is_regular(path: str | os.PathLike[str]) -> bool:
    """Return whether `path` is a regular file, or a link to one."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False


def is_special(path: str | os.PathLike[str]) -> bool:
    """Return whether `path` is a pipe, a device or a socket: neither a file nor a folder."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def open_regular(path: str | os.PathLike[str]) -> IO[bytes]:
    """Open a regular file. Raise OSError for anything else, without waiting for the writer of a pipe."""

    def opener(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NONBLOCK | os.O_NOCTTY)

    if is_special(path):
        raise _refusal(path, "it is a pipe or a device, not a regular file")
    file = _open(path, opener)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise _refusal(path, "it is not a regular file")
    return file


def read_bytes(path: str | os.PathLike[str], most: int, *, named_by_file: bool = False) -> bytes:
    """Return the content of a file or a pipe.

    Parameters
    ----------
    most
        Limit in bytes, unless the user allows more.
    named_by_file
        Whether the path comes from a file, so that it must be a regular file.

    Raises
    ------
    OSError
        If it can't be read, exceeds the limit, or must be a regular file and isn't one.
    """
    most = allowed(most)
    with open_regular(path) if named_by_file else _open(path, None) as file:
        status = os.fstat(file.fileno())
        size = status.st_size if stat.S_ISREG(status.st_mode) else 0
        if size > most:
            raise _refusal(path, f"it has {show_bytes(size)}, {_limit_text(most)}")
        parts = [file.read(size + 1)]
        read = len(parts[0])
        while parts[-1]:
            if read > most:
                raise _refusal(path, f"it doesn't end, {_limit_text(most)}")
            parts.append(file.read(2**20))
            read += len(parts[-1])
    return b"".join(parts) if len(parts) > 2 else parts[0]


def read_start(path: str | os.PathLike[str], nbytes: int) -> bytes:
    """Return at most the first `nbytes` bytes of a regular file. Raise OSError."""
    with open_regular(path) as file:
        return file.read(min(nbytes, os.fstat(file.fileno()).st_size))


def read_text(path: str | os.PathLike[str], most: int, *, encoding: str = "utf-8", named_by_file: bool = False) -> str:
    """Return the text of a file with Python's line ends, as `read_bytes`. Raise UnicodeDecodeError if it isn't text."""
    text = read_bytes(path, most, named_by_file=named_by_file).decode(encoding)
    return text.replace("\r\n", "\n").replace("\r", "\n")


def parse_toml(text: str) -> dict[str, object]:
    """Return the table of a TOML text. Raise ValueError with the problem."""
    import tomllib

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except ValueError as error:  # Python limits the digits of an integer
        raise ValueError("it has a number of thousands of digits") from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def digest(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a regular file. Raise OSError."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type,unused-ignore]


def _open(path: str | os.PathLike[str], opener: object) -> IO[bytes]:
    try:
        return open(path, "rb", opener=opener)  # type: ignore[call-overload,no-any-return]
    except ValueError as error:
        raise _refusal(path, "a path can't contain NUL") from error


def _limit_text(most: int) -> str:
    return f"and at most {show_bytes(most)} are read (poetopt --max-file-size SIZE COMMAND allows more)"


def _refusal(path: str | os.PathLike[str], reason: str) -> OSError:
    return OSError(errno.EINVAL, reason, os.fspath(path))


PREFIX = "poetopt-scratch-"
_LOCK = ".lock"


@contextmanager
def scratch_folder(purpose: str) -> Iterator[str]:
    """Yield a new folder in the system's temporary folder, and remove it after the block.

    Raise OutputError if it can't be created, or if the disk gets full in the block.
    """
    remove_abandoned()
    try:
        folder = tempfile.mkdtemp(prefix="poetopt-")
    except OSError as error:
        raise OutputError(
            f"can't create a temporary folder: {error.strerror or error}. Free space there, or set another one (TMPDIR)"
        ) from error
    descriptor = None
    try:
        descriptor = os.open(os.path.join(folder, _LOCK), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        if lock_file(descriptor):
            # This name marks a folder that may be removed once it isn't locked.
            marked = os.path.join(os.path.dirname(folder), f"{PREFIX}{purpose}-{os.path.basename(folder)[8:]}")
            os.rename(folder, marked)
            folder = marked
        yield folder
    except OSError as error:  # most don't name the file
        is_full = error.errno == errno.ENOSPC and os.statvfs(folder).f_bavail == 0
        if isinstance(error, PoetError) or not is_full:
            raise
        raise OutputError(
            f"the temporary folder {os.path.dirname(folder)} is full. Free space there, or set another one (TMPDIR)"
        ) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if descriptor is not None:
            os.close(descriptor)


def remove_abandoned() -> None:
    """Remove the temporary folders of this user's killed processes."""
    with suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            if entry.name.startswith(PREFIX) and entry.is_dir(follow_symlinks=False):
                with suppress(OSError):
                    if entry.stat(follow_symlinks=False).st_uid == os.getuid():
                        _remove_unlocked(Path(entry.path))


def _remove_unlocked(folder: Path) -> None:
    descriptor = os.open(folder / _LOCK, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if lock_file(descriptor):
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(descriptor)


class Closing(ABC):
    """Base of context managers that close themselves."""

    @abstractmethod
    def close(self) -> None:
        """Release the resources."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
