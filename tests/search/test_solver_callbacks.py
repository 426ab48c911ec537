"""Separators inside SCIP and Gurobi find what trying everything finds; without them a solution takes too much RAM."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from benchmarks.solver_callbacks import solved
from poetopt.formulations import formulation
from poetopt.formulations.rows import Row
from poetopt.graph.problem import Problem
from poetopt.search.solution import Options
from poetopt.util.errors import FormulationError
from tests.bruteforce import plan_optimum
from tests.problems import random_budget, random_problem

NEEDS_ROWS = 40
"""A seed whose cheapest point of the model alone breaks a lazy constraint."""
PACKAGES = {"scip": "pyscipopt", "engine-scip": "pyscipopt", "gurobi": "gurobipy"}


def case(seed: int) -> tuple[Problem, Options]:
    """A training step of 8 operators, at a budget under its store-all peak, and exact options."""
    rng = random.Random(seed)
    problem = random_problem(rng, operators=8, training=True)
    options = Options(ram_bytes=random_budget(rng, problem), scope="full", gap=0.0, threads=1, time_limit_s=60)
    return problem, options


@pytest.mark.parametrize("seed", [NEEDS_ROWS, 48, 49])
@pytest.mark.parametrize("way", PACKAGES)
def test_the_optimum_is_that_of_trying_everything(way: str, seed: int) -> None:
    pytest.importorskip(PACKAGES[way])
    problem, options = case(seed)
    best = plan_optimum(problem, options.ram_bytes)
    assert best is not None
    found = solved(problem, options, way)
    assert found["overhead_j"] == pytest.approx(best.overhead_j)
    assert found["bound_j"] == pytest.approx(best.overhead_j)


def test_without_the_handler_the_simulator_refuses_the_optimum() -> None:
    pytest.importorskip("pyscipopt")
    problem, options = case(NEEDS_ROWS)
    found = solved(problem, options, "scip-bare")
    assert found["peak_bytes"] > options.ram_bytes
    assert solved(problem, options, "scip")["refused"] > 0


def test_what_a_separator_raises_ends_the_search() -> None:
    pytest.importorskip("pyscipopt")
    problem, options = case(NEEDS_ROWS)
    retention = formulation("retention")

    def fails(*_: object) -> list[Row]:
        raise ZeroDivisionError

    broken = tuple(replace(b, separator=fails) if b.name == "memory" else b for b in retention.blocks)
    with pytest.raises(FormulationError, match="block 'memory': separator failed: ZeroDivisionError"):
        solved(problem, replace(options, formulation=replace(retention, blocks=broken)), "scip")
