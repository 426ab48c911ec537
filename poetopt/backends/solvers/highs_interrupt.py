"""A way for another thread to end HiGHS's runs, without a word from Python while they go on.

A callback in each iteration of the simplex method needs Python's lock: where another thread computes in Python
meanwhile, each one waits for its turn of 5 ms, and a solve of 0.3 s takes half a minute. So the callbacks are there,
but switched off, until somebody wants an end; HiGHS looks at the switch itself.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

import highspy

SIMPLEX = highspy.cb.HighsCallbackType.kCallbackSimplexInterrupt


class Interrupt:
    """Ends the runs at work in the Highs objects that were attached, and all that begin while it is set."""

    def __init__(self) -> None:
        self._wanted = False
        self._attached: list[weakref.ref[highspy.Highs]] = []
        self._guard = threading.Lock()

    def attach(self, solver: highspy.Highs) -> None:
        """Have it end the simplex method of `solver`."""
        solver.cbSimplexInterrupt.subscribe(_end)
        with self._guard:
            self._attached = [reference for reference in self._attached if reference() is not None]
            self._attached.append(weakref.ref(solver))
            self._switch(solver)

    def is_set(self) -> bool:
        return self._wanted

    def set(self) -> None:
        """End what is at work. May be called many times."""
        self._set(True)

    def clear(self) -> None:
        """Let runs go on to their end again."""
        self._set(False)

    def _set(self, wanted: bool) -> None:
        with self._guard:
            if wanted == self._wanted:
                return
            self._wanted = wanted
            for reference in self._attached:
                solver = reference()
                if solver is not None:
                    self._switch(solver)

    def _switch(self, solver: highspy.Highs) -> None:
        """Also while it runs: HiGHS has a flag for each kind, and looks at it before each call."""
        if self._wanted:
            solver.startCallback(SIMPLEX)
        else:
            solver.stopCallback(SIMPLEX)


def _end(event: Any) -> None:
    event.interrupt()


NO_LIMIT = 2**31 - 1
"""Of iterations."""

_here = threading.local()


def entries(solver: highspy.Highs) -> int:
    """Rows, columns and entries."""
    return int(solver.getNumRow() + solver.getNumCol() + solver.getNumNz())


def simplex_s(solver: highspy.Highs) -> float:
    """The time of the last run on a core, by its iterations."""
    size, iterations = entries(solver), max(0, solver.getInfo().simplex_iteration_count)
    # seconds of each row, column and entry by run, of an iteration, and of each row, column and entry by iteration;
    # measured on resnet18_cifar, bert and exact_bert_base
    return 7.5e-8 * size + iterations * (5e-5 + 2.5e-10 * size)


def run(solver: highspy.Highs) -> None:
    """Run `solver`. Another number of threads than before needs another scheduler, without which HiGHS does nothing."""
    _, threads = solver.getOptionValue("threads")
    if getattr(_here, "threads", threads) != threads:
        highspy.Highs.resetGlobalScheduler(True)
    _here.threads = threads
    solver.run()
