"""The methods that page: H-Revolve, POFO, Capuchin, NNTrainer."""

from __future__ import annotations

import random

import pytest

import poetopt as po
from poetopt.comparison.baselines import method
from poetopt.comparison.baselines.acceptance import Settings
from poetopt.comparison.baselines.nntrainer import look_aheads, swapped
from poetopt.graph.problem import Problem
from poetopt.plan.assemble import plan_of
from poetopt.plan.simulate import simulate
from poetopt.util.errors import NoScheduleError
from tests.seeds import some
from tests.support.chains import chain


def overhead(name: str, problem: Problem, ram: int) -> float | None:
    try:
        return simulate(method(name).schedule(problem, ram), ram_bytes=ram).overhead_j
    except NoScheduleError:
        return None


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
