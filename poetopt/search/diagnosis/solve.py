"""A solve with a word of what would help: where there is no schedule, what binds, and what would be possible."""

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
    """Looks at plans that are found for other budgets, deadlines and blocks than those asked for.

    blank
        What the search for those ended with. Only `unknown` leaves room for a plan: what is proven infeasible in its
        scope stays that.
    solution
        The first plan that keeps all that was asked, as the answer; None: there was none so far.
    quickest_s
        Of all plans that keep what was asked but for the deadline, the time that this bounds.
    """

    problem: Problem
    options: Options
    blank: Solution
    begin: float = field(default_factory=time.monotonic)
    solution: Solution | None = None
    quickest_s: float = math.inf

    def see(self, plan: Plan, simulation: Simulation, arena_bytes: int, *, by_rules: bool = False) -> None:
        """Note a plan of the problem that keeps all that was asked; its bound is what the search for that proved.

        by_rules
            Whether the plan was found by the formulation's own rules, in the scope that was asked for.
        """
        chosen, timeless = formulation(self.options.formulation), replace(self.options, deadline_s=None)
        if not (by_rules or chosen.plans_count):
            return
        trial = chosen.trial(plan, simulation)
        if chosen.refusal(trial) is not None or not within(timeless, self.problem, simulation, arena_bytes):
            return
        self.quickest_s = min(self.quickest_s, self.options.deadline_model.seconds(simulation))
        open_ = self.solution is None and self.blank.status is Status.UNKNOWN
        if not open_ or not within(self.options, self.problem, simulation, arena_bytes):
            return
        value = chosen.goal.value(trial)
        objective = self.blank.objective
        known = self.blank.overhead_bound_j if objective is None else objective.bound
        bound_j, objective = objective_of(chosen, self.problem, value, None if known is None else min(known, value))
        took_s = time.monotonic() - self.begin
        plan = lay_out_within(plan, arena_bytes)
        found = replace(
            self.blank,
            status=Status.FEASIBLE,
            plan=plan,
            simulation=simulation,
            arena_bytes=size_of_arena(plan),
            overhead_bound_j=bound_j,
            scope_bound=None if self.blank.scope_bound is None else min(self.blank.scope_bound, value),
            objective=objective,
            reason="found after the time limit, in looking for what would help; more of it may find a better schedule",
            solve_s=self.blank.solve_s + took_s,
            total_s=self.blank.total_s + took_s,
            timing={**self.blank.timing, "remedies": took_s},
        )
        self.solution = replace(found, status=graded(found.overhead_gap, self.options.gap))


OVER_SHARE, OVER_S = 0.1, 1.0
"""The search for remedies ends by this share of the time limit, and this many seconds, after it."""


def solve(
    problem: Problem,
    options: Options,
    listener: Listener | None = None,
    *,
    starts: Sequence[Schedule] = (),
    begin: float | None = None,
) -> Solution:
    """`poetopt.search.search.search`, which has the parameters, with what would help where there is no schedule."""
    begin = time.monotonic() if begin is None else begin
    solution = search(problem, options, listener, starts, begin)
    if solution.plan is not None or solution.interrupted:
        return solution
    try:
        return _helped(problem, options, solution, begin)
    except KeyboardInterrupt:  # what is proven stands
        return replace(solution, interrupted=True)


def _helped(problem: Problem, options: Options, solution: Solution, begin: float) -> Solution:
    """`solution`, which has no plan, with what would help; or a plan that fits, where one comes up."""
    answer = LateAnswer(problem, options, solution)

    def seen(candidate: Candidate) -> None:
        answer.see(candidate.plan, candidate.simulation, candidate.arena_bytes)

    def watched(tried: Problem, trial: Options) -> Solution:
        found = search(tried, trial)
        own = tried is problem  # and not with more storage
        if own and found.plan is not None and found.simulation is not None and found.arena_bytes is not None:
            # Rules that are stricter than a plan's hold for a smaller budget alike, but not for other moves or blocks.
            alike = replace(trial, ram_bytes=options.ram_bytes, time_limit_s=options.time_limit_s, gap=options.gap)
            answer.see(found.plan, found.simulation, found.arena_bytes, by_rules=alike == options)
        return found

    # What would help is worth a few seconds, but not the limit that was asked for. Where a block limits something, more
    # RAM is only half of it.
    latest = begin + (1 + OVER_SHARE) * options.time_limit_s + OVER_S
    # What sums refuse is answered at once, and with the same figures each time: by heuristics alone.
    chosen = formulation(options.formulation)
    plain = impossible(problem, options) is not None or chosen.impossible(problem) is not None
    trials = None if plain and chosen.plans_count else watched
    spare = latest - time.monotonic()
    limited = any(block.limits is not None for block in chosen.blocks)
    for_ram = min(SEARCH_S, max(0.0, spare / 2 if limited else spare))
    helped = replace(solution, **remedies(problem, options, trials, for_ram, seen))
    if helped.interrupted or answer.solution is not None:
        return answer.solution or helped
    why = explain(problem, options, helped, trials, min(WHY_S, max(0.0, latest - time.monotonic())))
    if answer.solution is not None:
        return answer.solution
    return replace(
        helped,
        why=why.says,
        ram_bound_bytes=max(helped.ram_bound_bytes or 0, why.ram_bound_bytes or 0) or None,
        least_deadline_s=_quickest(options, why.least_deadline_s, helped.least_deadline_s, answer.quickest_s),
        interrupted=why.interrupted,
    )


def _quickest(options: Options, *known_s: float | None) -> float | None:
    """The shortest deadline of all that some plan keeps; None where no deadline was asked for, or none is known."""
    found = [seconds for seconds in known_s if seconds is not None and seconds < math.inf]
    return min(found, default=None) if options.deadline_s is not None else None
