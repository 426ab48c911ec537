"""A solve with a word of what would help: where there is no schedule, what binds, and what would be possible."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace

from poetopt.formulations import formulation as formulation_of
from poetopt.graph.problem import Problem
from poetopt.plan.schedule import Schedule
from poetopt.search.diagnosis.infeasibility import SECONDS as WHY_S
from poetopt.search.diagnosis.infeasibility import explain
from poetopt.search.diagnosis.late_answer import LateAnswer
from poetopt.search.diagnosis.minimum_budget import SEARCH_S, remedies
from poetopt.search.incumbent import Candidate
from poetopt.search.limits import impossible
from poetopt.search.search import search
from poetopt.search.solution import Listener, Options, Solution

OVER_SHARE, OVER_S = 0.1, 1.0
"""What is looked for beside a schedule ends by this share of the time limit, and this many seconds, after it."""


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

    def watched(problem: Problem, trial: Options) -> Solution:
        found = search(problem, trial)
        if found.plan is not None and found.simulation is not None and found.arena_bytes is not None:
            # Rules that are stricter than a plan's hold for a smaller budget alike, but not for other moves or blocks.
            alike = replace(trial, ram_bytes=options.ram_bytes, time_limit_s=options.time_limit_s, gap=options.gap)
            answer.see(found.plan, found.simulation, found.arena_bytes, by_rules=alike == options)
        return found

    # What would help is worth a few seconds, but not the limit that was asked for. Where a block limits something, more
    # RAM is only half of it.
    latest = begin + (1 + OVER_SHARE) * options.time_limit_s + OVER_S
    # What sums refuse is answered at once, and with the same figures each time: by heuristics alone.
    chosen = formulation_of(options.formulation)
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
