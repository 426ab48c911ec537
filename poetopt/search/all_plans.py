"""What models leave open of a small problem, by all of its plans: beyond scopes, with layouts and by the clock."""

from __future__ import annotations

import math
from dataclasses import replace

from poetopt.formulations.goal import ENERGY
from poetopt.search.exhaustive import MOST_STATES, Asked, cheapest, small
from poetopt.search.proof import Proof
from poetopt.search.run import Run
from poetopt.search.solution import OPTIMAL_GAP, DeadlineModel

DECIDING_SHARE = 0.5
"""Of the time limit, for a look at all plans, where there are few."""
CLOSED_STATES = 5_000
"""So many states are looked at where a scope is proven: a plan outside of it may be better."""


def decidable(run: Run) -> bool:
    """Whether every plan is asked for, by nothing but energy, RAM and the makespan, and there are few."""
    chosen, options = run.chosen, run.options
    plain = chosen.goal is ENERGY and all(block.name in chosen.simulated for block in chosen.blocks)
    timed = options.deadline_s is None or options.deadline_model is DeadlineModel.MAKESPAN
    return chosen.plans_count and plain and timed and options.scope in ("auto", "full") and small(run.problem)


def decided(run: Run, proof: Proof) -> Proof:
    """`proof`, or what is known of all plans where that is more: a better plan, a higher bound, or that there is none.

    The bound of bytes and seconds alone holds whatever layouts say.
    """
    incumbent, options = run.incumbent, run.options
    if proof.of_all:
        return proof
    best = incumbent.best
    closed = best is not None and (best.value <= 0 or run.closed(max(options.gap, OPTIMAL_GAP)))
    asked = Asked(
        options.ram_bytes - run.chosen.reserve_bytes(run.problem), options.deadline_s, options.paging, options.remat
    )
    bound = 0.0
    for placed in (False, True):
        ceiling = math.inf if incumbent.value is None else incumbent.value
        most = CLOSED_STATES if closed else MOST_STATES
        found = cheapest(run.problem, replace(asked, placed=placed, floor=bound), ceiling, run.latest, most)
        bound = max(bound, found.bound)
        if found.plan is None:
            break
        if incumbent.take(found.plan):
            break
    value = incumbent.value
    run.least = max(run.least, bound if value is None else min(bound, value))
    if value is None and bound == math.inf:
        return replace(proof, asked="full", scope="full", bound=0.0, infeasible=True, of_all=True, closed=False)
    if value is None or (closed and incumbent.best is best):
        return proof if value is not None else replace(proof, bound=max(bound, proof.bound))
    bound = min(bound, value)
    if bound < proof.bound and incumbent.best is best:
        return proof
    run.enter("full", bound)
    gap = run.closed(options.gap)
    return replace(proof, asked="full", scope="full", bound=bound, infeasible=False, value=value, closed=gap, note="")
