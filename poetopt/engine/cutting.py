"""Rounds of violated rows on a relaxation: what makes the bound strong before the search begins."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from poetopt.backends.solver import Capability, Outcome, Session
from poetopt.formulations.language import Formulation

ROUNDS = 40
"""At most so many rounds of cuts on one relaxation."""
ROUNDS_FROM_NOTHING = 12
"""The same where each round solves the relaxation from nothing: the first ones gain the most."""
STALL = 3
"""Rounds in which the bound rose by less than STALL_GAIN of the overhead end the cutting."""
STALL_GAIN = 2e-4


def cut(
    chosen: Formulation,
    model: Any,
    session: Session,
    *,
    until: float,
    overhead_j: float | None,
    on_bound: Callable[[float], bool],
) -> bool:
    """Solve the relaxation, add the rows that it violates, and again until nothing more is gained.

    until
        The moment (of `time.monotonic`) after which no further round begins.
    overhead_j
        The incumbent's, against which a gain is measured; None: the relaxation's own.
    on_bound
        Told each bound; says whether that is enough.

    Returns whether the relaxation is infeasible, and with it the model.
    """
    stalled, last = 0, -math.inf
    rounds = ROUNDS if Capability.INCREMENTAL in session.capabilities else ROUNDS_FROM_NOTHING
    for _ in range(rounds):
        relaxed = session.relax(max(0.1, until - time.monotonic()))
        if relaxed.outcome is Outcome.INFEASIBLE:
            return True
        if relaxed.point is None or on_bound(relaxed.objective) or time.monotonic() > until:
            break
        scale = overhead_j or abs(relaxed.objective)
        stalled = stalled + 1 if relaxed.objective - last < STALL_GAIN * scale else 0
        last = relaxed.objective
        if stalled >= STALL:
            break
        session.purge()
        rows = chosen.separate(model, relaxed.point)
        if not rows:
            break
        session.add(rows)
    return False
