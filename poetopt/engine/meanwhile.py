"""Work in Python for the time in which a solver computes, and for no longer.

Two threads of Python get in each other's way, even where one of them is mostly in libraries: it waits for its turn each
time that it comes back from one. A solver's long solves need no Python at all.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

INTERRUPTED_S = 0.1


class _EndedError(Exception):
    """Nobody waits for the work any more."""


class Meanwhile:
    """As a context: `step` is called in a thread of its own, again and again while somebody is `waiting`.

    step
        Takes a function that it calls often, at least every millisecond or two, and whose exceptions it lets pass.
    """

    def __init__(self, step: Callable[[Callable[[], None]], None]) -> None:
        self._step = step
        self._open, self._ended = threading.Event(), False
        self._thread = threading.Thread(target=self._work, name="meanwhile", daemon=True)
        self._error: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended = True
        self._open.set()
        # A step that is slow to notice is left behind after an interrupt: what it finds is for nobody any more.
        self._thread.join(INTERRUPTED_S if isinstance(error, KeyboardInterrupt) else None)
        if error is None and self._error is not None:
            raise self._error

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Work goes on inside."""
        self._open.set()
        try:
            yield
        finally:
            self._open.clear()

    def _work(self) -> None:
        try:
            while True:
                self._pause()
                self._step(self._pause)
        except _EndedError:
            return
        except Exception as error:  # noqa: BLE001 - it is raised where the context ends
            self._error = error

    def _pause(self) -> None:
        if not self._open.is_set():
            self._open.wait()
        if self._ended:
            raise _EndedError
