"""What no arena can undercut."""

from __future__ import annotations

from collections.abc import Sequence


def lower_bound(sizes: Sequence[int], starts: Sequence[int], ends: Sequence[int], alignment: int = 1) -> int:
    """No arena is smaller: the highest sum of live sizes, rounded up to the alignment but for the topmost buffer.

    Arguments are those of `poetopt.arena.pack`; the result is in bytes.
    """
    events = sorted(
        [(starts[k], 1, k) for k in range(len(sizes)) if sizes[k] and starts[k] < ends[k]]
        + [(ends[k], 0, k) for k in range(len(sizes)) if sizes[k] and starts[k] < ends[k]]
    )
    rounded = [-(-size // alignment) * alignment for size in sizes]
    live: set[int] = set()
    level = bound = 0
    for _, begins, k in events:
        if not begins:
            live.discard(k)
            level -= rounded[k]
            continue
        live.add(k)
        level += rounded[k]
        if level > bound:
            bound = max(bound, level - max(rounded[j] - sizes[j] for j in live))
    return bound
