"""Rounds of violated rows on a relaxation, which strengthen the bound before the integer search."""

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
    """Return the limits of schedules: the budget, and the deadline in its model."""
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
    """Return the model of `problem` in `scope`, with the budget and the deadline of `options`.

    Parameters
    ----------
    hidden_share, ceiling_j
        See `Limits`.
    """
    limits = limits_of(options)
    return chosen.build(
        problem,
        ram_bytes=max(0, limits.ram_bytes),  # a restriction may leave less than nothing
        compute_s=_nonnegative(limits.compute_s),
        makespan_s=_nonnegative(limits.makespan_s),
        hidden_share=hidden_share,
        ceiling_j=ceiling_j,
        scope=scope,
        paging=options.paging,
        remat=options.remat,
    )


def _nonnegative(seconds: float | None) -> float | None:
    return None if seconds is None else max(0.0, seconds)


def session_of(model: Any, options: Options, *, scale: float, threads: int | None = None) -> Session:
    """Return a session on `model` in the backend of `options`, with their solver options and log."""
    return backend(options.backend).open(
        model,
        threads=options.threads if threads is None else threads,
        scale=scale,
        options=options.solver_options,
        log=options.log,
    )


@dataclass(frozen=True)
class Cutting:
    """Result of cutting.

    Attributes
    ----------
    infeasible
        Whether the relaxation is infeasible, and with it the model.
    whole_s
        Seconds of the first relaxation; a lower bound on them if it didn't end.
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
    """Solve the relaxation, add the rows that it violates, and repeat until nothing more is gained.

    Parameters
    ----------
    until, latest
        No further round begins after `until` if rounds gain little, and none after `latest` (None: `until`).
    overhead_j
        Overhead of the incumbent, against which a gain is measured; None: that of the relaxation.
    on_bound
        Called with each bound; returns whether it is enough.
    on_point
        Called with the relaxation's point after each round.
    on_rows
        Called with the rows of each round before they are added.
    """
    latest = until if latest is None else latest
    n_stalled = 0
    recent_bounds: deque[float] = deque(maxlen=STEEP_ROUNDS)
    work = until.work
    begin_s = last_gain_s = work.seconds
    max_stall_s = STALL_SHARE * until.meant_s
    first_s = 0.0
    while True:
        relaxation = session.relax(max(0.1, latest.limit_s))
        if not first_s:
            first_s = work.seconds - begin_s
            until = latest if ANEW * first_s > latest.until - until.until else until
        if relaxation.outcome is Outcome.INFEASIBLE:
            return Cutting(True, first_s)
        if relaxation.point is None or on_bound(relaxation.objective):
            break
        if on_point is not None:
            on_point(relaxation.point)
        scale = overhead_j or abs(relaxation.objective)
        last_bound = recent_bounds[-1] if recent_bounds else -math.inf
        earlier_bound, rounds_since = (
            (recent_bounds[0], STEEP_ROUNDS) if len(recent_bounds) == STEEP_ROUNDS else (last_bound, 1)
        )
        open_gap = 0.0 if overhead_j is None else overhead_j - relaxation.objective
        is_steep = open_gap > 0 and relaxation.objective - earlier_bound > STEEP * rounds_since * open_gap
        recent_bounds.append(relaxation.objective)
        if (latest if is_steep else until).remaining_s < 0:
            break
        if relaxation.objective - last_bound < STALL_GAIN * scale:
            n_stalled += 1
        else:
            n_stalled, last_gain_s = 0, work.seconds
        patience_s = min(max_stall_s, max(PLATEAU_S, PLATEAU_SHARE * (last_gain_s - begin_s)))
        if n_stalled >= STALL and work.seconds - last_gain_s > patience_s:
            break
        session.purge()
        rows = chosen.separate(model, relaxation.point)
        if not rows:
            break
        if on_rows is not None:
            on_rows(rows)
        session.add(rows)
    return Cutting(False, first_s)
