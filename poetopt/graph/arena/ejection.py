"""Ejection search: all buffers under a limit, where whoever finds no gap pushes others out.

The idea is that of guided ejection for vehicle routing (Nagata and Bräysy 2009): a buffer that finds no gap is
placed all the same, where it overlaps those that are the easiest to place elsewhere, and these wait in its
stead. What is hard is learned: a buffer's hardness grows each time that it finds no gap, and the sum of hardness
over the buffers pushed out is least. How long it takes depends on luck, with a long tail, so several short
attempts do better than a long one.
"""

from __future__ import annotations

from math import inf, isqrt
from random import Random
from time import monotonic

import numpy as np

from poetopt.graph.arena.instance import Instance, Ints, Layout

ATTEMPTS = 10
STEPS = 4_000
"""Placements in one attempt."""
CLOCK = 64
"""After so many of them the clock is looked at."""
QUICK = (4, 2_000)
"""Attempts and placements of those who are in a hurry."""
BRIEF = (4, 250)
"""Attempts and placements for an operator's temporaries. Of 36 sets that greedy placement left above their bound, these
place 26 at it; `ATTEMPTS` of `STEPS` place none of the others there, for forty times the work (2026-11-27)."""


def tighten(
    instance: Instance, layout: Layout, goal: int, until: float = inf, attempts: int = ATTEMPTS, steps: int = STEPS
) -> Layout:
    """A layout with a smaller arena than `layout`, at best of `goal` bytes, or `layout` where none is found.

    Every other attempt aims half way between the goal and what has been reached: the goal may be out of reach.
    None goes on after the moment `until`.
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
    """A layout of at most `goal` bytes in tenths of a second, or None: there is none that is only smaller."""
    attempts, steps = QUICK
    for attempt in range(attempts):
        offsets = fit(instance, layout.offsets, goal, attempt, steps, until)
        if offsets is not None:
            return Layout.of(instance, offsets)
    return None


def fit(
    instance: Instance, offsets: Ints, limit: int, seed: int, steps: int = STEPS, until: float = inf
) -> Ints | None:
    """Offsets whose arena is at most `limit` bytes, no less than the lower bound; None where so many steps don't do.

    A step is a placement. The first has the given offsets, without the buffers that end beyond the limit. Ties go by
    `seed`.
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
        # Moved until it touches another, the bottom or the limit, a buffer overlaps no more: no other offset is better.
        choices = np.concatenate(([0, ceilings[k]], highs, lows - rounded[k]))
        choices = choices[(choices >= 0) & (choices <= ceilings[k])]
        costs = _costs(choices, choices + rounded[k], lows, highs, hardness[near])
        least = costs.min()
        cheapest = np.flatnonzero(costs == least)
        low[k] = choices[cheapest[random.randrange(len(cheapest))]]
        placed[k] = True
        if least:
            hardness[k] += growth[k]
            out = near[(lows < low[k] + rounded[k]) & (highs > low[k])]
            placed[out] = False
            waiting += sorted(out.tolist(), key=lambda j: (rounded[j], j))
    return low if not waiting else None


def _growth(instance: Instance, seed: int) -> list[int]:
    """What a failure adds to each buffer's hardness: 1, or for half of the seeds more where many live with it."""
    return [isqrt(len(near)) + 1 if seed % 4 > 1 else 1 for near in instance.near]


def _costs(begins: Ints, ends: Ints, lows: Ints, highs: Ints, weights: Ints) -> Ints:
    """For each range [begin, end), the sum of the weights of all ranges [low, high) that overlap it.

    That is all those that begin before it ends, without those that end before it begins.
    """
    by_low, by_high = lows.argsort(), highs.argsort()
    started = np.concatenate(([0], weights[by_low].cumsum()))
    ended = np.concatenate(([0], weights[by_high].cumsum()))
    before_end = np.searchsorted(lows[by_low], ends, side="left")
    before_begin = np.searchsorted(highs[by_high], begins, side="right")
    found: Ints = started[before_end] - ended[before_begin]
    return found
