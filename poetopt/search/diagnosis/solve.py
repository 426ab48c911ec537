"""Solve with remedies: if there is no schedule, the binding requirements, and what is possible without them."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from poetopt.formulations import formulation
from poetopt.graph.problem import Problem
from poetopt.plan.instructions import Plan
from poetopt.plan.layout import arena_bytes as size_of_arena
from poetopt.plan.layout import lay_out_within
from poetopt.plan.schedule import Schedule
from poetopt.plan.simulate import Simulation
from poetopt.search.diagnosis.infeasibility import SECONDS as WHY_S
from poetopt.search.diagnosis.infeasibility import explain
from poetopt.search.diagnosis.minimum_budget import SEARCH_S, remedies
from poetopt.search.incumbent import Candidate
from poetopt.search.limits import impossible, within
from poetopt.search.search import objective_of, search
from poetopt.search.solution import Listener, Options, Solution, Status, graded


@dataclass
class LateAnswer:
    """Check of plans that are found for other budgets, deadlines and blocks than the requested ones.

    Attributes
    ----------
    blank
        Solution of the search, without a plan. Only `unknown` leaves room for a plan: a scope that is proven
        infeasible stays that.
    solution
        Solution with the first plan that satisfies the requested options; None: there was none so far.
    quickest_s
        Least time of all plans that satisfy the requested options apart from the deadline, in the deadline's model.
    """

    problem: Problem
    options: Options
    blank: Solution
    begin: float = field(default_factory=time.monotonic)
    solution: Solution | None = None
    quickest_s: float = math.inf

    def see(self, plan: Plan, simulation: Simulation, arena_bytes: int, *, by_rules: bool = False) -> None:
        """Note a plan of the problem; it becomes the solution if it satisfies the requested options.

        Its bound is that of the search for them.

        Parameters
        ----------
        by_rules
            Whether the plan was found by the formulation's own rules, in the requested scope.
        """
        chosen, timeless = formulation(self.options.formulation), replace(self.options, deadline_s=None)
        if not (by_rules or chosen.plans_count):
            return
        trial = chosen.trial(plan, simulation)
        if chosen.refusal(trial) is not None or not within(timeless, self.problem, simulation, arena_bytes):
            return
        self.quickest_s = min(self.quickest_s, self.options.deadline_model.seconds(simulation))
        is_open = self.solution is None and self.blank.status is Status.UNKNOWN
        if not is_open or not within(self.options, self.problem, simulation, arena_bytes):
            return
        value = chosen.goal.value(trial)
        objective = self.blank.objective
        bound = self.blank.overhead_bound_j if objective is None else objective.bound
        bound_j, objective = objective_of(chosen, self.problem, value, None if bound is None else min(bound, value))
        elapsed_s = time.monotonic() - self.begin
        plan = lay_out_within(plan, arena_bytes)
        result = replace(
            self.blank,
            status=Status.FEASIBLE,
            plan=plan,
            simulation=simulation,
            arena_bytes=size_of_arena(plan),
            overhead_bound_j=bound_j,
            scope_bound=None if self.blank.scope_bound is None else min(self.blank.scope_bound, value),
            objective=objective,
            reason="found after the time limit, in the search for remedies; a longer limit may find a better schedule",
            solve_s=self.blank.solve_s + elapsed_s,
            total_s=self.blank.total_s + elapsed_s,
            timing={**self.blank.timing, "remedies": elapsed_s},
        )
        self.solution = replace(result, status=graded(result.overhead_gap, self.options.gap))


OVERTIME_SHARE, OVERTIME_S = 0.1, 1.0
"""Share of the time limit, and seconds, by which the search for remedies may exceed it."""


def solve(
    problem: Problem,
    options: Options,
    listener: Listener | None = None,
    *,
    starts: Sequence[Schedule] = (),
    begin: float | None = None,
) -> Solution:
    """Solve like `poetopt.search.search.search`, with the same parameters, and add remedies if there is no schedule."""
    begin = time.monotonic() if begin is None else begin
    solution = search(problem, options, listener, starts, begin)
    if solution.plan is not None or solution.interrupted:
        return solution
    try:
        return _search_remedies(problem, options, solution, begin)
    except KeyboardInterrupt:  # the proof stands
        return replace(solution, interrupted=True)


def _search_remedies(problem: Problem, options: Options, solution: Solution, begin: float) -> Solution:
    """Return `solution`, which has no plan, with remedies, or with a plan that they find by chance."""
    answer = LateAnswer(problem, options, solution)

    def on_candidate(candidate: Candidate) -> None:
        answer.see(candidate.plan, candidate.simulation, candidate.arena_bytes)

    def watched_search(tried_problem: Problem, trial: Options) -> Solution:
        result = search(tried_problem, trial)
        is_original = tried_problem is problem  # and not with more storage
        if is_original and result.plan is not None and result.simulation is not None and result.arena_bytes is not None:
            # Rules stricter than a plan's also hold within a smaller budget, but not for other moves or blocks.
            same_rules = replace(trial, ram_bytes=options.ram_bytes, time_limit_s=options.time_limit_s, gap=options.gap)
            answer.see(result.plan, result.simulation, result.arena_bytes, by_rules=same_rules == options)
        return result

    # Remedies are worth a few seconds, but not the requested limit. If a block limits something, RAM has half of them.
    latest = begin + (1 + OVERTIME_SHARE) * options.time_limit_s + OVERTIME_S
    # If sums prove that there is no schedule, heuristics alone answer at once, with the same figures each time.
    chosen = formulation(options.formulation)
    is_impossible = impossible(problem, options) is not None or chosen.impossible(problem) is not None
    trial_search = None if is_impossible and chosen.plans_count else watched_search
    spare_s = latest - time.monotonic()
    has_limit = any(block.limits is not None for block in chosen.blocks)
    ram_s = min(SEARCH_S, max(0.0, spare_s / 2 if has_limit else spare_s))
    with_remedies = replace(solution, **remedies(problem, options, trial_search, ram_s, on_candidate))
    if with_remedies.interrupted or answer.solution is not None:
        return answer.solution or with_remedies
    findings = explain(problem, options, with_remedies, trial_search, min(WHY_S, max(0.0, latest - time.monotonic())))
    if answer.solution is not None:
        return answer.solution
    return replace(
        with_remedies,
        why=findings.says,
        ram_bound_bytes=max(with_remedies.ram_bound_bytes or 0, findings.ram_bound_bytes or 0) or None,
        least_deadline_s=_quickest(
            options, findings.least_deadline_s, with_remedies.least_deadline_s, answer.quickest_s
        ),
        interrupted=findings.interrupted,
    )


def _quickest(options: Options, *known_s: float | None) -> float | None:
    """Return the shortest known feasible deadline; None if there is none, or no deadline was requested."""
    feasible_s = [seconds for seconds in known_s if seconds is not None and seconds < math.inf]
    return min(feasible_s, default=None) if options.deadline_s is not None else None
