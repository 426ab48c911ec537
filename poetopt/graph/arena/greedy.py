"""Buffers one by one, each into a gap that those placed before leave: in several orders, by two rules."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from poetopt.graph.arena.instance import UNPLACED, Instance, Ints, Layout


def place(instance: Instance, goal: int) -> tuple[Layout, list[int]]:
    """The best of all orders and rules, or the first whose arena is at most `goal` bytes; and its order."""
    best: Ints = np.zeros(len(instance.sizes), dtype=np.int64)
    arena, best_order = UNPLACED, []
    for order in _orders(instance):
        for tight in (False, True):
            offsets = _in_order(instance, order, tight, arena)
            if offsets is not None:
                best, arena, best_order = offsets, Layout.of(instance, offsets).arena, order
            if arena <= goal:
                break
        if arena <= goal:
            break
    return Layout(best, arena), best_order


def _orders(instance: Instance) -> list[list[int]]:
    """Orders to place in, the one that most often reaches the bound first."""
    sizes, starts, ends = instance.sizes, instance.starts, instance.ends
    load = _load(instance)
    keys: tuple[Callable[[int], tuple[int, ...]], ...] = (
        lambda k: (-sizes[k], starts[k]),
        lambda k: (-sizes[k] * (ends[k] - starts[k]), starts[k]),
        lambda k: (-load[k], -sizes[k]),
        lambda k: (-load[k], starts[k] - ends[k]),
        lambda k: (starts[k] - ends[k], -sizes[k]),
        lambda k: (starts[k], -ends[k], -sizes[k]),
    )
    return [sorted(range(len(sizes)), key=lambda k, key=key: (*key(k), k)) for key in keys]  # type: ignore[misc]


def _load(instance: Instance) -> list[int]:
    """For each buffer, the highest sum of sizes alive at a time of its life (greedy by breadth)."""
    times = sorted(set(instance.starts))
    index = {time: i for i, time in enumerate(times)}
    level = np.zeros(len(times) + 1, dtype=np.int64)
    since = [index[start] for start in instance.starts]
    until = np.searchsorted(times, instance.ends).tolist()
    for size, first, end in zip(instance.sizes, since, until, strict=True):
        level[first] += size
        level[end] -= size
    level = np.cumsum(level)
    return [int(level[first:end].max()) for first, end in zip(since, until, strict=True)]


def _in_order(instance: Instance, order: list[int], tight: bool, arena: int) -> Ints | None:
    """Offsets whose arena is smaller than `arena`, or None as soon as one buffer ends beyond."""
    offsets: Ints = np.full(len(order), UNPLACED, dtype=np.int64)
    tops: Ints = np.zeros(len(order), dtype=np.int64)
    for k in order:
        offset = gap(instance, k, offsets, tops, tight=tight)
        if offset + instance.sizes[k] >= arena:
            return None
        offsets[k] = offset
        tops[k] = offset + instance.rounded[k]
    return offsets


def gap(instance: Instance, k: int, offsets: Ints, tops: Ints, *, tight: bool) -> int:
    """Where buffer k fits: the offset of the lowest gap, or of the smallest one (the lowest of those).

    `offsets` of buffers that don't lie anywhere yet are UNPLACED, their `tops` (offset + rounded size) 0.
    """
    near = instance.near[k]
    if not near.size:
        return 0
    below = offsets[near]
    order = below.argsort()
    below = below[order]
    floors = np.empty_like(below)
    floors[0] = 0
    if below.size > 1:
        np.maximum.accumulate(tops[near[order[:-1]]], out=floors[1:])
    rooms = below - floors
    fits = rooms >= instance.sizes[k]
    first = int(fits.argmax())
    if not fits[first]:
        return int(max(floors[-1], tops[near[order[-1]]]))
    if tight:
        first = int(np.where(fits, rooms, UNPLACED).argmin())
    return int(floors[first])
