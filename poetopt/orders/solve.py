"""Solving with the order of operators as a choice too: the given one, a search, and the better of two solves.

Every proof is of one order. The given order is solved first, for a share of the time; then others are searched; what
the search prefers is solved like the given one, and replaces it only where its simulated plan costs less. Where it
prefers nothing, the rest of the time goes to the given order again. So the answer is never worse than what was found in
the given order, and what the order won is the difference of two simulated plans, not of two estimates. The same
decisions are tried in the given order too, lest a longer search is taken for a better order.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from poetopt.diagnosis.solve import solve
from poetopt.engine.incumbent import Candidate, Incumbent
from poetopt.engine.solution import OPTIMAL_GAP, Listener, Options, OrderFound, Progress, Solution, Status
from poetopt.orders.precedence import reordered, schedule_from, schedule_into
from poetopt.orders.search import search_order
from poetopt.plan.assemble import schedule_of
from poetopt.problem import Problem
from poetopt.schedule import Schedule

GIVEN_SHARE = 0.35
"""Share of the time limit for the given order."""
CUT_OFF = 0.8
"""A solve that took more than this fraction of its time was cut off by it: what is left may do more."""
SEARCH_SHARE = 0.5
"""Share of what is left then for the search."""


def solve_ordered(
    problem: Problem,
    options: Options,
    listener: Listener | None = None,
    *,
    seed: int = 0,
    begin: float | None = None,
) -> tuple[Problem, Solution]:
    """Solve `problem` in the given order and in the best that a search finds; the better one, with its problem.

    The solution's proof is of that order alone, and its `order` says what the search did and won. `begin` and errors
    are as of `solve`.
    """
    clock = _Clock(options, listener, begin)
    share_s = clock.left_s() * GIVEN_SHARE
    given = clock.solved(problem, share_s)
    if given.interrupted or _settled(problem, options, given):
        return problem, clock.stamped(given, _found(given, given))
    begin = time.monotonic()
    try:
        found = search_order(
            problem, options, until=begin + clock.left_s() * SEARCH_SHARE, seed=seed, on_better=clock.say
        )
    except KeyboardInterrupt:
        return problem, clock.stamped(replace(given, interrupted=True), _found(given, given, finished=False))
    clock.timing["order"] = time.monotonic() - begin
    best, chosen = problem, given
    other = reordered(problem, found.order)
    if found.moves:
        known = [] if given.plan is None else [schedule_into(problem, found.order, schedule_of(given.plan))]
        best, chosen = _better((problem, given), (other, clock.solved(other, clock.left_s(), known)))
        if best is other and chosen.plan is not None:
            # what the longer search found may do in the given order too: then the order has won nothing
            again = Incumbent(problem, options)
            if again.offer(schedule_from(problem, found.order, schedule_of(chosen.plan))) and again.best is not None:
                given = _cheaper(given, again.best)
    elif given.total_s > CUT_OFF * share_s or given.status in (Status.FEASIBLE, Status.UNKNOWN):
        starts = () if given.plan is None else (schedule_of(given.plan),)
        chosen = _better((problem, given), (problem, clock.solved(problem, clock.left_s(), starts)))[1]
    chosen = replace(chosen, interrupted=chosen.interrupted or clock.interrupted)
    order = _found(given, chosen, found.moves if best is other else 0, found.judged, found.drawn, found.finished)
    return best, clock.stamped(chosen, order)


def _settled(problem: Problem, options: Options, given: Solution) -> bool:
    """Whether no other order can be better: nothing to save, or sums that hold in every order."""
    if given.simulation is not None:
        return given.simulation.overhead_j <= 0
    in_time = options.deadline_s is None or options.deadline_s >= problem.baseline_time_s * (1 - 1e-9)
    return options.ram_bytes < problem.least_ram_bytes or not in_time


def _better(first: tuple[Problem, Solution], second: tuple[Problem, Solution]) -> tuple[Problem, Solution]:
    """The one with the cheaper plan, by more than a proof of optimality leaves open.

    Of equals in one order it is the one with the better proof, else the first.
    """
    one, two = first[1].simulation, second[1].simulation
    if two is None:
        return first
    if one is None or two.overhead_j < one.overhead_j * (1 - OPTIMAL_GAP):
        return second
    same = first[0] is second[0] and two.overhead_j <= one.overhead_j
    return second if same and (second[1].scope_bound_j or 0.0) > (first[1].scope_bound_j or 0.0) else first


def _cheaper(given: Solution, candidate: Candidate) -> Solution:
    """What was found in the given order, with a plan that is cheaper if the candidate's is."""
    if given.simulation is not None and given.simulation.overhead_j <= candidate.simulation.overhead_j:
        return given
    return replace(given, plan=candidate.plan, simulation=candidate.simulation)


