"""The search from the end to the beginning finds what trying every schedule finds, and proves the rest."""

from __future__ import annotations

import math
import random
import time
from dataclasses import replace

import pytest

from poetopt.formulations.block import Limits
from poetopt.formulations.flash_wear import flash_wear
from poetopt.formulations.retention import retention
from poetopt.formulations.retention.label_setting.search import RetentionLabels, label_search
from poetopt.graph.problem import Problem, ProblemOperator, ProblemTensor, Transfers
from poetopt.plan.assemble import plan_of
from poetopt.plan.simulate import simulate
from poetopt.search.diagnosis.solve import solve
from poetopt.search.solution import Options, Status
from poetopt.testing.exhaustive import FEW_DECISIONS, best, decisions, valid
from poetopt.testing.problems import crowded, tight
from poetopt.util.work import Work
from tests.problems import random_budget, random_problem


def small(seed: int) -> tuple[Problem, int, RetentionLabels]:
    """A problem of few decisions, its budget, and the search."""
    rng = random.Random(seed)
    while True:
        problem, ram = tight(rng, forward=rng.choice([2, 3])) if rng.random() < 0.5 else crowded(rng, again=True)
        scope = rng.choice(["forward", "depth:1", "full"])
        search = label_search(problem, Limits(ram_bytes=ram), scope, True, True)
        assert search is not None
        if sum(map(len, decisions(search.space))) <= FEW_DECISIONS:
            return problem, ram, search


@pytest.mark.parametrize("seed", range(60))
def test_the_optimum_of_all_schedules(seed: int) -> None:
    problem, ram, search = small(seed)
    least = best(retention, valid(search.space, ram), ram)
    found = search.begin(math.inf).below(math.inf, Work())
    assert found is not False
    if least is None:
        assert found is True
        return
    assert not isinstance(found, bool)
    value, schedule = found
    assert value == pytest.approx(least[0])
    simulation = simulate(plan_of(problem, schedule), ram_bytes=ram)
    assert simulation.overhead_j == pytest.approx(value)
    assert search.least_j <= value * (1 + 1e-9)
    if value > 0:
        again = search.begin(value * 1.1)
        for share in (0.3, 0.5, 0.8, 0.9, 0.95, 0.999):
            assert again.below(value * share, Work()) is True
        climbed = again.below(value * 1.001, Work())
        assert not isinstance(climbed, bool)
        assert climbed[0] == pytest.approx(value)
        assert simulate(plan_of(problem, climbed[1]), ram_bytes=ram).overhead_j == pytest.approx(value)


@pytest.mark.parametrize("seed", range(40))
def test_the_same_optimum_as_by_the_model(seed: int) -> None:
    rng = random.Random(seed)
    problem = random_problem(rng, operators=11, training=True)
    asked = Options(ram_bytes=random_budget(rng, problem), scope=rng.choice(["depth:1", "forward", "full"]), gap=1e-7)
    modelled = replace(retention, name="modelled", label_search=None)
    staged, whole = solve(problem, asked), solve(problem, replace(asked, formulation=modelled))
    assert staged.status is whole.status
    if staged.simulation is None or whole.simulation is None:
        assert staged.status is Status.INFEASIBLE
        return
    assert staged.scope == whole.scope
    assert staged.simulation.overhead_j == pytest.approx(whole.simulation.overhead_j, rel=1e-6, abs=1e-9)


def test_what_has_no_time_says_nothing() -> None:
    _, _, search = small(1)
    assert search.begin(math.inf).below(math.inf, Work(until=time.monotonic() - 1.0)) is False
    assert search.begin(math.inf).below(math.inf, Work(limit=0.0)) is False


def _wide(inputs: int) -> Problem:
    """A backward operator reads much that is cheap to page; each of it is dear to make again."""
    tensors = [ProblemTensor("x", 1, -1, Transfers(page_in_j=1e-3, page_out_j=1e-3))]
    operators = []
    for i in range(inputs):
        operators.append(ProblemOperator(f"f{i}", (0,), (1 + i,), 1.0, 100.0))
        tensors.append(ProblemTensor(f"a{i}", 10 + i, i, Transfers(page_in_j=0.01 * (1 + i * 0.013), page_out_j=0.02)))
    loss = len(tensors)
    operators.append(ProblemOperator("loss", (inputs,), (loss,), 1.0, 100.0, workspace_bytes=10 * inputs))
    tensors.append(ProblemTensor("loss", 5, inputs, Transfers(page_in_j=50.0, page_out_j=50.0)))
    operators.append(ProblemOperator("b", (*range(1, inputs + 1), loss), (), 1.0, 100.0, backward=True))
    return Problem("wide", "paper", tuple(operators), tuple(tensors))


def test_a_wide_read_is_given_up_rather_than_written_out() -> None:
    problem = _wide(40)
    search = label_search(problem, Limits(ram_bytes=problem.least_ram_bytes + 15), "forward", True, True)
    assert search is not None
    assert search.begin(math.inf).below(math.inf, Work()) is False


@pytest.mark.parametrize("seed", range(20))
def test_what_cancels_out_is_no_bound(seed: int) -> None:
    """A tensor of a byte that is dear, in a room of gigabytes that a working set fills."""
    rng = random.Random(seed)
    sizes = rng.choice([1, 4]), rng.randint(10**5, 10**8), 1, rng.randint(10**6, 10**9), rng.randint(10**6, 10**9), 1
    dear = rng.choice([3.3, 10.0, 100.0])
    costs = dear * 10 ** rng.uniform(-8, -5), dear * rng.random(), 1.0, 1.0, 1.0, 1.0
    reads, writes = ((0,), (0,), (2,), (0, 2, 3), (4,), (1, 5)), ((1,), (2,), (3,), (4,), (5,), ())
    operators = tuple(
        ProblemOperator(f"o{j}", reads[j], writes[j], 1.0, costs[j], backward=j >= 3) for j in range(len(costs))
    )
    tensors = tuple(
        ProblemTensor(f"t{i}", nbytes, i - 1, Transfers(page_in_j=1e9, page_out_j=1e9))
        for i, nbytes in enumerate(sizes)
    )
    problem = Problem("cancels", "paper", operators, tensors)
    search = label_search(problem, Limits(ram_bytes=problem.working_set_bytes(3)), "full", True, True)
    assert search is not None
    found = search.begin(math.inf).below(math.inf, Work())
    assert found is True or (not isinstance(found, bool) and search.least_j <= found[0] * (1 + 1e-9))


def test_there_is_none_where_more_counts_than_bytes_and_joules() -> None:
    problem, ram, _ = small(1)
    assert label_search(replace(problem, wake_j=1.0), Limits(ram_bytes=ram), "forward", True, True) is None
    assert label_search(problem, Limits(ram_bytes=ram, makespan_s=1e9), "forward", True, True) is None
    assert retention.with_block(flash_wear(10**9)).label_search is None
