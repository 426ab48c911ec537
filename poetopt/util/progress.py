"""Progress for scripts: records of the log `poetopt` at INFO, or lines on stderr; by default none."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable

Told = Callable[[str], None]
"""Callback with a line of progress."""
LOG = "poetopt"


def silent(_text: str) -> None:
    """Ignore a line of progress."""


def paced(told: Told, every_s: float = 1.0) -> Told:
    """Return a callback that passes at most one line every `every_s` seconds on."""
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
    """Return a callback to the log if it has a handler at INFO, else to stderr with `progress`, else to nothing."""
    log = logging.getLogger(LOG)
    if log.isEnabledFor(logging.INFO) and log.hasHandlers():
        return log.info
    if not progress:
        return silent
    return lambda text: print(f"poetopt: {text}", file=sys.stderr)  # noqa: T201
