"""Which of many ways to stream an operator are kept: a short list, by RAM and by what their transfers take.

A transfer counts as bytes: its own, and those that the storage could have moved while it began. The list is the same
for every device, as a plan belongs to a network's structure, and a runtime's version.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from poetopt.runtimes.c.tiles.variants import WRITE_BYTES, Candidate

MOST = 8
"""Ways of an operator."""


def worth(found: Iterable[Candidate], sizes: Mapping[str, int], stored: Iterable[str]) -> list[Candidate]:
    """At most MOST of them, by workspace.

    sizes
        Bytes of what they stream, by name.
    stored
        What begins on storage: parameters, optimizer states.

    Of each set of streamed tensors those are kept that no other of the set betters in RAM and traffic both. Where they
    are too many, each set has its leanest and its quickest one first, and then what lies between. The set that needs
    the least RAM comes first, then those of what is stored anyway, then the rest by RAM.
    """
    sets: dict[tuple[str, ...], list[Candidate]] = {}
    for one in found:
        sets.setdefault(one.streamed, []).append(one)
    fronts = {streamed: _front(ways) for streamed, ways in sets.items()}
    home = frozenset(stored)

    def least(streamed: tuple[str, ...]) -> int:
        return fronts[streamed][0].workspace_bytes - sum(sizes[name] for name in streamed)

    fronts = {s: front for s, front in fronts.items() if not _needless(s, front, fronts, sizes)}
    order = sorted(fronts, key=lambda s: (not home.issuperset(s), least(s), s))
    leanest = min(fronts, key=lambda s: (least(s), s), default=())
    order.sort(key=lambda s: s != leanest)
    kept: list[Candidate] = []
    queues = [_spread(fronts[s]) for s in order]
    while len(kept) < MOST and any(queues):
        for queue in queues:
            if queue and len(kept) < MOST:
                kept.append(queue.pop(0))
    return sorted(kept, key=lambda v: (v.workspace_bytes, v))


def _front(ways: Sequence[Candidate]) -> list[Candidate]:
    """Those that none betters, the leanest first."""
    kept: list[Candidate] = []
    for way in sorted(ways, key=lambda v: v[1:]):
        if not kept or way.traffic < kept[-1].traffic:
            kept.append(way)
    return kept


def _needless(
    streamed: tuple[str, ...],
    front: Sequence[Candidate],
    fronts: Mapping[tuple[str, ...], Sequence[Candidate]],
    sizes: Mapping[str, int],
) -> bool:
    """Whether streaming less takes no more RAM in all, and no more traffic than moving the rest whole."""
    for other, ways in fronts.items():
        if set(other) < set(streamed):
            rest = [name for name in streamed if name not in other]
            whole = sum(sizes[name] for name in rest)
            moved = sum(sizes[name] + WRITE_BYTES for name in rest)
            if all(
                any(w.workspace_bytes + whole <= v.workspace_bytes and w.traffic + moved <= v.traffic for w in ways)
                for v in front
            ):
                return True
    return False


def _spread(front: Sequence[Candidate]) -> list[Candidate]:
    """A front from its ends inwards: the leanest, the quickest, then halfway, and so on; each once."""
    order: dict[int, None] = dict.fromkeys((0, len(front) - 1))
    step = len(front) - 1
    while step > 1:
        order.update(dict.fromkeys(range(0, len(front), max(1, step // 2))))
        step //= 2
    order.update(dict.fromkeys(range(len(front))))
    return [front[k] for k in order]
