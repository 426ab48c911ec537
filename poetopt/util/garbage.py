"""When Python looks for garbage: not while something is timed, nor through a million new objects that all stay."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused() -> Iterator[None]:
    """Without the collector, which afterwards is as it was."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@contextmanager
def building() -> Iterator[None]:
    """Without the collector, and what was made meanwhile counts as old in the end, without a look at it.

    A collector that is merely paused goes through all of it three times afterwards, as it grows old: a third of the
    time that building and compiling a model takes. Where a program has frozen objects of its own it is left at that.
    """
    with paused():
        yield
        if not gc.get_freeze_count():
            gc.freeze()
            gc.unfreeze()  # to the oldest generation
