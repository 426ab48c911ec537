"""Bounds on all plans, also of those that a formulation has no decisions for: by its outer approximation.

Where it has no point there is no plan; and no plan costs less than its optimum. So an answer is held against more than
the scope that was searched for it.
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
"""Recomputes in models of all plans, one after the other, where it takes more than one: in the smaller ones stages are
decided together. Measured on the zoo: a thousand close half of it in a second; of 16,000 models are cut for ten."""
GAINED = 0.1
"""A larger one is worth it where its relaxation closes more than this share of what is open. Else the smaller one is
searched: what is open there is of wholes, not of stages. Measured on ds-cnn and bert-tiny m4 30 %."""
ALMOST = 2
"""One that holds so many times fewer than all is the last: the larger ones prove no more. Measured on resnet18-cifar
a72 40 %."""
AGAIN_S = 4.5
"""Seconds that a bound on all plans may take at least. Measured on ds-cnn m4 30 %, which is proven after four."""


def levels(problem: Problem) -> list[int]:
    """Return the levels that models of all plans go through, up to the first that holds enough of a problem's."""
    recomputes = count_recomputes(problem, "full")
    return [
        level for level, before in zip(LEVELS, (0, *LEVELS), strict=False) if not before or recomputes > ALMOST * before
    ]


def gained(before: float, after: float, goal: float) -> bool:
    """Return whether a level has closed so much of what is open that the next one may be worth it."""
    return after - before > GAINED * (goal - before)


def no_plan(run: Run, budget: Budget) -> bool:
    """Say whether it is proven that nothing keeps what was asked. False says nothing: there may be a plan or not."""
    outer = outer_of(run.chosen)
    if outer is None or run.problem.beyond(SUPPORTS) is not None:
        return False
    try:
        model, session = _opened(run, outer, LEVELS[-1], scale=1.0)
    except InfeasibleError:
        return True
    except TimeUpError:
        return False
    with run.timed("outer approximation"):
        cutting = budget.part(CUT_SHARE[0])
        if cut(outer, model, session, until=cutting, overhead_j=None, on_bound=lambda _: False).infeasible:
            return True
        return _no_point(run, budget, outer, model, session)


