"""Layouts of random plans: buffers, live bytes and offsets fit together, and the check sees what is wrong."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poetopt.plan.layout import arena_bytes, buffers, check_layout, lay_out
from poetopt.plan.simulate import simulate
from poetopt.util.errors import PlanError
from tests.seeds import examples
from tests.support.problems import random_plan, random_problem

seeds = st.integers(0, 2**32 - 1)


@settings(deadline=None, max_examples=examples(100))
@given(seeds, st.sampled_from([1, 4, 64]))
def test_layouts_are_sound(seed: int, alignment: int) -> None:
    rng = random.Random(seed)
    problem = random_problem(rng, operators=rng.randint(1, 9), alignment=alignment)
    plan = lay_out(random_plan(rng, problem))
    result = simulate(plan)
    found = list(buffers(plan))
    for index, live in enumerate(result.live_bytes):
        assert sum(buffer.nbytes for buffer in found if buffer.first <= index <= buffer.last) == live
    arena = arena_bytes(plan)
    assert arena >= result.peak_bytes
    check_layout(plan, arena)
    assert all(buffer.offset == 0 for buffer in found if buffer.nbytes == 0)
    if arena:
        with pytest.raises(PlanError, match=f"of an arena of {arena - 1} bytes"):
            check_layout(plan, arena - 1)


@settings(deadline=None, max_examples=examples(100))
@given(seeds)
def test_check_finds_any_overlap(seed: int) -> None:
    rng = random.Random(seed)
    problem = random_problem(rng, operators=rng.randint(2, 6))
    plan = lay_out(random_plan(rng, problem, length=25))
    offsets = list(plan.offsets)
    offsets[rng.randrange(len(offsets))] = rng.randrange(arena_bytes(plan) + 1)
    moved = replace(plan, offsets=tuple(offsets))
    found = [buffer for buffer in buffers(moved) if buffer.nbytes]
    overlaps = any(
        a.first <= b.last and b.first <= a.last and a.offset < b.offset + b.nbytes and b.offset < a.offset + a.nbytes
        for k, a in enumerate(found)
        for b in found[:k]
    )
    if overlaps:
        with pytest.raises(PlanError, match="overlap at instruction"):
            check_layout(moved)
    else:
        check_layout(moved)
