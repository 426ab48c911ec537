"""A clock for measurements on a machine that others use as well.

What is measured runs in one thread. Whenever others have all processors, that thread waits, and a clock on the wall
goes on: on a machine with four times as much to do as it has processors, a step seemed to take three times as long.
Linux counts each thread's waiting for a processor (`/proc/thread-self/schedstat`, the second figure); waiting for
storage is not in it. Elsewhere the clock is the one on the wall.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self, TypeVar

SCHEDSTAT = "/proc/thread-self/schedstat"
BUSY = 0.05
"""From this share of waiting on, people are told."""

FULL = 0.5
"""From this share on, what the others leave in the caches is felt in the seconds that do count (up to a fifth)."""

T = TypeVar("T")


class Clock:
    """Seconds that pass while this thread has a processor, or waits for something else than one; a context manager.

    To be read by the thread that opened it.
    """

    def __init__(self, path: str = SCHEDSTAT) -> None:
        self._file = -1
        self._wall_s = self._waited_s = 0.0
        with suppress(OSError):
            self._file = os.open(path, os.O_RDONLY)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    @property
    def counts(self) -> bool:
        """Whether the system tells of waiting; to be asked before the clock is closed."""
        return self._file >= 0

    def waited(self) -> float:
        """Seconds for which this thread has waited for a processor since it began; 0 where the system doesn't tell."""
        if self._file < 0:
            return 0.0
        try:
            return int(os.pread(self._file, 64, 0).split()[1]) * 1e-9
        except (OSError, ValueError, IndexError):
            return 0.0

    def timed(self, wall_s: float, waited_s: float) -> float:
        """Seconds of something that took `wall_s`, of which the thread waited `waited_s`; it counts for `share`."""
        waited_s = min(max(waited_s, 0.0), wall_s)
        self._wall_s += wall_s
        self._waited_s += waited_s
        return wall_s - waited_s

    def call(self, act: Callable[[], T]) -> tuple[T, float]:
        """What `act` gives, and the seconds that it took."""
        waited_s = self.waited()
        begin = time.perf_counter()
        given = act()
        wall_s = time.perf_counter() - begin
        return given, self.timed(wall_s, self.waited() - waited_s)

    def time(self, act: Callable[[], object]) -> float:
        """The seconds that `act` takes."""
        return self.call(act)[1]

    @property
    def share(self) -> float:
        """The share of the wall's seconds of all that was timed for which others had the processors."""
        return self._waited_s / self._wall_s if self._wall_s > 0 else 0.0


def told(share: float) -> str:
    """That share in words; empty where it is too small to be felt."""
    if share < BUSY:
        return ""
    words = f"others had the processors for {share:.0%} of that time, not counted"
    return words if share < FULL else f"{words}; caches suffer too, so measure again on a freer machine"
