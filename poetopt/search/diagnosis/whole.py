"""Solve as one of several: an interrupt ends the whole task, not just the solve.

A user who waits for one solution gets the best one so far at an interrupt. Fronts, comparisons, sweeps, sensitivities
and checks solve several times. They call `solve_whole`, so that Ctrl-C ends the task, and none of its results is
incomplete.
"""

from __future__ import annotations

from collections.abc import Sequence

from poetopt.graph.problem import Problem
from poetopt.plan.schedule import Schedule
from poetopt.search.diagnosis.solve import solve
from poetopt.search.search import search
from poetopt.search.solution import Listener, Options, Solution


def solve_whole(
    problem: Problem,
    options: Options,
    listener: Listener | None = None,
    *,
    starts: Sequence[Schedule] = (),
    helped: bool = True,
) -> Solution:
    """Solve like `poetopt.search.diagnosis.solve.solve`, but raise KeyboardInterrupt at Ctrl-C.

    Parameters
    ----------
    helped
        Whether to search for remedies if there is no schedule, which takes longer than many a solve.
    """
    solution = (solve if helped else search)(problem, options, listener, starts=starts)
    if solution.interrupted:
        raise KeyboardInterrupt
    return solution
