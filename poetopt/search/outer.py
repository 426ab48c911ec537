"""Bounds on all plans, also on those that a formulation has no decisions for, by its outer approximation.

If the outer approximation has no point, there is no plan, and no plan costs less than its optimum. So an answer is
compared with more than the scope that was searched for it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any

from poetopt.backends.solvers.solver import Outcome, Point, Session
from poetopt.formulations import formulation
from poetopt.formulations.composition import bounding, outer_of
from poetopt.formulations.language import Formulation
from poetopt.formulations.retention.enumeration import count_recomputes
from poetopt.formulations.rows import PointLike
from poetopt.formulations.scope import ALL
from poetopt.graph.problem import COMPUTES, Feature, Problem
from poetopt.search.cutting import cut, model_of, session_of
from poetopt.search.run import Budget, Proof, Run
from poetopt.search.tuning import ALL_PACE_S, CUT_SHARE, LEAST_S
from poetopt.util import work
from poetopt.util.errors import BackendUnavailableError, FormulationError, InfeasibleError, TimeUpError

SUPPORTS = frozenset({Feature.STORED, Feature.UPDATED, Feature.TAKEN, *COMPUTES})
"""Features of problems whose plans have their points in outer approximations."""
LEVELS = (1_500, 4_000, 16_000)
"""Numbers of recomputes in consecutive models of all plans, if more than one is needed. In the smaller ones stages are
decided together. Measured on the zoo: a thousand close half of the gap in a second; models of 16,000 are cut for
ten."""
MIN_GAIN_SHARE = 0.1
"""Share of the open gap that a relaxation has to close if a larger model is to follow. Otherwise the smaller one is
searched: its gap is due to integrality, not to stages. Measured on ds-cnn and bert-tiny m4 30 %."""
ENOUGH_RATIO = 2
"""Number of times by which all recomputes exceed those of a model that isn't the last: beyond it larger ones prove no
more. Measured on resnet18-cifar a72 40 %."""
MIN_BOUND_S = 4.5
"""Least seconds for a bound on all plans. Measured on ds-cnn m4 30 %, which is proven after four."""


def levels(problem: Problem) -> list[int]:
    """Return the levels of the models of all plans, up to the first that holds enough of a problem's recomputes."""
    recomputes = count_recomputes(problem, "full")
    return [
        level
        for level, before in zip(LEVELS, (0, *LEVELS), strict=False)
        if not before or recomputes > ENOUGH_RATIO * before
    ]


def gained(before: float, after: float, goal: float) -> bool:
    """Return whether a level has closed so much of the open gap that the next one may be worth it."""
    return after - before > MIN_GAIN_SHARE * (goal - before)


def no_plan(run: Run, budget: Budget) -> bool:
    """Return whether it is proven that no plan satisfies the options; False proves nothing."""
    outer = outer_of(run.chosen)
    if outer is None or run.problem.beyond(SUPPORTS) is not None:
        return False
    try:
        model, session = _open_model(run, outer, LEVELS[-1], scale=1.0)
    except InfeasibleError:
        return True
    except TimeUpError:
        return False
    with run.timed("outer approximation"):
        cutting = budget.part(CUT_SHARE[0])
        if cut(outer, model, session, until=cutting, overhead_j=None, on_bound=lambda _: False).infeasible:
            return True
        return _is_infeasible(run, budget, outer, model, session)


