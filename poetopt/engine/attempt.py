"""One scope: relaxation with cuts, integer search, simulation, and again while plans break what comes late.

It knows no formulation: rows come from the blocks' separators, and schedules from the formulation's own reading of
a point. Whatever it finds counts only after simulation.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from poetopt.backends.solver import Capability, Outcome, Point, Session
from poetopt.engine.cutting import cut
from poetopt.engine.model import model_of, session_of
from poetopt.engine.neighbourhood import improve, near_relaxation
from poetopt.engine.proof import Ending, Proof
from poetopt.engine.run import Run
from poetopt.errors import InfeasibleError
from poetopt.formulations.language import Floats, Formulation, Row
from poetopt.formulations.scope import scope_name

CUT_SHARE = 0.5
"""Share of the remaining time that cutting may take before the integer search."""
ATTEMPTS = 6
"""So many times a model is solved again, a little tighter, where only the layout or the clock refused its plan."""
SHRINK = 400
"""The first such time with this fraction of the budget less, then with twice as much each time."""
IMPROVE_GAP = 0.03
"""Where the relaxation leaves no more than this open, the whole is searched at once."""
IMPROVE_SHARE = 0.3
"""Share of the remaining time that neighbourhoods of the incumbent may take before the whole is searched."""
CUTOFF_MARGIN = 1e-7
"""Solutions have to be better than the best one by this fraction."""
TARGET = 1e4
"""What the objective is scaled to: solvers' tolerances are absolute."""


