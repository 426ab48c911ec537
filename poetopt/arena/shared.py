"""Buffers that must have one offset: a tensor that is in RAM as a step begins and as it ends, and not in between.

The step after finds it where this one left it. Both of its stays are placed as one buffer, which is near to all that
either of them is near to.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from poetopt.arena.greedy import place
from poetopt.arena.instance import Instance, Ints


def place_shared(instance: Instance, pairs: Sequence[tuple[int, int]], goal: int) -> Ints:
    """Offsets of all buffers, one for both of each pair; the greedy methods alone.

    pairs
        Buffers of one size that don't live together; none is in two pairs.
    """
    first_of = {second: first for first, second in pairs}
    kept = [k for k in range(len(instance.sizes)) if k not in first_of]
    number = {k: place for place, k in enumerate(kept)}
    number |= {second: number[first] for second, first in first_of.items()}
    near: list[set[int]] = [set() for _ in kept]
    for k, others in enumerate(instance.near):
        near[number[k]].update(number[other] for other in others.tolist())
    ends = list(instance.ends)
    for first, second in pairs:
        ends[first] = ends[second]
    joined = Instance(
        sizes=[instance.sizes[k] for k in kept],
        starts=[instance.starts[k] for k in kept],
        ends=[ends[k] for k in kept],
        alignment=instance.alignment,
        rounded=instance.rounded[kept],
        near=[np.array(sorted(others), dtype=np.int64) for others in near],
        bound=instance.bound,
    )
    layout, _ = place(joined, goal)
    return layout.offsets[[number[k] for k in range(len(instance.sizes))]]
