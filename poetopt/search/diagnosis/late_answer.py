"""A plan that keeps all that was asked, found too late: while what would help was looked for."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace

from poetopt.formulations import formulation
from poetopt.graph.problem import Problem
from poetopt.plan.instructions import Plan
from poetopt.plan.layout import arena_bytes as size_of_arena
from poetopt.plan.layout import lay_out_within
from poetopt.plan.simulate import Simulation
from poetopt.search.limits import within
from poetopt.search.objective import objective_of
from poetopt.search.solution import Options, Solution, Status, graded


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
        """Note a plan that keeps all that was asked; its bound is what the search for that proved.

        A plan for another problem, as one with more storage, is none.

        by_rules
            Whether the plan was found by the formulation's own rules, in the scope that was asked for.
        """
        chosen, timeless = formulation(self.options.formulation), replace(self.options, deadline_s=None)
        if plan.problem.asked is not self.problem or not (by_rules or chosen.plans_count):
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
