"""The open nodes of a branch and bound, and what their bounds prove: shared by all who explore it.

The node with the least bound is given out first. What is proven is the least bound of those that are open and of those
at which somebody is at work.
"""

from __future__ import annotations

import heapq
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from poetopt.backends.solvers.nodes import Floats, Nodes
from poetopt.formulations.rows import Count, PointLike
from poetopt.util.work import Work

MOST_OPEN = 20_000
"""A tree that is wider gives up: each node has a basis, and what is proven rises no more."""
QUICK = 8_000
"""A tree of at most so many columns gets through hundreds of nodes in a minute."""
DIVE_SHARE, DIVE_S = 0.25, 2.0
"""Share of a tree's time beyond which no further dive begins, and none goes on, though for so many seconds at least."""
PROBE_S, PROBE_SHARE = (2.0, 0.5), 0.1
"""Probing may take so many seconds at least, at the root and at others; at the root, this share of what is left."""
TURN_S = 0.1
"""The time between two looks of one who waits for a node whether the tree is given up."""


@dataclass(order=True)
class Open:
    """A node to be explored: the least bound first, of equal ones the latest.

    Kept are the `columns` (m,) whose bounds aren't the root's, and theirs: nodes are many, and so are columns.
    """

    bound: float
    order: int
    columns: NDArray[np.int64] = field(compare=False)
    lower: Floats = field(compare=False)
    upper: Floats = field(compare=False)
    basis: object = field(compare=False)


class Pseudocosts:
    """The gains of branching on columns: sums and counts by column and side, per unit of what it moved."""

    def __init__(self, columns: int) -> None:
        self._sums, self.counts = np.zeros((columns, 2)), np.zeros((columns, 2))

    def learn(self, column: int, side: int, gain: float) -> None:
        self._sums[column, side] += gain
        self.counts[column, side] += 1

    def gains(self, columns: NDArray[np.int64]) -> Floats:
        """(m, 2) of columns; the mean of all where there is nothing of one."""
        mean = self._sums.sum(axis=0) / np.maximum(self.counts.sum(axis=0), 1)
        own = self._sums[columns] / np.maximum(self.counts[columns], 1)
        return np.where(self.counts[columns] > 0, own, mean)


class Tree:
    """Give out nodes with `take`, and take their children back with `put`, from any number of threads.

    `counting` says whether counts may be branched on; who explores the root decides it.

    lower, upper
        (n,) bounds of the columns at the root.
    cutoff
        The value of the best solution known anywhere; inf.
    on_bound
        Told what is proven whenever a node is given out (inf: that there is no solution); says whether that is enough.
    gap
        Nothing is looked for that is better than the best solution by less than this share of it.
    remaining_s
        Seconds that are left.
    work
        Counts what all who explore do.
    dives
        Whether solutions are to be looked for below nodes.
    """

    def __init__(
        self,
        lower: Floats,
        upper: Floats,
        *,
        cutoff: Callable[[], float],
        on_bound: Callable[[float], bool],
        gap: float,
        remaining_s: Callable[[], float] = lambda: math.inf,
        work: Work | None = None,
        dives: bool = True,
    ) -> None:
        self.lower, self.upper = lower, upper
        self._cutoff, self._on_bound, self._gap, self._remaining_s = cutoff, on_bound, gap, remaining_s
        self._dives = dives
        self.learned = Pseudocosts(len(lower))
        self.explored = 0
        self.counting = True
        self._whole = math.inf
        self._queue = [self.open(-math.inf, lower, upper, None)]
        self._at_work: dict[int, float] = {}
        """By thread: what is proven of the node that it took."""
        self.work = work or Work()
        self._begun_s = self.work.seconds
        self._count = 0
        self._over = False
        self._change = threading.Condition()
        self._next_dive, self._dived_s = 1, 0.0

    def open(self, bound: float, lower: Floats, upper: Floats, basis: object) -> Open:
        """A node with these bounds, (n,) each."""
        columns = np.flatnonzero((lower != self.lower) | (upper != self.upper))
        return Open(bound, 0, columns, lower[columns], upper[columns], basis)

    def limit(self) -> float:
        """Nodes from here on are of no interest."""
        cutoff = self._cutoff()
        return cutoff - self._gap * abs(cutoff) if math.isfinite(cutoff) else cutoff

    def whole(self, value: float) -> None:
        """A point of `value` was whole and broke nothing, whatever became of it."""
        with self._change:
            self._whole = min(self._whole, value)

    @property
    def bound(self) -> float:
        """The bound of all that is left."""
        with self._change:
            first = self._queue[0].bound if self._queue else math.inf
            return min(first, self._whole, *self._at_work.values(), self.limit())

    @property
    def over(self) -> bool:
        """Say whether nobody needs to look any further, or can."""
        return self._over

    @property
    def quick(self) -> bool:
        """Say whether its nodes take little."""
        return len(self.lower) <= QUICK

    def give_up(self) -> None:
        """Nobody is given a node any more."""
        with self._change:
            self._over = True
            self._change.notify_all()

    def take(self) -> Open | None:
        """The next node, once there is one; None when nothing is left, or what is proven is enough."""
        with self._change:
            while not self._over:
                if self._finished():
                    self._over = True
                    self._change.notify_all()
                elif self._queue:
                    node = heapq.heappop(self._queue)
                    if node.bound < self.limit():
                        self._at_work[threading.get_ident()] = node.bound
                        self.explored += 1
                        return node
                else:
                    self._change.wait(TURN_S)  # somebody's children are still to come
            return None

    def put(self, children: Sequence[Open]) -> None:
        """The open children of the node that this thread took."""
        with self._change:
            for child in children:
                self._count -= 1
                child.order = self._count
                heapq.heappush(self._queue, child)
            del self._at_work[threading.get_ident()]
            self._change.notify_all()

    def _finished(self) -> bool:
        """Tell what is proven, if anything; whether that is all that there is to say."""
        bound = self.bound
        if self._on_bound(bound) or bound >= min(self._whole, self.limit()):
            return True
        return len(self._queue) >= MOST_OPEN or not (self._queue or self._at_work)

    def time_to_probe(self) -> float:
        """Seconds that probing may take at the node at hand: at the root a share of the rest, else a node's time."""
        with self._change:
            if self.explored == 1:
                return max(PROBE_S[0], PROBE_SHARE * self._remaining_s())
            return max(PROBE_S[1], self._node_s)

    @property
    def _node_s(self) -> float:
        """The mean seconds of a node, without dives."""
        return (self._spent_s - self._dived_s) / self.explored

    @property
    def _spent_s(self) -> float:
        """The seconds that all who explore have spent on nodes."""
        return self.work.seconds - self._begun_s

    def time_to_dive(self) -> float:
        """Seconds that a dive may take now, at nodes 1, 2, 4, ...; 0 where none is due. What it took is for `dived`."""
        with self._change:
            share_s = DIVE_SHARE * self._spent_s
            if not self._dives or self.explored < self._next_dive or self._dived_s > share_s:
                return 0.0
            self._next_dive = 2 * self.explored
            return max(DIVE_S, share_s)

    def dived(self, seconds: float) -> None:
        """Note the seconds of a dive."""
        with self._change:
            self._dived_s += seconds


# What a tree may branch on, in the order in which it is looked at.
#
# A relaxation on a plateau is a mixture of schedules, in halves or thirds, and most of its columns say the same: a
# tensor that is half there is so in each of twenty stages. So of a run of neighbours with one value a single one is
# looked at. What costs something, what doesn't, and what counts others take turns: which kind divides a mixture differs
# by model, and where many tensors are of one size only their number does.

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
