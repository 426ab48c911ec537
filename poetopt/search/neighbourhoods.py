"""Large neighbourhood search: most decisions are held, and the rest is solved exactly.

Rolling windows hold everything but a few adjacent stages at the incumbent: what a schedule decides in one stage touches
few others, so that a window is a small problem. The core of a problem is what reduced costs leave open.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poetopt.backends.solvers.solver import Capability, Frozen, Outcome, Point, Session
from poetopt.formulations.rows import Floats
from poetopt.graph.problem import Problem
from poetopt.plan.schedule import Schedule
from poetopt.search.run import Budget, Run
from poetopt.search.tuning import CORE_S, CORES, LEAST_S, NARROWEST, WINDOW_S, WINDOWS


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
