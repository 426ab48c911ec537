"""A solve among many: where a user wants one answer, an interrupt means the best so far; where many, it means stop.

Whoever solves more than once for one answer (fronts, comparisons, sweeps, sensitivities, checks) calls `solve_whole`,
so that Ctrl-C ends all of it and no result was cut short by it.
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
    """`poetopt.search.diagnosis.solve.solve`, but for Ctrl-C: raises KeyboardInterrupt, and has no half answer.

    helped
        Whether what would help is looked for where there is no schedule, which takes longer than many a search.
    """
    solution = (solve if helped else search)(problem, options, listener, starts=starts)
    if solution.interrupted:
        raise KeyboardInterrupt
    return solution
