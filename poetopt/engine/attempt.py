"""One scope: relaxation with cuts, integer search, simulation, and again while plans break what comes late.

It knows no formulation: rows come from the blocks' separators, and schedules from the formulation's own reading of
a point. Whatever it finds counts only after simulation.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from poetopt.backends.solver import Capability, Outcome, Point, Session
from poetopt.engine.cutting import cut
from poetopt.engine.model import model_of, session_of
from poetopt.engine.neighbourhood import improve, near_relaxation
from poetopt.engine.proof import Ending, Proof
from poetopt.engine.run import Run
from poetopt.engine.solution import DeadlineModel
from poetopt.engine.tighten import Tightening, Tighter
from poetopt.errors import InfeasibleError
from poetopt.formulations.language import Floats, Formulation, Row
from poetopt.formulations.scope import scope_name

CUT_SHARE = (0.5, 0.8)
"""Share of the remaining time that cutting may take before the integer search, and where the bound still rises."""
ATTEMPTS = 8
"""So many times a model is solved again, a little tighter, where only the layout or the clock refused its plan."""
LATE = 3
"""Searches whose best point is late before the model is tightened: rows alone don't tell what the planner can order."""
TIGHTER_SHARE = 0.5
"""Share of the remaining time that tightening may take where there is a plan already."""
WAIT_S = 1.0
"""A search whose best point breaks rows that come late goes on for so long at least."""
IMPROVE_GAP = 0.03
"""Where the relaxation leaves no more than this open, the whole is searched at once."""
IMPROVE_SHARE = 0.3
"""Share of the remaining time that neighbourhoods of the incumbent may take before the whole is searched."""
CUTOFF_MARGIN = 1e-7
"""Solutions have to be better than the best one by this fraction."""
TARGET = 1e4
"""What the objective is scaled to: solvers' tolerances are absolute."""


def search_scope(run: Run, chosen: Formulation, scope: str, inner: Proof | None, patience: float = 0.0) -> Proof:
    """Solve one scope: exactly, and again a little tighter while only the layout or the clock refuse its plans.

    inner
        What was proven of a scope inside of it, if anything: only what lies beyond is then searched.
    patience
        Share of the time then left that may go into leaving out refused schedules one by one.
    """
    run.scope = scope_name(scope)
    exact = _attempt(run, chosen, scope, inner, Tighter())
    overlaps = run.problem.dma and run.options.paging and run.options.deadline_model is not DeadlineModel.PAPER
    steps = Tightening(run.options.ram_bytes, overlaps=overlaps)
    late = run.incumbent.makespan_excess_s is not None
    tighter: Tighter | None = None
    until = run.until
    if run.incumbent.best is not None:
        run.until = time.monotonic() + TIGHTER_SHARE * max(run.remaining_s, 0.0)
    for _ in range(ATTEMPTS):
        if exact is Ending.INFEASIBLE or run.closed(run.options.gap) or run.remaining_s < 0.5:
            break
        tighter = tighter or steps.next(run.incumbent)
        if tighter is None:
            break
        tighter = steps.ended(_attempt(run, chosen, scope, inner, tighter))
    run.until = until
    open_ = exact is not Ending.INFEASIBLE and not run.closed(run.options.gap)
    if patience and open_ and chosen.gives_up is not None and (late or run.incumbent.best is None):
        exact = _patient(run, chosen, scope, inner, exact, patience)
    return Proof(
        scope,
        run.scope,
        run.bound,
        exact is Ending.INFEASIBLE,
        run.incumbent.value,
        run.closed(run.options.gap),
        exact in (Ending.FINISHED, Ending.REFUSED),
        sources=run.sources,
    )


def _patient(run: Run, chosen: Formulation, scope: str, inner: Proof | None, before: Ending, patience: float) -> Ending:
    """What was asked once more, where each schedule that is refused is left out, with what else it proves late."""
    until = run.until
    run.until = time.monotonic() + patience * max(run.remaining_s, 0.0)
    try:
        ending = _attempt(run, chosen, scope, inner, Tighter(), patient=True) if run.remaining_s > 0.5 else before
    finally:
        run.until = until
    return ending if ending in (Ending.INFEASIBLE, Ending.FINISHED) else before


def _attempt(
    run: Run, chosen: Formulation, scope: str, inner: Proof | None, tighter: Tighter, patient: bool = False
) -> Ending:
    """Build and search one model, which is `tighter` than what was asked."""
    exact = tighter.exact
    run.incumbent.forget()
    with run.timed("build"):
        options = run.options
        deadline_s = None if options.deadline_s is None else options.deadline_s - tighter.slower
        asked = replace(options, ram_bytes=options.ram_bytes - tighter.shrink, deadline_s=deadline_s)
        model = model_of(chosen, run.problem, asked, scope, hidden_share=tighter.hidden_share)
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
        ending = _search(run, chosen, model, session, beyond, _Standing(exact), patient)
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


