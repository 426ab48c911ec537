"""Writing outputs so that nobody ever finds half of one: write beside, then rename.

What is read: regular files and pipes, and of each no more than is sensible.

What a user names may be a pipe or `/dev/stdin`. What a *file* names (the model of a plan) must be a regular file: a
pipe would hang, and a device never ends. Refusals are OSErrors, so that they are told as any file that can't be read.

Temporary folders that don't outlive a process that was killed: the next one that needs such a folder removes them.

A living process holds a lock in its folder, which the system lets go of however the process ends; process numbers would
say nothing of one in another container that shares the folder.
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
"""A temporary file: whose, and whether that process holds a lock on it while it lives."""
LEFT_S = 24 * 3600


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary file beside `path`, with its suffix, that takes its place when the body ends well.

    For libraries that write files by name; `write_atomically` is simpler where the bytes are at hand.
    The temporary file exists and is empty at the start. Where `path` is a device or a pipe, which a
    rename would destroy, the body writes to it directly. A symbolic link stays, its target is replaced.

    Raises OutputError where the file can't be written (the body's own OSErrors included); then the
    temporary file is gone and what was at `path` before is untouched.
    """
    shown = os.fspath(path)
    # What /dev/stdout leads to may have no name of its own: only regular files are followed.
    target = Path(os.path.realpath(shown)) if os.path.isfile(shown) or not os.path.exists(shown) else Path(shown)
    beside: Path | None = None
    lock: int | None = None
    try:
        before = _status(target)
        if before is not None and stat.S_ISDIR(before.st_mode):
            raise IsADirectoryError(None, "it is a directory")
        if before is not None and not os.access(target, os.W_OK):
            raise PermissionError(None, "it exists and is not writable")
        if before is not None and not stat.S_ISREG(before.st_mode):
            yield target
            return
        _remove_leftovers(target.parent)
        beside, lock = _fresh_file(target)
        yield beside
        _flush(beside)
        if before is not None:
            beside.chmod(stat.S_IMODE(before.st_mode))
        os.replace(beside, target)
        beside = None
    except OSError as error:
        if isinstance(error, OutputError):
            raise
        raise OutputError(f"can't write {shown}: {_remedy(target, error)}") from error
    finally:
        if beside is not None:
            with suppress(OSError):
                beside.unlink()
        if lock is not None:
            os.close(lock)


def write_all(file: IO[bytes], data: bytes | memoryview) -> None:
    """Write all of `data` to an unbuffered file, which may take less at a time. Raises OSError where it takes none."""
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]


def _remedy(target: Path, error: OSError) -> str:
    """Why a file can't be written, and what helps."""
    if isinstance(error, FileNotFoundError) and not target.parent.exists():
        return f"there is no folder {target.parent}; make it, or give another path"
    if isinstance(error, NotADirectoryError) or (target.parent.exists() and not target.parent.is_dir()):
        return f"{target.parent} is a file, no folder; give another path"
    if isinstance(error, IsADirectoryError):
        return "it is a folder; give the path of a file"
    return f"{error.strerror or error}; give another path, or make room and rights there"


def write_atomically(path: str | os.PathLike[str], data: bytes | str) -> None:
    """Write `data` (text as UTF-8) to `path`, whole or not at all.

    Raises OutputError where that can't be done (no such folder, no rights, no room).
    """
    content = data.encode("utf-8") if isinstance(data, str) else data
    with replacing(path) as place, open(place, "wb") as file:
        file.write(content)


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _fresh_file(target: Path) -> tuple[Path, int | None]:
    """An empty file with a name of its own in the folder of `target`, with the rights of any new file, and its lock."""
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
        sign = ""  # no locks here
    raise AssertionError("unreachable: the counter has no end")


