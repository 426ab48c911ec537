"""Plans of baselines train bit for bit as ordinary training does (all of them: `benchmarks/baselines_run.py`)."""

from __future__ import annotations

import pytest

import poetopt as po
from poetopt.comparison.baselines import method
from poetopt.comparison.rows import in_bytes
from poetopt.graph.problem import Problem
from poetopt.util.units import Share


@pytest.fixture(scope="module")
def problem() -> Problem:
    return po.load("bert-tiny", batch=1).differentiate().cost("a72")


@pytest.mark.parametrize("name", ["dtr", "capuchin"])
def test_bit_identical_within_the_budget(problem: Problem, name: str) -> None:
    (budget,) = in_bytes((Share(0.9),), po.store_all_peak_bytes(problem))
    plan = method(name).schedule(problem, budget)
    assert po.simulate(plan, ram_bytes=budget).overhead_j > 0
    execution = po.execute(plan)
    assert execution.ok, execution.message
    assert execution.bit_identical
    assert execution.measured_peak_bytes is not None
    assert execution.measured_peak_bytes <= budget
