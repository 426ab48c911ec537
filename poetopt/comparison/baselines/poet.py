"""POET itself (Patil, Jain, Dutta, Stoica, Gonzalez, ICML 2022), and with one of its two moves taken away (its Fig. 4).

The integer program of least energy over recomputation and paging together, solved by the project's own engine with
the formulation `retention`; `poet-paging-only` leaves recomputation out, `poet-remat-only` paging. It is defined for
general graphs, and comes with a bound that names the space it holds in.
"""

from __future__ import annotations

from poetopt.comparison.baselines.acceptance import DEFAULTS, Settings
from poetopt.graph.problem import Problem
from poetopt.plan.instructions import Plan
from poetopt.plan.schedule import Schedule
from poetopt.search.diagnosis.whole import solve_whole as search
from poetopt.search.solution import Options, Solution, Status
from poetopt.util.errors import InfeasibleError, NoScheduleError

Starts = tuple[Schedule, ...]


def solve(problem: Problem, ram_bytes: int, settings: Settings = DEFAULTS, starts: Starts = ()) -> Solution:
    """Both moves."""
    return search(problem, options(ram_bytes, settings), starts=starts)


def solve_paging_only(problem: Problem, ram_bytes: int, settings: Settings = DEFAULTS, starts: Starts = ()) -> Solution:
    """Without recomputation."""
    return search(problem, options(ram_bytes, settings, remat=False), starts=starts)


def solve_remat_only(problem: Problem, ram_bytes: int, settings: Settings = DEFAULTS, starts: Starts = ()) -> Solution:
    """Without paging."""
    return search(problem, options(ram_bytes, settings, paging=False), starts=starts)


def options(ram_bytes: int, settings: Settings, *, paging: bool = True, remat: bool = True) -> Options:
    """The engine's options."""
    return Options(
        ram_bytes=ram_bytes,
        deadline_s=settings.deadline_s,
        backend=settings.backend,
        scope=settings.scope,
        paging=paging,
        remat=remat,
        time_limit_s=settings.time_limit_s,
        gap=settings.gap,
        threads=settings.threads,
    )


def plan_in(solution: Solution) -> Plan:
    """The plan of a solution. Raises InfeasibleError or NoScheduleError where it has none."""
    if solution.plan is None:
        failure = InfeasibleError if solution.status is Status.INFEASIBLE else NoScheduleError
        raise failure(solution.reason)
    return solution.plan
