"""Work limits: counted in units, so that results are reproducible, and by the clock.

Long loops, also those deep inside a library, call `check` regularly to end by the clock.
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
"""Units of work per second of one core, measured on replays of the zoo."""


class OutOfWorkError(Exception):
    """More work than the limit of units."""


@dataclass
class Work:
    """Units of work: one is the pricing of an operation in a replay, some microseconds.

    Attributes
    ----------
    limit
        Number of units.
    done
        Number of units spent.
    until
        Time (of `time.monotonic`) at which the work ends, whatever units remain.
    """

    limit: float = math.inf
    done: int = 0
    until: float = math.inf

    @property
    def over(self) -> bool:
        """Return whether the limit is exceeded, or the time is up."""
        return self.done > self.limit or self.clock_s < 0

    @property
    def seconds(self) -> float:
        """Units spent as seconds of a core at 3 GHz: counted, not timed."""
        return self.done / UNITS_A_SECOND

    @property
    def clock_s(self) -> float:
        """Seconds until the work ends by the clock; negative after that."""
        return self.until - time.monotonic()

    def spend(self, units: int) -> None:
        """Count `units`. Raise OutOfWorkError if the limit is exceeded."""
        self.done += units
        if self.done > self.limit:
            raise OutOfWorkError

    def compute(self, seconds: float) -> None:
        """Count work of `seconds` on one core."""
        self.done += int(seconds * UNITS_A_SECOND)


@dataclass
class Elapsed(Work):
    """Work of a solver that doesn't report its effort: its seconds are those of the clock."""

    begin: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.begin


_until: ContextVar[float] = ContextVar("until", default=math.inf)


@contextmanager
def ending(until: float) -> Iterator[None]:
    """Let `check` raise TimeUpError in the body from the time `until` (of `time.monotonic`) on."""
    token = _until.set(min(until, _until.get()))
    try:
        yield
    finally:
        _until.reset(token)


def check() -> None:
    """Raise TimeUpError if the time is up."""
    if time.monotonic() > _until.get():
        raise TimeUpError("the time ended while a model was built. Give a longer --time-limit")
