"""Bounds on all plans, also of those that a formulation has no decisions for: by its outer approximation.

Where it has no point there is no plan; and no plan costs less than its optimum. So an answer is held against more than
the scope that was searched for it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from poetopt.backends.solvers.solver import Outcome, Point, Session
from poetopt.formulations import formulation
from poetopt.formulations.language import Formulation
from poetopt.formulations.rows import PointLike
from poetopt.formulations.scope import ALL
from poetopt.graph.problem import COMPUTES, Feature
from poetopt.search.cutting import cut, model_of, session_of
from poetopt.search.run import Budget, Run
from poetopt.search.tuning import ALL_PACE_S, CUT_SHARE, LEAST_S
from poetopt.util import work
from poetopt.util.errors import BackendUnavailableError, FormulationError, InfeasibleError, TimeUpError

SUPPORTS = frozenset({Feature.STORED, Feature.UPDATED, Feature.TAKEN, *COMPUTES})
"""Features of problems whose plans have their points in outer approximations."""
AGAIN_S = 3.0
"""Seconds that a bound on all plans may take at least."""


def no_plan(run: Run, budget: Budget) -> bool:
    """Say whether it is proven that nothing keeps what was asked. False says nothing: there may be a plan or not."""
    outer = run.chosen.outer_of
    if outer is None or run.problem.beyond(SUPPORTS) is not None:
        return False
    try:
        model, session = _opened(run, outer, scale=1.0)
    except InfeasibleError:
        return True
    except TimeUpError:
        return False
    with run.timed("outer approximation"):
        cutting = budget.part(CUT_SHARE[0])
        if cut(outer, model, session, until=cutting, overhead_j=None, on_bound=lambda _: False).infeasible:
            return True
        return _no_point(run, budget, outer, model, session)


def bound_all(run: Run, budget: Budget) -> None:
    """Raise `run.least`, what no plan at all costs less than, as far as the incumbent's gap asks for it.

    First by the relaxation, cut, then by a search: for as long again as all took so far, or until its pace doesn't
    close the gap in time. What it finds is offered.
    """
    outer = bounding(run)
    run.enter(ALL, run.least)
    if outer is None or run.incumbent.best is None or run.closed(budget.gap):
        return
    try:
        model, session = _opened(run, outer, scale=run.scale)
        with run.timed("all schedules"):
            again = replace(budget.for_s(max(run.work.seconds, AGAIN_S)), pace_s=ALL_PACE_S)
            _raised(run, again, outer, model, session)
    except (BackendUnavailableError, InfeasibleError, TimeUpError):  # too large for a licence; nothing is known
        return
    finally:
        run.least = max(run.least, run.bound)


def bounding(run: Run) -> Formulation | None:
    """The relaxation of what is minimised over all plans; None where there is none, or it is too large."""
    chosen, problem = run.chosen, run.problem
    outer = chosen.outer or formulation("retention").outer
    if outer is None or problem.beyond(SUPPORTS | {Feature.STREAMED}) is not None:
        return None
    try:
        return chosen.bounding(outer)
    except FormulationError:  # a block that asks for others
        return None


def _opened(run: Run, outer: Formulation, scale: float) -> tuple[Any, Session]:
    """The model of all plans within what is left by blocks that aren't in it, open in the backend."""
    options = run.options
    reserved = run.chosen.reserve_bytes(run.problem) - outer.reserve_bytes(run.problem)
    asked = replace(options, ram_bytes=options.ram_bytes - reserved)
    with run.timed("build"), work.ending(run.latest):
        model = model_of(outer, run.problem, asked, "full")
        session = session_of(model, options, scale=scale)
    session.work = run.work
    return model, session


def _raised(run: Run, budget: Budget, outer: Formulation, model: Any, session: Session) -> None:
    """Raise the bound of a model of all plans by its relaxation, then by its search."""

    def raised(value: float) -> None:
        run.raise_bound(min(value, run.incumbent.value or value), "all schedules")

    def enough(value: float) -> bool:
        raised(value)
        return run.closed(budget.gap)

    def over() -> bool:
        return run.closed(budget.gap) or run.remaining_s(budget) <= 0

    def seen(_: PointLike) -> None:
        if run.incumbent.value is not None:
            session.tighten(run.incumbent.value)

    def improving(point: Point) -> None:
        run.offer(outer.points.schedule(model, point), "all schedules")

    until, latest = (budget.part(share) for share in CUT_SHARE)
    cutting = cut(
        outer,
        model,
        session,
        until=until,
        latest=latest,
        overhead_j=run.incumbent.value,
        on_bound=enough,
        on_point=seen,
    )
    if cutting.infeasible and run.incumbent.value is not None:  # by what is tightened: no other plan is better
        raised(run.incumbent.value)
    run.proving.root = (run.work.seconds, run.bound)
    while not over() and budget.remaining_s > LEAST_S:
        found = session.search(
            time_limit_s=budget.limit_s,
            gap=budget.gap / 2,
            start=None,
            on_point=improving if run.chosen.plans_count and run.options.scope == "auto" else lambda _: None,
            on_bound=raised,
            enough=over,
        )
        if found.outcome is Outcome.INFEASIBLE:  # within tolerances: there is a plan
            return
        raised(found.bound)
        rows = [] if found.point is None else [row for row in outer.separate(model, found.point) if row.core]
        if not rows:
            return
        session.add(rows)


def _no_point(run: Run, budget: Budget, outer: Formulation, model: Any, session: Session) -> bool:
    """Say whether the model has no solution; rows of a separator are added until one keeps them all."""
    while run.remaining_s(budget) > 0:
        kept: list[Point] = []

        def improving(point: Point, kept: list[Point] = kept) -> None:
            if not any(row.core for row in outer.separate(model, point)):
                kept.append(point)

        found = session.search(
            time_limit_s=budget.limit_s,
            gap=1.0,
            start=None,
            on_point=improving,
            on_bound=lambda _: None,
            enough=lambda kept=kept: bool(kept) or run.remaining_s(budget) <= 0,  # type: ignore[misc]
        )
        if found.outcome is Outcome.INFEASIBLE:
            return True
        rows = [] if found.point is None else [row for row in outer.separate(model, found.point) if row.core]
        if kept or not rows:
            return False
        session.add(rows)
    return False
