"""Scope after scope: which ones to go through, and what is claimed of them in the end."""

from __future__ import annotations

import math
import time
from dataclasses import replace

from poetopt.engine.attempt import search_scope
from poetopt.engine.lightened import lightened_run
from poetopt.engine.model import limits_of
from poetopt.engine.proof import NEARLY, Proof
from poetopt.engine.run import Run
from poetopt.engine.solution import Options
from poetopt.engine.stagewise import Stagewise
from poetopt.formulations.language import Formulation
from poetopt.formulations.scope import scope_name
from poetopt.problem import Problem

DEPTHS = (4, 8, 12, 16, 24, 32)
"""The depths that `auto` tries, in order."""
WARM_UP = (4, 8)
"""The depths that a deeper scope starts from: each leaves it an incumbent and the cuts that were tight. Deeper ones of
DEPTHS, up to DEEPEST, follow while each pays, leaves no more than WARM_UP_GAP open, and takes no more than
WARM_UP_TIME."""
DEEPEST = 12
AHEAD = {"depth:8": "depth:12"}
"""Where schedules are looked for beyond a scope of which much is open."""
WARM_UP_SHARE = (0.2, 0.6)
"""Share of the remaining time that each of those may take."""
BETWEEN_SHARE, BETWEEN_S = (0.06, 0.6), 6.0
"""The same where a scope between the depths and `forward` is the second one: schedules are found there, and the first
one may take more than its share only as far as these seconds and WARM_UP_SHARE."""
DEEPER_SHARE = (0.25, 0.55)
"""Share of it for each of the deeper ones, and if the one before is proven."""
WARM_UP_GAP = 0.05
WARM_UP_TIME = 0.18
"""Share of what was left when it began: after one that took more, the next would leave too little for the one asked."""
FINER, FINEST = 6.0, 5e-3
"""A warm-up is searched to this many times less than the gap that is asked for, but to no less than FINEST: what its
schedule costs too much is open in all scopes that come after it."""
BETWEEN_FINER = 3.0
"""How many times less it is in that scope."""
WARM_ENOUGH_SHARE = 0.4
"""Share of its time after which a warm-up ends though a little is open."""
SOON_SHARE = 0.35
"""Share of the remaining time after which `auto` goes deeper though a little is open."""
STAGES_SHARE = 0.8
"""Share of the remaining time that the search stage by stage of the scope that is asked for may take, where its
incumbent seems within reach. It begins when the first warm-up has left an incumbent."""
PATIENCE = 0.2
"""Share of the remaining time that `auto` spends on leaving out refused schedules before it goes deeper."""


def _scopes(options: Options, chosen: Formulation, between: str = "") -> tuple[str, ...]:
    """The scopes to go through: for `auto` those to prove, else those to warm up with, and the one asked for.

    between
        As of `_between`. The first scope doesn't depend on it.
    """
    if not chosen.deepening:
        return ("full" if options.scope == "auto" else options.scope,)
    if not options.remat:
        return ("full",)  # where nothing runs again all scopes are one space
    if options.scope == "auto":
        return (*(f"depth:{d}" for d in DEPTHS), "full")
    if between:
        return f"depth:{DEPTHS[0]}", between, options.scope
    asked = chosen.depth(options.scope)
    return (*(f"depth:{d}" for d in DEPTHS if d < asked and d <= DEEPEST), options.scope)


def _between(problem: Problem, options: Options, chosen: Formulation) -> str:
    """The scope between the depths and the one asked for that is to warm up with; empty where there is none."""
    if chosen.between is None or not options.remat or options.scope == "auto":
        return ""
    found = chosen.between(problem, limits_of(options), options.paging)
    return found if math.isinf(chosen.depth(options.scope)) and found != options.scope else ""


def first_scope(options: Options, chosen: Formulation) -> str:
    """The one that is searched first, as results call it: what is found before it is said to be of it."""
    return scope_name(_scopes(options, chosen)[0])


