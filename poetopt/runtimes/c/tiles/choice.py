"""Which of many ways to stream an operator are kept: a short list, by RAM and by what their transfers take.

A transfer counts as bytes: its own, and those that the storage could have moved while it began. The list is the same
for every device, as a plan belongs to a network's structure, and a runtime's version.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from poetopt.runtimes.contract import Variant

READ_BYTES, WRITE_BYTES = 1_000, 5_000
"""What a transfer costs beside its bytes, in bytes: an SD card's 1 and 5 ms at 1 MB/s."""
MOST = 8
"""Ways of an operator."""


def traffic(variant: Variant) -> int:
    """What the transfers of a run take, in bytes."""
    reads = sum(count * (nbytes + READ_BYTES) for nbytes, count in variant.reads)
    return reads + sum(count * (nbytes + WRITE_BYTES) for nbytes, count in variant.writes)


def worth(found: Iterable[Variant], sizes: Mapping[str, int], stored: Iterable[str]) -> tuple[Variant, ...]:
    """At most MOST of them, by workspace.

    sizes
        Bytes of what they stream, by name.
    stored
        What begins on storage: parameters, optimizer states.

    Of each set of streamed tensors those are kept that no other of the set betters in RAM and traffic both. Where they
    are too many, each set has its leanest and its quickest one first, and then what lies between; a set comes before
    another that needs more RAM, but those of what is stored anyway come first.
    """
    sets: dict[tuple[str, ...], list[Variant]] = {}
    for variant in found:
        sets.setdefault((*variant.streamed_in, *variant.streamed_out), []).append(variant)
    fronts = {streamed: _front(ways) for streamed, ways in sets.items()}
    everything = sum(sizes.values())
    home = frozenset(stored)

    def least(streamed: tuple[str, ...]) -> int:
        return fronts[streamed][0].workspace.total_bytes + everything - sum(sizes[name] for name in streamed)

    fronts = {s: front for s, front in fronts.items() if not _needless(s, front, fronts, sizes)}
    order = sorted(fronts, key=lambda s: (not home.issuperset(s), least(s), s))
    leanest = min(fronts, key=lambda s: (least(s), s), default=None)
    if leanest is not None:
        order.sort(key=lambda s: s != leanest)
    kept: list[Variant] = []
    queues = [_spread(fronts[s]) for s in order]
    while len(kept) < MOST and any(queues):
        for queue in queues:
            if queue and len(kept) < MOST:
                kept.append(queue.pop(0))
    return tuple(sorted(kept, key=lambda v: (v.workspace.total_bytes, v.name)))


def _front(ways: Sequence[Variant]) -> list[Variant]:
    """Those that none betters, the leanest first."""
    kept: list[Variant] = []
    for way in sorted(ways, key=lambda v: (v.workspace.total_bytes, traffic(v), v.name)):
        if not kept or traffic(way) < traffic(kept[-1]):
            kept.append(way)
    return kept


def _needless(
    streamed: tuple[str, ...],
    front: Sequence[Variant],
    fronts: Mapping[tuple[str, ...], Sequence[Variant]],
    sizes: Mapping[str, int],
) -> bool:
    """Whether streaming less takes no more RAM in all, and no more traffic than moving the rest whole."""
    for other, ways in fronts.items():
        if set(other) < set(streamed):
            rest = [name for name in streamed if name not in other]
            whole = sum(sizes[name] for name in rest)
            moved = sum(sizes[name] + WRITE_BYTES for name in rest)
            if all(
                any(
                    w.workspace.total_bytes + whole <= v.workspace.total_bytes and traffic(w) + moved <= traffic(v)
                    for w in ways
                )
                for v in front
            ):
                return True
    return False


def _spread(front: Sequence[Variant]) -> list[Variant]:
    """A front from its ends inwards: the leanest, the quickest, then halfway, and so on; each once."""
    order: dict[int, None] = dict.fromkeys((0, len(front) - 1))
    step = len(front) - 1
    while step > 1:
        order.update(dict.fromkeys(range(0, len(front), max(1, step // 2))))
        step //= 2
    order.update(dict.fromkeys(range(len(front))))
    return [front[k] for k in order]
