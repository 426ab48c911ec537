"""Better schedules near a good one: everything is held but a few adjacent stages, which are solved exactly.

What a schedule decides in one stage touches few others, so that a window of stages is a small problem,
and sliding it over the step finds in seconds what a search over the whole model may take minutes for.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from poetopt.backends.solver import Capability, Frozen, Outcome, Point, Session
from poetopt.engine.run import LEAST_S, Run
from poetopt.formulations.language import Formulation
from poetopt.formulations.rows import Floats

WINDOWS = (6, 4)
"""The decided stages are divided into this many windows, which overlap by half; first the narrower ones."""
CORES = (0.1, 0.3)
"""How close to the relaxation the optimum is taken to be, as a share of the way from there to the incumbent."""
CORE_S = 6.0
"""At most this many seconds for each."""
WINDOW_S = 4.0
"""At most this many seconds a window."""


def near_relaxation(run: Run, chosen: Formulation, model: Any, session: Session, until: float) -> None:
    """Search what would be left if the optimum were known to be close to the relaxation.

    Reduced costs then leave few decisions open (the core of the problem). No start is given: an incumbent from a
    shallower scope is often far off.
    """
    value = run.incumbent.value
    if chosen.stages is None or value is None or not {Capability.DUALS, Capability.CUTOFF} <= session.capabilities:
        return
    relaxed = session.incumbent_bound
    for share in CORES:
        seconds = min(CORE_S, until - time.monotonic())
        if seconds < LEAST_S or run.closed(run.gap) or relaxed >= value:
            return
        before = run.incumbent.value
        guess = relaxed + share * (value - relaxed)
        frozen = [session.outside(variable, guess) for variable, _ in chosen.stages(model)]
        _search(run, chosen, model, session, "core", seconds, frozen, cutoff=run.incumbent.value)
        if run.incumbent.value != before:
            return


def improve(run: Run, chosen: Formulation, model: Any, session: Session, until: float) -> None:
    """Slide windows over the incumbent until a whole sweep brings nothing, it is proven, or the time is up."""
    if chosen.stages is None or run.incumbent.best is None or Capability.WARM_START not in session.capabilities:
        return
    staged = chosen.stages(model)
    decided = np.unique(np.concatenate([stages for _, stages in staged[:1]]))
    if len(decided) < 2 * max(WINDOWS):
        return
    for count in WINDOWS:
        better = True
        while better:
            better = False
            width = len(decided) // count
            for begin in range(0, len(decided) - width // 2, max(1, width // 2)):
                if time.monotonic() > until or run.closed(run.gap):
                    return
                window = decided[begin : begin + width]
                better |= _solve(run, chosen, model, session, int(window[0]), int(window[-1]), until)


def _solve(run: Run, chosen: Formulation, model: Any, session: Session, first: int, last: int, until: float) -> bool:
    """Free the stages first..last around the incumbent; whether something better was found there."""
    assert run.incumbent.best is not None
    assert chosen.stages is not None
    before = run.incumbent.best
    start = chosen.start(model, before.schedule)
    if start is None:
        return False
    values = {id(variable): array for variable, array in start}
    frozen = [
        Frozen(variable, (stages < first) | (stages > last), values[id(variable)])
        for variable, stages in chosen.stages(model)
    ]
    seconds = min(WINDOW_S, until - time.monotonic())
    _search(run, chosen, model, session, "neighbourhood", seconds, frozen, start=start)
    return run.incumbent.best is not before


def _search(
    run: Run,
    chosen: Formulation,
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
        run.offer(chosen.schedule(model, point), phase)

    found = session.search(
        time_limit_s=seconds,
        gap=run.gap,
        start=start,
        on_point=offered,
        on_bound=lambda _: None,
        frozen=frozen,
        cutoff=cutoff,
        enough=lambda: run.closed(run.gap),
    )
    if found.outcome is not Outcome.INFEASIBLE and found.point is not None:
        session.add([row for row in run.separate(model, found.point) if row.core])
