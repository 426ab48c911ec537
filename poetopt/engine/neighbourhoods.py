"""Large neighbourhood search: most decisions are held, and the rest is solved exactly.

Rolling windows hold everything but a few adjacent stages at the incumbent: what a schedule decides in one stage touches
few others, so that a window is a small problem. The core of a problem is what reduced costs leave open.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from poetopt.backends.solver import Capability, Frozen, Outcome, Point, Session
from poetopt.engine.budget import Budget
from poetopt.engine.run import Run
from poetopt.engine.tuning import CORE_S, CORES, LEAST_S, WINDOW_S, WINDOWS
from poetopt.formulations.rows import Floats


def core_search(run: Run, budget: Budget, model: Any, session: Session) -> None:
    """Search what would be left if the optimum were known to be close to the relaxation.

    Reduced costs then leave few decisions open (the core of the problem). No start is given: an incumbent from a
    shallower scope is often far off.
    """
    value = run.incumbent.value
    if value is None or not {Capability.DUALS, Capability.CUTOFF} <= session.capabilities:
        return
    relaxed = session.incumbent_bound
    for share in CORES:
        seconds = min(CORE_S, budget.remaining_s)
        if seconds < LEAST_S or run.closed(budget.gap) or relaxed >= value:
            return
        before = run.incumbent.value
        guess = relaxed + share * (value - relaxed)
        frozen = [session.outside(variable, guess) for variable, _ in run.chosen.points.stages(model)]
        _search(run, budget.gap, model, session, "core", seconds, frozen, cutoff=run.incumbent.value)
        if run.incumbent.value != before:
            return


def rolling_windows(run: Run, budget: Budget, model: Any, session: Session) -> None:
    """Slide windows over the incumbent until a whole sweep brings nothing, it is proven, or the time is up."""
    if run.incumbent.best is None or Capability.WARM_START not in session.capabilities:
        return
    staged = run.chosen.points.stages(model)
    decided = np.unique(np.concatenate([stages for _, stages in staged[:1]]))
    if len(decided) < 2 * max(WINDOWS):
        return
    for count in WINDOWS:
        better = True
        while better:
            better = False
            width = len(decided) // count
            for begin in range(0, len(decided) - width // 2, max(1, width // 2)):
                if budget.remaining_s < 0 or run.closed(budget.gap):
                    return
                window = decided[begin : begin + width]
                better |= _solve(run, budget, model, session, int(window[0]), int(window[-1]))


def _solve(run: Run, budget: Budget, model: Any, session: Session, first: int, last: int) -> bool:
    """Free the stages first..last around the incumbent; whether something better was found there."""
    assert run.incumbent.best is not None
    before = run.incumbent.best
    start = run.chosen.points.values(model, before.schedule)
    if start is None:
        return False
    values = {id(variable): array for variable, array in start}
    frozen = [
        Frozen(variable, (stages < first) | (stages > last), values[id(variable)])
        for variable, stages in run.chosen.points.stages(model)
    ]
    seconds = min(WINDOW_S, budget.remaining_s)
    _search(run, budget.gap, model, session, "neighbourhood", seconds, frozen, start=start)
    return run.incumbent.best is not before


def _search(
    run: Run,
    gap: float,
    model: Any,
    session: Session,
    phase: str,
    seconds: float,
    frozen: Sequence[Frozen],
    *,
    start: Sequence[tuple[Any, Floats]] | None = None,
    cutoff: float | None = None,
) -> None:
    """Search with a part held; offer what is found, and add the rows that it breaks."""

    def offered(point: Point) -> None:
        run.offer(run.chosen.points.schedule(model, point), phase)

    found = session.search(
        time_limit_s=seconds,
        gap=gap,
        start=start,
        on_point=offered,
        on_bound=lambda _: None,
        frozen=frozen,
        cutoff=cutoff,
        enough=lambda: run.closed(gap),
    )
    if found.outcome is not Outcome.INFEASIBLE and found.point is not None:
        session.add([row for row in run.separate(model, found.point) if row.core])
