"""Checkmate against the formulations that claim the same space, and its rounding against it."""

from __future__ import annotations

import random

import pytest

from poetopt.comparison.baselines import method
from poetopt.comparison.baselines.acceptance import Settings
from poetopt.comparison.baselines.poet import solve_remat_only
from poetopt.plan.simulate import simulate
from poetopt.search.diagnosis.solve import solve as search
from poetopt.search.solution import Options
from poetopt.util.errors import NoScheduleError
from tests.support.chains import chain

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
