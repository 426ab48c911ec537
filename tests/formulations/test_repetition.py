"""Cuts moved to equal blocks are cuts: whatever the blocks, and also where they only seem equal."""

from __future__ import annotations

import random

import numpy as np
import pytest

from poetopt.formulations import formulation
from poetopt.formulations.retention.chain_rows import Chain
from poetopt.formulations.retention.repetition import Repetition
from poetopt.graph.problem import Problem, ProblemOperator, ProblemTensor, Transfers
from poetopt.plan.assemble import plan_of, schedule_of
from poetopt.plan.schedule import Schedule
from poetopt.plan.simulate import simulate
from poetopt.search.diagnosis.certificate import rederive
from tests.formulations.points import FakePoint, activity, by_item
from tests.problems import random_plan

RETENTION = formulation("retention")


def repeating(rng: random.Random, blocks: int, flaw: bool) -> Problem:
    """A training step of equal blocks: each two or three operators with a skip, and as many backward, in reverse.

    With `flaw`, one operator reads something else than its like in the other blocks do.
    """
    width = rng.choice((2, 3))
    sizes, costs = [rng.randint(1, 4) for _ in range(width)], [float(rng.randint(1, 4)) for _ in range(width)]
    forward = blocks * width
    odd = rng.randrange(2, forward) if flaw else -1
    reads = []
    for j in range(forward):
        skip = {j - 1} if j % width == 1 else set()  # tensor 0 is the input, j + 1 operator j's output
        reads.append({rng.randrange(j)} if j == odd else {j} | skip)
    last = forward
    for j in reversed(range(forward)):
        reads.append({last, j, j + 1})
        last += 1
    operators = [
        ProblemOperator(
            f"op{j}",
            tuple(sorted(inputs)),
            (j + 1,),
            1.0,
            costs[j % width] if j < forward else costs[(2 * forward - 1 - j) % width],
            backward=j >= forward,
        )
        for j, inputs in enumerate(reads)
    ]
    page = float(rng.randint(1, 3))
    tensors = [
        ProblemTensor(f"t{i}", sizes[(i - 1) % width] if i <= forward else 1, i - 1, Transfers(1.0, page, 1.0, page))
        for i in range(2 * forward + 1)
    ]
    return Problem("blocks", "test", tuple(operators), tuple(tensors))


@pytest.mark.parametrize("seed", range(12))
def test_images_of_cuts_hold_at_every_valid_schedule(seed: int) -> None:
    rng = random.Random(seed)
    problem = repeating(rng, rng.choice((3, 4)), flaw=seed % 3 == 0)
    schedules = {Schedule()} | {schedule_of(random_plan(rng, problem)) for _ in range(30)}
    valid = sorted(schedules, key=repr)
    ram_bytes = max(simulate(plan_of(problem, schedule)).peak_bytes for schedule in valid)
    model = RETENTION.build(problem, ram_bytes=ram_bytes)
    points = [values for schedule in valid if (values := RETENTION.points.values(model, schedule)) is not None]
    assert points
    items = [by_item(values) for values in points]
    draw = np.random.default_rng(seed)
    images = 0
    for _ in range(10):
        weights = draw.dirichlet(np.full(len(points), 0.4))
        mixed = [
            (points[0][k][0], 0.6 * sum(w * values[k][1] for w, values in zip(weights, points, strict=True)))
            for k in range(len(points[0]))
        ]
        for row in RETENTION.separate(model, FakePoint(mixed, integral=False)):
            if row.kind != "chain cut":
                continue
            images += row.violation == 0.0
            rederive(model, row)
            assert all(activity(row, value) >= 1.0 - 1e-9 for value in items)
    assert images


def test_blocks_are_found_with_their_distances() -> None:
    for seed in range(10):
        rng = random.Random(seed)
        problem = repeating(rng, 5, flaw=False)
        found = Repetition(problem)
        width = problem.last_forward // 5 + 1
        assert all(period % width == 0 and period for period in found.periods)
        chain = Chain(2 * width, 2 * 5 * width - 1 - 2 * width, (2 * width + 1,), (False,))
        assert chain.b in problem.readers[chain.path[0]]
        images = {image.path[0] for image in found.images(chain)}
        assert images == {1 + k * width for k in (0, 1, 3, 4)}
        starts = {image.s for image in found.images(chain) if image.path[0] == 1 + width}
        assert starts == {chain.s, chain.s - width}


def test_a_network_without_blocks_has_none() -> None:
    operators = [ProblemOperator(f"op{j}", (j,), (j + 1,), 1.0, float(j), backward=j > 3) for j in range(8)]
    tensors = [ProblemTensor(f"t{i}", i + 1, i - 1) for i in range(9)]
    found = Repetition(Problem("chain", "test", tuple(operators), tuple(tensors)))
    assert found.periods == (0, 0)
    assert not list(found.images(Chain(1, 5, (2,), (True,))))
