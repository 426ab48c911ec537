"""A solver at work in a thread of its own, so that the main thread can take Ctrl-C and watch the clock."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait


class Attendant:
    """One thread for all runs of a solver in this process: HiGHS keeps its scheduler per thread."""

    def __init__(self, name: str) -> None:
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)

    def run(self, work: Callable[[], object], stop: Callable[[], None], deadline: float | None = None) -> bool:
        """Run `work` to its end; whether an interrupt (Ctrl-C) cut it short.

        stop
            Asks the solver to end soon: at an interrupt, and past the `deadline` (of `time.monotonic`), which solvers
            overrun inside long steps.
        """
        future: Future[object] | None = None
        interrupted = False
        while future is None or not future.done():
            # whatever line a Ctrl-C arrives at, the solver is told to stop, and waited for
            try:
                if future is None:
                    future = self._worker.submit(work)
                wait([future], timeout=0.1)
                _take_back_interrupts()
                if deadline is not None and time.monotonic() > deadline:
                    stop()
            except KeyboardInterrupt:
                interrupted = True
                stop()
        future.result()
        return interrupted


def _take_back_interrupts() -> None:
    """Put Python's handler of Ctrl-C in its place again: Gurobi has one of its own, which writes to stdout."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, handler)
