"""The search of one model: relaxation with cuts, integer search, simulation; again while plans break lazy constraints.

It knows no formulation: rows come from the blocks' separators, and schedules from the formulation's own reading of
a point. Whatever it finds counts only after simulation.

Large neighbourhood search: most decisions are held, and the rest is solved exactly.

Rolling windows hold everything but a few adjacent stages at the incumbent: what a schedule decides in one stage touches
few others, so that a window is a small problem. The core of a problem is what reduced costs leave open.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poetopt.backends.solvers.solver import Capability, Frozen, Outcome, Point, Session
from poetopt.formulations.callbacks import Values
from poetopt.formulations.rows import Floats, PointLike, Row
from poetopt.graph.problem import Problem
from poetopt.plan.schedule import Schedule
from poetopt.search.cutting import cut
from poetopt.search.parallel_tree import ParallelTree
from poetopt.search.replays import Replays
from poetopt.search.run import Budget, Ending, Run
from poetopt.search.tuning import (
    ANEW,
    CORE_GAP,
    CORE_S,
    CORES,
    CUT_SHARE,
    CUTOFF_MARGIN,
    LATE,
    LEAST_S,
    NARROWEST,
    NEIGHBOURHOODS_SHARE,
    WAIT_S,
    WINDOW_S,
    WINDOWS,
    WINDOWS_GAP,
)


def core_search(run: Run, budget: Budget, model: Any, session: Session) -> None:
    """Search what would be left if the optimum were known to be close to the relaxation.

    Reduced costs then leave few decisions open (the core of the problem). No start is given: an incumbent from a
    shallower scope is often far off.
    """
    value = run.incumbent.value
    if value is None or Capability.CUTOFF not in session.capabilities:
        return
    relaxed = session.incumbent_bound
    for share in CORES:
        part = budget.for_s(CORE_S)
        if run.remaining_s(part) < LEAST_S or run.closed(budget.gap) or relaxed >= value:
            return
        before = run.incumbent.value
        guess = relaxed + share * (value - relaxed)
        frozen = [session.outside(variable, guess) for variable, _ in run.chosen.points.stages(model)]
        _search(run, part, model, session, "core", frozen, cutoff=run.incumbent.value)
        if run.incumbent.value != before:
            return


def rolling_windows(run: Run, budget: Budget, model: Any, session: Session) -> None:
    """Slide windows over the best schedule of the model, the narrowest first, until whole sweeps bring nothing.

    It ends before where the incumbent is proven, or the time is up.
    """
    base = _base(run, model)
    if base is None or Capability.WARM_START not in session.capabilities:
        return
    staged = run.chosen.points.stages(model)
    decided = np.unique(np.concatenate([stages for _, stages in staged[:1]]))
    for count in WINDOWS:
        width = len(decided) // count
        better = width >= NARROWEST
        while better:
            better = False
            for begin in range(0, len(decided) - width // 2, max(1, width // 2)):
                if run.remaining_s(budget) < 0 or run.closed(budget.gap):
                    return
                window = decided[begin : begin + width]
                free = _with_their_forward(run.problem, int(window[0]), int(window[-1]))
                found = _solve(run, budget, model, session, free, base)
                better |= found is not None
                base = found or base


def _base(run: Run, model: Any) -> Schedule | None:
    """The best schedule known that lies in the model: an incumbent of heuristics may run again what it doesn't hold."""
    best = run.incumbent.best
    known = [*([] if best is None else [best.schedule]), *run.starts]
    return next((schedule for schedule in known if run.chosen.points.values(model, schedule) is not None), None)


def _with_their_forward(problem: Problem, first: int, last: int) -> NDArray[np.bool_]:
    """(n_stages,) the stages first..last, and those of forward operators that share a tensor with one of them.

    What a window keeps for less, or no longer needs, makes room where it was made, and runs there may stream instead.
    """
    free = np.zeros(len(problem.operators), dtype=bool)
    free[first : last + 1] = True
    for operator in problem.operators[first : last + 1]:
        for i in operator.inputs:
            own = (problem.tensors[i].producer, *problem.readers[i])
            free[[j for j in own if 0 <= j <= problem.last_forward]] = True
    return free


