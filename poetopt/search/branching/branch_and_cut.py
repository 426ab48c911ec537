"""Branch and cut: what is done at each node of a tree of relaxations, in which rows are separated at every one.

A solver's own search takes the rows that were found before it began, and branches on what they left open. But what is
open after a branching is open for other reasons, and a few cuts there close most of it: a tree of some ten nodes proves
here what takes a solver thousands of its own. It finds solutions only where a relaxation happens to be whole, so that
it is at its best beside a search that finds them.

Which variable: a child's relaxation is solved a few iterations far for as long as that brings a better one to branch
on (strong branching), and what was learned of a variable serves later nodes (its pseudocosts).

Source: Achterberg, Koch and Martin, "Branching rules revisited", Operations Research Letters 33 (2005).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from poetopt.backends.solvers.nodes import Floats, Nodes, Vertex
from poetopt.backends.solvers.solver import Point
from poetopt.formulations.rows import Row
from poetopt.search.branching.tree import Open, Tree, at_first, representatives

WHOLE = 1e-6
"""An integer is whole within this."""
ROUNDS = 5
"""At most so many rounds of separation at a node below the root."""
ROUND_GAIN = 2e-3
"""A round that closes less than this share of what is open at a node is its last, but for the first one."""
NEAR = 0.2
"""In a dive all variables may be held at once that are nearer to whole than this."""
LOOK = (60, 20)
"""At most so many variables are probed at the root, and at other nodes."""
LOOK_ON = (30, 5)
"""Probing ends after so many in a row that were no better than the best."""
RELIABLE = 8
"""Knowledge of a variable counts at other nodes once each of its sides was solved so often; in a large tree,
where probing is dear, once it was solved at all."""
COUNTED = 0.25
"""The gain of branching on a count, the product of both sides, is worth this share of the same on a single variable:
below it all that it counts is open still. Where no count is best at the root, none is branched on in that tree."""
SUMMED = 100
"""A sum of columns that are whole may be so many times further from it."""
MOST_STEPS = 200
"""Of a dive, and of separation at one node: a point may break a row by less than a solver can tell."""
LEAST = 1e-5
"""A child that is no better than its parent counts as better by this share of what is open."""


class BranchAndCut:
    """One who explores a tree.

    tree
        Shared with others, each in a thread of their own.
    nodes
        The relaxation; of this one alone.
    separate
        The rows that a vertex breaks.
    judge
        Told each point that is whole; the rows of the model that it breaks, or nothing where it was taken for what it
        is worth.
    follow
        Told the point of each node that isn't whole, once its rows are there: what to make of it is its matter.
    """

    def __init__(
        self,
        tree: Tree,
        nodes: Nodes,
        *,
        separate: Callable[[Point], list[Row]],
        judge: Callable[[Point], list[Row]],
        follow: Callable[[Point], None] = lambda _: None,
    ) -> None:
        self._tree, self._nodes = tree, nodes
        self._separate, self._judge, self._follow = separate, judge, follow
        self._reliable = RELIABLE if tree.quick else 1

    def run(self) -> None:
        """Explore until nothing is open or what is proven is enough. Raises StoppedError where the nodes do."""
        try:
            while (node := self._tree.take()) is not None:
                self._tree.put(self._children(node))
        except BaseException:
            self._tree.give_up()  # nobody is to wait for this one's children
            raise

    def _children(self, node: Open) -> list[Open]:
        nodes, tree = self._nodes, self._tree
        lower, upper = nodes.lower.copy(), nodes.upper.copy()
        lower[node.columns], upper[node.columns] = node.lower, node.upper
        nodes.enter(lower, upper)
        vertex = self._cut(nodes.solve(node.basis, self._tree.limit()))
        if vertex is None:
            return []
        open_ = self._fractional(vertex)
        if not len(open_):
            tree.whole(vertex.objective)
            return []
        self._follow(nodes.point(vertex, False))
        lower, upper = self._fixed(vertex, lower, upper, tree.limit())
        bound = max(node.bound, vertex.objective)
        seconds = tree.time_to_dive()
        if seconds:
            begin = tree.work.seconds
            self._dive(vertex, lower, upper, begin + seconds)
            tree.dived(tree.work.seconds - begin)
        nodes.enter(lower, upper)
        return self._branch(vertex, open_, lower, upper, bound)

    def _dive(self, vertex: Vertex, lower: Floats, upper: Floats, until: float) -> None:
        """Look for a solution below a node: hold what is nearly whole, solve, and again; turn back once at a time.

        until
            What is done by all when it is given up, in seconds.
        """
        lower, upper = lower.copy(), upper.copy()
        found: Vertex | None = vertex
        for _ in range(MOST_STEPS):
            if found is None or self._tree.work.seconds > until:
                return
            open_ = self._fractional(found)
            if not len(open_):
                rows = self._judge(self._nodes.point(found, True))
                if not rows:
                    return
                self._nodes.add(rows)
                found = self._nodes.solve(None, self._tree.limit())
                continue
            self._follow(self._nodes.point(found, False))
            held = self._nearly_whole(found, open_)
            before = lower[held], upper[held]
            below = self._held(found, held, np.round(found.values[held]), lower, upper)
            if below is None:
                lower[held], upper[held] = before
                first, value = held[:1], found.values[held[:1]]
                other = np.where(np.round(value) > value, np.floor(value), np.ceil(value))
                below = self._held(found, first, other, lower, upper)
            found = below

    def _nearly_whole(self, vertex: Vertex, open_: NDArray[np.int64]) -> NDArray[np.int64]:
        """The columns that a dive holds next, the nearest to whole first: one, or up to a fifth of the open."""
        away = np.abs(vertex.values[open_] - np.round(vertex.values[open_]))
        order = np.argsort(away, kind="stable")
        near = int(np.searchsorted(away[order], NEAR))
        return open_[order[: max(1, min(near, len(open_) // 5))]]

    def _held(
        self, vertex: Vertex, columns: NDArray[np.int64], values: Floats, lower: Floats, upper: Floats
    ) -> Vertex | None:
        """The vertex below with `columns` at `values`; the bounds are changed."""
        lower[columns] = upper[columns] = values
        self._nodes.enter(lower, upper)
        return self._nodes.solve(vertex.basis, self._tree.limit())

    def _fractional(self, vertex: Vertex) -> NDArray[np.int64]:
        away = np.abs(vertex.values - np.round(vertex.values))
        away[len(away) - self._nodes.counts :] = 0.0  # whole where what they count is
        return np.flatnonzero(self._nodes.integer & (away > WHOLE))

    def _cut(self, vertex: Vertex | None) -> Vertex | None:
        """The vertex once the rows that it breaks are there; None where nothing of interest is left."""
        rounds = 0
        for _ in range(MOST_STEPS):
            if vertex is None:
                break
            whole = not len(self._fractional(vertex))
            point = self._nodes.point(vertex, whole)
            rows = self._judge(point) if whole else self._separate(point)
            if not rows:
                break
            before = vertex
            self._nodes.add(rows)
            rounds += 1
            vertex = self._nodes.solve(None, self._tree.limit())
            if vertex is None or whole:
                continue  # a point that breaks rows of the model can't stay
            little = vertex.objective - before.objective < ROUND_GAIN * (self._tree.limit() - vertex.objective)
            last = (little and rounds > 1) or (rounds >= ROUNDS and self._tree.explored > 1)
            if last and len(self._fractional(vertex)):
                break
        return vertex

    def _fixed(self, vertex: Vertex, lower: Floats, upper: Floats, limit: float) -> tuple[Floats, Floats]:
        """A node's bounds without what only solutions beyond `limit` have, by the reduced costs."""
        lower, upper = lower.copy(), upper.copy()
        if math.isfinite(limit):
            slack = limit - vertex.objective + 1e-6 * abs(limit)
            stays = self._nodes.integer & (np.abs(vertex.reduced) > slack)
            down = stays & (vertex.reduced > 0) & (vertex.values - lower < WHOLE)
            up = stays & (vertex.reduced < 0) & (upper - vertex.values < WHOLE)
            upper[down] = lower[down]
            lower[up] = upper[up]
        return lower, upper

    def _branch(
        self, vertex: Vertex, open_: NDArray[np.int64], lower: Floats, upper: Floats, bound: float
    ) -> list[Open]:
        """The two children of the node that is entered, by the best of the columns `open_`; fewer where one is void."""
        tree, n = self._tree, len(vertex.values) - self._nodes.counts
        best: tuple[float, int, tuple[float, float]] | None = None
        since = 0
        until = tree.work.seconds + tree.time_to_probe()
        root = tree.explored == 1
        if tree.counting:
            away = np.abs(vertex.values[n:] - np.round(vertex.values[n:]))
            open_ = np.concatenate([open_, n + np.flatnonzero(away > SUMMED * WHOLE)])
        most, patience = (LOOK[0], LOOK_ON[0]) if root else (LOOK[1], LOOK_ON[1])
        for column in self._promising(vertex, open_)[:most].tolist():
            known = not root and bool(tree.learned.counts[column].min() >= self._reliable)
            if known:
                gains = self._expected(vertex, column)
                bounds = vertex.objective, vertex.objective
            else:
                gains, bounds = self._probed(vertex, column, lower, upper)
            if math.isinf(bounds[0]) and math.isinf(bounds[1]):
                return []
            floor = math.floor(vertex.values[column])
            if math.isinf(bounds[0]):
                lower[column] = floor + 1
            if math.isinf(bounds[1]):
                upper[column] = floor
            if math.inf in bounds:
                self._nodes.enter(lower, upper)
            score = self._score(vertex, gains)
            if column >= n:
                score *= COUNTED
            if best is None or score > best[0] * 1.001:
                best, since = (score, column, bounds), 0
            else:
                since += 1
                if since >= patience:
                    break
            if tree.work.seconds > until:
                break
        assert best is not None
        if root:
            tree.counting = best[1] >= n
        return self._halves(vertex, best[1], (max(best[2][0], bound), max(best[2][1], bound)), lower, upper)

    def _halves(
        self, vertex: Vertex, column: int, bounds: tuple[float, float], lower: Floats, upper: Floats
    ) -> list[Open]:
        floor = math.floor(vertex.values[column])
        children = []
        for side in (0, 1):
            if math.isinf(bounds[side]):
                continue
            below, above = lower.copy(), upper.copy()
            if side == 0:
                above[column] = floor
            else:
                below[column] = floor + 1
            children.append(self._tree.open(max(bounds[side], vertex.objective), below, above, vertex.basis))
        return children

    def _promising(self, vertex: Vertex, open_: NDArray[np.int64]) -> NDArray[np.int64]:
        """The columns in the order in which they are looked at."""
        if not self._tree.learned.counts.any():
            return at_first(self._nodes, vertex.values, open_)
        open_ = representatives(self._nodes, vertex.values, open_)
        part = vertex.values[open_] - np.floor(vertex.values[open_])
        gains = self._tree.learned.gains(open_)
        least = self._least(vertex)
        scores = np.maximum(gains[:, 0] * part, least) * np.maximum(gains[:, 1] * (1 - part), least)
        return open_[np.argsort(-scores, kind="stable")]

    def _expected(self, vertex: Vertex, column: int) -> tuple[float, float]:
        part = vertex.values[column] - math.floor(vertex.values[column])
        (down, up) = self._tree.learned.gains(np.array([column]))[0]
        return float(down * part), float(up * (1 - part))

    def _probed(
        self, vertex: Vertex, column: int, lower: Floats, upper: Floats
    ) -> tuple[tuple[float, float], tuple[float, float]]:
        """The gains of branching on a column on both sides, and the bounds of each."""
        value = float(vertex.values[column])
        floor = math.floor(value)
        limit = self._tree.limit()
        sides = ((float(lower[column]), float(floor)), (float(floor + 1), float(upper[column])))
        found = [self._nodes.probe(column, *side, vertex.basis, limit) for side in sides]
        most = limit if math.isfinite(limit) else vertex.objective + abs(vertex.objective) + 1.0
        gains = [max(0.0, min(objective, most) - vertex.objective) for objective, _ in found]
        self._tree.learned.learn(column, 0, gains[0] / (value - floor))
        self._tree.learned.learn(column, 1, gains[1] / (floor + 1 - value))
        bounds = [objective if proven else vertex.objective for objective, proven in found]
        return (gains[0], gains[1]), (bounds[0], bounds[1])

    def _score(self, vertex: Vertex, gains: tuple[float, float]) -> float:
        least = self._least(vertex)
        return max(gains[0], least) * max(gains[1], least)

    def _least(self, vertex: Vertex) -> float:
        limit = self._tree.limit()
        return LEAST * ((limit - vertex.objective) if math.isfinite(limit) else abs(vertex.objective)) + 1e-300
