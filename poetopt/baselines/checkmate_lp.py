"""Checkmate's two-phase rounding of its linear relaxation (Jain et al. 2020, section 4.5).

The relaxation is solved at 0.9 of the budget, which leaves room for what rounding adds, and at all of it. Then S =
[S* >= theta] for theta in 0.1, 0.2, .. 0.9, R follows from S by repair (`poetopt.baselines.keeping`), and the
cheapest plan that fits is the answer. Where none does, the relaxation is solved at smaller shares as well.

The relaxation is that of `retention` without paging, objective time, with its cuts: the same space as Checkmate's,
and a tighter relaxation of it, in which nothing is freed that was not held. S*[t, i] is k of the interval between two
points of tensor i's life in which stage t lies. Recomputation chains are limited to DEPTH operators.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from poetopt.backends.solver import Outcome, backend
from poetopt.baselines.acceptance import DEFAULTS, Settings, cheapest
from poetopt.baselines.checkmate import in_seconds
from poetopt.baselines.keeping import Kept, repaired
from poetopt.engine.cutting import cut
from poetopt.errors import NoScheduleError
from poetopt.formulations import formulation
from poetopt.formulations.language import Floats
from poetopt.formulations.retention.space import RetentionSpace
from poetopt.plan.instructions import Plan
from poetopt.problem import Problem
from poetopt.schedule import Schedule

SHARES = ((0.9, 1.0), (0.8, 0.7))
"""Of the budget, at which the relaxation is solved; the second ones where no rounding of the first fits."""
THRESHOLDS = tuple(step / 10 for step in range(1, 10))
DEPTH = 8
RELAXATION_S = 15.0
"""Seconds that one relaxation may take at most."""


def schedule(problem: Problem, ram_bytes: int, settings: Settings = DEFAULTS) -> Plan:
    """The cheapest rounding that fits. Raises NoScheduleError where none does."""
    # Where store-all fits, the relaxation of the whole budget says so; that of a share of it can't.
    candidates = [Schedule()]
    why: NoScheduleError | None = None
    for shares in SHARES:
        for share in shares:
            relaxed = relaxation(problem, int(ram_bytes * share), settings)
            candidates += () if relaxed is None else rounded(problem, relaxed)
        try:
            return cheapest(problem, ram_bytes, candidates, settings)
        except NoScheduleError as error:
            why = error if len(candidates) > 1 else why
    raise why or NoScheduleError("its relaxation is infeasible, or was not solved in time")


def rounded(problem: Problem, relaxed: Floats) -> Iterator[Schedule]:
    """The repaired roundings at each threshold."""
    for theta in THRESHOLDS:
        kept: Kept = relaxed >= theta
        yield repaired(problem, kept)


def relaxation(problem: Problem, ram_bytes: int, settings: Settings = DEFAULTS) -> Floats | None:
    """S*, (operators, tensors) in [0, 1], or None where the relaxation is infeasible or took too long."""
    limit = min(settings.time_limit_s, RELAXATION_S)
    until = time.monotonic() + limit
    chosen = formulation("retention")
    deadline = settings.deadline_s
    if ram_bytes < problem.least_ram_bytes or (deadline is not None and deadline < problem.baseline_time_s):
        return None
    timed = in_seconds(problem)
    model = chosen.build(timed, ram_bytes=ram_bytes, makespan_s=deadline, scope=f"depth:{DEPTH}", paging=False)
    scale = 1e4 / (problem.baseline_time_s or 1.0)
    session = backend("highs").open(model, threads=settings.threads, scale=scale)
    if cut(chosen, model, session, until=until, overhead_j=None, on_bound=lambda _: False):
        return None
    found = session.relax(limit)
    if found.outcome is not Outcome.OPTIMAL or found.point is None:
        return None
    space: RetentionSpace = model.space
    kept = np.zeros((len(problem.operators), len(problem.tensors)))
    for value, i, stage, before in zip(
        found.point[model.residency.k],
        space.point_tensor,
        space.point_stage,
        space.point_previous,
        strict=True,
    ):
        kept[before + 1 : stage + 1, i] = value
    return kept
