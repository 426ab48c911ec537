"""Which of many ways to stream an operator are kept: a short list, by RAM and by what their transfers take.

A transfer counts as bytes: its own, and those that the storage could have moved while it began. The list is the same
for every device, as a plan belongs to a network's structure, and a runtime's version.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from poetopt.runtimes.c.tiles.variants import READ_BYTES, Candidate

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST = 14
"""Ways of an operator."""
LEVELS = 48
"""Of RAM, from the least that any way takes to all operands whole, for which ways are compared."""
USUAL = 3.0
"""What the usual case counts: as much as all others together, times this."""
NEGLIGIBLE = 1 / 8
"""Of an operator's bytes: differences in traffic below that hardly count."""
DIGITS = 6
"""Behind the point, of what a way spares."""


def worth(found: Iterable[Candidate], sizes: Mapping[str, int], stored: Iterable[str]) -> list[Candidate]:
    """At most MOST of them, by workspace: the leanest, then whichever spares the most traffic.

    sizes
        Bytes of what they stream, by name.
    stored
        What begins on storage: parameters, optimizer states.

    What a way spares is the mean over levels of RAM, in logarithms, and over cases. In the usual one whatever begins on
    storage has to be read, whole or in chunks, and all else is in RAM if it isn't streamed; in each other case this
    is the other way round for one operand: it is kept in RAM, or has to be moved.
    """
    sets: dict[tuple[str, ...], list[Candidate]] = {}
    for one in found:
        sets.setdefault(one.streamed, []).append(one)
    ways = list(chain(*map(_front, sets.values())))
    if not ways:
        return []
    ram, price = _figures(ways, sizes, frozenset(stored))
    least = int(ram.min())
    levels = np.geomspace(least, max(sum(sizes.values()), least + 1), LEVELS)
    fits = ram[:, None] <= levels * (1 + 1e-9)
    cost = np.where(fits[:, None, :], price[:, :, None], np.inf).reshape(len(ways), -1)
    first = min(range(len(ways)), key=lambda k: (int(ram[k]), ways[k].traffic, ways[k]))
    return sorted((ways[k] for k in _sparing(cost, first)), key=lambda way: (way.workspace_bytes, way))


def _front(ways: Iterable[Candidate]) -> list[Candidate]:
    """Those that none betters in both workspace and traffic, the leanest first."""
    kept: list[Candidate] = []
    for way in sorted(ways, key=lambda way: (way.workspace_bytes, way.traffic, way)):
        if not kept or way.traffic < kept[-1].traffic:
            kept.append(way)
    return kept


def _figures(
    ways: Sequence[Candidate], sizes: Mapping[str, int], stored: frozenset[str]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """All the RAM of each way, and the weighted logarithm of what it moves in each case."""
    names, each = list(sizes), np.array(list(sizes.values()))
    whole = ~np.array([[name in way.streamed for name in names] for way in ways])
    ram = np.array([way.workspace_bytes for way in ways]) + whole @ each
    usual = np.array([name in stored for name in names])
    cases = np.array([usual, *(usual ^ other for other in np.eye(len(names), dtype=bool))])
    moved = np.array([way.traffic for way in ways])[:, None] + whole @ (cases * (each + READ_BYTES)).T
    weights = np.array([USUAL, *(1 / len(names) for _ in names)])
    return ram, np.log(NEGLIGIBLE * each.sum() + moved) * weights


def _sparing(cost: NDArray[np.float64], first: int) -> list[int]:
    """`first`, and up to MOST - 1 more rows, so that the least of each column comes to little in all: one by one.

    Then each is changed for another where that is better. Sums are rounded, so that they are alike on all machines.
    """

    def best(now: NDArray[np.float64]) -> tuple[int, float]:
        spared = np.maximum(now - cost, 0).sum(axis=1).round(DIGITS)
        k = int(spared.argmax())
        return k, float(spared[k])

    kept = [first]
    while len(kept) < MOST:
        k, spared = best(cost[kept].min(axis=0))
        if spared <= 0:
            break
        kept.append(k)
    for k in kept[1:]:
        rest = [other for other in kept if other != k]
        now = cost[rest].min(axis=0)
        to, spared = best(now)
        if spared > round(float(np.maximum(now - cost[k], 0).sum()), DIGITS):
            kept = [*rest, to]
    return kept
