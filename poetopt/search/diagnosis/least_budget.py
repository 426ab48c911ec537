"""The goal `--with minimize=ram`: the least budget of a schedule within an energy and a deadline, and its proof.

A budget that a search proves to hold no such schedule bounds it from below, in the scope of that proof; a schedule that
is found bounds it from above, by what it takes. Bisection closes in from both sides.
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

LEFT_SHARE = 0.25
"""Of the time that is left, what one search may take."""
LEAST_S = 0.2
"""Nothing is searched for in less."""


def limited(problem: Problem, options: Options, energy_j: float | None) -> Options:
    """`options` with plans of at most `energy_j` joules a step. Raises OptionError where energy isn't the goal."""
    chosen = formulation(options.formulation)
    if chosen.goal is not ENERGY or not chosen.plans_count:
        raise OptionError(
            f"--with minimize=ram: the formulation '{chosen.name}' has a goal or rules of its own; leave --formulation "
            "and "
            "--with out"
        )
    if energy_j is None:
        return options
    baseline_j = chosen.baseline_j(problem)
    if energy_j < baseline_j * (1 - 1e-9):
        raise OptionError(
            f"--with energy-limit={energy_j:.6g}J: one pass over all operators takes {baseline_j:.6g} J; give at least "
            "that"
        )
    return replace(options, formulation=chosen.with_block(within(ENERGY, max(0.0, energy_j - baseline_j))))


def least_budget(
    problem: Problem, options: Options, listener: Listener | None = None, *, begin: float | None = None
) -> Solution:
    """The plan of least energy within the least RAM budget that has one, as `options`, from `limited`, ask otherwise.

    The objective is the budget in bytes, with the bound that is proven of it (`ram_bound_bytes`, too); status and scope
    are of that. Where not even the budget of `options` has a schedule, the answer is that of a solve.
    """
    begin = time.monotonic() if begin is None else begin
    until = begin + options.time_limit_s
    top = min(options.ram_bytes, max(store_all_bytes(problem), problem.least_ram_bytes))
    known = max(problem.least_ram_bytes, hardest_step(problem, options).nbytes, placed_bytes(problem))
    best: list[Found] = []

    def seen(candidate: Candidate) -> None:
        best.append(Found.of(options, candidate.plan, candidate.simulation, candidate.arena_bytes))

    def keep(found: Solution) -> bool:
        if found.plan is None or found.simulation is None or found.arena_bytes is None:
            return False
        best[:] = [Found.of(options, found.plan, found.simulation, found.arena_bytes)]
        return True

    least_ram(problem, options, until=begin + HEURISTICS_SHARE * options.time_limit_s, seen=seen)
    best[:] = sorted((one for one in best if one.taken <= top), key=lambda one: one.taken)[:1]
    if not best:
        found = solve(problem, replace(options, ram_bytes=top), listener, begin=begin)
        if not keep(found):
            return replace(found, options=options)
    bound, of_all, scope, interrupted = known, known, "full", False
    for budget in _between(known, best, options.gap):
        left_s = LEFT_SHARE * (until - time.monotonic())
        if left_s < LEAST_S:
            break
        found = search(problem, replace(options, ram_bytes=budget, gap=1.0, time_limit_s=left_s))
        if not keep(found) and (found.status is Status.INFEASIBLE or found.exhausted):
            bound, scope = budget + 1, found.scope
            if found.status is Status.INFEASIBLE and options.scope == "auto":
                of_all = bound
        if found.interrupted:
            interrupted = True
            break
    ((taken, plan, simulation, arena_bytes),) = best
    last_s = LEAST_S if interrupted else max(LEAST_S, until - time.monotonic())
    final = search(problem, replace(options, ram_bytes=taken, time_limit_s=last_s), listener, (schedule_of(plan),))
    if final.plan is None:
        final = replace(final, plan=lay_out_within(plan, arena_bytes), simulation=simulation, arena_bytes=arena_bytes)
    value, proven = float(taken), float(min(of_all, taken))
    told = replace(
        final,
        options=replace(options, ram_bytes=taken),
        scope=scope,
        overhead_bound_j=None,
        scope_bound=float(min(bound, taken)),
        outdone=False,
        objective=Objective(RAM, "B", 0.0, value, proven),
        ram_bound_bytes=int(proven),
        reason="",
        total_s=time.monotonic() - begin,
        interrupted=interrupted or final.interrupted,
    )
    return replace(told, status=graded(told.overhead_gap, options.gap))


class Found(NamedTuple):
    """A plan, and the least budget that it keeps, in bytes."""

    taken: int
    plan: Plan
    simulation: Simulation
    arena_bytes: int

    @classmethod
    def of(cls, options: Options, plan: Plan, simulation: Simulation, arena_bytes: int) -> Found:
        """The plan with the bytes that it takes."""
        return cls(taken_bytes(options, plan.problem, simulation, arena_bytes), plan, simulation, arena_bytes)


def _between(low: int, best: Sequence[Found], gap: float) -> Iterator[int]:
    """Budgets to try, the bound itself first, then halves: each below the best so far, above those without a plan."""
    if low < best[0].taken:
        before = best[0]
        yield low
        if best[0] is not before:
            return
    while best[0].taken - low > max(1.0, gap * best[0].taken):
        before, middle = best[0], (low + best[0].taken) // 2
        yield middle
        low = low if best[0] is not before else middle
