"""Building what stays: Python's search for garbage would go through a million new objects again and again."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def building() -> Iterator[None]:
    """Pause the collector, and have what was made meanwhile count as old in the end, without a look at it.

    A collector that is merely paused goes through all of it three times afterwards, as it grows old: a third of the
    time that building and compiling a model takes. Where a program has frozen objects of its own it is left at that.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if not gc.get_freeze_count():
            gc.freeze()
            gc.unfreeze()  # to the oldest generation
        if was:
            gc.enable()