def _solve(
    run: Run, budget: Budget, model: Any, session: Session, free: NDArray[np.bool_], base: Schedule
) -> Schedule | None:
    """Free these stages around `base`; what is better than it, if that was found there."""
    before = run.incumbent.best
    start = run.chosen.points.values(model, base)
    if start is None:
        return None
    values = {id(variable): array for variable, array in start}
    frozen = [
        Frozen(variable, ~free[stages], values[id(variable)])
        for variable, stages in run.chosen.points.stages(model)
        if id(variable) in values  # what follows from the others may have none
    ]
    point = _search(run, budget.for_s(WINDOW_S), model, session, "neighbourhood", frozen, start=start)
    after = run.incumbent.best
    if after is not None and after is not before and run.chosen.points.values(model, after.schedule) is not None:
        return after.schedule
    found = None if point is None else run.chosen.points.schedule(model, point)
    weigh = run.incumbent.weigh
    return found if found is not None and found != base and weigh(found) < weigh(base) else None


def _search(
    run: Run,
    budget: Budget,
    model: Any,
    session: Session,
    phase: str,
    frozen: Sequence[Frozen],
    *,
    start: Sequence[tuple[Any, Floats]] | None = None,
    cutoff: float | None = None,
) -> Point | None:
    """Search with a part held; offer what is found, and add the rows that it breaks. Gives the best point."""

    def offered(point: Point) -> None:
        run.offer(run.chosen.points.schedule(model, point), phase)

    found = session.search(
        time_limit_s=budget.limit_s,
        gap=budget.gap,
        start=start,
        on_point=offered,
        on_bound=lambda _: None,
        frozen=frozen,
        cutoff=cutoff,
        enough=lambda: run.closed(budget.gap) or run.remaining_s(budget) < 0,
    )
    if found.outcome is not Outcome.INFEASIBLE and found.point is not None:
        session.add([row for row in run.separate(model, found.point) if row.core])
    return found.point


@dataclass(frozen=True)
class Mode:
    """The way in which a model is searched.

    exact
        Whether the model is what was asked: the bounds of a restriction prove nothing.
    no_goods
        Whether a schedule that layout or clock refuse is left out, and the search goes on.
    known
        Rows that leave out what was proven before.
    beyond
        Whether that holds an inner scope.
    bound_only
        True if a better incumbent is unlikely: no heuristics, only the bound is raised.
    relaxed_only
        Whether the relaxation is all that is wanted.
    """

    exact: bool = True
    no_goods: bool = False
    known: tuple[Row, ...] = ()
    beyond: bool = False
    bound_only: bool = False
    relaxed_only: bool = False


