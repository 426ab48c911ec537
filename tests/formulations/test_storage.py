"""What the storage holds: simulator, models, heuristics and plan files against exhaustive search."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from poetopt.comparison.baselines.acceptance import cheapest
from poetopt.comparison.baselines.capuchin import schedule_paging_first
from poetopt.graph.problem import Problem, ProblemOperator, ProblemTensor, Transfers
from poetopt.plan.assemble import plan_of
from poetopt.plan.schedule import Schedule
from poetopt.plan.simulate import simulate
from poetopt.search.heuristics.greedy import greedy
from poetopt.search.heuristics.ways import Ways, lasting_sets, streamed_out
from poetopt.search.search import search
from poetopt.search.solution import Options, Status
from poetopt.util.errors import NoScheduleError, PlanError
from tests.formulations.retention.test_streaming import tight_with_variants
from tests.seeds import seeds, some
from tests.support.cheapest import least_cost
from tests.support.problems import random_few
from tests.support.small import filled

State = tuple[int, frozenset[int], frozenset[int]]
"""Operators done, what is in RAM, what was ever written to storage."""


def least_overhead_j(problem: Problem, ram_bytes: int, *, remat: bool = True) -> float | None:
    """The least overhead of all plans, instruction by instruction; None where there is none."""
    operators, tensors, block = problem.operators, problem.tensors, problem.storage_block_bytes

    def moves(state: State) -> Iterator[tuple[float, State]]:
        done, ram, stored = state
        for j in range(min(done + 1, len(operators))):
            operator = operators[j]
            if not ram.issuperset(operator.inputs) or (j < done and not (remat and operator.recomputable)):
                continue
            after = ram.union(operator.outputs)
            if problem.nbytes(tuple(after)) + operator.workspace_bytes <= ram_bytes:
                yield operator.energy_j if j < done else 0.0, (max(done, j + 1), after, stored)
        for i in ram:
            yield 0.0, (done, ram - {i}, stored)
            written = sum(-(-tensors[u].nbytes // block) * block for u in stored | {i})
            if i not in stored and (problem.storage_bytes is None or written <= problem.storage_bytes):
                yield tensors[i].page_out_j, (done, ram, stored | {i})
        for i in stored - ram:
            if problem.nbytes(tuple(ram)) + tensors[i].nbytes <= ram_bytes:
                yield tensors[i].page_in_j, (done, ram | {i}, stored)

    start: State = (0, frozenset(problem.at_start), frozenset())
    return least_cost(start, moves, len(operators))


def small_storage(seed: int) -> tuple[Problem, int]:
    """A tight problem on a storage of a few blocks."""
    rng = random.Random(seed)
    problem, ram_bytes = random_few(rng)
    block = rng.choice((1, 2, 4))
    return replace(problem, storage_bytes=rng.randint(0, 8), storage_block_bytes=block), ram_bytes


def test_plans_and_bounds_against_exhaustive_search() -> None:
    compared = exact = binds = 0
    chosen = some(range(50), 25)
    for seed in chosen:
        problem, ram_bytes = small_storage(seed)
        for remat in (True, False):
            least = least_overhead_j(problem, ram_bytes, remat=remat)
            free = least_overhead_j(replace(problem, storage_bytes=None), ram_bytes, remat=remat)
            found = search(problem, Options(ram_bytes=ram_bytes, scope="full", remat=remat, time_limit_s=20, threads=1))
            binds += free is not None and (least is None or free < least)
            if least is None:
                assert found.plan is None
                continue
            if found.simulation is None:
                continue  # the scope is a little smaller than the space of all plans
            assert found.simulation.overhead_j >= least - 1e-9
            assert problem.storage_bytes is not None
            assert found.simulation.stored_bytes <= problem.storage_bytes
            compared += 1
            exact += found.simulation.overhead_j <= least + 1e-9
    assert compared > len(chosen)
    assert binds > 0.2 * len(chosen)
    assert exact >= 0.9 * compared, (exact, compared)


@pytest.mark.parametrize("seed", seeds(200))
def test_replays_write_no_more_than_the_storage_holds(seed: int) -> None:
    rng = random.Random(seed)
    problem, ram_bytes = tight_with_variants(rng, forward=2)
    problem = filled(rng, problem)
    for ways in Ways(problem).within(ram_bytes):
        for lasting in lasting_sets(problem, ram_bytes, streamed_out(problem, ways)):
            schedule = greedy(lasting, ram_bytes, paging=True, remat=True, ways=ways)
            if schedule is not None:
                assert simulate(plan_of(problem, schedule)).stored_bytes <= (problem.storage_bytes or 0)


def away(*, storage_bytes: int | None, storage_block_bytes: int = 1) -> Problem:
    """Two tensors of 6 bytes that must leave RAM while an operator of 20 bytes runs, and can't be computed again."""
    tensors = (
        ProblemTensor("x", 6, -1, Transfers(1.0, 1.0, 1.0, 1.0)),
        ProblemTensor("y", 6, 0, Transfers(1.0, 1.0, 1.0, 1.0)),
        ProblemTensor("z", 1, 1, Transfers(1.0, 1.0, 1.0, 1.0)),
        ProblemTensor("last", 1, 2),
    )
    operators = (
        ProblemOperator("first", (), (1,), 1.0, 1.0, recomputable=False),
        ProblemOperator("wide", (), (2,), 1.0, 1.0, workspace_bytes=20),
        ProblemOperator("end", (0, 1, 2), (3,), 1.0, 1.0, backward=True),
    )
    return Problem(
        "away", "toy", operators, tensors, storage_bytes=storage_bytes, storage_block_bytes=storage_block_bytes
    )


@pytest.mark.parametrize(
    ("capacity", "block", "fits"), [(12, 1, True), (11, 1, False), (16, 8, True), (15, 8, False), (None, 8, True)]
)
def test_written_tensors_take_whole_blocks(capacity: int | None, block: int, fits: bool) -> None:
    problem = away(storage_bytes=capacity, storage_block_bytes=block)
    found = search(problem, Options(ram_bytes=21, threads=1))
    assert (found.plan is not None) is fits
    schedule = greedy(problem, 21, paging=True, remat=True)
    assert (schedule is not None) is fits
    both = Schedule(frozenset(), frozenset({(2, 0), (2, 1)}))
    if fits:
        assert simulate(plan_of(problem, both), ram_bytes=21).stored_bytes == 2 * (-(-6 // block) * block)
        schedule_paging_first(problem, 21)
        return
    assert found.status is Status.INFEASIBLE
    with pytest.raises(PlanError, match=r"page_out 'y'.*more than the storage of 'toy' holds"):
        simulate(plan_of(problem, both))
    with pytest.raises(NoScheduleError, match="storage of 'toy' holds"):
        cheapest(problem, 21, [both])
    with pytest.raises(NoScheduleError):
        schedule_paging_first(problem, 21)
