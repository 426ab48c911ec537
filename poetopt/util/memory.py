"""What this process takes of the machine's memory, as the system counts it."""

from __future__ import annotations

import sys
from contextlib import suppress

_STATUS = "/proc/self/status"


def peak_bytes() -> int | None:
    """The most that was resident since the process began; None where the system doesn't say."""
    found = _of("VmHWM:")
    if found is not None:
        return found
    try:
        import resource
    except ImportError:
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def resident_bytes() -> int | None:
    """What is resident now; None where the system doesn't say."""
    return _of("VmRSS:")


def _of(field: str) -> int | None:
    with suppress(OSError, ValueError, IndexError), open(_STATUS, encoding="ascii", errors="replace") as file:
        for line in file:
            if line.startswith(field):
                return int(line.split()[1]) * 1024
    return None
