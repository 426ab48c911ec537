"""The methods that page: H-Revolve, POFO, Capuchin, NNTrainer."""

from __future__ import annotations

import heapq
import random

import pytest

import poetopt as po
from poetopt.comparison.baselines import method
from poetopt.comparison.baselines.acceptance import Settings
from poetopt.comparison.baselines.chain import chain_of
from poetopt.comparison.baselines.keeping import with_prefetch
from poetopt.comparison.baselines.nntrainer import look_aheads, swapped
from poetopt.comparison.baselines.revolve import Hold, TwoLevels
from poetopt.graph.problem import Problem
from poetopt.plan.assemble import plan_of
from poetopt.plan.schedule import Schedule
from poetopt.plan.simulate import simulate
from poetopt.util.errors import NoScheduleError, ProblemError
from tests.compare.chains import chain
from tests.plan.three_steps import run_thrice
from tests.seeds import some
from tests.stored import tight_with_parameters


def least_cost(lengths: list[float], slots: int, write: list[float], read: list[float]) -> float:
    """Least cost of reversing a chain with slots in RAM and storage, the first state being on storage.

    Copies between the working state and slots are free. Reading brings a state into the working state.
    """
    queue: list[tuple[float, int, int, tuple[int, ...], tuple[int, ...]]] = [(0.0, len(lengths), 0, (), (0,))]
    done = set()
    while queue:
        cost, left, state, kept, stored = heapq.heappop(queue)
        if left == 0:
            return cost
        if (left, state, kept, stored) in done:
            continue
        done.add((left, state, kept, stored))
        moves: list[tuple[float, int, int, tuple[int, ...], tuple[int, ...]]] = []
        if state == left - 1:
            moves.append((0.0, left - 1, state, kept, stored))
        elif state < left - 1:
            moves.append((lengths[state], left, state + 1, kept, stored))
        moves += [(0.0, left, k, kept, stored) for k in kept]
        moves += [(0.0, left, state, tuple(j for j in kept if j != k), stored) for k in kept]
        moves += [(read[k], left, k, kept, stored) for k in stored]
        if len(kept) < slots and state not in kept:
            moves.append((0.0, left, state, tuple(sorted((*kept, state))), stored))
        if state not in stored:
            moves.append((write[state], left, state, kept, tuple(sorted((*stored, state)))))
        for extra, *rest in moves:
            heapq.heappush(queue, (cost + extra, *rest))  # type: ignore[misc]
    raise AssertionError("the first state was lost")


@pytest.mark.parametrize("slots", [1, 2, 3])
@pytest.mark.parametrize("price", [0.1, 0.5, 2.0])
def test_two_levels_equal_search(slots: int, price: float) -> None:
    for layers in (2, 3, 4, 5):
        problem = chain(layers, paging=True, page_j=price)
        found = chain_of(problem)
        levels = TwoLevels(found, slots)
        lengths = [sum(problem.operators[op].energy_j for op in segment) for segment in found.segments]
        assert levels.W(0, len(found))[0] == pytest.approx(least_cost(lengths, slots, levels.write, levels.read))


def test_two_levels_make_valid_plans() -> None:
    rng = random.Random(2)
    for _ in range(20):
        layers = rng.randint(2, 9)
        problem = chain(layers, paging=True, dma=rng.random() < 0.5, page_j=rng.choice((0.1, 1.0)))
        levels = TwoLevels(chain_of(problem), rng.randint(1, 3))
        for hold in Hold:
            for schedule in with_prefetch(problem, levels.schedule(hold)):
                simulate(plan_of(problem, schedule))


def overhead(name: str, problem: Problem, ram: int) -> float | None:
    try:
        return simulate(method(name).schedule(problem, ram), ram_bytes=ram).overhead_j
    except NoScheduleError:
        return None


@pytest.mark.parametrize("better", ["pofo", "h-revolve"])
def test_never_dearer_than_revolve_on_chains(better: str) -> None:
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
            plain, other = overhead("revolve", problem, ram), overhead(better, problem, ram)
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


def test_no_storage() -> None:
    with pytest.raises(NoScheduleError, match="no storage"):
        method("h-revolve").schedule(chain(3), 50)


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
