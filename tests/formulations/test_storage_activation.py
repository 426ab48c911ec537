"""Waking the storage: the simulator's runs, and the model's bound and plans against exhaustive search."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from poetopt.graph.problem import Problem, ProblemOperator, ProblemTensor, Transfers
from poetopt.plan.gather import gather
from poetopt.plan.instructions import Action, Instruction, Plan
from poetopt.plan.normalize import normalize
from poetopt.plan.simulate import simulate
from poetopt.plan.transfers import plan_transfers
from poetopt.search.diagnosis.solve import solve
from poetopt.search.solution import Options
from tests.seeds import seeds, some
from tests.support.cheapest import least_cost
from tests.support.problems import random_few, random_plan, random_problem

State = tuple[int, frozenset[int], frozenset[int], bool]
"""Operators done, what is in RAM, what is on storage, and whether the storage is awake."""


def least_overhead_j(problem: Problem, ram_bytes: int) -> float | None:
    """The least overhead of all plans without DMA, wakes included, instruction by instruction."""
    operators, tensors = problem.operators, problem.tensors

    def moves(state: State) -> Iterator[tuple[float, State]]:
        done, ram, stored, awake = state
        for j in range(min(done + 1, len(operators))):
            operator = operators[j]
            if not ram.issuperset(operator.inputs) or (j < done and not operator.recomputable):
                continue
            after = ram.union(operator.outputs)
            if problem.nbytes(tuple(after)) + operator.workspace_bytes <= ram_bytes:
                cost = operator.energy_j if j < done else 0.0
                yield cost, (max(done, j + 1), after, stored, awake and not operator.time_s)
        for i in ram:
            yield 0.0, (done, ram - {i}, stored, awake)
            if i not in stored:
                cost = tensors[i].page_out_j + (0.0 if awake else problem.wake_j)
                yield cost, (done, ram, stored | {i}, True)
        for i in stored - ram:
            if problem.nbytes(tuple(ram)) + tensors[i].nbytes <= ram_bytes:
                yield tensors[i].page_in_j + (0.0 if awake else problem.wake_j), (done, ram | {i}, stored, True)

    start: State = (0, frozenset(problem.at_start), frozenset(), False)
    return least_cost(start, moves, len(operators))


def waking(seed: int) -> tuple[Problem, int]:
    """A tight problem of few tensors on a device whose storage costs energy to wake."""
    rng = random.Random(seed)
    problem, ram_bytes = random_few(rng)
    times = tuple(replace(operator, time_s=max(operator.time_s, 0.5)) for operator in problem.operators)
    return replace(problem, operators=times, wake_j=rng.choice((0.5, 1.0, 3.0))), ram_bytes


def test_plans_and_bounds_against_exhaustive_search() -> None:
    compared = optimal = closed = 0
    chosen = some(range(60), 25)
    for seed in chosen:
        problem, ram_bytes = waking(seed)
        least = least_overhead_j(problem, ram_bytes)
        solution = solve(problem, Options(ram_bytes=ram_bytes, scope="full", time_limit_s=20, threads=1))
        if least is None or solution.simulation is None:
            continue
        assert solution.plan is not None
        assert solution.scope_bound_j is not None
        assert solution.simulation.overhead_j >= least - 1e-9
        if solution.scope_bound_j > least + 1e-9:  # only where the scope is smaller than the space of all plans
            free = replace(problem, wake_j=0.0)
            without = solve(free, Options(ram_bytes=ram_bytes, scope="full", time_limit_s=20, threads=1))
            cheapest = least_overhead_j(free, ram_bytes)
            assert without.simulation is not None
            assert cheapest is not None
            assert without.simulation.overhead_j > cheapest
        compared += 1
        optimal += solution.simulation.overhead_j <= least + 1e-9
        closed += abs(solution.scope_bound_j - least) <= 1e-6
    assert compared > 0.4 * len(chosen)
    assert optimal >= 0.8 * compared, (optimal, closed, compared)
    assert closed >= 0.7 * compared, (optimal, closed, compared)


def pages(*, dma: bool) -> Problem:
    """Three operators in a row of a second each; every transfer takes a quarter of one."""
    operators = tuple(ProblemOperator(f"op{k}", (k,), (k + 1,), 1.0, 1.0) for k in range(3))
    tensors = tuple(ProblemTensor(f"t{k}", 4, k - 1, Transfers(0.25, 1.0, 0.25, 1.0)) for k in range(4))
    return Problem("pages", "toy", operators, tensors, dma=dma, wake_j=10.0)


def steps(text: str) -> tuple[Instruction, ...]:
    words = text.split()
    return tuple(Instruction(Action(a), int(k)) for a, k in zip(words[::2], words[1::2], strict=True))


@pytest.mark.parametrize(
    ("text", "dma", "wakes"),
    [
        ("compute 0 compute 1 compute 2", False, 0),
        ("page_out 0 compute 0 page_out 1 compute 1 compute 2", False, 2),
        ("compute 0 page_out 0 free 0 page_out 1 compute 1 compute 2", False, 1),
        ("page_out 0 compute 0 page_out 1 compute 1 compute 2", True, 2),
        ("compute 0 page_out 0 page_out 1 compute 1 page_out 2 compute 2", True, 2),
    ],
)
def test_a_run_ends_where_the_storage_has_nothing_to_do(text: str, dma: bool, wakes: int) -> None:
    problem = pages(dma=dma)
    found = simulate(problem, steps(text))
    assert found.wakes == wakes
    free = simulate(replace(problem, wake_j=0.0), steps(text))
    assert found.overhead_j == free.overhead_j + 10.0 * wakes


def test_with_dma_a_run_goes_on_beside_the_cpu() -> None:
    slow = replace(pages(dma=True), tensors=tuple(t.moved_for(page_out_s=1.0) for t in pages(dma=True).tensors))
    assert simulate(slow, steps("page_out 0 compute 0 page_out 1 compute 1 compute 2")).wakes == 1


@pytest.mark.parametrize("seed", seeds(60))
def test_gathering_only_ever_saves(seed: int) -> None:
    rng = random.Random(seed)
    problem = replace(random_problem(rng, operators=rng.randint(3, 7), dma=seed % 2 == 0), wake_j=2.0)
    plan = Plan(problem, normalize(random_plan(rng, problem, length=25)).instructions)
    before = simulate(plan)
    ram_bytes = before.peak_bytes + rng.choice((0, 2, 5))
    after = simulate(gather(plan, ram_bytes, trials=300), ram_bytes=ram_bytes)
    assert after.overhead_j <= before.overhead_j
    assert after.bytes_paged == before.bytes_paged
    planned = simulate(plan_transfers(plan, ram_bytes), ram_bytes=ram_bytes)
    assert planned.overhead_j <= before.overhead_j


@pytest.mark.parametrize("dma", [False, True])
def test_a_run_of_several_joins_another_where_memory_allows(dma: bool) -> None:
    problem = pages(dma=dma)
    plan = Plan(problem, steps("compute 0 compute 1 page_out 0 page_out 1 compute 2 page_out 2 page_out 3"))
    assert simulate(plan).wakes == 2
    gathered = gather(plan, problem.nbytes(range(4)))
    assert simulate(gathered, ram_bytes=16).wakes == 1
    assert gather(gathered, 16) == gathered
