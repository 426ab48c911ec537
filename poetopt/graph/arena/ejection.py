"""Ejection search: place all buffers under a limit; a buffer that finds no gap ejects others.

The idea is that of guided ejection for vehicle routing (Nagata and Bräysy 2009). A buffer that finds no gap is placed
anyway, over the buffers that are the easiest to place elsewhere, and these wait instead. The search learns which
buffers are hard: a buffer's hardness grows each time that it finds no gap, and the ejected buffers have the least sum
of hardness. The duration has a long tail, so several short attempts do better than one long attempt.
"""

from __future__ import annotations

from math import inf, isqrt
from random import Random
from time import monotonic

import numpy as np

from poetopt.graph.arena.instance import Instance, Ints, Layout

ATTEMPTS = 10
STEPS = 4_000
"""Number of placements in one attempt."""
CLOCK = 64
"""Number of placements between two looks at the clock."""
QUICK = (4, 2_000)
"""Attempts and placements of `hurry`."""
BRIEF = (4, 250)
"""Attempts and placements for an operator's temporaries. Of 36 sets that greedy placement left above their bound, these
reach it for 26; `ATTEMPTS` of `STEPS` reach it for none of the others, with forty times the work (2026-11-27)."""


def tighten(
    instance: Instance, layout: Layout, goal: int, until: float = inf, attempts: int = ATTEMPTS, steps: int = STEPS
) -> Layout:
    """Return a layout with a smaller arena than `layout`, at best of `goal` bytes, or `layout` if none is found.

    Every other attempt aims half way between the goal and the current arena, because the goal may be unreachable. No
    attempt begins after the moment `until`.
    """
    for attempt in range(attempts):
        if layout.arena <= goal or monotonic() > until:
            break
        limit = goal + (layout.arena - 1 - goal) // 2 * (attempt % 2)
        offsets = fit(instance, layout.offsets, limit, attempt, steps, until)
        if offsets is not None:
            layout = Layout.of(instance, offsets)
    return layout


def hurry(instance: Instance, layout: Layout, goal: int, until: float = inf) -> Layout | None:
    """Return a layout of at most `goal` bytes within tenths of a second, or None."""
    attempts, steps = QUICK
    for attempt in range(attempts):
        offsets = fit(instance, layout.offsets, goal, attempt, steps, until)
        if offsets is not None:
            return Layout.of(instance, offsets)
    return None


def fit(
    instance: Instance, offsets: Ints, limit: int, seed: int, steps: int = STEPS, until: float = inf
) -> Ints | None:
    """Return offsets whose arena is at most `limit` bytes (at least the lower bound), or None after `steps` placements.

    The first placement starts from the given offsets, without the buffers that end beyond the limit. `seed` breaks
    ties.
    """
    random = Random(seed)
    low, rounded = offsets.copy(), instance.rounded
    ceilings = (limit - np.array(instance.sizes, dtype=np.int64)) // instance.alignment * instance.alignment
    placed = low <= ceilings
    growth = np.array(_growth(instance, seed), dtype=np.int64)
    hardness = growth.copy()
    waiting = sorted(np.flatnonzero(~placed).tolist(), key=lambda k: (rounded[k], k))
    for step in range(steps):
        if not waiting:
            return low
        if not step % CLOCK and monotonic() > until:
            return None
        k = waiting.pop()
        near = instance.near[k]
        near = near[placed[near]]
        lows = low[near]
        highs = lows + rounded[near]
        # Moving a buffer until it touches another, the bottom or the limit adds no overlap, so these offsets suffice.
        choices = np.concatenate(([0, ceilings[k]], highs, lows - rounded[k]))
        choices = choices[(choices >= 0) & (choices <= ceilings[k])]
        costs = _costs(choices, choices + rounded[k], lows, highs, hardness[near])
        least = costs.min()
        cheapest = np.flatnonzero(costs == least)
        low[k] = choices[cheapest[random.randrange(len(cheapest))]]
        placed[k] = True
        if least:
            hardness[k] += growth[k]
            ejected = near[(lows < low[k] + rounded[k]) & (highs > low[k])]
            placed[ejected] = False
            waiting += sorted(ejected.tolist(), key=lambda j: (rounded[j], j))
    return low if not waiting else None


def _growth(instance: Instance, seed: int) -> list[int]:
    """Return the increase of each buffer's hardness per failure: 1, or for half of the seeds more with neighbours."""
    return [isqrt(len(near)) + 1 if seed % 4 > 1 else 1 for near in instance.near]


def _costs(begins: Ints, ends: Ints, lows: Ints, highs: Ints, weights: Ints) -> Ints:
    """Return, for each range [begin, end), the sum of the weights of all ranges [low, high) that overlap it.

    These are all that begin before it ends, minus those that end before it begins.
    """
    by_low, by_high = lows.argsort(), highs.argsort()
    started = np.concatenate(([0], weights[by_low].cumsum()))
    ended = np.concatenate(([0], weights[by_high].cumsum()))
    before_end = np.searchsorted(lows[by_low], ends, side="left")
    before_begin = np.searchsorted(highs[by_high], begins, side="right")
    totals: Ints = started[before_end] - ended[before_begin]
    return totals