class AllPlans:
    """What no plan at all costs less than, where an outer approximation says something of what is minimised.

    Relaxations of larger and larger models are cut (`LEVELS`), until one gains little over the one before; that one is
    searched, until its pace doesn't close the gap in time. What is found is offered.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._outer = _bounding(run)
        self._levels = levels(run.problem)
        self._open: tuple[Any, Session] | None = None
        """The best model so far, once its relaxation is cut."""
        self._binding: Sequence[tuple[str, Hashable]] = ()
        """The cuts that were tight in the model before, by block and key."""

    def __bool__(self) -> bool:
        return self._outer is not None

    @property
    def least(self) -> float:
        """No plan costs less."""
        return self._run.least

    @property
    def relaxed(self) -> bool:
        """Say whether anything is bounded yet."""
        return self._open is not None

    def prove(self, proof: Proof) -> bool:
        """Bound by the first relaxation alone, once, with the cuts of a scope. Says whether the incumbent is proven."""
        if not self.relaxed:
            self._take(proof)
            self._raise(lambda: self._climb(self._again))
        value, gap = self._run.incumbent.value, self._run.options.gap
        return value is not None and value - self._run.least <= gap * value

    def search(self, proof: Proof) -> None:
        """Bound by the larger ones and a search, for as long again as all took so far; `proof`: the last scope's."""
        self._take(proof)

        def further() -> None:
            again = self._again
            if self._open is not None:
                self._relaxed(self._open, again)  # against the incumbent found since
            while not self._run.closed(again.gap) and again.remaining_s > LEAST_S and self._climb(again):
                pass
            if self._open is not None:
                self._searched(self._open, again)

        self._raise(further)

    def _take(self, proof: Proof) -> None:
        """Begin with the cuts of a scope, but where operators stream: here their runs are all plain."""
        if Feature.STREAMED not in self._run.problem.features:
            self._binding = [*proof.binding, *self._binding]

    @property
    def _again(self) -> Budget:
        budget = self._run.budget
        return replace(budget.for_s(max(self._run.work.seconds, AGAIN_S)), pace_s=ALL_PACE_S)

    def _raise(self, way: Callable[[], object]) -> None:
        run = self._run
        run.enter(ALL, run.least)
        if self._outer is None or run.incumbent.best is None or run.closed(run.options.gap):
            return
        try:
            way()
        except (BackendUnavailableError, InfeasibleError, TimeUpError):  # too large for a licence; nothing is known
            self._outer = None
        finally:
            run.least = max(run.least, run.bound)

    def _climb(self, budget: Budget) -> bool:
        """Relax the next level, if there is one; say whether it gained much, so that it is the one to be searched."""
        run = self._run
        assert self._outer is not None
        if not self._levels:
            return False
        level = self._levels.pop(0)
        opened = _opened(run, self._outer, level, scale=run.scale)
        before = run.bound
        self._relaxed(opened, budget)
        if self._open is None or gained(before, run.bound, run.incumbent.value or 0.0):
            self._open = opened
            return True
        self._levels.clear()
        return False

    def _over(self, budget: Budget) -> bool:
        return self._run.closed(budget.gap) or self._run.remaining_s(budget) <= 0

    def _raised(self, value: float) -> None:
        self._run.raise_bound(min(value, self._run.incumbent.value or value), "all schedules")

    def _relaxed(self, opened: tuple[Any, Session], budget: Budget) -> None:
        """Cut the relaxation of a model."""
        assert self._outer is not None
        run, (model, session) = self._run, opened

        def enough(value: float) -> bool:
            self._raised(value)
            return run.closed(budget.gap)

        def seen(_: PointLike) -> None:
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
                on_bound=enough,
                on_point=seen,
            )
        self._binding = [(row.block, row.key) for row in session.binding if row.key is not None]
        if cutting.infeasible and session.tightened and run.incumbent.value is not None:  # no plan is better
            self._raised(run.incumbent.value)
        run.proving.root = (run.work.seconds, run.bound)

    def _searched(self, opened: tuple[Any, Session], budget: Budget) -> None:
        """Search a model."""
        assert self._outer is not None
        run, outer, (model, session) = self._run, self._outer, opened

        def improving(point: Point) -> None:
            if run.chosen.plans_count and run.options.scope == "auto":
                run.offer(outer.search.schedule(model, point), "all schedules")

        with run.timed("all schedules"):
            while not self._over(budget) and budget.remaining_s > LEAST_S:
                found = session.search(
                    time_limit_s=budget.limit_s,
                    gap=budget.gap / 2,
                    start=None,
                    on_point=improving,
                    on_bound=self._raised,
                    enough=lambda: self._over(budget),
                )
                if found.outcome is Outcome.INFEASIBLE:  # within tolerances: there is a plan
                    return
                self._raised(found.bound)
                rows = [] if found.point is None else [row for row in outer.separate(model, found.point) if row.core]
                if not rows:
                    return
                session.add(rows)


def _bounding(run: Run) -> Formulation | None:
    """The relaxation of what is minimised over all plans; None where there is none, or it is too large."""
    chosen, problem = run.chosen, run.problem
    outer = chosen.search.outer or formulation("retention").search.outer
    if outer is None or problem.beyond(SUPPORTS | {Feature.STREAMED}) is not None:
        return None
    try:
        return bounding(chosen, outer)
    except FormulationError:  # a block that asks for others
        return None


def _opened(run: Run, outer: Formulation, level: int, scale: float) -> tuple[Any, Session]:
    """The model of all plans within what is left by blocks that aren't in it, open in the backend."""
    options = run.options
    reserved = run.chosen.reserve_bytes(run.problem) - outer.reserve_bytes(run.problem)
    asked = replace(options, ram_bytes=options.ram_bytes - reserved)
    with run.timed("build"), work.ending(run.latest):
        model = model_of(outer, run.problem, asked, f"full:{level}")
        session = session_of(model, options, scale=scale)
    session.work = run.work
    return model, session


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
