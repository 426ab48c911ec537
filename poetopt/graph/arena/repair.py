"""Repair of an order: a buffer that ends beyond the limit is placed earlier."""

from __future__ import annotations

from math import inf
from time import monotonic

import numpy as np

from poetopt.graph.arena.greedy import gap
from poetopt.graph.arena.instance import UNPLACED, Instance, Ints, Layout

PLACEMENTS = 50_000
"""How many placements may be spent in all."""
FIRST_SHARE = 0.2
MIN_SHARE = 0.005
"""It gives up when it fails to gain this fraction of what there is to gain."""


def repair(instance: Instance, layout: Layout, order: list[int], goal: int, until: float = inf) -> Layout:
    """A layout with a smaller arena than `layout`, at best of `goal` bytes, or `layout` where none is found.

    `order` is the one that greedy placement made `layout` in. Smaller arenas are asked for, first a little smaller,
    then by less of what is left to gain where that fails; none after the moment `until`.
    """
    spent, share = 0, FIRST_SHARE
    while goal < layout.arena and spent < PLACEMENTS and share > MIN_SHARE and monotonic() < until:
        limit = layout.arena - 1 - int((layout.arena - 1 - goal) * share)
        used, placed, offsets = _fit(instance, list(order), limit, max(len(order), PLACEMENTS // 6))
        spent += used
        if offsets is None:
            share /= 2
        else:
            order, layout = placed, Layout.of(instance, offsets)
    return layout


def _fit(instance: Instance, order: list[int], limit: int, placements: int) -> tuple[int, list[int], Ints | None]:
    """Place all in `order` under `limit`: the placements that it took, the order then, the offsets or None.

    A buffer that would end beyond moves forward (half the way to the front, then half of that, ...), and those
    after its new place are placed again.
    """
    offsets: Ints = np.full(len(order), UNPLACED, dtype=np.int64)
    tops: Ints = np.zeros(len(order), dtype=np.int64)
    moves = [0] * len(order)
    used = place = 0
    while place < len(order):
        k = order[place]
        offset = gap(instance, k, offsets, tops, tight=False)
        used += 1
        if offset + instance.sizes[k] <= limit:
            offsets[k] = offset
            tops[k] = offset + instance.rounded[k]
            place += 1
            continue
        if used > placements:
            return used, order, None
        moves[k] += 1
        back = place >> moves[k]
        offsets[order[back:place]] = UNPLACED
        tops[order[back:place]] = 0
        del order[place]
        order.insert(back, k)
        place = back
    return used, order, offsets
