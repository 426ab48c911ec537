"""Runs of HiGHS, whose scheduler is of the thread that runs it, and of as many threads as its first run there asked."""

from __future__ import annotations

import threading

import highspy

NO_LIMIT = 2**31 - 1
"""Of iterations."""
ITERATION_S, ENTRY_ITERATION_S, ENTRY_RUN_S = 5e-5, 2.5e-10, 7.5e-8
"""What an iteration of the simplex method takes, and for each row, column and entry, in each iteration and in each run.
Measured on resnet18_cifar, bert and exact_bert_base."""

_here = threading.local()


def entries(solver: highspy.Highs) -> int:
    """Rows, columns and entries."""
    return int(solver.getNumRow() + solver.getNumCol() + solver.getNumNz())


def simplex_s(solver: highspy.Highs) -> float:
    """What the last run took of a core, by its iterations."""
    size, iterations = entries(solver), max(0, solver.getInfo().simplex_iteration_count)
    return ENTRY_RUN_S * size + iterations * (ITERATION_S + ENTRY_ITERATION_S * size)


def run(solver: highspy.Highs) -> None:
    """Run `solver`. Another number of threads than before needs another scheduler, without which HiGHS does nothing."""
    _, threads = solver.getOptionValue("threads")
    if getattr(_here, "threads", threads) != threads:
        highspy.Highs.resetGlobalScheduler(True)
    _here.threads = threads
    solver.run()
