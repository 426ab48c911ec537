"""How a script hears what goes on: records of the log `poetopt` at INFO, or lines on stderr; by default nothing."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable

Told = Callable[[str], None]
"""Called with a line that says what is being done."""
LOG = "poetopt"


def silent(_text: str) -> None:
    """Tell nobody."""


def paced(told: Told, every_s: float = 1.0) -> Told:
    """Pass a line on where so many seconds have gone by since the last one, the first after as many."""
    if told is silent:
        return silent
    last_s = time.monotonic()

    def tell(text: str) -> None:
        nonlocal last_s
        now_s = time.monotonic()
        if now_s >= last_s + every_s:
            last_s = now_s
            told(text)

    return tell


def telling(progress: bool = False) -> Told:
    """Where lines go: to the log where somebody listens to it at INFO, else to stderr with `progress`, else nowhere."""
    log = logging.getLogger(LOG)
    if log.isEnabledFor(logging.INFO) and log.hasHandlers():
        return log.info
    if not progress:
        return silent
    return lambda text: print(f"poetopt: {text}", file=sys.stderr)  # noqa: T201
