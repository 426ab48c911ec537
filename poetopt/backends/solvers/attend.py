"""Run a solver in its own thread, so that the main thread can handle Ctrl-C and watch the clock."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from poetopt.util import interrupts

GRACE_S = 0.3
"""Seconds that an interrupted solver has to stop. Some of its steps, and poetopt's check of a point that it found,
take many seconds and can't be stopped.
"""


class _Task:
    """One call of `work`, made at most once, however often the task is submitted.

    An interrupt during the submission leaves unknown whether the executor has it.

    Attributes
    ----------
    turn
        Lock during the work: an interrupt as the thread starts may leave an executor with a second thread.
    """

    def __init__(self, work: Callable[[], object], turn: threading.Lock) -> None:
        self._work, self._turn = work, turn
        self._started = False
        self.error: BaseException | None = None
        self.done = threading.Event()

    def __call__(self) -> None:
        with self._turn:
            if self._started:
                return
            self._started = True
            try:
                self._work()
            except BaseException as error:  # noqa: BLE001 - `Attendant.run` raises it
                self.error = error
            finally:
                self.done.set()

    def cancel(self) -> None:
        """Prevent the start of a task that hasn't started."""
        self._started = True


class Workers:
    """Threads of this process for one purpose: HiGHS keeps a scheduler for each thread. A fork starts new ones."""

    def __init__(self, count: int, name: str) -> None:
        self._count, self._name = count, name
        self._begin()
        os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        self.turn = threading.Lock()
        self._pool = ThreadPoolExecutor(max_workers=self._count, thread_name_prefix=self._name)

    def submit(self, work: Callable[[], object]) -> Future[object]:
        """Run `work` in one of the threads."""
        return self._pool.submit(work)


class Attendant:
    """Single thread for all runs of a solver in this process."""

    def __init__(self, name: str, grace_s: float = GRACE_S) -> None:
        self._grace_s = grace_s
        self._worker = Workers(1, name)

    def run(self, work: Callable[[], object], stop: Callable[[], None], deadline: float | None = None) -> bool:
        """Run `work` to its end, and return whether an interrupt (Ctrl-C) cut it short.

        Parameters
        ----------
        stop
            Asks the solver to end soon. It may be called many times: at an interrupt, and after the `deadline`, which
            solvers overrun inside long steps.
        deadline
            Time by `time.monotonic`.

        Raises
        ------
        KeyboardInterrupt
            The solver doesn't end within the time of grace. It is left behind, and the next run waits for its end. Its
            callbacks must do nothing once `stop` was called.
        """
        interrupts.check()
        task, submitted = _Task(work, self._worker.turn), False
        grace_end: float | None = None
        while not task.done.is_set():
            # a Ctrl-C may arrive at any line: the solver is then asked to stop, and waited for
            try:
                if not submitted:
                    self._worker.submit(task)
                    submitted = True
                # seconds between two checks of the clock
                task.done.wait(0.1)
                _restore_sigint_handler()
                if grace_end is None:
                    interrupts.check()  # an interrupt whose exception was lost
                if deadline is not None and time.monotonic() > deadline:
                    stop()
            except KeyboardInterrupt:
                grace_end = grace_end or time.monotonic() + self._grace_s
            if grace_end is not None:
                stop()
                if time.monotonic() > grace_end and not task.done.is_set():
                    task.cancel()
                    raise KeyboardInterrupt
        if task.error is not None:
            raise task.error
        return grace_end is not None


def _restore_sigint_handler() -> None:
    """Reinstall Python's handler of Ctrl-C: Gurobi installs its own, which writes to stdout."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, handler)
