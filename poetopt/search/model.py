"""From what was asked to a Pyomo model, and to a session on it: which bound of time the deadline is."""

from __future__ import annotations

import math
from typing import Any

from poetopt.backends.solvers.solver import Session, backend
from poetopt.formulations.block import Limits
from poetopt.formulations.language import Formulation
from poetopt.graph.problem import Problem
from poetopt.search.solution import DeadlineModel, Options


def limits_of(options: Options) -> Limits:
    """What schedules must keep: the budget, and the deadline in its model."""
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
