"""Dominated labels: another label makes a better or equal schedule of them; see `search`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from poetopt.formulations.retention.label_setting.extensions import Extensions, Key
from poetopt.formulations.rows import Floats, Ints
from poetopt.util.work import Work

BLOCK, KEPT_BLOCK = 128, 8192
"""Labels that are compared at once."""
PAIRS = 400
"""That are compared for a unit of work."""
MOST_WRITTEN = 1500
"""Where there are more different W, only labels with the same one are compared."""


def undominated(
    extensions: Extensions,
    kept: Sequence[tuple[Key, float]],
    fresh: Sequence[tuple[Key, float]],
    work: Work,
    draw: np.random.Generator | None = None,
) -> Ints | None:
    """The places in `fresh` of the labels of which no other one, of either, makes a better or equal one.

    kept, fresh
        Labels of one stage and their costs; those of `kept` stay, whatever comes.
    work
        Counts what it does; it is given up once that is over: None.
    draw
        Decides between labels that cost the same.
    """
    before, fresh_costs = len(kept), np.array([cost for _, cost in fresh])
    if draw is None:
        order = np.argsort(fresh_costs, kind="stable")
    else:
        order = np.lexsort((draw.random(len(fresh)), np.round(fresh_costs / extensions.cost_scale, 9)))
    keys = [key for key, _ in kept] + [fresh[x][0] for x in order]
    costs = np.concatenate([[cost for _, cost in kept], fresh_costs[order]])
    labels = _Labels(extensions, keys, costs)
    left = np.arange(before)
    for first in range(before, len(keys), BLOCK):
        block = np.arange(first, min(first + BLOCK, len(keys)))
        work.done += len(left) * len(block) // PAIRS
        if work.over:
            return None
        for start in range(0, len(left), KEPT_BLOCK):
            _, worse = labels.dominates(left[start : start + KEPT_BLOCK], block)
            block = np.delete(block, worse)
        better, worse = labels.dominates(block, block)
        left = np.append(left, np.delete(block, worse[better < worse]))
    return np.asarray(order[left[before:] - before])


class _Labels:
    """Labels as arrays that are compared by the hundred."""

    def __init__(self, extensions: Extensions, keys: Sequence[Key], costs: Floats) -> None:
        self._costs = costs
        self._needs = _words(extensions, [key[0] for key in keys])
        different = sorted({key[1] for key in keys})
        place = {written: x for x, written in enumerate(different)}
        self._writes = np.array([place[key[1]] for key in keys])
        self._pays = _pays(extensions, different)

    def dominates(self, some: Ints, others: Ints) -> tuple[Ints, Ints]:
        """The pairs, by their places in `some` and `others`, of which the first makes the second."""
        needs, writes, costs = self._needs, self._writes, self._costs
        inside = np.ones((len(some), len(others)), dtype=bool)
        for word in range(needs.shape[1]):
            inside &= (needs[some, word][:, None] & ~needs[others, word][None, :]) == 0
        if self._pays is None:
            inside &= writes[some][:, None] == writes[others][None, :]
        # few are: the places in one row are found ten times as fast as those in two dimensions
        a, b = np.divmod(np.flatnonzero(inside), len(others)) if len(others) else (others, others)
        cost = costs[some[a]]
        if self._pays is not None:
            cost = cost + self._pays[writes[some[a]], writes[others[b]]]
        cheaper = cost <= costs[others[b]] * (1 + 1e-12)
        return a[cheaper], b[cheaper]


def _pays(extensions: Extensions, written: list[int]) -> Floats | None:
    """[a, b]: what it costs to write what b has written and a hasn't."""
    if len(written) > MOST_WRITTEN:
        return None
    bits = extensions.bits(written).astype(float)
    return np.asarray((1 - bits) @ (extensions.page_out_j[:, None] * bits.T))


def _words(extensions: Extensions, masks: list[int]) -> NDArray[np.uint64]:
    """(labels, words) of those bits that aren't the same in all."""
    all_, any_ = masks[0], 0
    for mask in masks:
        all_, any_ = all_ & mask, any_ | mask
    vary = np.flatnonzero(extensions.bits([any_ & ~all_])[0])
    bits = extensions.bits(masks)[:, vary].astype(np.uint64)
    words = np.zeros((len(masks), max(1, -(-len(vary) // 64))), dtype=np.uint64)
    for x in range(len(vary)):
        words[:, x // 64] |= bits[:, x] << np.uint64(x % 64)
    return words
