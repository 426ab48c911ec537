"""The allocator: sound always, optimal where that can be checked, near the lower bound where it can't."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poetopt.arena import lower_bound, pack

Buffers = tuple[list[int], list[int], list[int]]


@st.composite
def buffers(draw: st.DrawFn, largest: int = 40, count: int = 40) -> Buffers:
    rows = draw(st.lists(st.tuples(st.integers(0, largest), st.integers(-1, 20), st.integers(1, 8)), max_size=count))
    return [size for size, _, _ in rows], [start for _, start, _ in rows], [start + life for _, start, life in rows]


def together(case: Buffers, a: int, b: int) -> bool:
    _, starts, ends = case
    return starts[a] < ends[b] and starts[b] < ends[a]


@settings(deadline=None, max_examples=150)
@given(buffers(), st.sampled_from([1, 4, 64]), st.booleans())
def test_placements_are_sound(case: Buffers, alignment: int, with_target: bool) -> None:
    sizes, starts, ends = case
    bound = lower_bound(sizes, starts, ends, alignment)
    target = bound * 5 // 4 if with_target else None
    offsets, arena = pack(sizes, starts, ends, alignment, target=target)
    filled = [k for k, size in enumerate(sizes) if size]
    assert arena == max((offsets[k] + sizes[k] for k in filled), default=0)
    assert all(offset >= 0 and offset % alignment == 0 for offset in offsets)
    assert all(offsets[k] == 0 for k, size in enumerate(sizes) if not size)
    for a, b in itertools.combinations(filled, 2):
        if together(case, a, b):
            assert offsets[a] + sizes[a] <= offsets[b] or offsets[b] + sizes[b] <= offsets[a]
    live = [sum(sizes[k] for k in filled if starts[k] <= time < ends[k]) for time in range(-1, 30)]
    assert arena >= bound >= max(live)
    if alignment == 1:
        assert bound == max(live)
    assert pack(sizes, starts, ends, alignment, target=target) == (offsets, arena)


def exhaustive(case: Buffers, alignment: int) -> int:
    """The least arena: in every order, each buffer on top of those before it that it lives with."""
    sizes, starts, _ = case
    filled = [k for k in range(len(starts)) if sizes[k]]
    best = sum(sizes) + alignment * len(sizes)
    for order in itertools.permutations(filled):
        tops: dict[int, int] = {}
        for k in order:
            floor = max((top for j, top in tops.items() if together(case, j, k)), default=0)
            tops[k] = -(-floor // alignment) * alignment + sizes[k]
        best = min(best, max(tops.values(), default=0))
    return best


@settings(deadline=None, max_examples=150)
@given(buffers(largest=9, count=6), st.sampled_from([1, 4]))
def test_small_cases_are_optimal(case: Buffers, alignment: int) -> None:
    assert pack(*case, alignment)[1] == exhaustive(case, alignment)


@pytest.mark.parametrize("seed", range(6))
def test_many_buffers_come_close_to_the_bound(seed: int) -> None:
    rng = random.Random(seed)
    count = 400
    sizes = [rng.choice([3, 5, 7, 9]) << rng.randint(0, 8) for _ in range(count)]
    starts = [rng.randrange(count) for _ in range(count)]
    ends = [start + max(1, int(rng.paretovariate(1))) for start in starts]
    assert pack(sizes, starts, ends)[1] <= 1.02 * lower_bound(sizes, starts, ends)


def test_the_repair_gains_where_no_order_fits() -> None:
    """Short random lives, where one pass in any order leaves holes (found by trying a few)."""
    rng = random.Random(1)
    count = 300
    sizes = [rng.randint(100, 200) for _ in range(count)]
    starts = [rng.randrange(count) for _ in range(count)]
    ends = [start + rng.randint(1, 6) for start in starts]
    assert pack(sizes, starts, ends)[1] <= 1.01 * lower_bound(sizes, starts, ends)


def test_nothing_takes_no_room() -> None:
    assert pack([], [], []) == ((), 0)
    assert pack([0, 5], [0, 3], [4, 3]) == ((0, 0), 0)
