"""Checkmate: optimal rematerialization of any graph.

Jain, Jain, Nrusimha, Gholami, Abbeel, Keutzer, Stoica, Gonzalez, MLSys 2020.

The integer program decides which tensors are kept and which operators run again at each stage; there is no paging.
`checkmate` minimizes seconds of computing, like the original, and its energy is evaluated afterwards; `poet-remat-only`
minimizes joules. This project's own engine solves it in the formulation `retention` without paging. With scope `full`,
that space is Checkmate's, extended to operators with several outputs and workspace; a tensor may also be freed within a
stage.

Checkmate's two-phase rounding of its linear relaxation (Jain et al. 2020, section 4.5):

Phase one rounds S*, the optimum of the relaxation, in two ways. The first is [S* >= theta] for theta in 0.05, 0.1, ..
0.95. The second is at random with a fixed seed, so that an entry is kept with probability S*: once with one theta for
each tensor, and once with one theta for each run of stages in which S* of a tensor is constant. Phase two completes
each S with the fewest recomputes R (`keeping`). Rounding adds memory, so the relaxation is solved at 1 - epsilon of the
budget, for several epsilon. The result is the plan of least energy that the simulator accepts at the whole budget. If
there is none, the relaxation is solved at smaller shares, and then with longer recomputation chains. After the first
two relaxations, none begins once `Settings.time_limit_s` is over.

The relaxation is that of `retention` without paging, objective time, with its cuts. It has the same space as
Checkmate's and is tighter: nothing is freed that was not held. S*[t, i] is k of the interval, between two points of
tensor i's life, that contains stage t. Recomputation chains are limited to 8 operators, or unlimited if no rounding
fits otherwise.

Accuracy: the authors report the cost of a whole step within a few percent of the optimum (their table of approximation
ratios, 1.00 to 1.06). The same holds here for a step's energy. Overhead is a far stricter measure if it is small: few
operators are left to round, and one too many can double it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import numpy as np

from poetopt.backends.solvers.solver import Outcome, backend
from poetopt.comparison.baselines.acceptance import DEFAULTS, Settings, cheapest
from poetopt.comparison.baselines.keeping import repaired
from poetopt.comparison.baselines.poet import Starts, options
from poetopt.formulations import formulation
from poetopt.formulations.retention.space import RetentionSpace
from poetopt.formulations.rows import Floats
from poetopt.graph.problem import Problem
from poetopt.plan.instructions import Plan
from poetopt.plan.schedule import Schedule
from poetopt.plan.simulate import simulate
from poetopt.search.cutting import cut
from poetopt.search.diagnosis.whole import solve_whole as search
from poetopt.search.run import Budget
from poetopt.search.solution import Solution
from poetopt.util.errors import NoScheduleError

STEPS = (
    ("depth:8", (1.0, 0.9, 0.95, 0.98, 0.99, 0.97, 0.96, 0.93)),
    ("depth:8", (0.8, 0.7)),
    ("forward", (1.0, 0.95, 0.9)),
)
"""Scope of the relaxation, and shares of the budget; each further step is taken if no rounding fits."""
THRESHOLDS = tuple(step / 20 for step in range(1, 20))


def schedule_lp(problem: Problem, ram_bytes: int, settings: Settings = DEFAULTS) -> Plan:
    """Return the cheapest rounding that fits. Raises NoScheduleError if none does."""
    candidates = {Schedule(): None}
    last_error: NoScheduleError | None = None
    deadline_s = time.monotonic() + settings.time_limit_s
    n_solved = 0
    for scope, shares in STEPS:
        for share in shares:
            # The first two relaxations are solved even after the time limit.
            if n_solved >= 2 and time.monotonic() > deadline_s:
                break
            relaxed = relaxation(problem, int(ram_bytes * share), settings, scope)
            n_solved += 1
            if relaxed is None:
                continue
            candidates.update(dict.fromkeys(rounded(problem, relaxed)))
            if share == 1.0 and integral(relaxed):
                # Nothing to round: if its plan fits, as store-all may, no share of the budget has a faster one.
                with suppress(NoScheduleError):
                    return cheapest(problem, ram_bytes, candidates, settings)
        try:
            return cheapest(problem, ram_bytes, candidates, settings)
        except NoScheduleError as error:
            last_error = error if len(candidates) > 1 else last_error
    raise last_error or NoScheduleError("its relaxation is infeasible, or wasn't solved in time")


def rounded(problem: Problem, relaxed: Floats) -> Iterator[Schedule]:
    """Yield the completed roundings, at each threshold and at random."""
    for theta in THRESHOLDS:
        yield repaired(problem, relaxed >= theta)
    if integral(relaxed):
        return
    random = np.random.default_rng(0)
    # Runs of equal values of each tensor get one draw, so that a tensor doesn't change within a run.
    runs = np.cumsum(np.diff(relaxed, axis=0, prepend=relaxed[:1]) != 0, axis=0)
    # 40 random roundings of each kind
    for _ in range(40):
        # Thresholds are never 0, or tensors that the relaxation drops might be kept.
        yield repaired(problem, relaxed >= 1.0 - random.random(relaxed.shape[1]))
        drawn = 1.0 - random.random((runs.max() + 1, relaxed.shape[1]))
        yield repaired(problem, relaxed >= np.take_along_axis(drawn, runs, axis=0))


def integral(relaxed: Floats) -> bool:
    """Return whether S* is integral: it keeps or drops each tensor entirely."""
    # 1e-6 is the solvers' tolerance
    return bool(np.minimum(relaxed, 1.0 - relaxed).max(initial=0.0) < 1e-6)


def relaxation(
    problem: Problem, ram_bytes: int, settings: Settings = DEFAULTS, scope: str = STEPS[0][0]
) -> Floats | None:
    """Return S*, (operators, tensors) in [0, 1], or None if the relaxation is infeasible or too slow."""
    # One relaxation takes at most 15 seconds.
    limit_s = min(settings.time_limit_s, 15.0)
    end_s = time.monotonic() + limit_s
    retention = formulation("retention")
    deadline = settings.deadline_s
    if ram_bytes < problem.least_ram_bytes or (deadline is not None and deadline < problem.baseline_time_s):
        return None
    problem_in_seconds = in_seconds(problem)
    model = retention.build(problem_in_seconds, ram_bytes=ram_bytes, makespan_s=deadline, scope=scope, paging=False)
    scale = 1e4 / (problem.baseline_time_s or 1.0)
    session = backend("highs").open(model, threads=settings.threads, scale=scale)
    if cut(
        retention, model, session, until=Budget.by_clock(end_s), overhead_j=None, on_bound=lambda _: False
    ).infeasible:
        return None
    solution = session.relax(limit_s)
    if solution.outcome is not Outcome.OPTIMAL or solution.point is None:
        return None
    space: RetentionSpace = model.space
    kept = np.zeros((len(problem.operators), len(problem.tensors)))
    for value, i, stage, before in zip(
        solution.point[model.residency.k],
        space.point_tensor,
        space.point_stage,
        space.point_previous,
        strict=True,
    ):
        kept[before + 1 : stage + 1, i] = value
    for i, tensor in enumerate(problem.tensors):
        if not tensor.nbytes:  # empty tensors have no points
            kept[tensor.producer + 1 :, i] = 1.0
    return kept


def in_seconds(problem: Problem) -> Problem:
    """Return the problem with each operator's seconds in place of its joules, and without storage."""
    operators = tuple(replace(operator, energy_j=operator.time_s) for operator in problem.operators)
    return replace(problem, operators=operators, paging=False)


def proportional(problem: Problem) -> bool:
    """Return whether joules are proportional to seconds, so that both objectives have the same optima."""
    powers = [op.energy_j / op.time_s for op in problem.operators if op.time_s > 0]
    free = all(op.energy_j == 0 for op in problem.operators if op.time_s == 0)
    return free and (not powers or max(powers) - min(powers) <= 1e-9 * max(powers))


def solve(problem: Problem, ram_bytes: int, settings: Settings = DEFAULTS, starts: Starts = ()) -> Solution:
    """Solve for least time; the status refers to the proof in seconds, and there is no bound on joules."""
    solution = search(in_seconds(problem), options(ram_bytes, settings, paging=False), starts=starts)
    if solution.plan is None:
        return solution
    plan = replace(solution.plan, problem=problem)
    return replace(solution, plan=plan, simulation=simulate(plan), overhead_bound_j=None, scope_bound=None)
