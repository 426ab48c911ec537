"""What a tree looks at first: one of what is alike, and the kinds in turns."""

from __future__ import annotations

import math
import random
from collections import Counter

import numpy as np
import pytest

from poetopt.backends.solvers.solver import Outcome
from poetopt.formulations import formulation
from poetopt.formulations.rows import Count
from poetopt.search.branching.tree import MOST_COUNTS, at_first, representatives, worth
from poetopt.search.cutting import model_of, session_of
from poetopt.search.solution import Options
from poetopt.testing.problems import tight
from tests.seeds import seeds


class Values:
    """A point of one variable."""

    integral = False

    def __init__(self, values: list[float]) -> None:
        self._values = np.array(values)

    def __getitem__(self, variable: object) -> np.ndarray:
        return self._values


def _pairs(*weights: float) -> list[Count]:
    """Counts of neighbours: 0 and 1, 1 and 2, ..."""
    return [Count(None, np.array([k, k + 1]), weight) for k, weight in enumerate(weights)]


def test_whole_sums_are_worth_nothing() -> None:
    assert worth([_pairs(1.0, 1.0)], Values([0.5, 0.5, 0.5])) == []


def test_neighbours_of_one_value_have_one_spokesman() -> None:
    counts = _pairs(1.0, 1.0, 1.0, 1.0)
    assert worth([counts], Values([0.25, 0.25, 0.25, 0.25, 0.25])) == [counts[1]]
    assert worth([counts], Values([0.25, 0.25, 0.25, 0.0, 0.25])) == [counts[0], counts[2]]


def test_another_weight_is_another_run() -> None:
    counts = _pairs(1.0, 1.0, 2.0)
    assert worth([counts], Values([0.25, 0.25, 0.25, 0.25])) == [counts[2], counts[0]]


def test_kinds_take_turns() -> None:
    light, heavy = _pairs(1.0, 2.0), _pairs(100.0, 300.0)
    point = Values([0.25, 0.25, 0.25])
    assert worth([light, heavy], point) == [light[1], heavy[1], light[0], heavy[0]]


def test_not_too_many() -> None:
    counts = _pairs(*range(1, 3 * MOST_COUNTS))
    assert len(worth([counts], Values([0.25] * (3 * MOST_COUNTS)))) == MOST_COUNTS


@pytest.mark.parametrize("seed", seeds(20))
def test_all_kinds_of_open_columns_are_looked_at(seed: int) -> None:
    """What comes first of a vertex of `retention`: open columns, each once, and of each kind that is open."""
    problem, ram_bytes = tight(random.Random(seed), forward=8)
    options = Options(ram_bytes=ram_bytes, scope="full", threads=1)
    chosen = formulation("retention")
    model = model_of(chosen, problem, options, "full")
    session = session_of(model, options, scale=1e4 / problem.baseline_energy_j)
    if session.relax(60.0).outcome is Outcome.INFEASIBLE:
        return
    nodes = session.nodes([count for kind in chosen.counts(model) for count in kind])
    vertex = nodes.solve(None, math.inf)
    assert vertex is not None
    open_ = np.flatnonzero(np.abs(vertex.values - np.round(vertex.values)) > 1e-6)
    for looked_at in (at_first(nodes, vertex.values, open_), representatives(nodes, vertex.values, open_)):
        assert set(looked_at.tolist()) <= set(open_.tolist())
        assert len(set(looked_at.tolist())) == len(looked_at)
        n = len(vertex.values) - nodes.counts
        assert {column for column in open_.tolist() if column >= n} <= set(looked_at.tolist())
        values = {round(float(value), 5) for value in vertex.values[open_[open_ < n]]}
        assert values == {round(float(value), 5) for value in vertex.values[looked_at[looked_at < n]]}


@pytest.mark.parametrize("seed", range(10))
def test_what_retention_counts(seed: int) -> None:
    """A tensor is counted once in a stage in which it may be kept, with those of its size."""
    problem, ram_bytes = tight(random.Random(seed), forward=6)
    chosen = formulation("retention")
    model = chosen.build(problem, ram_bytes=ram_bytes)
    space = model.space
    kinds = dict(zip(("recompute", "paging", "residency"), chosen.counts(model), strict=True))
    expected: Counter[tuple[float, frozenset[int]]] = Counter()
    for stage in range(len(problem.operators)):
        for size in set(space.tensor_bytes.tolist()):
            kept = frozenset(
                e
                for e, (i, begin, end) in enumerate(
                    zip(space.point_tensor, space.point_previous, space.point_stage, strict=True)
                )
                if begin < stage <= end and space.tensor_bytes[i] == size
            )
            tensors = [int(space.point_tensor[e]) for e in kept]
            assert len(set(tensors)) == len(tensors)
            if len(kept) > 1:
                expected[size, kept] += 1
    assert Counter((count.weight, frozenset(count.entries.tolist())) for count in kinds["residency"]) == expected
    for count in kinds["recompute"]:
        operators = space.recompute_operator[count.entries]
        assert {problem.operators[j].energy_j for j in operators} == {count.weight}
    for count in kinds["paging"]:
        paged = space.point_tensor[space.page_point] if count.variable is model.paging.p else model.paging.o_tensor
        assert {problem.tensors[i].nbytes for i in paged[count.entries]} == {
            problem.tensors[paged[count.entries[0]]].nbytes
        }
