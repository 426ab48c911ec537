"""Nodes are given out once, the least bound first, and nothing is proven of what somebody is still at work at."""

from __future__ import annotations

import math
import threading

import numpy as np
import pytest

from poetopt.search.branching.tree import Open, Tree


class Watched:
    """A tree over two columns, and what it told."""

    def __init__(self, enough: float = math.inf) -> None:
        self.value = math.inf
        self.bounds: list[float] = []
        self.enough = enough
        self.left_s = math.inf
        self.tree = Tree(
            np.zeros(2),
            np.ones(2),
            cutoff=lambda: self.value,
            on_bound=self.told,
            gap=0.0,
            remaining_s=lambda: self.left_s,
        )

    def told(self, bound: float) -> bool:
        self.bounds.append(bound)
        return bound >= self.enough

    def children(self, *bounds: float) -> list[Open]:
        return [self.tree.open(bound, np.zeros(2), np.array([0.0, 1.0]), None) for bound in bounds]


def taken(tree: Tree) -> Open:
    node = tree.take()
    assert node is not None
    return node


def test_the_least_bound_comes_first_and_the_rest_counts() -> None:
    watched = Watched()
    taken(watched.tree)
    watched.tree.put(watched.children(3.0, 1.0, 2.0))
    assert taken(watched.tree).bound == 1.0
    assert watched.tree.bound == 1.0
    watched.tree.put([])
    assert watched.tree.bound == 2.0


def test_a_node_says_how_it_differs_from_the_root() -> None:
    watched = Watched()
    (child,) = watched.children(1.0)
    assert (child.columns.tolist(), child.lower.tolist(), child.upper.tolist()) == ([0], [0.0], [0.0])


def test_nothing_is_proven_of_what_is_at_work() -> None:
    """One holds a node of bound 1 while the other empties the tree: it waits, and 1 stays what is proven."""
    watched = Watched()
    tree = watched.tree
    taken(tree)
    tree.put(watched.children(1.0, 5.0))
    assert taken(tree).bound == 1.0
    seen: list[float | None] = []

    def other() -> None:
        while (node := tree.take()) is not None:
            seen.append(node.bound)
            tree.put([])

    thread = threading.Thread(target=other)
    thread.start()
    thread.join(0.3)
    assert thread.is_alive()
    assert seen == [5.0]
    assert max(watched.bounds) == 1.0
    tree.put(watched.children(2.0))
    thread.join(30.0)
    assert not thread.is_alive()
    assert seen == [5.0, 2.0]
    assert watched.bounds[-1] == math.inf
    assert tree.over


def test_a_whole_point_and_a_known_one_end_it() -> None:
    watched = Watched()
    taken(watched.tree)
    watched.tree.whole(4.0)
    watched.tree.put(watched.children(4.5))
    assert watched.tree.take() is None
    assert watched.bounds[-1] == 4.0
    known = Watched()
    taken(known.tree)
    known.value = 4.0
    known.tree.put(known.children(4.5))
    assert known.tree.take() is None
    assert known.bounds[-1] == 4.0


def test_enough_is_enough() -> None:
    watched = Watched(enough=2.0)
    taken(watched.tree)
    watched.tree.put(watched.children(2.0))
    assert watched.tree.take() is None


def test_who_gives_up_ends_it_for_all() -> None:
    watched = Watched()
    taken(watched.tree)
    thread = threading.Thread(target=watched.tree.take)
    thread.start()
    watched.tree.give_up()
    thread.join(30.0)
    assert not thread.is_alive()
    assert all(math.isinf(bound) and bound < 0 for bound in watched.bounds)


def test_what_a_node_takes_is_counted_without_dives() -> None:
    watched = Watched()
    taken(watched.tree)
    watched.tree.work.compute(4.0)
    watched.tree.put(watched.children(1.0, 2.0))
    taken(watched.tree)
    thread = threading.Thread(target=taken, args=(watched.tree,))
    thread.start()
    thread.join(30.0)
    watched.tree.work.compute(12.0)
    watched.tree.dived(5.0)
    watched.tree.dived(5.0)
    assert watched.tree._node_s == pytest.approx((4.0 + 6.0 + 6.0 - 10.0) / 3)


def test_no_dives_where_nothing_is_to_be_found() -> None:
    tree = Tree(np.zeros(2), np.ones(2), cutoff=lambda: math.inf, on_bound=lambda _: False, gap=0.0, dives=False)
    taken(tree)
    assert tree.time_to_dive() == 0.0