def _remove_leftovers(folder: Path) -> None:
    """Remove temporary files of processes that were killed before they could.

    Another host or container that shares the folder has processes that can't be seen from here: what isn't locked by
    its writer, as its name says, is removed only where nobody has written to it for a day.
    """
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if (found := LEFTOVER.match(entry.name)) and not _alive(int(found[1])):
                with suppress(OSError):
                    old = time.time() - entry.stat(follow_symlinks=False).st_mtime > LEFT_S
                    if old or (found[2] and _unlocked(entry.path)):
                        os.unlink(entry.path)


def lock_file(descriptor: int) -> bool:
    """Take the lock on an open file, which the system lets go of with the process; False where that can't be had."""
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
    except PermissionError:  # another user's
        pass
    return True


def _flush(path: Path) -> None:
    """Wait until the content is on the disk: a full one may say so only now."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raise OutputError now if `replacing(path)` would: to be asked before a long computation.

    What is at `path` stays untouched, and nothing new is left there.
    """

    class Enough(Exception):  # noqa: N818 - a signal, not an error
        pass

    with suppress(Enough), replacing(path):
        raise Enough


def check_folder(path: str | os.PathLike[str]) -> None:
    """Raise OutputError now if no file could be made in the folder `path`, which need not be there yet.

    What is at `path` stays untouched, and nothing new is left there: folders that have to be made are made again.
    """
    missing: list[Path] = []
    place = Path(path)
    while not place.exists() and place != place.parent:
        missing.append(place)
        place = place.parent
    made: list[Path] = []
    try:
        for folder in reversed(missing):
            folder.mkdir()
            made.append(folder)
        file, lock = _fresh_file(Path(path, "file"))
        file.unlink()
        if lock is not None:
            os.close(lock)
    except OSError as error:
        raise OutputError(
            f"can't write into the folder {os.fspath(path)}: {error.strerror or error}; give another, or rights there"
        ) from error
    finally:
        for folder in reversed(made):
            with suppress(OSError):
                folder.rmdir()


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
        return os.open(name, flags | os.O_NONBLOCK | os.O_NOCTTY)

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
            parts.append(file.read(2**20))
            read += len(parts[-1])
    return b"".join(parts) if len(parts) > 2 else parts[0]


def read_start(path: str | os.PathLike[str], nbytes: int) -> bytes:
    """The first bytes of a regular file, so many where it has them. Raises OSError."""
    with open_regular(path) as file:
        return file.read(min(nbytes, os.fstat(file.fileno()).st_size))


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


PREFIX = "poetopt-scratch-"
_LOCK = ".lock"


@contextmanager
def scratch_folder(purpose: str) -> Iterator[str]:
    """A folder in the system's temporary one, gone after the block.

    Raises OutputError where none can be made, and where the block finds no more room in it.
    """
    remove_abandoned()
    try:
        made = tempfile.mkdtemp(prefix="poetopt-")
    except OSError as error:
        raise OutputError(
            f"can't make a temporary folder: {error.strerror or error}; make room there, or name another one (TMPDIR)"
        ) from error
    descriptor = None
    try:
        descriptor = os.open(os.path.join(made, _LOCK), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        if lock_file(descriptor):
            # Its name says that it may be removed once it isn't locked.
            named = os.path.join(os.path.dirname(made), f"{PREFIX}{purpose}-{os.path.basename(made)[8:]}")
            os.rename(made, named)
            made = named
        yield made
    except OSError as error:  # few say of which file
        full = error.errno == errno.ENOSPC and os.statvfs(made).f_bavail == 0
        if isinstance(error, PoetError) or not full:
            raise
        raise OutputError(
            f"the temporary folder {os.path.dirname(made)} is full; make room there, or name another one (TMPDIR)"
        ) from error
    finally:
        shutil.rmtree(made, ignore_errors=True)
        if descriptor is not None:
            os.close(descriptor)


def remove_abandoned() -> None:
    """Remove the folders of this user's processes that were killed."""
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
    """What is closed as the `with` that it stands in ends, however that ends."""

    @abstractmethod
    def close(self) -> None:
        """Give up what it holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
