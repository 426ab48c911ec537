"""Whether no plan exists at all, also none that a formulation has no decisions for: by its outer approximation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from poetopt import clock
from poetopt.backends.solver import Outcome, Point, Session
from poetopt.engine.budget import Budget
from poetopt.engine.cutting import cut
from poetopt.engine.model import model_of, session_of
from poetopt.engine.run import Run
from poetopt.engine.tuning import CUT_SHARE
from poetopt.errors import InfeasibleError, TimeUpError
from poetopt.formulations.language import Formulation
from poetopt.problem import COMPUTES, Feature

SUPPORTS = frozenset({Feature.STORED, Feature.UPDATED, Feature.TAKEN, *COMPUTES})
"""Features of problems whose plans have their points in outer approximations."""


def no_plan(run: Run, budget: Budget) -> bool:
    """Whether it is proven that nothing keeps what was asked. False says nothing: there may be a plan or not."""
    outer, options = run.chosen.outer_of, run.options
    if outer is None or run.problem.beyond(SUPPORTS) is not None:
        return False
    reserved = run.chosen.reserve_bytes(run.problem) - outer.reserve_bytes(run.problem)
    asked = replace(options, ram_bytes=options.ram_bytes - reserved)
    try:
        with run.timed("build"), clock.ending(run.latest):
            model = model_of(outer, run.problem, asked, "full")
            session = session_of(model, options, scale=1.0)
            session.work = run.work
    except InfeasibleError:
        return True
    except TimeUpError:
        return False
    with run.timed("outer approximation"):
        cutting = budget.part(CUT_SHARE[0])
        if cut(outer, model, session, until=cutting, overhead_j=None, on_bound=lambda _: False).infeasible:
            return True
        return _no_point(run, budget, outer, model, session)


def _no_point(run: Run, budget: Budget, outer: Formulation, model: Any, session: Session) -> bool:
    """Whether the model has no solution; rows of a separator are added until one keeps them all."""
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
