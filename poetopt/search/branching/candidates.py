"""What a tree may branch on, in the order in which it is looked at.

A relaxation on a plateau is a mixture of schedules, in halves or thirds, and most of its columns say the same: a
tensor that is half there is so in each of twenty stages. So of a run of neighbours with one value a single one is
looked at. What costs something, what doesn't, and what counts others take turns: which kind divides a mixture differs
by model, and where many tensors are of one size only their number does.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from poetopt.backends.solvers.nodes import Floats, Nodes
from poetopt.formulations.rows import Count, PointLike

SAME = 1e-6
"""Values nearer to each other than this are one value, and one that is so near to a whole number is whole."""
MOST_COUNTS = 150
"""At most this many counts become columns of a tree: each is a long row."""

Columns = NDArray[np.int64]


def worth(kinds: Sequence[Sequence[Count]], point: PointLike) -> list[Count]:
    """Those counts that a relaxation's point leaves open, the kinds (by block) in turns, in each the weightiest first.

    Of neighbours of one weight and value the one in the middle stands for all.
    """
    at = {id(count.variable): point[count.variable] for counts in kinds for count in _firsts(counts)}
    queues = []
    for counts in kinds:
        values = np.array([float(at[id(count.variable)][count.entries].sum()) for count in counts])
        weights = np.array([count.weight for count in counts])
        away = np.abs(values - np.round(values))
        places = np.array([k for k in _middles(values, weights).tolist() if away[k] > SAME], dtype=np.int64)
        order = np.argsort(-weights[places] * away[places], kind="stable")
        queues.append(places[order])
    turns = _turns(queues)
    return [kinds[kind][place] for kind, place in turns[:MOST_COUNTS]]


def at_first(nodes: Nodes, values: Floats, open_: Columns) -> Columns:
    """The columns `open_`, whose values aren't whole, where nothing is known of any."""
    proper = open_[open_ < len(values) - nodes.counts]
    away = np.abs(values - np.round(values))
    costs = np.abs(nodes.costs)
    dear, free = proper[costs[proper] > 0], proper[costs[proper] == 0]
    dear, free = (columns[_middles(values[columns], costs[columns], columns)] for columns in (dear, free))
    queues = [
        dear[np.argsort(-away[dear] * (1 + costs[dear] / max(float(costs.max()), 1e-300)), kind="stable")],
        free[np.argsort(-away[free], kind="stable")],
        open_[len(proper) :],
    ]
    turns = _turns([np.arange(len(queue)) for queue in queues])
    return np.array([queues[kind][place] for kind, place in turns], dtype=np.int64)


def representatives(nodes: Nodes, values: Floats, open_: Columns) -> Columns:
    """Of each run of neighbours among `open_` with one value, the one in the middle; and the counts."""
    proper = open_[open_ < len(values) - nodes.counts]
    middles = proper[_middles(values[proper], np.zeros(len(proper)), proper)]
    return np.concatenate([middles, open_[len(proper) :]])


def _firsts(counts: Sequence[Count]) -> list[Count]:
    """One count of each variable: a point's values of a variable are looked up once."""
    return list({id(count.variable): count for count in counts}.values())


def _middles(values: Floats, weights: Floats, columns: Columns | None = None) -> NDArray[np.int64]:
    """The places in the middle of each run of one value and weight, and of neighbouring `columns` where they count."""
    if not len(values):
        return np.zeros(0, dtype=np.int64)
    new = (np.abs(np.diff(values)) > SAME) | (np.diff(weights) != 0)
    if columns is not None:
        new |= np.diff(columns) != 1
    first = np.concatenate([[0], np.flatnonzero(new) + 1])
    last = np.append(first[1:], len(values))
    middles: NDArray[np.int64] = (first + last - 1) // 2
    return middles


def _turns(queues: Sequence[NDArray[np.int64]]) -> list[tuple[int, int]]:
    """(queue, its entry): the first of each, the second of each, and so on."""
    longest = max((len(queue) for queue in queues), default=0)
    return [
        (kind, int(queue[place])) for place in range(longest) for kind, queue in enumerate(queues) if place < len(queue)
    ]
