"""What no arena can undercut."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush


def lower_bound(sizes: Sequence[int], starts: Sequence[int], ends: Sequence[int], alignment: int = 1) -> int:
    """No arena is smaller: the highest sum of live sizes, rounded up to the alignment but for the topmost buffer.

    Arguments are those of `poetopt.graph.arena.pack`; the result is in bytes.
    """
    events = sorted(
        [(starts[k], 1, k) for k in range(len(sizes)) if sizes[k] and starts[k] < ends[k]]
        + [(ends[k], 0, k) for k in range(len(sizes)) if sizes[k] and starts[k] < ends[k]]
    )
    rounded = [-(-size // alignment) * alignment for size in sizes]
    # the most that rounding adds to a live buffer: on top of a heap, from which the dead go when they surface
    added = [(sizes[k] - rounded[k], ends[k]) for k in range(len(sizes))]
    live: list[tuple[int, int]] = []
    level = bound = 0
    for time, begins, k in events:
        if not begins:
            level -= rounded[k]
            continue
        heappush(live, added[k])
        level += rounded[k]
        if level > bound:
            while live[0][1] <= time:
                heappop(live)
            bound = max(bound, level + live[0][0])
    return bound
