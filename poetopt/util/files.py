"""Writing outputs so that nobody ever finds half of one: write beside, then rename."""

from __future__ import annotations

import itertools
import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from poetopt.util.errors import OutputError

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
    if os.name != "posix":  # elsewhere asking for a process may end it
        return
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
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):
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
