"""How a script hears what goes on: records of the log `poetopt` at INFO, or lines on stderr; by default nothing."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable

Told = Callable[[str], None]
"""Called with a line that says what is being done."""
LOG = "poetopt"


def silent(_text: str) -> None:
    """Tell nobody."""


def telling(progress: bool = False) -> Told:
    """Where lines go: to the log where somebody listens to it at INFO, else to stderr with `progress`, else nowhere."""
    log = logging.getLogger(LOG)
    if log.isEnabledFor(logging.INFO) and log.hasHandlers():
        return log.info
    if not progress:
        return silent
    return lambda text: print(f"poetopt: {text}", file=sys.stderr)  # noqa: T201
