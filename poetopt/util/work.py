"""Effort: counted, so that what is found within it is the same in each call, and ended by the clock alone.

What ends by the clock however deep inside of a library its loops are asks `check` now and then.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from poetopt.util.errors import TimeUpError

UNITS_A_SECOND = 330_000
"""Units of work of a second of one core. Measured on replays of the zoo."""


class OutOfWorkError(Exception):
    """All units are spent."""


@dataclass
class Work:
    """Units of work: one is a price that a replay asks for, some microseconds.

    limit
        How many there are.
    done
        How many are spent.
    until
        The moment (of `time.monotonic`) at which the clock ends it, whatever is left.
    """

    limit: float = math.inf
    done: int = 0
    until: float = math.inf

    @property
    def over(self) -> bool:
        """Whether more was asked for than there is, or the time is up."""
        return self.done > self.limit or self.clock_s < 0

    @property
    def seconds(self) -> float:
        """What is spent, in seconds of a core of two at 3 GHz: counted, not timed."""
        return self.done / UNITS_A_SECOND

    @property
    def clock_s(self) -> float:
        """Seconds until the clock ends it; negative once it did."""
        return self.until - time.monotonic()

    def spend(self, units: int) -> None:
        """Count `units`. Raises OutOfWorkError where there aren't as many left."""
        self.done += units
        if self.done > self.limit:
            raise OutOfWorkError

    def compute(self, seconds: float) -> None:
        """Count what takes so many seconds of a core."""
        self.done += int(seconds * UNITS_A_SECOND)


@dataclass
class Elapsed(Work):
    """Where a solver doesn't say what it has done: its seconds are the clock's."""

    begin: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self.begin


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