def search_scope(run: Run, chosen: Formulation, scope: str, inner: Proof | None) -> Proof:
    """Solve one scope: exactly, and again a little tighter while only the layout or the clock refuse its plans.

    inner
        What was proven of a scope inside of it, if anything: only what lies beyond is then searched.
    """
    run.scope = scope_name(scope)
    exact = _attempt(run, chosen, scope, inner, 0, 0.0)
    shrink, slower = 0, 0.0
    step = max(1, run.options.ram_bytes // SHRINK)
    for _ in range(ATTEMPTS):
        refused, late = run.incumbent.arena_excess, run.incumbent.makespan_excess_s
        if exact is Ending.INFEASIBLE or run.closed(run.options.gap) or run.remaining_s < 0.5:
            break
        if refused is not None:
            shrink, step = step, 2 * step
        elif late is not None:
            slower += late
        else:
            break
        if _attempt(run, chosen, scope, inner, shrink, slower) is Ending.INFEASIBLE:
            # too tight: halfway between what was refused and what is impossible
            shrink, slower = shrink // 2, slower / 2
            if shrink < run.options.ram_bytes // (8 * SHRINK) and not slower:
                break
            _attempt(run, chosen, scope, inner, shrink, slower)
            break
    return Proof(
        scope,
        run.scope,
        run.bound,
        exact is Ending.INFEASIBLE,
        run.incumbent.value,
        run.closed(run.options.gap),
        exact is Ending.FINISHED,
        sources=run.sources,
    )


def _attempt(run: Run, chosen: Formulation, scope: str, inner: Proof | None, shrink: int, slower: float) -> Ending:
    """Build and search one model, with `shrink` bytes and `slower` seconds less than what was asked."""
    exact = not shrink and not slower
    run.incumbent.arena_excess = run.incumbent.makespan_excess_s = None
    with run.timed("build"):
        options = run.options
        deadline_s = None if options.deadline_s is None else options.deadline_s - slower
        asked = replace(options, ram_bytes=options.ram_bytes - shrink, deadline_s=deadline_s)
        model = model_of(chosen, run.problem, asked, scope)
        beyond = None
        if exact and inner is not None and chosen.beyond is not None:  # what was proven was proven of these limits
            beyond = chosen.beyond(model, inner.asked, inner.sources)
        if inner is not None and beyond is not None and not beyond.variables:
            return _nothing_beyond(run, inner)
        baseline = chosen.goal.baseline(run.problem, chosen.baseline_j(run.problem))
        scale = TARGET / (run.incumbent.value or baseline or 1.0)
        try:
            session = session_of(model, options, scale=scale)
        except InfeasibleError:
            return Ending.INFEASIBLE
    if inner is not None and beyond is not None:
        run.ceiling = math.inf if inner.infeasible else inner.bound
    try:
        ending = _search(run, chosen, model, session, beyond, exact=exact)
    finally:
        run.ceiling = math.inf
    if exact:
        run.sources = session.sources if inner is None or beyond is None else session.sources | inner.sources
    if ending is Ending.INFEASIBLE and inner is not None and beyond is not None:
        return _nothing_beyond(run, inner)
    return ending


def _nothing_beyond(run: Run, inner: Proof) -> Ending:
    """A scope without a schedule outside of `inner` is proven as that is."""
    if inner.infeasible:
        return Ending.INFEASIBLE
    run.raise_bound(inner.bound, "search")
    return Ending.FINISHED


def _search(run: Run, chosen: Formulation, model: Any, session: Session, beyond: Row | None, exact: bool) -> Ending:
    """Cut, search, simulate, repeat. Says how it ended.

    `exact` is False where the model was tightened for a layout's sake: its bounds then prove nothing.
    """

    def bound(value: float, phase: str) -> None:
        if exact:
            run.raise_bound(value, phase)

    def relaxed(value: float) -> bool:
        bound(value, "relaxation")
        return run.closed(run.options.gap)

    with run.timed("relaxation"):
        if beyond is not None:
            session.add([beyond])
        session.add(chosen.revive(model, run.pool))
        infeasible = cut(
            chosen,
            model,
            session,
            until=time.monotonic() + CUT_SHARE * max(run.remaining_s, 0.0),
            overhead_j=run.incumbent.value,
            on_bound=relaxed,
        )
    run.pool = [(row.block, row.key) for row in session.added if row.key is not None]
    if infeasible:
        return Ending.INFEASIBLE
    # What lies beyond a proven scope is seldom better: there the whole is searched at once.
    if exact and beyond is None and not run.closed(max(run.options.gap, IMPROVE_GAP)):
        with run.timed("neighbourhoods"):
            until = time.monotonic() + IMPROVE_SHARE * max(run.remaining_s, 0.0)
            near_relaxation(run, chosen, model, session, until)
            improve(run, chosen, model, session, until)
    with run.timed("search"):
        return _integer(run, chosen, model, session, beyond, exact, bound)


def _integer(
    run: Run,
    chosen: Formulation,
    model: Any,
    session: Session,
    beyond: Row | None,
    exact: bool,
    bound: Callable[[float, str], None],
) -> Ending:
    """The integer search, again for as long as its answer breaks rows that come late."""

    def improving(point: Point) -> None:
        run.offer(chosen.schedule(model, point), "search")

    while not (exact and run.closed(run.options.gap)) and run.remaining_s > 0:
        best = run.incumbent.best
        if exact and best is not None:
            session.tighten(best.value)
        start = _start(run, chosen, model, beyond) if Capability.WARM_START in session.capabilities else None
        cutoff = None
        if best is not None and start is None and Capability.CUTOFF in session.capabilities:
            cutoff = best.value * (1 - CUTOFF_MARGIN)
        found = session.search(
            time_limit_s=run.remaining_s,
            gap=run.options.gap / 2,
            start=start,
            on_point=improving,
            on_bound=lambda value: bound(min(value, run.incumbent.value or value), "search"),
            cutoff=cutoff,
        )
        if found.outcome is Outcome.INFEASIBLE:
            if best is None or not (session.tightened or cutoff):
                return Ending.INFEASIBLE
            bound(best.value, "search")  # nothing that is left is better
            return Ending.FINISHED
        bound(found.bound if best is None else _proven(found.bound, cutoff, best.value), "search")
        if found.point is None:
            return Ending.STOPPED
        rows = [row for row in chosen.separate(model, found.point) if row.core]
        if not rows:
            return Ending.FINISHED if found.outcome is Outcome.OPTIMAL else Ending.STOPPED
        session.add(rows)
    return Ending.FINISHED if exact and run.closed(run.options.gap) else Ending.STOPPED


def _proven(bound: float, cutoff: float | None, value: float) -> float:
    """What a search proves that began with a solution of `value`: the margin of the cutoff is a tolerance."""
    return value if cutoff is not None and bound >= cutoff else min(bound, value)


def _start(run: Run, chosen: Formulation, model: Any, beyond: Row | None) -> list[tuple[Any, Floats]] | None:
    """Values of the best schedule known that lies in the model."""
    best = run.incumbent.best
    for schedule in [*([] if best is None else [best.schedule]), *run.starts]:
        values = chosen.start(model, schedule)
        if values is not None and (beyond is None or _keeps(beyond, values)):
            return values
    return None


def _keeps(row: Row, values: list[tuple[Any, Floats]]) -> bool:
    known = {id(one): x for variable, array in values for one, x in zip(variable.values(), array, strict=True)}
    pairs = zip(row.variables, row.coefficients, strict=True)
    return bool(row.lower <= sum(known.get(id(one), 0.0) * coefficient for one, coefficient in pairs) <= row.upper)
