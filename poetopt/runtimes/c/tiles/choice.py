"""Which of many ways to stream an operator are kept: a short list, by RAM and by what their transfers take.

A transfer counts as bytes: its own, and those that the storage could have moved while it began. The list is the same
for every device, as a plan belongs to a network's structure, and a runtime's version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from math import log

from poetopt.runtimes.c.tiles.variants import READ_BYTES, WRITE_BYTES, Candidate

MOST = 10
"""Ways of an operator."""
DEAR = 16
"""Ways that move more than this times the least count alike, but for the leanest."""
HARDLY = 0.05
"""Streaming what is a smaller part of a run's RAM is not worth it, but where it takes the least RAM of all."""
FIRST = 9
"""Places for those that need the least RAM for their traffic, whatever they stream."""


def worth(found: Iterable[Candidate], sizes: Mapping[str, int], stored: Iterable[str]) -> list[Candidate]:
    """At most MOST of them, by workspace.

    sizes
        Bytes of what they stream, by name.
    stored
        What begins on storage: parameters, optimizer states.

    Of each set of streamed tensors those count that no other of the set betters in RAM and traffic both. Of all these,
    most places go to those that none betters in all the RAM of a run, and in traffic where what is stored has to be
    read in any case: those that leave the least area under the curve of one over the other, in logarithms. The rest
    goes to each set's leanest way, and its quickest: the set that needs the least RAM comes first, then those of what
    is stored, then the others by RAM.
    """
    sets: dict[tuple[str, ...], list[Candidate]] = {}
    for one in found:
        sets.setdefault(one.streamed, []).append(one)
    if not sets:
        return []
    home = frozenset(stored)
    fronts = {streamed: _front(ways, _ram, _traffic) for streamed, ways in sets.items()}
    everything = sum(sizes.values())
    reading = sum(size + READ_BYTES for name, size in sizes.items() if name in home)

    def ram(way: Candidate) -> int:
        return everything + way.workspace_bytes - sum(sizes[name] for name in way.streamed)

    def price(way: Candidate) -> int:
        return way.traffic + reading - sum(sizes[name] + READ_BYTES for name in way.streamed if name in home)

    leanest = min(fronts, key=lambda s: (ram(fronts[s][0]), s))
    best = fronts[leanest][0]
    least = {s: ram(front[0]) for s, front in fronts.items()}
    fronts = {s: front for s, front in fronts.items() if not _needless(s, front, fronts, sizes, least)}
    fronts = fronts or {leanest: [best]}
    front = _front([best, *chain(*fronts.values())], ram, price)
    most = DEAR * (1 + min(map(price, front), default=0))
    curve = [(log(ram(way)), log(min(1 + price(way), most))) for way in front]
    kept = _covering(front, curve, log(everything))[:FIRST]
    order = sorted(fronts, key=lambda s: (not home.issuperset(s), ram(fronts[s][0]), s))
    order.sort(key=lambda s: s != leanest)
    queues = [[way for way in _spread(fronts[s]) if way not in kept] for s in order]
    while len(kept) < MOST and any(queues):
        for queue in queues:
            if queue and len(kept) < MOST:
                kept.append(queue.pop(0))
    return sorted(kept, key=lambda v: (v.workspace_bytes, v))


def _covering(front: Sequence[Candidate], at: Sequence[tuple[float, float]], end: float) -> list[Candidate]:
    """A front in the order in which its points better the curve that they make: the leanest first.

    at
        RAM and price of each.
    end
        From this RAM on none is needed.
    """
    chosen: list[int] = [0] if front else []
    left = list(range(1, len(front)))
    while left:

        def gain(k: int) -> float:
            before = max(c for c in chosen if c < k)
            behind = min((at[c][0] for c in chosen if c > k), default=max(end, at[-1][0]))
            return (behind - at[k][0]) * (at[before][1] - at[k][1])

        best = max(left, key=lambda k: (gain(k), -k))
        left.remove(best)
        chosen.append(best)
    return [front[k] for k in chosen]


def _ram(way: Candidate) -> int:
    return way.workspace_bytes


def _traffic(way: Candidate) -> int:
    return way.traffic


def _front(
    ways: Sequence[Candidate], ram: Callable[[Candidate], int], price: Callable[[Candidate], int]
) -> list[Candidate]:
    """Those that none betters, the leanest first."""
    kept: list[Candidate] = []
    for way in sorted(ways, key=lambda v: (ram(v), price(v), v)):
        if not kept or price(way) < price(kept[-1]):
            kept.append(way)
    return kept


def _needless(
    streamed: tuple[str, ...],
    front: Sequence[Candidate],
    fronts: Mapping[tuple[str, ...], Sequence[Candidate]],
    sizes: Mapping[str, int],
    least: Mapping[tuple[str, ...], int],
) -> bool:
    """Whether streaming less takes hardly more RAM, or no more and no more traffic than moving the rest whole.

    least
        The RAM that a run takes at least with each set.
    """
    if sum(sizes[name] for name in streamed) < HARDLY * sum(sizes.values()):
        return True
    for other, ways in fronts.items():
        if set(other) < set(streamed):
            rest = [name for name in streamed if name not in other]
            whole = sum(sizes[name] for name in rest)
            if whole < HARDLY * least[other]:
                return True
            moved = sum(sizes[name] + WRITE_BYTES for name in rest)
            if all(
                any(w.workspace_bytes + whole <= v.workspace_bytes and w.traffic + moved <= v.traffic for w in ways)
                for v in front
            ):
                return True
    return False


def _spread(front: Sequence[Candidate]) -> list[Candidate]:
    """A front from its ends inwards: the leanest, the quickest, then halfway, and so on; each once."""
    order: dict[int, None] = dict.fromkeys((0, len(front) - 1) if front else ())
    step = len(front) - 1
    while step > 1:
        order.update(dict.fromkeys(range(0, len(front), max(1, step // 2))))
        step //= 2
    order.update(dict.fromkeys(range(len(front))))
    return [front[k] for k in order]