class AllPlans:
    """Bound on the objective of all plans, if an outer approximation bounds it.

    Relaxations of larger and larger models are cut (`LEVELS`), until one gains little over the one before. The last
    useful one is searched, as long as its pace closes the gap in time. Schedules that it finds are offered.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._outer = _bounding_formulation(run)
        self._levels = levels(run.problem)
        self._open: tuple[Any, Session] | None = None
        """Best model so far, once its relaxation is cut."""
        self._binding: Sequence[tuple[str, Hashable]] = ()
        """Cuts that were tight in the model before, by block and key."""

    def __bool__(self) -> bool:
        return self._outer is not None

    @property
    def bound(self) -> float:
        """Value that no plan is below."""
        return self._run.all_plans_bound

    @property
    def relaxed(self) -> bool:
        """Return whether a relaxation has been solved."""
        return self._open is not None

    def prove(self, proof: Proof) -> bool:
        """Solve the first relaxation, once, with the cuts of a scope; return whether the incumbent is proven."""
        if not self.relaxed:
            self._use_cuts(proof)
            self._raise_by(lambda: self._climb(self._next_budget))
        value, gap = self._run.incumbent.value, self._run.options.gap
        return value is not None and value - self._run.all_plans_bound <= gap * value

    def search(self, proof: Proof) -> None:
        """Bound by larger models and a search, for as long again as all took so far; `proof`: the last scope's."""
        self._use_cuts(proof)

        def climb_and_search() -> None:
            budget = self._next_budget
            if self._open is not None:
                self._relax(self._open, budget)  # the incumbent may have improved
            while not self._run.closed(budget.gap) and budget.remaining_s > LEAST_S and self._climb(budget):
                pass
            if self._open is not None:
                self._search(self._open, budget)

        self._raise_by(climb_and_search)

    def _use_cuts(self, proof: Proof) -> None:
        """Begin with the cuts of a scope, unless operators stream: here their runs are all plain."""
        if Feature.STREAMED not in self._run.problem.features:
            self._binding = [*proof.binding, *self._binding]

    @property
    def _next_budget(self) -> Budget:
        budget = self._run.budget
        return replace(budget.for_s(max(self._run.work.seconds, MIN_BOUND_S)), pace_s=ALL_PACE_S)

    def _raise_by(self, work: Callable[[], object]) -> None:
        run = self._run
        run.enter_scope(ALL, run.all_plans_bound)
        if self._outer is None or run.incumbent.best is None or run.closed(run.options.gap):
            return
        try:
            work()
        except (BackendUnavailableError, InfeasibleError, TimeUpError):  # e.g. the model is too large for a licence
            self._outer = None
        finally:
            run.all_plans_bound = max(run.all_plans_bound, run.bound)

    def _climb(self, budget: Budget) -> bool:
        """Relax the next level, if there is one; return whether it gained enough to be the one to search."""
        run = self._run
        assert self._outer is not None
        if not self._levels:
            return False
        level = self._levels.pop(0)
        open_model = _open_model(run, self._outer, level, scale=run.scale)
        previous_bound = run.bound
        self._relax(open_model, budget)
        if self._open is None or gained(previous_bound, run.bound, run.incumbent.value or 0.0):
            self._open = open_model
            return True
        self._levels.clear()
        return False

    def _is_over(self, budget: Budget) -> bool:
        return self._run.closed(budget.gap) or self._run.remaining_s(budget) <= 0

    def _raise_bound(self, value: float) -> None:
        self._run.raise_bound(min(value, self._run.incumbent.value or value), "all schedules")

    def _relax(self, open_model: tuple[Any, Session], budget: Budget) -> None:
        assert self._outer is not None
        run, (model, session) = self._run, open_model

        def on_bound(value: float) -> bool:
            self._raise_bound(value)
            return run.closed(budget.gap)

        def on_point(_: PointLike) -> None:
            if run.incumbent.value is not None:
                session.tighten(run.incumbent.value)

        until, latest = (budget.part(share) for share in CUT_SHARE)
        with run.timed("all schedules"):
            session.add(self._outer.revive(model, self._binding))
            cutting = cut(
                self._outer,
                model,
                session,
                until=until,
                latest=latest,
                overhead_j=run.incumbent.value,
                on_bound=on_bound,
                on_point=on_point,
            )
        self._binding = [(row.block, row.key) for row in session.binding if row.key is not None]
        if cutting.infeasible and session.tightened and run.incumbent.value is not None:  # so no plan is better
            self._raise_bound(run.incumbent.value)
        run.proving.root = (run.work.seconds, run.bound)

    def _search(self, open_model: tuple[Any, Session], budget: Budget) -> None:
        assert self._outer is not None
        run, outer, (model, session) = self._run, self._outer, open_model

        def on_point(point: Point) -> None:
            if run.chosen.plans_count and run.options.scope == "auto":
                run.offer(outer.search.schedule(model, point), "all schedules")

        with run.timed("all schedules"):
            while not self._is_over(budget) and budget.remaining_s > LEAST_S:
                result = session.search(
                    time_limit_s=budget.limit_s,
                    gap=budget.gap / 2,
                    start=None,
                    on_point=on_point,
                    on_bound=self._raise_bound,
                    enough=lambda: self._is_over(budget),
                )
                if result.outcome is Outcome.INFEASIBLE:  # only within tolerances, since there is a plan
                    return
                self._raise_bound(result.bound)
                rows = [] if result.point is None else [row for row in outer.separate(model, result.point) if row.core]
                if not rows:
                    return
                session.add(rows)


def _bounding_formulation(run: Run) -> Formulation | None:
    """Return the relaxation of the objective over all plans; None if the problem has none."""
    chosen, problem = run.chosen, run.problem
    outer = chosen.search.outer or formulation("retention").search.outer
    if outer is None or problem.beyond(SUPPORTS | {Feature.STREAMED}) is not None:
        return None
    try:
        return bounding(chosen, outer)
    except FormulationError:  # a block needs other blocks
        return None


def _open_model(run: Run, outer: Formulation, level: int, scale: float) -> tuple[Any, Session]:
    """Open the model of all plans in the backend, within the budget that other blocks leave."""
    options = run.options
    reserved_bytes = run.chosen.reserve_bytes(run.problem) - outer.reserve_bytes(run.problem)
    model_options = replace(options, ram_bytes=options.ram_bytes - reserved_bytes)
    with run.timed("build"), work.ending(run.latest):
        model = model_of(outer, run.problem, model_options, f"full:{level}")
        session = session_of(model, options, scale=scale)
    session.work = run.work
    return model, session


def _is_infeasible(run: Run, budget: Budget, outer: Formulation, model: Any, session: Session) -> bool:
    """Return whether the model has no solution; violated rows are added until a point satisfies them all."""
    while run.remaining_s(budget) > 0:
        satisfying: list[Point] = []

        def on_point(point: Point, satisfying: list[Point] = satisfying) -> None:
            if not any(row.core for row in outer.separate(model, point)):
                satisfying.append(point)

        result = session.search(
            time_limit_s=budget.limit_s,
            gap=1.0,
            start=None,
            on_point=on_point,
            on_bound=lambda _: None,
            enough=lambda satisfying=satisfying: bool(satisfying) or run.remaining_s(budget) <= 0,  # type: ignore[misc]
        )
        if result.outcome is Outcome.INFEASIBLE:
            return True
        rows = [] if result.point is None else [row for row in outer.separate(model, result.point) if row.core]
        if satisfying or not rows:
            return False
        session.add(rows)
    return False
