"""A solver at work in a thread of its own, so that the main thread can take Ctrl-C and watch the clock."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from poetopt.util import interrupts

GRACE_S = 0.3
"""A solver that was told of an interrupt is waited for this long: some of its steps, and our judging of a point that it
found, take many seconds and can't be stopped."""


class _Job:
    """`work`, done at most once however often it is handed over: an interrupt meanwhile leaves unknown whether it was.

    turn
        Held while it works: an interrupt as the thread begins may leave an executor with a second one.
    """

    def __init__(self, work: Callable[[], object], turn: threading.Lock) -> None:
        self._work, self._turn = work, turn
        self._taken = False
        self.error: BaseException | None = None
        self.done = threading.Event()

    def __call__(self) -> None:
        with self._turn:
            if self._taken:
                return
            self._taken = True
            try:
                self._work()
            except BaseException as error:  # noqa: BLE001 - it is raised where the work was given out
                self.error = error
            finally:
                self.done.set()

    def cancel(self) -> None:
        """It isn't begun any more, unless it has been."""
        self._taken = True


class Workers:
    """This process's threads for one purpose: HiGHS keeps its scheduler per thread. A fork begins with new ones."""

    def __init__(self, count: int, name: str) -> None:
        self._count, self._name = count, name
        self._begin()
        os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        self.turn = threading.Lock()
        self._pool = ThreadPoolExecutor(max_workers=self._count, thread_name_prefix=self._name)

    def submit(self, work: Callable[[], object]) -> Future[object]:
        """Have one of them do it."""
        return self._pool.submit(work)


class Attendant:
    """One thread for all runs of a solver in this process."""

    def __init__(self, name: str, grace_s: float = GRACE_S) -> None:
        self._grace_s = grace_s
        self._worker = Workers(1, name)

    def run(self, work: Callable[[], object], stop: Callable[[], None], deadline: float | None = None) -> bool:
        """Run `work` to its end; whether an interrupt (Ctrl-C) cut it short.

        stop
            Asks the solver to end soon, and may be called many times: at an interrupt, and past the `deadline` (of
            `time.monotonic`), which solvers overrun inside long steps.

        Raises KeyboardInterrupt where the solver doesn't end within the time of grace: it is left behind, and the next
        run waits for its end. Whoever gave it callbacks has them do nothing once `stop` was called.
        """
        interrupts.check()
        job, given = _Job(work, self._worker.turn), False
        latest: float | None = None
        while not job.done.is_set():
            # whatever line a Ctrl-C arrives at, the solver is told to stop, and waited for
            try:
                if not given:
                    self._worker.submit(job)
                    given = True
                # the time between two looks at the clock
                job.done.wait(0.1)
                _take_back_interrupts()
                if latest is None:
                    interrupts.check()  # one whose exception was lost
                if deadline is not None and time.monotonic() > deadline:
                    stop()
            except KeyboardInterrupt:
                latest = latest or time.monotonic() + self._grace_s
            if latest is not None:
                stop()
                if time.monotonic() > latest and not job.done.is_set():
                    job.cancel()
                    raise KeyboardInterrupt
        if job.error is not None:
            raise job.error
        return latest is not None


def _take_back_interrupts() -> None:
    """Put Python's handler of Ctrl-C in its place again: Gurobi has one of its own, which writes to stdout."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, handler)
