"""Work that ends by the clock, however deep inside of a library its loops are: they ask `check` now and then."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from poetopt.errors import TimeUpError

_until: ContextVar[float] = ContextVar("until", default=math.inf)


@contextmanager
def ending(until: float) -> Iterator[None]:
    """Inside, what asks raises TimeUpError from the moment `until` (of `time.monotonic`) on."""
    before = _until.set(min(until, _until.get()))
    try:
        yield
    finally:
        _until.reset(before)


def check() -> None:
    """Raise TimeUpError where the time is up."""
    if time.monotonic() > _until.get():
        raise TimeUpError("the time was up while a model was built; give more --time-limit")