class ModelSearch:
    """One model, open in a solver.

    binding
        Cuts to begin with, by block and key; after the search those that were tight at the root.
    """

    def __init__(
        self,
        run: Run,
        budget: Budget,
        model: Any,
        session: Session,
        mode: Mode,
        binding: tuple[tuple[str, Hashable], ...] = (),
    ) -> None:
        self.run, self.budget, self.model, self.session, self.mode = run, budget, model, session, mode
        self.binding = binding
        self._exact = mode.exact
        """Until a schedule is left out that isn't proven to be late."""
        self._tree: ParallelTree | None = None
        self._unsearched = False
        """True where schedules were left out that nobody looked at, and that may be in time."""
        self._thrifty = False
        """True where the rows of `Formulation.thrift` are there."""
        self._root_s = 0.0
        """The seconds of the first relaxation."""
        self._root: PointLike | None = None
        """The point to which cutting came."""

    def search(self) -> Ending:
        """Cut, search, simulate, repeat. Says how it ended."""
        if self._cut():
            return Ending.INFEASIBLE
        if self._closed():
            return Ending.FINISHED
        if self.mode.relaxed_only:
            return Ending.STOPPED
        if not self._exact or self.mode.no_goods:
            return self._whole()
        self.run.proving.root = self.run.work.seconds, self.run.bound
        with ParallelTree(
            self.run, self.budget, self.model, self.session, self._root, self.mode.bound_only
        ) as self._tree:
            ending = self._whole()
            self._tree.catch_up()
        return Ending.INFEASIBLE if self._tree.infeasible else ending

    def _cut(self) -> bool:
        """Cut the relaxation, and replay its points. Says whether it is infeasible."""
        run, session = self.run, self.session
        replays = Replays(run, self.budget, self.model, run.work)

        def seen(point: PointLike) -> None:
            self._root = point
            replays.follow_some(point)

        with run.timed("relaxation"):
            session.add(self.mode.known)
            session.add(run.chosen.revive(self.model, self.binding))
            cutting = cut(
                run.chosen,
                self.model,
                session,
                until=self.budget.part(CUT_SHARE[0]),
                latest=self.budget.part(CUT_SHARE[1]),
                overhead_j=run.incumbent.value,
                on_bound=self._relaxed,
                on_point=seen,
            )
        self.binding = tuple((row.block, row.key) for row in session.binding if row.key is not None)
        self._root_s = cutting.whole_s
        return cutting.infeasible

    @property
    def sources(self) -> frozenset[str]:
        """The blocks whose lazy constraints the bound may rest on."""
        return self.session.sources | (self._tree.sources if self._tree is not None else frozenset())

    @property
    def _over(self) -> bool:
        """Say whether searching ends: proven, out of time, or by an error in the parallel tree."""
        failed = self._tree is not None and self._tree.failed
        return self._closed() or self.run.remaining_s(self.budget) <= 0 or failed

    def _whole(self) -> Ending:
        """Neighbourhoods first where that may pay, then the integer search."""
        run, session, mode = self.run, self.session, self.mode
        # What lies beyond a proven scope is seldom better: there the whole is searched at once.
        wide = not mode.beyond and not mode.bound_only and not run.closed(max(self.budget.gap, WINDOWS_GAP))
        near = wide or (not mode.bound_only and run.closed(CORE_GAP))
        if near or mode.no_goods:
            with run.timed("neighbourhoods"):
                budget = self.budget.part(NEIGHBOURHOODS_SHARE)
                if self._exact and not mode.no_goods:
                    core_search(run, budget, self.model, session)
                if wide or mode.no_goods:
                    rolling_windows(run, budget, self.model, session)
            if self._closed():
                return Ending.FINISHED
        with run.timed("search"):
            return self._integer()

    def _bound(self, value: float, phase: str) -> None:
        if self._exact:
            self.run.raise_bound(value, phase)

    def _relaxed(self, value: float) -> bool:
        self._bound(value, "relaxation")
        return self.run.closed(self.budget.gap)

    def _closed(self) -> bool:
        infeasible = self._tree is not None and self._tree.infeasible
        return self._exact and (infeasible or self.run.closed(self.budget.gap))

    def _integer(self) -> Ending:
        """The integer search, again for as long as its answer breaks lazy constraints.

        A point that breaks some of them becomes the solver's cutoff, and prunes schedules that keep them all. So a
        search ends early where its best points have broken some for as long as it took to find the first one.
        """
        run, chosen, model, session = self.run, self.run.chosen, self.model, self.session
        began = run.work.seconds
        broken_s: float | None = None
        found_late: list[Row] = []
        lates = 0

        def improving(point: Point) -> None:
            nonlocal broken_s
            schedule = chosen.points.schedule(model, point)
            run.offer(schedule, "search")
            rows = [row for row in run.separate(model, point) if row.core]
            found_late.extend(rows)
            row = run.left_out(model, schedule)
            if row is not None:
                found_late.append(row)
            broken_s = (broken_s or run.work.seconds) if rows or run.incumbent.refused(schedule) is not None else None

        def enough() -> bool:
            waited = broken_s is not None and run.work.seconds - broken_s > max(WAIT_S, broken_s - began)
            return waited or self._over

        while not self._over:
            best = run.incumbent.best
            if self._tree is not None and self._tree.grows and self.budget.limit_s < ANEW * self._root_s:
                self._tree.take_over()
                break
            began, broken_s = run.work.seconds, None
            if self._exact and best is not None:
                session.tighten(best.value)
            start = self._start() if Capability.WARM_START in session.capabilities else None
            cutoff = None
            if best is not None and start is None and Capability.CUTOFF in session.capabilities:
                cutoff = best.value * (1 - CUTOFF_MARGIN)
            found = session.search(
                time_limit_s=self.budget.limit_s,
                gap=self.budget.gap / 2,
                start=start,
                on_point=improving,
                on_bound=lambda value: self._bound(min(value, run.incumbent.value or value), "search"),
                cutoff=cutoff,
                enough=enough,
            )
            if found.outcome is Outcome.INFEASIBLE:
                if self.mode.no_goods and not self._exact:
                    return Ending.REFUSED if self._unsearched else Ending.EXHAUSTED
                if best is None or not (session.tightened or cutoff):
                    return Ending.INFEASIBLE
                self._bound(best.value, "search")  # nothing that is left is better
                return Ending.FINISHED
            self._bound(found.bound if best is None else _proven(found.bound, cutoff, best.value), "search")
            if found.point is None or self._closed():
                break
            rows = [row for row in run.separate(model, found.point) if row.core]
            schedule = chosen.points.schedule(model, found.point)
            refusal = run.incumbent.refused(schedule)
            lates += refusal is not None and refusal.late_s > 0
            if rows and (self.mode.no_goods or lates < LATE):
                session.add(found_late)
                found_late.clear()
                continue
            if refusal is None:
                return Ending.FINISHED if found.outcome is Outcome.OPTIMAL else Ending.STOPPED
            left_out = run.left_out(model, schedule)
            if left_out is not None:
                self._leave_out([*found_late, left_out])
                found_late.clear()
                continue
            values = chosen.points.values(model, schedule) if self.mode.no_goods else None
            if values is None or chosen.no_good is None:
                return Ending.REFUSED
            late = not (refusal.arena_excess or refusal.rule)
            if not late or not run.incumbent.hopeless(schedule):
                self._exact = False
                self._unsearched |= late  # the row leaves out others as well
            self._leave_out([chosen.no_good(model, schedule, values, late=late)])
        return Ending.FINISHED if self._closed() else Ending.STOPPED

    def _leave_out(self, rows: list[Row]) -> None:
        """Add rows that leave schedules out, and before the first ones those of points that waste nothing."""
        if not self._thrifty and self.run.chosen.thrift is not None:
            rows = [*self.run.chosen.thrift(self.model), *rows]
        self._thrifty = True
        self.session.add(rows)

    def _start(self) -> Values | None:
        """Values of the best schedule known that lies in the model."""
        best = self.run.incumbent.best
        for schedule in [*([] if best is None else [best.schedule]), *self.run.starts]:
            values = self.run.chosen.points.values(self.model, schedule)
            if values is not None and all(_keeps(row, values) for row in self.mode.known):
                return values
        return None


def _proven(bound: float, cutoff: float | None, value: float) -> float:
    """The bound that a search from a solution of `value` proves: the margin of the cutoff is a tolerance."""
    return value if cutoff is not None and bound >= cutoff else min(bound, value)


def _keeps(row: Row, values: Values) -> bool:
    known = {id(one): x for variable, array in values for one, x in zip(variable.values(), array, strict=True)}
    pairs = zip(row.variables, row.coefficients, strict=True)
    return bool(row.lower <= sum(known.get(id(one), 0.0) * coefficient for one, coefficient in pairs) <= row.upper)
