"""Threads, asyncio, forks: what is asked of several at once, or after a fork, has the answers of one after another."""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np
import pytest

import poetopt as po
from tests.support.problems import random_tight

SEEDS = range(3)
Answer = Callable[[int], tuple[object, ...]]


def solved(seed: int) -> tuple[object, ...]:
    problem, ram_bytes = random_tight(random.Random(seed), operators=7)
    said = po.solve(problem, ram=ram_bytes, threads=seed % 2).to_dict()
    return said["status"], said["overhead_j"]


def trained(seed: int) -> tuple[object, ...]:
    """Read, planned, executed and trained: whole networks, each its own."""
    step = po.load("mlp", batch=2 + seed % 2).differentiate(optimizer="sgd")
    report = po.solve(step.cost("a72"), threads=1)
    rng = np.random.default_rng(seed)
    batch = {"input": rng.random((2 + seed % 2, 784), np.float32), "labels": np.arange(2 + seed % 2)}
    with po.Trainer(report, lr=0.01) as trainer:
        losses = [float(trainer.step(batch)) for _ in range(3)]
    return report.to_dict()["overhead_j"], po.execute(report).to_dict()["bit_identical"], *losses


@pytest.fixture(scope="module", params=[solved, trained])
def work(request: pytest.FixtureRequest) -> tuple[Answer, list[tuple[object, ...]]]:
    """What is done, and its answers one after another: in the main thread, before all else."""
    return request.param, [request.param(seed) for seed in SEEDS]


def test_in_threads(work: tuple[Answer, list[tuple[object, ...]]]) -> None:
    answer, alone = work
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(answer, SEEDS)) == alone


def test_in_a_loop_of_asyncio(work: tuple[Answer, list[tuple[object, ...]]]) -> None:
    answer, alone = work

    async def together() -> list[tuple[object, ...]]:
        return await asyncio.gather(*(asyncio.to_thread(answer, seed) for seed in SEEDS))

    assert asyncio.run(together()) == alone


def test_after_a_fork(work: tuple[Answer, list[tuple[object, ...]]]) -> None:
    """The threads of solvers are the parent's alone: a child that counted on them waited for ever."""
    answer, alone = work
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
        with ProcessPoolExecutor(2, multiprocessing.get_context("fork")) as pool:
            assert list(pool.map(answer, SEEDS, timeout=300)) == alone
    assert [answer(seed) for seed in SEEDS[:2]] == alone[:2]  # and the parent goes on
