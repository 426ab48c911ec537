"""Checkmate: optimal rematerialization of any graph (Jain, Jain, Nrusimha, Gholami, Abbeel, Keutzer, Stoica, Gonzalez,
MLSys 2020).

The integer program over which tensors are kept and which operators run again at each stage; no paging. `checkmate`
minimizes seconds of computing, as the original does, and its energy is evaluated afterwards; `checkmate-energy`
minimizes joules. Solved here by the project's own engine in the formulation `retention` without paging, whose space
with scope `full` is Checkmate's (a tensor may besides be freed within a stage), carried to operators with several
outputs and workspace.
"""

from __future__ import annotations

from dataclasses import replace

from poetopt.comparison.baselines.acceptance import DEFAULTS, Settings
from poetopt.comparison.baselines.poet import Starts, options, plan_in
from poetopt.graph.problem import Problem
from poetopt.plan.instructions import Plan
from poetopt.plan.simulate import simulate
from poetopt.search.diagnosis.whole import solve_whole as search
from poetopt.search.solution import Solution


def in_seconds(problem: Problem) -> Problem:
    """The same problem with each operator's seconds in the place of its joules, and no storage."""
    operators = tuple(replace(operator, energy_j=operator.time_s) for operator in problem.operators)
    return replace(problem, operators=operators, paging=False)


def proportional(problem: Problem) -> bool:
    """Whether joules are seconds times one power, so that both objectives have the same optima."""
    powers = [op.energy_j / op.time_s for op in problem.operators if op.time_s > 0]
    free = all(op.energy_j == 0 for op in problem.operators if op.time_s == 0)
    return free and (not powers or max(powers) - min(powers) <= 1e-9 * max(powers))


def solve(problem: Problem, ram_bytes: int, settings: Settings = DEFAULTS, starts: Starts = ()) -> Solution:
    """Least time. The status is that of the proof in seconds; there is no bound on the joules."""
    found = search(in_seconds(problem), options(ram_bytes, settings, paging=False), starts=starts)
    if found.plan is None:
        return found
    plan = replace(found.plan, problem=problem)
    return replace(found, plan=plan, simulation=simulate(plan), overhead_bound_j=None, scope_bound=None)


def solve_energy(problem: Problem, ram_bytes: int, settings: Settings = DEFAULTS, starts: Starts = ()) -> Solution:
    """Least energy."""
    return search(problem, options(ram_bytes, settings, paging=False), starts=starts)


def schedule(problem: Problem, ram_bytes: int, settings: Settings = DEFAULTS) -> Plan:
    """The plan of `solve`. Raises InfeasibleError or NoScheduleError."""
    return plan_in(solve(problem, ram_bytes, settings))


def schedule_energy(problem: Problem, ram_bytes: int, settings: Settings = DEFAULTS) -> Plan:
    """The plan of `solve_energy`. Raises InfeasibleError or NoScheduleError."""
    return plan_in(solve_energy(problem, ram_bytes, settings))