@dataclass
class _Standing:
    """Whether the model is what was asked: once it is tighter, its bounds prove nothing."""

    exact: bool


def _search(
    run: Run,
    chosen: Formulation,
    model: Any,
    session: Session,
    beyond: Row | None,
    standing: _Standing,
    patient: bool,
) -> Ending:
    """Cut, search, simulate, repeat. Says how it ended."""

    def bound(value: float, phase: str) -> None:
        if standing.exact:
            run.raise_bound(value, phase)

    def relaxed(value: float) -> bool:
        bound(value, "relaxation")
        return run.closed(run.options.gap)

    now, remaining_s = time.monotonic(), max(run.remaining_s, 0.0)
    with run.timed("relaxation"):
        if beyond is not None:
            session.add([beyond])
        session.add(chosen.revive(model, run.pool))
        infeasible = cut(
            chosen,
            model,
            session,
            until=now + CUT_SHARE[0] * remaining_s,
            latest=now + CUT_SHARE[1] * remaining_s,
            overhead_j=run.incumbent.value,
            on_bound=relaxed,
        )
    run.pool = [(row.block, row.key) for row in session.added if row.key is not None]
    if infeasible:
        return Ending.INFEASIBLE
    # What lies beyond a proven scope is seldom better: there the whole is searched at once.
    if standing.exact and not patient and beyond is None and not run.closed(max(run.options.gap, IMPROVE_GAP)):
        with run.timed("neighbourhoods"):
            until = time.monotonic() + IMPROVE_SHARE * max(run.remaining_s, 0.0)
            near_relaxation(run, chosen, model, session, until)
            improve(run, chosen, model, session, until)
    with run.timed("search"):
        return _integer(run, chosen, model, session, beyond, standing, patient, bound)


def _integer(
    run: Run,
    chosen: Formulation,
    model: Any,
    session: Session,
    beyond: Row | None,
    standing: _Standing,
    patient: bool,
    bound: Callable[[float, str], None],
) -> Ending:
    """The integer search, again for as long as its answer breaks rows that come late.

    A point that breaks one is better than what keeps them all, and would have the search give up all that lies between.
    So a search ends early where its best points have been of those for as long as it took to find the first one.

    patient
        Whether a schedule that layout or clock refuse is left out, and the search goes on.
    """
    began = time.monotonic()
    broken_s: float | None = None
    found_late: list[Row] = []
    late = 0

    def improving(point: Point) -> None:
        nonlocal broken_s
        schedule = chosen.schedule(model, point)
        run.offer(schedule, "search")
        rows = [row for row in chosen.separate(model, point) if row.core]
        found_late.extend(rows)
        broken_s = (broken_s or time.monotonic()) if rows or run.incumbent.refused(schedule) is not None else None

    def closed() -> bool:
        return standing.exact and run.closed(run.options.gap)

    def enough() -> bool:
        return closed() or (broken_s is not None and time.monotonic() - broken_s > max(WAIT_S, broken_s - began))

    while not closed() and run.remaining_s > 0:
        began, broken_s = time.monotonic(), None
        best = run.incumbent.best
        if standing.exact and best is not None:
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
            enough=enough,
        )
        if found.outcome is Outcome.INFEASIBLE:
            if patient and not standing.exact:
                return Ending.REFUSED  # what is left was never searched
            if best is None or not (session.tightened or cutoff):
                return Ending.INFEASIBLE
            bound(best.value, "search")  # nothing that is left is better
            return Ending.FINISHED
        bound(found.bound if best is None else _proven(found.bound, cutoff, best.value), "search")
        if found.point is None or closed():
            break
        rows = [row for row in chosen.separate(model, found.point) if row.core]
        schedule = chosen.schedule(model, found.point)
        refusal = run.incumbent.refused(schedule)
        late += refusal is not None and refusal.late_s > 0
        if rows and (patient or late < LATE):
            session.add(found_late)
            found_late.clear()
            continue
        if refusal is None:
            return Ending.FINISHED if found.outcome is Outcome.OPTIMAL else Ending.STOPPED
        values = chosen.start(model, schedule) if patient else None
        if values is None or chosen.gives_up is None:
            return Ending.REFUSED
        if refusal.arena_excess or not run.incumbent.hopeless(schedule):
            standing.exact = False
        session.add([chosen.gives_up(model, schedule, values)])
    return Ending.FINISHED if closed() else Ending.STOPPED


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
