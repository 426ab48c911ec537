"""Searching only what lies beyond a proven scope gives what searching all of it gives."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from poetopt.formulations.retention import retention
from poetopt.formulations.retention.scope_difference import scope_difference
from poetopt.formulations.retention.space import RetentionSpace
from poetopt.search.diagnosis.solve import solve
from poetopt.search.solution import Options, Status
from tests.closed import closed
from tests.problems import random_budget, random_problem, random_tight
from tests.seeds import some

WHOLE = replace(retention, name="whole", scope_difference=None)


@pytest.mark.parametrize("seed", some(range(60), 10))
def test_the_same_optimum_either_way(seed: int) -> None:
    rng = random.Random(seed)
    problem = random_problem(rng, operators=11, training=True)
    deadline_s = rng.choice([None, 1.15]) and 1.15 * problem.baseline_time_s
    asked = Options(
        ram_bytes=random_budget(rng, problem), scope=rng.choice(["forward", "full"]), gap=1e-7, deadline_s=deadline_s
    )
    parts, whole = solve(problem, asked), solve(problem, replace(asked, formulation=WHOLE))
    assert parts.status is whole.status
    if parts.simulation is None or whole.simulation is None:
        assert parts.status is Status.INFEASIBLE
        return
    assert parts.simulation.overhead_j == pytest.approx(whole.simulation.overhead_j, rel=1e-6, abs=1e-9)
    assert parts.scope_bound_j == pytest.approx(parts.simulation.overhead_j, rel=1e-6, abs=1e-9)


def test_the_row_counts_what_the_inner_scope_lacks() -> None:
    problem = random_problem(random.Random(4), operators=12, training=True)
    model = retention.build(problem, ram_bytes=random_budget(random.Random(4), problem), scope="full")
    space: RetentionSpace = model.space
    inner = retention.build(problem, ram_bytes=space.limits.ram_bytes, scope="depth:1").space
    row = scope_difference(model, "depth:1", frozenset())
    assert row is not None
    assert len(row.variables) == len(space.recompute_of) - len(inner.recompute_of) > 0
    nothing = scope_difference(model, "full", frozenset())
    assert nothing is not None
    assert not nothing.variables


def test_there_is_none_where_the_order_of_transfers_counts() -> None:
    problem = random_problem(random.Random(4), operators=12, training=True)
    model = retention.build(problem, ram_bytes=problem.least_ram_bytes, scope="forward")
    assert scope_difference(model, "depth:1", frozenset({"late"})) is None
    woken = retention.build(replace(problem, wake_j=1.0), ram_bytes=problem.least_ram_bytes, scope="forward")
    assert scope_difference(woken, "depth:1", frozenset()) is None
    assert retention.with_block(*()).scope_difference is None


def test_a_recompute_that_costs_nothing_and_is_in_no_row_is_no_error() -> None:
    problem, ram_bytes = random_tight(random.Random(14), operators=12)
    asked = Options(ram_bytes=ram_bytes, scope="full", gap=0.0, threads=1)
    parts, whole = solve(problem, asked), solve(problem, replace(asked, formulation=WHOLE))
    assert closed(parts)
    assert closed(whole)
    assert parts.scope_bound_j == pytest.approx(whole.scope_bound_j, rel=1e-6)
