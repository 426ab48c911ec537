"""The methods that page: POFO, Capuchin, NNTrainer."""

from __future__ import annotations

import random

import pytest

import poetopt as po
from poetopt.comparison.baselines import method
from poetopt.comparison.baselines.acceptance import Settings
from poetopt.comparison.baselines.keeping import with_prefetch
from poetopt.comparison.baselines.nntrainer import look_aheads, swapped
from poetopt.graph.problem import Problem
from poetopt.plan.assemble import plan_of
from poetopt.plan.schedule import Schedule
from poetopt.plan.simulate import simulate
from poetopt.util.errors import NoScheduleError, ProblemError
from tests.compare.chains import chain
from tests.plan.three_steps import run_thrice
from tests.seeds import some
from tests.stored import tight_with_parameters


def overhead(name: str, problem: Problem, ram: int) -> float | None:
    try:
        return simulate(method(name).schedule(problem, ram), ram_bytes=ram).overhead_j
    except NoScheduleError:
        return None


def test_pofo_is_never_dearer_than_revolve_on_chains() -> None:
    rng = random.Random(8)
    cheaper = 0
    for _ in range(6):
        layers = rng.randint(5, 9)
        problem = chain(
            layers,
            sizes=[rng.randint(1, 5) for _ in range(layers)],
            costs=[float(rng.randint(1, 5)) for _ in range(layers)],
            paging=True,
            dma=True,
            page_s=0.05,
            page_j=0.05,
        )
        for ram in (8, 12, 16):
            plain, other = overhead("revolve", problem, ram), overhead("pofo", problem, ram)
            assert plain is None or (other is not None and other <= plain)
            cheaper += plain is not None and other is not None and other < plain
    assert cheaper > 0


def test_capuchin_swaps_what_is_hidden_and_recomputes_what_is_cheap() -> None:
    # Free transfers are hidden: nothing runs again.
    swift = chain(8, paging=True, dma=True, page_s=1e-3)
    plan = method("capuchin").schedule(swift, 8)
    found = simulate(plan)
    assert found.recomputes == 0
    assert found.page_ins > 0
    # Transfers that take longer than everything else: paging is the last resort of the one, the first of the other.
    slow = chain(8, paging=True, dma=True, page_s=1e3)
    assert simulate(method("capuchin").schedule(slow, 8)).page_ins == 0
    assert simulate(method("capuchin-paging-first").schedule(slow, 8)).page_ins > 0
    # Nothing can be hidden without DMA.
    serial = chain(8, paging=True, dma=False, page_s=10.0)
    assert simulate(method("capuchin").schedule(serial, 8)).page_ins == 0


def test_capuchin_says_where_it_fails() -> None:
    with pytest.raises(NoScheduleError, match="nothing is left to evict"):
        method("capuchin").schedule(chain(5, input_bytes=1), 2)


def test_prefetch_saves_time_and_no_energy() -> None:
    problem = chain(6, paging=True, dma=True, page_s=1.5)
    # The first layer's activation leaves, and comes back for the backward operator of the second.
    schedule = Schedule(page_ins=frozenset({(problem.readers[1][1], 1)}))
    early, late = (simulate(plan_of(problem, found)) for found in with_prefetch(problem, schedule))
    assert early.makespan_s < late.makespan_s
    assert early.overhead_j == late.overhead_j


@pytest.mark.parametrize(
    ("name", "parameters"), some([("lenet", "paged"), ("resnet18-cifar", "paged"), ("resnet18-cifar", "resident")], 1)
)
def test_ours_takes_no_more_than_nntrainer(name: str, parameters: str) -> None:
    """At little more than its leanest plan takes, and at half as much again."""
    step = po.load(name, batch=1).differentiate()
    problem = step.cost("m4", parameters=parameters)
    plans = [plan_of(problem, swapped(problem, ahead)) for ahead in look_aheads(problem)]
    leanest = min(simulate(plan).peak_bytes for plan in plans)
    for ram_bytes in (leanest * 11 // 10, leanest * 3 // 2):
        theirs = simulate(method("nntrainer").schedule(problem, ram_bytes), ram_bytes=ram_bytes)
        settings = Settings(scope="depth:1", gap=0.05, threads=1)
        ours = simulate(method("poet").schedule(problem, ram_bytes, settings), ram_bytes=ram_bytes)
        assert ours.overhead_j <= theirs.overhead_j
        assert theirs.recomputes == 0


def test_nntrainer_pages_all_that_is_not_read_at_once() -> None:
    problem = chain(8, paging=True, input_bytes=1)
    found = [simulate(plan_of(problem, swapped(problem, ahead))) for ahead in range(len(problem.operators))]
    assert [one.recomputes for one in found] == [0] * len(found)
    assert found[0].page_ins == max(one.page_ins for one in found) > found[-1].page_ins == 0
    assert found[0].peak_bytes == min(one.peak_bytes for one in found)
    for i, readers in enumerate(problem.readers):
        for stage in (stage for stage, j in swapped(problem, 2).page_ins if j == i):
            assert stage + 2 in readers


def test_nntrainer_keeps_no_parameter_from_step_to_step() -> None:
    problem, _ = tight_with_parameters(random.Random(5), forward=4)
    for ahead in range(4):
        plan = plan_of(problem, swapped(problem, ahead))
        assert plan.problem is problem
        run_thrice(plan)
    with pytest.raises(ProblemError, match=r"baseline 'dtr' can't page parameters, and tensor '.*' lies on storage"):
        method("dtr").schedule(problem, 100)
