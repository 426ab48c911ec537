"""Buffers that must have one offset: a tensor that is in RAM as a step begins and as it ends, and not in between.

The step after finds it where this one left it. Both of its stays are placed as one buffer, which is near to all that
either of them is near to.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from poetopt.graph.arena.instance import Instance, Ints


def join(instance: Instance, pairs: Sequence[tuple[int, int]]) -> tuple[Instance, Ints]:
    """The instance in which each pair is one buffer; and for each buffer of `instance`, the one that it is there.

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
    starts, ends = list(instance.starts), list(instance.ends)
    for first, second in pairs:
        starts[first] = min(starts[first], starts[second])
        ends[first] = max(ends[first], ends[second])
    joined = Instance(
        sizes=[instance.sizes[k] for k in kept],
        starts=[starts[k] for k in kept],
        ends=[ends[k] for k in kept],
        alignment=instance.alignment,
        rounded=instance.rounded[kept],
        near=[np.array(sorted(others), dtype=np.int64) for others in near],
        bound=instance.bound,
    )
    return joined, np.array([number[k] for k in range(len(instance.sizes))])
