"""Runs of HiGHS, whose scheduler is of the thread that runs it, and of as many threads as its first run there asked."""

from __future__ import annotations

import threading

import highspy

_here = threading.local()


def run(solver: highspy.Highs) -> None:
    """Run `solver`. Another number of threads than before needs another scheduler, without which HiGHS does nothing."""
    _, threads = solver.getOptionValue("threads")
    if getattr(_here, "threads", threads) != threads:
        highspy.Highs.resetGlobalScheduler(True)
    _here.threads = threads
    solver.run()
