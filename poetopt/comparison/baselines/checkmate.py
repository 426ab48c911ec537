"""Checkmate: optimal rematerialization of any graph (Jain, Jain, Nrusimha, Gholami, Abbeel, Keutzer, Stoica, Gonzalez,
MLSys 2020).

The integer program over which tensors are kept and which operators run again at each stage; no paging. `checkmate`
minimizes seconds of computing, as the original does, and its energy is evaluated afterwards; `poet-remat-only`
minimizes joules. Solved here by the project's own engine in the formulation `retention` without paging, whose space
with scope `full` is Checkmate's (a tensor may besides be freed within a stage), carried to operators with several
outputs and workspace.

Checkmate's two-phase rounding of its linear relaxation (Jain et al. 2020, section 4.5).

Phase one rounds S*, the relaxation's optimum: [S* >= theta] for theta in 0.05, 0.1, .. 0.95, and at random, with a
fixed seed, so that what S* says is kept with probability S*: with a theta for each tensor, and with one for each run
of stages in which S* of a tensor is the same. Phase two completes each S with the fewest recomputes R
(`keeping`). What rounding adds needs room, so the relaxation is solved at 1 - epsilon of the
budget, for several epsilon. The answer is the plan of least energy that the simulator passes at the whole budget.
Where none does, the relaxation is solved at smaller shares, and then with longer recomputation chains. After the first
two relaxations none begins once `Settings.time_limit_s` is over.

The relaxation is that of `retention` without paging, objective time, with its cuts: the same space as Checkmate's,
and a tighter relaxation of it, in which nothing is freed that was not held. S*[t, i] is k of the interval between two
points of tensor i's life in which stage t lies. Recomputation chains are limited to 8 operators (any number, where no
rounding fits otherwise).

How close it comes: its authors report the cost of a whole step, within a few percent of the optimum's (their table of
approximation ratios, 1.00 to 1.06). That is the figure which holds here as well, of a step's energy. Overhead is far
stricter where there is little: what is left to round are few operators, and one too many can double it.
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
"""Scope of the relaxation, and shares of the budget at which it is solved; a further step where no rounding fits."""
THRESHOLDS = tuple(step / 20 for step in range(1, 20))


def schedule_lp(problem: Problem, ram_bytes: int, settings: Settings = DEFAULTS) -> Plan:
    """The cheapest rounding that fits. Raises NoScheduleError where none does."""
    candidates = {Schedule(): None}
    why: NoScheduleError | None = None
    until = time.monotonic() + settings.time_limit_s
    solved = 0
    for scope, shares in STEPS:
        for share in shares:
            # number of relaxations that are solved however long they take
            if solved >= 2 and time.monotonic() > until:
                break
            relaxed = relaxation(problem, int(ram_bytes * share), settings, scope)
            solved += 1
            if relaxed is None:
                continue
            candidates.update(dict.fromkeys(rounded(problem, relaxed)))
            if share == 1.0 and integral(relaxed):
                # Nothing to round: where its plan fits, as store-all may, no share of the budget has a quicker one.
                with suppress(NoScheduleError):
                    return cheapest(problem, ram_bytes, candidates, settings)
        try:
            return cheapest(problem, ram_bytes, candidates, settings)
        except NoScheduleError as error:
            why = error if len(candidates) > 1 else why
    raise why or NoScheduleError("its relaxation is infeasible, or was not solved in time")


def rounded(problem: Problem, relaxed: Floats) -> Iterator[Schedule]:
    """The roundings at each threshold and at random, completed."""
    for theta in THRESHOLDS:
        yield repaired(problem, relaxed >= theta)
    if integral(relaxed):
        return
    random = np.random.default_rng(0)
    # Of each tensor, runs of equal values; drawn alike, so that no tensor comes and goes within one.
    runs = np.cumsum(np.diff(relaxed, axis=0, prepend=relaxed[:1]) != 0, axis=0)
    # number of random roundings of either kind
    for _ in range(40):
        # Never 0, or what the relaxation drops altogether might be kept.
        yield repaired(problem, relaxed >= 1.0 - random.random(relaxed.shape[1]))
        drawn = 1.0 - random.random((runs.max() + 1, relaxed.shape[1]))
        yield repaired(problem, relaxed >= np.take_along_axis(drawn, runs, axis=0))


def integral(relaxed: Floats) -> bool:
    """Tell whether S* keeps each tensor or doesn't."""
    # of S*, what counts as 0 or 1: solvers' tolerance
    return bool(np.minimum(relaxed, 1.0 - relaxed).max(initial=0.0) < 1e-6)


def relaxation(
    problem: Problem, ram_bytes: int, settings: Settings = DEFAULTS, scope: str = STEPS[0][0]
) -> Floats | None:
    """S*, (operators, tensors) in [0, 1], or None where the relaxation is infeasible or took too long."""
    # seconds that one relaxation may take at most
    limit = min(settings.time_limit_s, 15.0)
    until = time.monotonic() + limit
    chosen = formulation("retention")
    deadline = settings.deadline_s
    if ram_bytes < problem.least_ram_bytes or (deadline is not None and deadline < problem.baseline_time_s):
        return None
    timed = in_seconds(problem)
    model = chosen.build(timed, ram_bytes=ram_bytes, makespan_s=deadline, scope=scope, paging=False)
    scale = 1e4 / (problem.baseline_time_s or 1.0)
    session = backend("highs").open(model, threads=settings.threads, scale=scale)
    if cut(chosen, model, session, until=Budget.by_clock(until), overhead_j=None, on_bound=lambda _: False).infeasible:
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
    for i, tensor in enumerate(problem.tensors):
        if not tensor.nbytes:  # it has no points
            kept[tensor.producer + 1 :, i] = 1.0
    return kept


def in_seconds(problem: Problem) -> Problem:
    """The same problem with each operator's seconds in the place of its joules, and no storage."""
    operators = tuple(replace(operator, energy_j=operator.time_s) for operator in problem.operators)
    return replace(problem, operators=operators, paging=False)


def proportional(problem: Problem) -> bool:
    """Tell whether joules are seconds times one power, so that both objectives have the same optima."""
    powers = [op.energy_j / op.time_s for op in problem.operators if op.time_s > 0]
    free = all(op.energy_j == 0 for op in problem.operators if op.time_s == 0)
    return free and (not powers or max(powers) - min(powers) <= 1e-9 * max(powers))


def solve(problem: Problem, ram_bytes: int, settings: Settings = DEFAULTS, starts: Starts = ()) -> Solution:
    """Least time. The status is that of the proof in seconds; there is no bound on the joules."""
    found = search(in_seconds(problem), options(ram_bytes, settings, paging=False), starts=starts)
    if found.plan is None:
        return found
    plan = replace(found.plan, problem=problem)
    return replace(found, plan=plan, simulation=simulate(plan), overhead_bound_j=None, scope_bound=None)