def through_scopes(run: Run, chosen: Formulation) -> Proof:
    """Solve at each scope in turn until a deeper one no longer pays or the time is up."""
    proven: Proof | None = None
    nearly: Proof | None = None
    last: Proof | None = None
    between = _between(run.problem, run.options, chosen)
    scopes = _scopes(run.options, chosen, between)
    automatic = run.options.scope == "auto"
    paid = quick = True
    # Of less deep scopes it would say as much, but they are asked for to see what lies in them.
    whole = chosen.backwards is not None and not automatic and math.isinf(chosen.depth(scopes[-1]))
    stagewise = Stagewise.of(run, chosen, scopes[-1]) if whole else None
    lightened = lightened_run(run) if between else None
    before_at = run
    for place, scope in enumerate(scopes):
        warm_up = not automatic and place < len(scopes) - 1
        deeper = warm_up and place >= len(WARM_UP)
        if deeper and not (paid and quick and last is not None and last.within(WARM_UP_GAP)):
            continue
        at = lightened if lightened is not None and place else run
        for one in (run, at):
            one.until, one.soon, one.gap = run.latest, math.inf, run.options.gap
        if warm_up:
            finer = BETWEEN_FINER if scope == between else FINER
            at.gap = min(at.gap, max(at.gap / finer, FINEST))
            proven_so_far = last is not None and last.closed
            share = WARM_UP_SHARE[place] if place < len(WARM_UP) else DEEPER_SHARE[proven_so_far]
            seconds = share * run.remaining_s
            if between:
                seconds = max(BETWEEN_SHARE[place] * run.remaining_s, min(seconds, BETWEEN_S))
            at.until = time.monotonic() + seconds
            at.soon = time.monotonic() + WARM_ENOUGH_SHARE * run.remaining_s
        if automatic and last is not None and (run.remaining_s < 0.5 or (scope == "full" and not last.infeasible)):
            break  # the full space is tried where there is nothing in the others
        if automatic and scope != "full":
            run.soon = time.monotonic() + SOON_SHARE * run.remaining_s
        at.above = run if at is not run and not warm_up else None
        if stagewise is not None and (place or not warm_up):
            run.bound = 0.0
            try:
                proof = _by_stages(run, stagewise, scopes[-1])
            except KeyboardInterrupt:
                run.interrupt()
                return _interrupted(run, scopes[-1], last)
            if proof is not None:
                return proof
        before = run.incumbent.value
        begin, left_s = run.elapsed_s, run.latest - time.monotonic()
        run.scope = scope_name(scope)
        run.bound = at.bound = 0.0 if stagewise is None or warm_up else stagewise.bound_j
        inner = last if last is not None and (last.closed or last.infeasible) and at is before_at else None
        before_at = at
        try:
            patience = 0.0 if warm_up else PATIENCE if automatic else 1.0
            last = search_scope(at, chosen, scope, inner, patience, _ahead(run, chosen, scope))
        except KeyboardInterrupt:
            run.interrupt()
            return _interrupted(run, scope, last)
        quick = run.elapsed_s - begin <= WARM_UP_TIME * left_s
        paid = (
            before is not None
            and last.value is not None
            and (last.outdone or before - last.value > run.options.gap * max(last.value, 1e-300))
        )
        if not automatic:
            continue
        if last.closed:
            settled = proven is not None and not paid
            proven = last
            if settled:
                break
            continue
        if last.within(NEARLY):
            nearly = last
            if proven is not None and not paid:
                break
        elif not last.infeasible and not last.finished:
            break
    run.soon = math.inf
    if last is None:
        raise AssertionError("no scope was tried")
    if automatic and run.incumbent.best is None and not last.infeasible and run.remaining_s > 1.0:
        last = search_scope(run, chosen, last.asked, None, 1.0)
    return claim(proven, nearly, last, run.options.gap)


def _by_stages(run: Run, stagewise: Stagewise, scope: str) -> Proof | None:
    """What the search stage by stage proves of the scope that is asked for, if that is enough."""
    run.scope, gap = scope_name(scope), run.options.gap
    with run.timed("stages"):
        stagewise.climb(STAGES_SHARE * (run.latest - time.monotonic()))
    if not run.closed(gap):
        return None
    return Proof(scope, run.scope, run.bound, False, run.incumbent.value, True, True)


def _ahead(run: Run, chosen: Formulation, scope: str) -> str:
    """The scope to look at for schedules, from this one on; empty where that doesn't pay."""
    pays = chosen.leaning is not None and chosen.plans_count and run.options.remat
    # One thread's work is the same every time, and a look ends by the clock.
    return AHEAD.get(scope, "") if pays and run.options.threads != 1 else ""


def _interrupted(run: Run, scope: str, last: Proof | None) -> Proof:
    """What is known of the scope at hand or, where that is nothing yet, of the last one with the plan found since."""
    value = run.incumbent.value
    if run.bound <= 0 and last is not None and not last.infeasible:
        run.bound = last.bound if value is None else min(last.bound, value)
        return replace(last, bound=run.bound, value=value, closed=run.closed(run.options.gap))
    return Proof(scope, run.scope, run.bound, False, value, run.closed(run.options.gap))


def claim(proven: Proof | None, nearly: Proof | None, last: Proof, gap: float) -> Proof:
    """What is said of several scopes: the deepest that is proven, with a note of what a deeper one left open.

    proven, nearly, last
        The deepest scope that is proven, the deepest that is but for a little, and the last one searched.
    """
    if last.closed:
        return last
    if proven is None and nearly is not None and last.gap > nearly.gap and last.value == nearly.value:
        return replace(nearly, note=_open(last))  # nothing better was found deeper
    if proven is None:
        return last
    return replace(
        proven,
        note=(
            f"a plan of the deeper scope {last.scope} was taken, where {last.gap:.2%} of the overhead is open "
            f"(the tolerance is {gap:.2%})"
        )
        if last.value is not None and (proven.value is None or last.value < proven.value)
        else _open(last),
    )


def _open(last: Proof) -> str:
    return f"the deeper scope {last.scope} is open by {last.gap:.2%} of the overhead"
