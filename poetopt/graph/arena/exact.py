"""Complete search, for a handful of buffers."""

from __future__ import annotations

import numpy as np

from poetopt.graph.arena.instance import Instance, Layout

EXACT_BUFFERS = 12
"""Up to this many buffers the search is complete, unless it takes more than EXACT_NODES nodes."""
EXACT_NODES = 30_000


def search(instance: Instance, best: Layout, goal: int) -> tuple[Layout, bool]:
    """A better layout than `best`, or that; and whether nothing is left to gain.

    Buffers come in ascending order of offsets, each on top of those placed that live with it: some optimal layout has
    that form (push every buffer down as far as it goes). The search ends early at an arena of `goal` bytes.
    """
    sizes, rounded = instance.sizes, instance.rounded.tolist()
    near = [neighbours.tolist() for neighbours in instance.near]
    offsets = [-1] * len(sizes)
    nodes = 0

    def descend(left: frozenset[int], lowest: int, last: int) -> bool:
        nonlocal nodes, best
        nodes += 1
        if not left:
            best = Layout.of(instance, np.array(offsets, dtype=np.int64))
            return best.arena <= goal
        floors = {
            k: max((offsets[j] + rounded[j] for j in near[k] if offsets[j] >= 0), default=0) for k in sorted(left)
        }
        if any(max(floor, lowest) + sizes[k] >= best.arena for k, floor in floors.items()):
            return False
        for k in sorted(left, key=lambda k: (floors[k], -sizes[k], k)):
            if floors[k] < lowest or (floors[k] == lowest and k < last):
                continue
            offsets[k] = floors[k]
            if descend(left - {k}, floors[k], k):
                return True
            offsets[k] = -1
            if nodes > EXACT_NODES:
                return True
        return False

    descend(frozenset(range(len(sizes))), 0, -1)
    return best, best.arena <= goal or nodes <= EXACT_NODES
