"""Schedules of a problem whose chains are joined are schedules of the whole one, for the same joules."""

from __future__ import annotations

import math
import random

import pytest

from poetopt.engine.joined import join, joined_run
from poetopt.engine.loop import solve
from poetopt.engine.run import Run
from poetopt.engine.solution import Options
from poetopt.plan.assemble import plan_of, schedule_of
from poetopt.plan.simulate import simulate
from poetopt.plan.storeall import store_all_bytes
from poetopt.problem import Problem, ProblemOperator, ProblemTensor
from tests.problems import random_problem


def chain(layers: int) -> Problem:
    """Layers of a heavy operator, a norm with a side output and an activation; backward reads all but the norm's."""
    operators: list[ProblemOperator] = []
    tensors = [ProblemTensor("x", 64, -1, 1.0, 1.0, 1.0, 1.0)]

    def add(name: str, inputs: tuple[int, ...], sizes: tuple[int, ...], energy_j: float, backward: bool) -> int:
        first = len(tensors)
        outputs = tuple(range(first, first + len(sizes)))
        operators.append(ProblemOperator(name, tuple(sorted(inputs)), outputs, 1.0, energy_j, backward=backward))
        for i, nbytes in zip(outputs, sizes, strict=True):
            tensors.append(ProblemTensor(f"t{i}", nbytes, len(operators) - 1, 9.0, 90.0, 9.0, 90.0))
        return first

    saved, last = [], 0
    for layer in range(layers):
        heavy = add(f"conv{layer}", (last,), (64,), 10.0, False)
        norm = add(f"norm{layer}", (heavy,), (64, 1), 1.0, False)
        saved.append((last, heavy, norm + 1))
        last = add(f"relu{layer}", (norm,), (64,), 1.0, False)
    for layer, (before, heavy, side) in reversed(list(enumerate(saved))):
        last = add(f"grad{layer}", (before, heavy, side, last), (64,), 20.0, True)
    return Problem("chain", "paper", tuple(operators), tuple(tensors))


def test_a_norm_and_its_activation_are_one() -> None:
    problem = chain(3)
    joined = join(problem)
    assert [end - begin for begin, end in joined.operators] == [1, 2] * 3 + [1] * 3
    assert len(joined.problem.tensors) == len(problem.tensors) - 3
    assert joined.problem.baseline_energy_j == problem.baseline_energy_j
    assert store_all_bytes(joined.problem) <= store_all_bytes(problem)


@pytest.mark.parametrize("seed", range(60))
def test_a_schedule_of_the_joined_problem_is_one_of_the_whole(seed: int) -> None:
    rng = random.Random(seed)
    problem = random_problem(rng, operators=12, training=rng.random() < 0.8)
    joined = join(problem)
    places = [j for begin, end in joined.operators for j in range(begin, end)]
    assert places == list(range(len(problem.operators)))
    least = joined.problem.least_ram_bytes
    assert least <= problem.least_ram_bytes
    ram = rng.randint(least, max(least, store_all_bytes(problem)))
    solution = solve(joined.problem, Options(ram_bytes=ram, scope="full", time_limit_s=5))
    if solution.plan is not None:
        schedule = schedule_of(solution.plan)
        found = simulate(plan_of(joined.problem, schedule)).overhead_j
        assert simulate(plan_of(problem, joined.whole(schedule))).overhead_j == pytest.approx(found)


def test_what_is_found_in_it_counts_by_the_whole_problem() -> None:
    problem = chain(6)
    run = Run(problem, Options(ram_bytes=int(0.6 * store_all_bytes(problem))), None)
    inner = joined_run(run)
    assert inner is not None
    solution = solve(inner.problem, Options(ram_bytes=run.options.ram_bytes, scope="full"))
    assert solution.plan is not None
    schedule = schedule_of(solution.plan)
    value = inner.incumbent.weigh(schedule)
    assert inner.offer(schedule, "search") == (value < math.inf)
    if run.incumbent.best is not None:
        assert run.incumbent.value == inner.incumbent.value == value
        assert simulate(run.incumbent.best.plan, ram_bytes=run.options.ram_bytes).overhead_j == pytest.approx(value)
    assert run.bound == 0.0


def test_what_has_no_chains_is_left_alone() -> None:
    operators = [ProblemOperator(f"o{j}", (j,), (j + 1,), 1.0, 1.0) for j in range(5)]
    operators.append(ProblemOperator("backward", (0, 1, 2, 3, 4, 5), (), 1.0, 1.0, backward=True))
    tensors = tuple(ProblemTensor(f"t{j}", 8, j - 1) for j in range(6))
    problem = Problem("none", "paper", tuple(operators), tensors)
    assert joined_run(Run(problem, Options(ram_bytes=10**6), None)) is None
