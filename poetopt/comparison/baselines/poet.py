"""POET (Patil, Jain, Dutta, Stoica, Gonzalez, ICML 2022), also without paging or without recomputation (its Fig. 4).

It is the integer program of least energy over recomputation and paging, solved by this project's engine with the
formulation `retention`. `poet-paging-only` omits recomputation, `poet-remat-only` omits paging. POET is defined for
general graphs, and has a bound with the space that the bound holds in.
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
    """Solve with recomputation and paging."""
    return search(problem, options(ram_bytes, settings), starts=starts)


def solve_paging_only(problem: Problem, ram_bytes: int, settings: Settings = DEFAULTS, starts: Starts = ()) -> Solution:
    """Solve without recomputation."""
    return search(problem, options(ram_bytes, settings, remat=False), starts=starts)


def solve_remat_only(problem: Problem, ram_bytes: int, settings: Settings = DEFAULTS, starts: Starts = ()) -> Solution:
    """Solve without paging."""
    return search(problem, options(ram_bytes, settings, paging=False), starts=starts)


def options(ram_bytes: int, settings: Settings, *, paging: bool = True, remat: bool = True) -> Options:
    """Return the engine's options."""
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
    """Return the plan of a solution. Raises InfeasibleError or NoScheduleError if it has none."""
    if solution.plan is None:
        failure = InfeasibleError if solution.status is Status.INFEASIBLE else NoScheduleError
        raise failure(solution.reason)
    return solution.plan
