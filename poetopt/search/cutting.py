"""Rounds of violated rows on a relaxation: what makes the bound strong before the search begins."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from poetopt.backends.solvers.solver import Outcome, Session, backend
from poetopt.formulations.block import Limits
from poetopt.formulations.language import Formulation
from poetopt.formulations.rows import PointLike, Row
from poetopt.graph.problem import Problem
from poetopt.search.run import Budget
from poetopt.search.solution import DeadlineModel, Options
from poetopt.search.tuning import (
    ANEW,
    PLATEAU_S,
    PLATEAU_SHARE,
    STALL,
    STALL_GAIN,
    STALL_SHARE,
    STEEP,
    STEEP_ROUNDS,
)


def limits_of(options: Options) -> Limits:
    """The limits of schedules: the budget, and the deadline in its model."""
    paper = options.deadline_model is DeadlineModel.PAPER
    return Limits(
        ram_bytes=options.ram_bytes,
        compute_s=options.deadline_s if paper else None,
        makespan_s=None if paper else options.deadline_s,
    )


def model_of(
    chosen: Formulation,
    problem: Problem,
    options: Options,
    scope: str,
    *,
    hidden_share: float = 1.0,
    ceiling_j: float = math.inf,
) -> Any:
    """The model of `problem` in `scope`, with the budget and the deadline of `options`.

    hidden_share, ceiling_j
        See `Limits`.
    """
    limits = limits_of(options)
    return chosen.build(
        problem,
        ram_bytes=max(0, limits.ram_bytes),  # a restriction may leave less than nothing
        compute_s=_left(limits.compute_s),
        makespan_s=_left(limits.makespan_s),
        hidden_share=hidden_share,
        ceiling_j=ceiling_j,
        scope=scope,
        paging=options.paging,
        remat=options.remat,
    )


def _left(seconds: float | None) -> float | None:
    return None if seconds is None else max(0.0, seconds)


def session_of(model: Any, options: Options, *, scale: float, threads: int | None = None) -> Session:
    """A session on `model` in the backend of `options`, with the solver's own options and log."""
    return backend(options.backend).open(
        model,
        threads=options.threads if threads is None else threads,
        scale=scale,
        options=options.solver_options,
        log=options.log,
    )


@dataclass(frozen=True)
class Cutting:
    """The end of cutting.

    infeasible
        Whether the relaxation is, and with it the model.
    whole_s
        How long the first relaxation took; at least that long where it didn't end.
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
    whole_s = 0.0
    while True:
        relaxed = session.relax(max(0.1, latest.limit_s))
        if not whole_s:
            whole_s = work.seconds - begin
            until = latest if ANEW * whole_s > latest.until - until.until else until
        if relaxed.outcome is Outcome.INFEASIBLE:
            return Cutting(True, whole_s)
        if relaxed.point is None or on_bound(relaxed.objective):
            break
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
        if not rows:
            break
        if on_rows is not None:
            on_rows(rows)
        session.add(rows)
    return Cutting(False, whole_s)
