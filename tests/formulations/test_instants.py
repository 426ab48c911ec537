"""What is live during a recomputation: all figures at once, against the definition one by one and against the rows."""

from __future__ import annotations

import random

import numpy as np
import pytest

from poetopt.formulations import formulation
from poetopt.formulations.retention.instant import Instants
from poetopt.formulations.retention.memory import memory
from poetopt.formulations.retention.space import RetentionSpace
from poetopt.formulations.rows import Floats
from tests.formulations.points import FakePoint, activity, by_item
from tests.problems import random_problem, random_tight
from tests.seeds import seeds

RETENTION = formulation("retention")


def _live(space: RetentionSpace, x: int, r: Floats, k: Floats, p: Floats) -> float:
    """The left-hand side of the intra-stage row of recomputation x, with its maxima, as `memory` writes it."""
    j, t = int(space.recompute_operator[x]), int(space.recompute_stage[x])
    problem = space.problem
    total = float(space.workspace_bytes[j]) * r[x]
    for i, tensor in enumerate(problem.tensors):
        nbytes = float(space.tensor_bytes[i])
        first, last = space.tensor_range[i]
        e = space.point_of.get((i, t))
        spans = [k[q] for q in range(first, last) if space.point_previous[q] < t < space.point_stage[q]]  # one at most
        if e is None:
            there = sum(spans)
            total += nbytes * (max(there, r[x]) if tensor.producer == j else there)
            continue
        before, on = k[e], 0.0 if space.point_last[e] else k[e + 1]
        needed = [r[space.recompute_of[h, t]] for h in problem.readers[i] if h >= j and (h, t) in space.recompute_of]
        if tensor.producer == j:
            total += nbytes * max(before + p[e], r[x])
        elif tensor.producer > j:
            total += nbytes * before
        else:
            total += nbytes * (1.0 if space.point_real[e] else max([on, *needed]))
    return float(total)


def _spanned(space: RetentionSpace, k: Floats) -> Floats:
    """(n_stages,) bytes kept across each stage without a point there."""
    found = np.zeros(len(space.problem.operators))
    for e, share in enumerate(k):
        nbytes = space.tensor_bytes[space.point_tensor[e]]
        found[space.point_previous[e] + 1 : space.point_stage[e]] += share * nbytes
    return found


@pytest.mark.parametrize("seed", seeds(60))
def test_all_at_once_is_what_the_definition_says(seed: int) -> None:
    rng, draw = random.Random(seed), np.random.default_rng(seed)
    problem = random_problem(rng, operators=rng.randint(3, 9), training=seed % 2 == 0)
    scope = ("full", "forward", "depth:2")[seed % 3]
    space = RETENTION.build(problem, ram_bytes=10**9, scope=scope, paging=seed % 4 != 3).space
    r, k = draw.random(len(space.recompute_operator)), draw.random(len(space.point_tensor))
    p = np.where(space.page_index >= 0, draw.random(len(k)), 0.0)
    found = Instants(space).nbytes(r, k, p, _spanned(space, k))
    assert found == pytest.approx([_live(space, x, r, k, p) for x in range(len(r))])


def test_rows_are_given_for_what_does_not_fit_and_say_by_how_much() -> None:
    given = 0
    for seed in range(40):
        draw = np.random.default_rng(seed)
        problem, ram_bytes = random_tight(random.Random(seed), operators=7)
        model = RETENTION.build(problem, ram_bytes=ram_bytes)
        space: RetentionSpace = model.space
        r, k = draw.random(len(space.recompute_operator)), draw.random(len(space.point_tensor))
        pages = draw.random(len(space.page_point))
        p = np.zeros(len(k))
        p[space.page_point] = pages
        values = [(model.recompute.r, r), (model.residency.k, k)] + ([(model.paging.p, pages)] if space.paging else [])
        rows = memory.separator(model.memory, FakePoint(values, integral=False)) if memory.separator else []
        beyond = [
            nbytes - space.room_bytes
            for x in range(len(r))
            if (nbytes := _live(space, x, r, k, p)) > space.room_bytes * (1 + 1e-6)
        ]
        items = by_item(values)
        excess = [(activity(row, items) - row.upper) * space.memory_unit for row in rows]
        assert excess == pytest.approx(beyond)
        given += len(rows)
    assert given
