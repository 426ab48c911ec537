"""The systems that poetopt runs on."""

from __future__ import annotations

import os


def check_system() -> None:
    """Raise BackendUnavailableError on a system that isn't POSIX's: locks, signals and limits of a process are used."""
    if os.name != "posix":
        from poetopt.util.errors import BackendUnavailableError

        raise BackendUnavailableError(
            "this system isn't supported: poetopt runs on Linux and macOS; under Windows install it in WSL"
        )
