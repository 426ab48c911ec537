"""Temporary folders that don't outlive a process that was killed: the next one that needs such a folder removes them.

A living process holds a lock in its folder, which the system lets go of however the process ends; process numbers would
say nothing of one in another container that shares the folder.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from poetopt.util.files import lock_file

PREFIX = "poetopt-scratch-"
_LOCK = ".lock"


@contextmanager
def scratch_folder(purpose: str) -> Iterator[str]:
    """A folder in the system's temporary one, gone after the block. Raises OSError where none can be made."""
    remove_abandoned()
    made = tempfile.mkdtemp(prefix="poetopt-")
    descriptor = None
    try:
        descriptor = os.open(os.path.join(made, _LOCK), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        if lock_file(descriptor):
            # Its name says that it may be removed once it isn't locked.
            named = os.path.join(os.path.dirname(made), f"{PREFIX}{purpose}-{os.path.basename(made)[8:]}")
            os.rename(made, named)
            made = named
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
        if descriptor is not None:
            os.close(descriptor)


def remove_abandoned() -> None:
    """Remove the folders of this user's processes that were killed."""
    if os.name != "posix":
        return
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
