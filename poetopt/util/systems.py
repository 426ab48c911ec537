"""Operating systems that poetopt supports."""

from __future__ import annotations

import os


def check_system() -> None:
    """Raise BackendUnavailableError unless the system is POSIX: poetopt uses its locks, signals and limits."""
    if os.name != "posix":
        from poetopt.util.errors import BackendUnavailableError

        raise BackendUnavailableError(
            "this system isn't supported: poetopt runs on Linux and macOS. On Windows, install it in WSL"
        )