def _found(
    given: Solution, chosen: Solution, moves: int = 0, judged: int = 0, drawn: int = 0, finished: bool = True
) -> OrderFound:
    before = None if given.simulation is None else given.simulation.overhead_j
    after = None if chosen.simulation is None else chosen.simulation.overhead_j
    proven = None
    if after is not None and given.scope_bound_j is not None and _covers(given.scope, chosen.scope):
        proven = max(0.0, given.scope_bound_j - after)
    return OrderFound(
        moves=moves,
        gain_j=None if before is None or after is None else before - after,
        proven_j=proven,
        given_overhead_j=before,
        given_bound_j=given.scope_bound_j,
        given_scope=given.scope,
        judged=judged,
        drawn=drawn,
        finished=finished,
    )


def _covers(scope: str, other: str) -> bool:
    """Whether the schedules of the scope `other` are all in `scope`, as far as names tell."""
    return scope in (other, "full") or other == "store-all"


@dataclass
class _Clock:
    """One time limit over several solves."""

    options: Options
    listener: Listener | None
    begun: float | None = None

    def __post_init__(self) -> None:
        now = time.monotonic()
        self.begin = now if self.begun is None else self.begun
        self.timing: dict[str, float] = {} if self.begun is None else {"reading": now - self.begun}
        self.build_s = 0.0
        self.interrupted = False

    def left_s(self) -> float:
        return max(0.0, self.begin + self.options.time_limit_s - time.monotonic())

    def solved(self, problem: Problem, seconds: float, starts: Sequence[Schedule] = ()) -> Solution:
        """Solve for so many seconds, with progress on the common clock."""
        before = time.monotonic() - self.begin

        def later(progress: Progress) -> None:
            if self.listener is not None:
                self.listener(replace(progress, elapsed_s=before + progress.elapsed_s))

        solution = solve(problem, replace(self.options, time_limit_s=max(seconds, 0.1)), later, starts=starts)
        for phase, spent in solution.timing.items():
            self.timing[phase] = self.timing.get(phase, 0.0) + spent
        self.build_s += solution.build_s
        self.interrupted = self.interrupted or solution.interrupted
        trace = tuple(replace(progress, elapsed_s=before + progress.elapsed_s) for progress in solution.trace)
        return replace(solution, trace=trace)

    def say(self, overhead_j: float) -> None:
        """Tell of a better order: its judged overhead is a bound in that order, in the search's scope."""
        if self.listener is not None:
            self.listener(Progress(time.monotonic() - self.begin, "order", "other order", None, overhead_j))

    def stamped(self, solution: Solution, order: OrderFound) -> Solution:
        """The solution with the options as asked, and the time that all of it took."""
        total_s = time.monotonic() - self.begin
        reason = solution.reason
        if solution.plan is None and reason and order.judged:
            reason = f"{reason}, in the given order of operators; none of {order.judged} orders judged has one"
        return replace(
            solution,
            options=self.options,
            reason=reason,
            order=order,
            timing=dict(self.timing),
            build_s=self.build_s,
            total_s=total_s,
            solve_s=total_s - self.build_s - self.timing.get("reading", 0.0),
        )
