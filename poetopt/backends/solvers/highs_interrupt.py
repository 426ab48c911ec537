"""Interrupts of HiGHS from another thread, without Python code during the run.

A callback in each iteration of the simplex method needs Python's lock: where another thread computes in Python
meanwhile, each callback waits for its turn of 5 ms, and a solve of 0.3 s takes half a minute. So the callbacks are
subscribed, but switched off until an interrupt is set. HiGHS itself checks the switch.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

import highspy

SIMPLEX = highspy.cb.HighsCallbackType.kCallbackSimplexInterrupt


class Interrupt:
    """Switch that ends the current runs of all attached Highs objects, and all runs that begin while it is set."""

    def __init__(self) -> None:
        self._is_set = False
        self._attached: list[weakref.ref[highspy.Highs]] = []
        self._lock = threading.Lock()

    def attach(self, solver: highspy.Highs) -> None:
        """Let this switch end the simplex method of `solver`."""
        solver.cbSimplexInterrupt.subscribe(_end)
        with self._lock:
            self._attached = [reference for reference in self._attached if reference() is not None]
            self._attached.append(weakref.ref(solver))
            self._switch(solver)

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        """End the current runs. It may be called many times."""
        self._set(True)

    def clear(self) -> None:
        """Let later runs go on to their end."""
        self._set(False)

    def _set(self, is_set: bool) -> None:
        with self._lock:
            if is_set == self._is_set:
                return
            self._is_set = is_set
            for reference in self._attached:
                solver = reference()
                if solver is not None:
                    self._switch(solver)

    def _switch(self, solver: highspy.Highs) -> None:
        """Switch the callback of `solver`, also during its run: HiGHS checks a flag for each kind before each call."""
        if self._is_set:
            solver.startCallback(SIMPLEX)
        else:
            solver.stopCallback(SIMPLEX)


def _end(event: Any) -> None:
    event.interrupt()


NO_LIMIT = 2**31 - 1
"""Iteration limit that is none."""

_thread_state = threading.local()


def entries(solver: highspy.Highs) -> int:
    """Return the number of rows, columns and nonzeros together."""
    return int(solver.getNumRow() + solver.getNumCol() + solver.getNumNz())


def simplex_s(solver: highspy.Highs) -> float:
    """Return the deterministic seconds of the last run on one core, from its iterations."""
    size, iterations = entries(solver), max(0, solver.getInfo().simplex_iteration_count)
    # seconds per row, column and nonzero of a run; per iteration; per row, column and nonzero of an iteration.
    # Measured on resnet18_cifar, bert and exact_bert_base.
    return 7.5e-8 * size + iterations * (5e-5 + 2.5e-10 * size)


def run(solver: highspy.Highs) -> None:
    """Run `solver`, with a new scheduler where its number of threads has changed: HiGHS does nothing without one."""
    _, threads = solver.getOptionValue("threads")
    if getattr(_thread_state, "threads", threads) != threads:
        highspy.Highs.resetGlobalScheduler(True)
    _thread_state.threads = threads
    solver.run()
