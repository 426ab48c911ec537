"""The way in: which method is asked, and when it is enough."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from poetopt.graph.arena.ejection import BRIEF, hurry, tighten
from poetopt.graph.arena.exact import EXACT_BUFFERS, search
from poetopt.graph.arena.greedy import place
from poetopt.graph.arena.instance import Instance
from poetopt.graph.arena.repair import repair
from poetopt.graph.arena.shared import join
from poetopt.graph.arena.stream import MOST_PAIRS, pairs, stream

SLACK = 2048
"""Without a target, nothing is tried for less than this fraction of the bound: it may take seconds."""


def pack(
    sizes: Sequence[int],
    starts: Sequence[int],
    ends: Sequence[int],
    alignment: int = 1,
    *,
    target: int | None = None,
    quick: bool = False,
    brief: bool = False,
    until: float = inf,
    shared: Sequence[tuple[int, int]] = (),
) -> tuple[tuple[int, ...], int]:
    """Place buffers so that those alive together don't overlap.

    sizes
        Bytes of each buffer; a buffer of 0 bytes lies at offset 0.
    starts, ends
        Buffer k is alive at the times starts[k] <= t < ends[k].
    alignment
        Every offset is a multiple of it.
    target
        An arena of this size is small enough: stop there. None: as small as can be found.
    quick
        Whether ejection takes tenths of a second at most, instead of five seconds.
    brief
        Whether hundredths of a second must do: a few short ejections alone. For what is packed anew at every reading.
    until
        The moment (of `time.monotonic`) at which nothing smaller is looked for any more.
    shared
        Pairs of buffers that get one offset: of one size, not alive together, and none in two pairs.

    Returns the offsets and the arena's size (the largest offset + size).
    """
    kept = [k for k, size in enumerate(sizes) if size > 0 and starts[k] < ends[k]]
    offsets = [0] * len(sizes)
    if not kept:
        return tuple(offsets), 0
    size, start, end = ([values[k] for k in kept] for values in (sizes, starts, ends))
    number = {k: place for place, k in enumerate(kept)}
    together = [(number[a], number[b]) for a, b in shared if a in number]
    many = pairs(start, end) > MOST_PAIRS
    if many and not together:
        for k, offset in zip(kept, stream(size, start, end, alignment), strict=True):
            offsets[k] = offset
        return tuple(offsets), max(offsets[k] + sizes[k] for k in kept)
    instance, places = join(Instance.of(size, start, end, alignment), together)
    goal = max(instance.bound, target or 0)
    layout, order = place(instance, goal)
    settled = layout.arena <= goal
    if not settled and len(places) <= EXACT_BUFFERS:
        layout, settled = search(instance, layout, goal)
    enough = goal + goal // SLACK if target is None else goal
    if not settled and not many and layout.arena > enough and brief:
        layout = tighten(instance, layout, goal, until, *BRIEF)
    elif not settled and not many and layout.arena > enough:
        first, layout = layout, repair(instance, layout, order, goal, until)
        if target is not None and layout.arena > goal:
            # Ejection gets on better from what is far off than from what repair has tried its best with.
            layout = hurry(instance, first, goal, until) or layout
        if not quick and layout.arena > enough:
            layout = tighten(instance, layout, goal, until)
    for k, offset in zip(kept, layout.offsets[places].tolist(), strict=True):
        offsets[k] = offset
    return tuple(offsets), layout.arena
