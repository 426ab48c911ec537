"""What the storage holds: simulator, models, heuristics and plan files against exhaustive search."""

from __future__ import annotations

import random

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
from tests.seeds import seeds
from tests.support.small import filled


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
    with pytest.raises(PlanError, match=r"page_out 'y'.*but the storage of 'toy' holds"):
        simulate(plan_of(problem, both))
    with pytest.raises(NoScheduleError, match="storage of 'toy' holds"):
        cheapest(problem, 21, [both])
    with pytest.raises(NoScheduleError):
        schedule_paging_first(problem, 21)
