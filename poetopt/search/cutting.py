"""Rounds of violated rows on a relaxation: what makes the bound strong before the search begins."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from poetopt.backends.solvers.solver import Outcome, Session
from poetopt.formulations.language import Formulation
from poetopt.formulations.rows import PointLike, Row
from poetopt.search.budget import Budget
from poetopt.search.tuning import (
    ANEW,
    CUT_FAR,
    PLATEAU_S,
    PLATEAU_SHARE,
    STALL,
    STALL_GAIN,
    STALL_SHARE,
    STEEP,
    STEEP_ROUNDS,
)


@dataclass(frozen=True)
class Cutting:
    """How it ended.

    infeasible
        Whether the relaxation is, and with it the model.
    whole_s
        How long the first relaxation took, which was solved whole; at least that long where it didn't end.
    """

    infeasible: bool
    whole_s: float


def cut(
    chosen: Formulation,
    model: Any,
    session: Session,
    *,
    until: Budget,
    latest: Budget | None = None,
    overhead_j: float | None,
    on_bound: Callable[[float], bool],
    on_point: Callable[[PointLike], object] | None = None,
    on_rows: Callable[[Sequence[Row]], object] | None = None,
) -> Cutting:
    """Solve the relaxation, add the rows that it violates, and again until nothing more is gained.

    until, latest
        No further round begins once they are over: where rounds gain little, and at all (None: the same).
    overhead_j
        The incumbent's, against which a gain is measured; None: the relaxation's own.
    on_bound
        Told each bound; says whether that is enough.
    on_point
        Told the relaxation's point after each round.
    on_rows
        Told the rows of each round before they are added.
    """
    latest = until if latest is None else latest
    stalled = 0
    recent: deque[float] = deque(maxlen=STEEP_ROUNDS)
    work = until.work
    begin = gained = work.seconds
    longest = STALL_SHARE * until.meant_s
    whole_s, near = 0.0, False
    while True:
        relaxed = session.relax_partly(max(0.1, latest.limit_s))
        if not whole_s:
            whole_s = work.seconds - begin
            until = latest if ANEW * whole_s > latest.until - until.until else until
        if relaxed.outcome is Outcome.INFEASIBLE:
            return Cutting(True, whole_s)
        if relaxed.point is None or on_bound(relaxed.objective):
            break
        near = near or relaxed.broken <= CUT_FAR
        if not near:
            continue
        if on_point is not None:
            on_point(relaxed.point)
        scale = overhead_j or abs(relaxed.objective)
        last = recent[-1] if recent else -math.inf
        before, rounds_since = (recent[0], STEEP_ROUNDS) if len(recent) == STEEP_ROUNDS else (last, 1)
        left_open = 0.0 if overhead_j is None else overhead_j - relaxed.objective
        steep = left_open > 0 and relaxed.objective - before > STEEP * rounds_since * left_open
        recent.append(relaxed.objective)
        if (latest if steep else until).remaining_s < 0:
            break
        if relaxed.objective - last < STALL_GAIN * scale:
            stalled += 1
        else:
            stalled, gained = 0, work.seconds
        patience = min(longest, max(PLATEAU_S, PLATEAU_SHARE * (gained - begin)))
        if stalled >= STALL and work.seconds - gained > patience:
            break
        session.purge()
        rows = chosen.separate(model, relaxed.point)
        if not rows and not relaxed.broken:
            break
        if on_rows is not None:
            on_rows(rows)
        session.add(rows)
    return Cutting(False, whole_s)
