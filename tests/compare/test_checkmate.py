"""Checkmate against the formulations that claim the same space, and its rounding against it."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest

import poetopt as po
from poetopt.comparison.baselines import method
from poetopt.comparison.baselines.acceptance import Settings
from poetopt.comparison.baselines.checkmate import (
    THRESHOLDS,
    in_seconds,
    proportional,
    relaxation,
    rounded,
    solve,
)
from poetopt.comparison.baselines.keeping import repaired
from poetopt.comparison.baselines.poet import solve_remat_only
from poetopt.plan.simulate import simulate
from poetopt.search.diagnosis.solve import solve as search
from poetopt.search.solution import Options, Status
from poetopt.util.errors import NoScheduleError
from tests.closed import closed
from tests.compare.chains import chain
from tests.problems import random_tight
from tests.seeds import some

EXACT = Settings(time_limit_s=30, gap=0.0, threads=1, scope="full")


def test_equals_retention_and_algorithm_1_without_paging() -> None:
    rng = random.Random(4)
    compared = 0
    for _ in range(4):
        layers = rng.choice((3, 4))
        problem = chain(
            layers,
            sizes=[rng.randint(1, 3) for _ in range(layers)],
            costs=[float(rng.randint(1, 4)) for _ in range(layers)],
            paging=True,
        )
        for ram in (problem.least_ram_bytes, problem.least_ram_bytes + 2):
            found = solve_remat_only(problem, ram, EXACT)
            values = [found.simulation and found.simulation.overhead_j]
            for formulation in ("retention", "poet"):
                options = Options(
                    ram_bytes=ram, formulation=formulation, scope="full", paging=False, gap=0.0, threads=1
                )
                other = search(problem, options)
                values.append(other.simulation and other.simulation.overhead_j)
            assert values[0] == pytest.approx(values[1])
            assert values[0] == pytest.approx(values[2])
            compared += values[0] is not None
    assert compared >= 4


def test_least_time_is_not_least_energy() -> None:
    """Two layers to choose from: one is dear in joules, the other in seconds."""
    base = chain(5, costs=[9.0] * 5)
    operators = list(base.operators)
    operators[1] = replace(operators[1], time_s=1.0, energy_j=9.0)
    operators[2] = replace(operators[2], time_s=9.0, energy_j=1.0)
    problem = replace(base, operators=tuple(operators))
    assert not proportional(problem)
    assert proportional(base)
    fast = solve(problem, 6, EXACT)
    frugal = solve_remat_only(problem, 6, EXACT)
    assert fast.simulation is not None
    assert frugal.simulation is not None
    assert fast.status is Status.OPTIMAL
    assert closed(frugal)
    assert fast.simulation.makespan_s < frugal.simulation.makespan_s
    assert fast.simulation.overhead_j > frugal.simulation.overhead_j
    assert fast.scope_bound_j is None
    assert fast.plan is not None
    assert fast.plan.problem is problem


def test_in_seconds_changes_the_objective_only() -> None:
    problem = chain(3, costs=[2.0, 3.0, 4.0], paging=True)
    timed = in_seconds(problem)
    assert [op.energy_j for op in timed.operators] == [op.time_s for op in problem.operators]
    assert not timed.paging
    assert timed.tensors == problem.tensors


def test_rounding_is_close_to_the_optimum() -> None:
    rng = random.Random(6)
    ratios = []
    for _ in range(3):
        layers = 10
        problem = chain(layers, sizes=[rng.randint(2, 5) for _ in range(layers)])
        store_all = sum(t.nbytes for t in problem.tensors[1 : layers + 1])
        for share in (0.5, 0.7):
            ram = int(store_all * share)
            try:
                found = simulate(method("checkmate-lp-rounding").schedule(problem, ram, EXACT), ram_bytes=ram)
            except NoScheduleError:
                continue
            best = simulate(method("poet-remat-only").schedule(problem, ram, EXACT))
            assert found.overhead_j >= best.overhead_j - 1e-9
            ratios.append(found.energy_j / best.energy_j)
    assert len(ratios) >= 5
    assert sum(ratios) / len(ratios) < 1.06


def test_rounding_of_random_graphs_is_close_in_energy() -> None:
    """Few percent, as its authors measure it: the cost of a whole step, as a geometric mean."""
    rng = random.Random(5)
    logarithms = []
    for _ in range(40):
        problem, ram = random_tight(rng, operators=rng.choice((12, 14, 16)), training=True)
        try:
            found = simulate(method("checkmate-lp-rounding").schedule(problem, ram, EXACT), ram_bytes=ram)
        except NoScheduleError:
            continue
        best = solve_remat_only(problem, ram, EXACT)
        assert best.simulation is not None
        assert closed(best)
        assert found.energy_j >= best.simulation.energy_j - 1e-9
        logarithms.append(math.log(found.energy_j / best.simulation.energy_j))
    assert len(logarithms) >= 12
    assert math.exp(sum(logarithms) / len(logarithms)) < 1.07


@pytest.mark.parametrize("share", some((0.6, 0.9), 1))
def test_rounding_of_a_zoo_network_is_close_in_energy(share: float) -> None:
    problem = po.load("bert-tiny").differentiate().cost("a72")
    ram = int(share * po.store_all_peak_bytes(problem))
    found = method("checkmate-lp-rounding").schedule(problem, ram, Settings(time_limit_s=3, threads=1))
    best = solve_remat_only(problem, ram, Settings(time_limit_s=4, gap=0.01, threads=1))
    assert best.simulation is not None
    # Against what is proven, which holds whatever the search has found by then.
    assert best.scope_bound_j is not None
    assert simulate(found, ram_bytes=ram).energy_j < 1.03 * (problem.baseline_energy_j + best.scope_bound_j)


def test_roundings_are_the_same_each_time_and_keep_no_more_than_the_relaxation() -> None:
    problem = chain(8, sizes=[2, 3, 2, 4, 3, 2, 3, 2])
    relaxed = np.random.default_rng(3).choice([0.0, 0.3, 0.7, 1.0], size=(len(problem.operators), len(problem.tensors)))
    first = list(rounded(problem, relaxed))
    assert first == list(rounded(problem, relaxed))
    assert len(set(first)) > len(THRESHOLDS)
    assert list(rounded(problem, np.zeros_like(relaxed))) == [
        repaired(problem, np.zeros(relaxed.shape, dtype=bool))
    ] * (len(THRESHOLDS))


def test_a_relaxation_that_is_integral_rounds_to_itself() -> None:
    problem = chain(6)
    relaxed = relaxation(problem, 100, EXACT)
    assert relaxed is not None
    schedules = set(rounded(problem, relaxed))
    assert schedules == {repaired(problem, relaxed > 0.5)}
    assert all(not schedule.recomputes for schedule in schedules)
