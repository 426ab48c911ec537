"""Goal `--minimize ram`: the least budget of a schedule within an energy and a deadline, with its proof.

A budget without such a schedule, by the proof of a search, is a lower bound in the scope of that proof. A schedule that
is found gives an upper bound, the bytes that it takes. Bisection narrows the range.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from poetopt.formulations import formulation
from poetopt.formulations.goal import ENERGY
from poetopt.formulations.within import within
from poetopt.graph.problem import Problem
from poetopt.plan.assemble import schedule_of, store_all_bytes
from poetopt.plan.instructions import Plan
from poetopt.plan.layout import lay_out_within
from poetopt.plan.simulate import Simulation
from poetopt.search.diagnosis.minimum_budget import HEURISTICS_SHARE, least_ram
from poetopt.search.diagnosis.solve import solve
from poetopt.search.incumbent import Candidate
from poetopt.search.limits import hardest_step, placed_bytes, taken_bytes
from poetopt.search.search import search
from poetopt.search.solution import RAM, Listener, Objective, Options, Solution, Status, graded
from poetopt.util.errors import OptionError

SEARCH_SHARE = 0.25
"""Share of the remaining time for one search."""
MIN_SEARCH_S = 0.2
"""Least seconds of a search."""


def limited(problem: Problem, options: Options, energy_j: float | None) -> Options:
    """Return `options` with at most `energy_j` joules a step. Raise OptionError if energy isn't the goal."""
    chosen = formulation(options.formulation)
    if chosen.goal is not ENERGY or not chosen.plans_count:
        raise OptionError(
            f"--minimize ram: the formulation '{chosen.name}' has a goal or rules of its own. Leave --formulation "
            "and the other --block out"
        )
    if energy_j is None:
        return options
    baseline_j = chosen.baseline_j(problem)
    if energy_j < baseline_j * (1 - 1e-9):
        raise OptionError(
            f"--energy-limit {energy_j:.6g}J: one pass over all operators takes {baseline_j:.6g} J. Give at least that"
        )
    return replace(options, formulation=chosen.with_block(within(ENERGY, max(0.0, energy_j - baseline_j))))


def least_budget(
    problem: Problem, options: Options, listener: Listener | None = None, *, begin: float | None = None
) -> Solution:
    """Return the plan of least energy within the least RAM budget that has one.

    The objective is the budget in bytes, with its proven bound (also in `ram_bound_bytes`), to which status and scope
    refer. If not even the budget of `options` has a schedule, the solution is that of a solve.

    Parameters
    ----------
    options
        Options from `limited`; their budget is the largest.
    """
    begin = time.monotonic() if begin is None else begin
    until = begin + options.time_limit_s
    top = min(options.ram_bytes, max(store_all_bytes(problem), problem.least_ram_bytes))
    lower_bound = max(problem.least_ram_bytes, hardest_step(problem, options).nbytes, placed_bytes(problem))
    best: list[SizedPlan] = []

    def keep_candidate(candidate: Candidate) -> None:
        best.append(SizedPlan.of(options, candidate.plan, candidate.simulation, candidate.arena_bytes))

    def keep(solution: Solution) -> bool:
        if solution.plan is None or solution.simulation is None or solution.arena_bytes is None:
            return False
        best[:] = [SizedPlan.of(options, solution.plan, solution.simulation, solution.arena_bytes)]
        return True

    least_ram(problem, options, until=begin + HEURISTICS_SHARE * options.time_limit_s, observer=keep_candidate)
    best[:] = sorted((plan for plan in best if plan.n_bytes <= top), key=lambda plan: plan.n_bytes)[:1]
    if not best:
        solution = solve(problem, replace(options, ram_bytes=top), listener, begin=begin)
        if not keep(solution):
            return replace(solution, options=options)
    bound, all_plans_bound, scope, interrupted = lower_bound, lower_bound, "full", False
    for budget in _budgets_to_try(lower_bound, best, options.gap):
        left_s = SEARCH_SHARE * (until - time.monotonic())
        if left_s < MIN_SEARCH_S:
            break
        solution = search(problem, replace(options, ram_bytes=budget, gap=1.0, time_limit_s=left_s))
        if not keep(solution) and (solution.status is Status.INFEASIBLE or solution.exhausted):
            bound, scope = budget + 1, solution.scope
            if solution.status is Status.INFEASIBLE and options.scope == "auto":
                all_plans_bound = bound
        if solution.interrupted:
            interrupted = True
            break
    ((n_bytes, plan, simulation, arena_bytes),) = best
    last_s = MIN_SEARCH_S if interrupted else max(MIN_SEARCH_S, until - time.monotonic())
    final = search(problem, replace(options, ram_bytes=n_bytes, time_limit_s=last_s), listener, (schedule_of(plan),))
    if final.plan is None:
        final = replace(final, plan=lay_out_within(plan, arena_bytes), simulation=simulation, arena_bytes=arena_bytes)
    value, proven = float(n_bytes), float(min(all_plans_bound, n_bytes))
    answer = replace(
        final,
        options=replace(options, ram_bytes=n_bytes),
        scope=scope,
        overhead_bound_j=None,
        scope_bound=float(min(bound, n_bytes)),
        outdone=False,
        objective=Objective(RAM, "B", 0.0, value, proven),
        ram_bound_bytes=int(proven),
        reason="",
        total_s=time.monotonic() - begin,
        interrupted=interrupted or final.interrupted,
    )
    return replace(answer, status=graded(answer.overhead_gap, options.gap))


class SizedPlan(NamedTuple):
    """Plan, and the least budget in bytes that it fits."""

    n_bytes: int
    plan: Plan
    simulation: Simulation
    arena_bytes: int

    @classmethod
    def of(cls, options: Options, plan: Plan, simulation: Simulation, arena_bytes: int) -> SizedPlan:
        """Return the plan with the bytes that it takes."""
        return cls(taken_bytes(options, plan.problem, simulation, arena_bytes), plan, simulation, arena_bytes)


def _budgets_to_try(low: int, best: Sequence[SizedPlan], gap: float) -> Iterator[int]:
    """Yield the bound, then budgets by bisection between those without a plan and that of the best."""
    if low < best[0].n_bytes:
        previous = best[0]
        yield low
        if best[0] is not previous:
            return
    while best[0].n_bytes - low > max(1.0, gap * best[0].n_bytes):
        previous, middle = best[0], (low + best[0].n_bytes) // 2
        yield middle
        low = low if best[0] is not previous else middle
