"""Scope after scope: which ones to go through, and what is claimed of them in the end."""

from __future__ import annotations

import math
import time
from dataclasses import replace

from poetopt.engine.asked import asked_scope, search_asked, warm_ups
from poetopt.engine.attempt import interrupted, search_scope
from poetopt.engine.proof import NEARLY, Proof
from poetopt.engine.run import LEAST_S, Run
from poetopt.engine.solution import Options
from poetopt.formulations.language import Formulation
from poetopt.formulations.scope import kind_words, scope_name
from poetopt.units import show_share

DEPTHS = (4, 8, 12, 16, 24, 32)
"""The depths that `auto` tries, in order."""
SOON_SHARE = 0.35
"""Share of the remaining time after which `auto` goes deeper though a little is open."""
PATIENCE = 0.2
"""Share of the remaining time that `auto` spends on leaving out refused schedules before it goes deeper."""


def first_scope(options: Options, chosen: Formulation) -> str:
    """The one that is searched first, as results call it: what is found before it is said to be of it."""
    if options.scope == "auto":
        return scope_name(_depths(options, chosen)[0])
    return scope_name((*warm_ups(options, chosen), asked_scope(options, chosen))[0])


def through_scopes(run: Run, chosen: Formulation) -> Proof:
    """Solve the scope that was asked for, or with `auto` deeper and deeper ones."""
    return _deeper(run, chosen) if run.options.scope == "auto" else search_asked(run, chosen)


def _depths(options: Options, chosen: Formulation) -> tuple[str, ...]:
    """What `auto` goes through: where nothing runs again, or there are no depths, all scopes are one."""
    return (*(f"depth:{d}" for d in DEPTHS), "full") if chosen.deepening and options.remat else ("full",)


def _deeper(run: Run, chosen: Formulation) -> Proof:
    """Solve at each depth in turn until a deeper one no longer pays or the time is up."""
    proven: Proof | None = None
    nearly: Proof | None = None
    last: Proof | None = None
    for scope in _depths(run.options, chosen):
        run.soon = math.inf
        if last is not None and (run.remaining_s < LEAST_S or (scope == "full" and not last.infeasible)):
            break  # the full space is tried where there is nothing in the others
        if scope != "full":
            run.soon = time.monotonic() + SOON_SHARE * run.remaining_s
        before = run.incumbent.value
        run.scope, run.bound = scope_name(scope), 0.0
        try:
            last = search_scope(run, chosen, scope, last, PATIENCE)
        except KeyboardInterrupt:
            run.interrupt()
            return interrupted(run, scope, last)
        paid = last.pays(before, run.options.gap)
        if last.closed:
            settled = proven is not None and not paid
            proven = last
            if settled:
                break
        elif last.within(NEARLY):
            nearly = last
            if proven is not None and not paid:
                break
        elif not last.infeasible and not last.finished:
            break
    run.soon = math.inf
    assert last is not None
    if run.incumbent.best is None and not last.infeasible and run.remaining_s > 1.0:
        last = search_scope(run, chosen, last.asked, None, 1.0)
    return claim(proven, nearly, last, run.options.gap)


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
            f"the plan is of a wider kind, {kind_words(last.scope)}; a better one of that kind may save up to "
            f"{show_share(last.gap)} of the overhead (asked: {show_share(gap)})"
        )
        if last.value is not None and (proven.value is None or last.value < proven.value)
        else _open(last),
    )


def _open(last: Proof) -> str:
    kind = kind_words(last.scope)
    if last.gap >= 1.0:
        return f"nothing is proven of schedules of the next kind, {kind}: give more --time-limit to search them"
    return f"a schedule of the next kind, {kind}, may save up to {show_share(last.gap)} of the overhead"
