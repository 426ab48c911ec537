"""What is proven where small tensors take no room holds of the whole problem, and what is found is judged there."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from poetopt.graph.problem import Problem, ProblemOperator, ProblemTensor, Transfers
from poetopt.plan.assemble import schedule_of
from poetopt.plan.simulate import simulate
from poetopt.plan.storeall import store_all_bytes
from poetopt.search.diagnosis.solve import solve
from poetopt.search.relaxation import RelaxedRun, lighten
from poetopt.search.run import Run
from poetopt.search.search import without_ends
from poetopt.search.solution import Options, Status
from tests.closed import closed
from tests.small import judged, small_problem

SIDE = 3


def network(rng: random.Random, layers: int, storage: bool = True) -> Problem:
    """Layers of an operator and a norm with a small side output; backward reads all. Paging is better for some."""
    operators: list[ProblemOperator] = []
    tensors = [ProblemTensor("x", 64, -1, Transfers(1.0, 9.0, 1.0, 9.0))]

    def add(name: str, inputs: tuple[int, ...], sizes: tuple[int, ...], energy_j: float, backward: bool) -> int:
        first = len(tensors)
        outputs = tuple(range(first, first + len(sizes)))
        operators.append(ProblemOperator(name, tuple(sorted(inputs)), outputs, 1.0, energy_j, backward=backward))
        for i, nbytes in zip(outputs, sizes, strict=True):
            price = 9.0 + nbytes / 8
            tensors.append(ProblemTensor(f"t{i}", nbytes, len(operators) - 1, Transfers(9.0, price, 9.0, price)))
        return first

    saved, last = [], 0
    for layer in range(layers):
        heavy = add(f"heavy{layer}", (last,), (rng.choice((48, 64, 96)),), rng.choice((12.0, 30.0, 60.0)), False)
        norm = add(f"norm{layer}", (heavy,), (64, SIDE), rng.uniform(0.5, 2.0), False)
        saved.append((last, heavy, norm + 1))
        last = norm
    for layer, (before, heavy, side) in reversed(list(enumerate(saved))):
        last = add(f"grad{layer}", (before, heavy, side, last), (64,), 20.0, True)
    return Problem("network", "paper", tuple(operators), tuple(tensors), paging=storage)


def tight(rng: random.Random, problem: Problem) -> int:
    """A budget between the least of any operator and all."""
    return rng.randint(problem.least_ram_bytes, store_all_bytes(problem) - 1)


def test_small_tensors_take_no_room_all_of_one_size_together() -> None:
    problem = network(random.Random(1), 4)
    assert [tensor.nbytes for tensor in lighten(problem, 4 * SIDE - 1).tensors] == [t.nbytes for t in problem.tensors]
    light = lighten(problem, 4 * SIDE)
    assert sum(tensor.nbytes == 0 for tensor in light.tensors) == 4
    assert light.operators == problem.operators
    assert lighten(problem, math.inf).tensors[0].nbytes == 64, "graph inputs stay"


@pytest.mark.parametrize("scope", ["depth:1", "forward", "full"])
@pytest.mark.parametrize("seed", range(6))
def test_nothing_costs_more_in_it(seed: int, scope: str) -> None:
    rng = random.Random(seed)
    problem = network(rng, 3)
    asked = Options(ram_bytes=tight(rng, problem), scope=scope, gap=1e-7, time_limit_s=60)
    whole, light = solve(problem, asked), solve(lighten(problem, 3 * SIDE), asked)
    if whole.simulation is None:
        assert whole.status is Status.INFEASIBLE
        return
    assert light.simulation is not None
    assert closed(light)
    assert closed(whole)
    assert light.simulation.overhead_j <= whole.simulation.overhead_j * (1 + 1e-9)


@pytest.mark.parametrize("storage", [True, False])
@pytest.mark.parametrize("seed", range(20))
def test_what_is_proven_by_it_holds_of_the_whole(seed: int, storage: bool) -> None:
    """A wide gap lightens the problem; the bound must lie below the optimum all the same, and the plan above it."""
    rng = random.Random(seed)
    problem = network(rng, 4, storage)
    ram = tight(rng, problem)
    exact = solve(problem, Options(ram_bytes=ram, scope="forward", gap=1e-7, time_limit_s=60))
    found = solve(problem, Options(ram_bytes=ram, scope="forward", gap=0.5))
    if exact.simulation is None:
        assert found.plan is None
        return
    assert closed(exact)
    assert found.plan is not None
    assert found.simulation is not None
    assert found.scope_bound_j is not None
    optimum = exact.simulation.overhead_j
    simulate(found.plan, ram_bytes=ram)
    assert found.scope_bound_j <= optimum * (1 + 1e-9)
    assert found.outdone or found.simulation.overhead_j >= optimum * (1 - 1e-9)
    assert found.status is not Status.FEASIBLE, "what the relaxation leaves open is the whole problem's to close"


def test_what_is_found_counts_by_the_whole_problem() -> None:
    problem = network(random.Random(2), 6)
    options = Options(ram_bytes=int(0.6 * store_all_bytes(problem)), gap=0.5)
    run = Run(problem, options, None)
    light = RelaxedRun.of(run)
    assert light is not None
    assert RelaxedRun.of(Run(problem, replace(options, gap=1e-6), None)) is None
    solution = solve(light.problem, replace(options, scope="full"))
    assert solution.plan is not None
    schedule = schedule_of(solution.plan)
    excess = run.incumbent.excess_bytes(schedule)
    assert light.offer(schedule, "search") is (excess == 0)
    refusal = light.incumbent.refused(schedule)
    assert (refusal.arena_excess if refusal is not None else 0) == excess


def test_outputs_that_take_over_an_input_keep_their_bytes() -> None:
    case = small_problem(466)  # its update ends as a result over what it reads
    problem = without_ends(case.problem)
    assert any(operator.takes for operator in problem.operators)
    light = lighten(problem, 1e9)
    over = {i for operator in problem.operators for i in operator.takes}
    assert {i for i, tensor in enumerate(light.tensors) if tensor.nbytes == 0} == {
        i for i, tensor in enumerate(problem.tensors) if tensor.computed and i not in over
    }
    assert judged(case, "highs", 20.0).status is Status.INFEASIBLE
