"""Branch and cut beside the solver's search of the same model, in a thread of its own.

The one proves what the other finds: both tell the run of bounds and schedules as they come, and whoever closes the gap
ends both.
"""

from __future__ import annotations

import math
import threading
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from types import TracebackType
from typing import Any, Self

from poetopt.backends.solvers.attend import TURN_S, Workers
from poetopt.backends.solvers.nodes import Nodes, StoppedError
from poetopt.backends.solvers.solver import Capability, Point, Session
from poetopt.formulations.rows import PointLike, Row
from poetopt.search.branching.branch_and_cut import BranchAndCut
from poetopt.search.branching.tree import Tree, worth
from poetopt.search.replays import Replays
from poetopt.search.run import Budget, Run
from poetopt.search.tuning import TREE_GRACE_S
from poetopt.util import interrupts
from poetopt.util.work import Elapsed

INTERRUPTED_S = 0.1


_workers = Workers(2, "branching")
"""For all trees of this process."""


class ParallelTree:
    """As a context: the tree of `model` grows inside. A backend without nodes, or a run kept to one thread, has none.

    infeasible
        Whether the tree proved that there is no schedule.
    sources
        The blocks whose rows the tree's bounds rest on.
    """

    def __init__(
        self,
        run: Run,
        budget: Budget,
        model: Any,
        session: Session,
        root: PointLike | None = None,
        bound_only: bool = False,
    ) -> None:
        """
        root
            The point to which the relaxation came: sums that it leaves open may be branched on.
        bound_only
            Whether the tree looks for no schedules.
        """
        self.run, self.budget, self.model, self.session = run, budget, model, session
        self.infeasible, self.sources = False, frozenset[str]()
        self._root, self._bound_only = root, bound_only
        self._ended, self._begun_s = threading.Event(), run.work.seconds
        self._nodes: Nodes | None = None
        self._tree: Tree | None = None
        self._futures: list[Future[object]] = []

    def __enter__(self) -> Self:
        if self.run.options.threads != 1 and Capability.NODES in self.session.capabilities:
            counts = [] if self._root is None else worth(self.run.chosen.counts(self.model), self._root)
            self._nodes = self.session.nodes(counts)
            self._tree = self.tree(self._nodes)
            self._futures.append(_workers.submit(partial(self._grow, self._tree, self._nodes)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._nodes is None:
            return
        self._ended.set()
        self._nodes.stop()
        left = [future for future in self._futures if not future.cancel()]
        # After an interrupt a tree that is slow to notice is left behind: what it tells is not heard any more.
        wait(left, timeout=INTERRUPTED_S if isinstance(error, KeyboardInterrupt) else None)
        if error is None:
            for future in left:
                future.result()

    def tree(self, nodes: Nodes) -> Tree:
        """The tree over the relaxation of `nodes`, which tells the run what it proves."""
        return Tree(
            nodes.lower,
            nodes.upper,
            cutoff=lambda: math.inf if self.run.incumbent.value is None else self.run.incumbent.value,
            on_bound=self._told,
            gap=self.budget.gap / 2,
            remaining_s=lambda: self.budget.meant_s,
            work=nodes.work,
            dives=not self._bound_only,
        )

    def explorer(self, tree: Tree, nodes: Nodes) -> BranchAndCut:
        """One who explores it, and tells the run what is found."""
        replays = Replays(self.run, self.budget, self.model, tree.work)
        return BranchAndCut(
            tree,
            nodes,
            separate=self._rows,
            judge=self._judged,
            follow=replays.follow_some,
        )

    @property
    def grows(self) -> bool:
        """Say whether there is a tree that isn't given up."""
        return self._tree is not None and not self._tree.over

    @property
    def failed(self) -> bool:
        """Say whether an error (a separator's, say) ended one who explores it: it is raised where the context ends."""
        return any(future.done() and future.exception() is not None for future in self._futures)

    def catch_up(self) -> None:
        """Let the tree do as much as the search beside it did, where that ends with the gap open.

        Which of the two a busy machine slows down then changes little of what is found.
        """
        wanted = self.run.work.seconds - self._begun_s
        while self.grows and not self._caught_up(wanted) and not self.run.closed(self.budget.gap):
            interrupts.check()
            if wait(self._futures, timeout=TURN_S, return_when=FIRST_COMPLETED).done:
                return

    def _caught_up(self, wanted_s: float) -> bool:
        assert self._tree is not None
        return self.run.work.clock_s <= 0 or isinstance(self.run.work, Elapsed) or self._tree.work.seconds >= wanted_s

    def take_over(self) -> None:
        """Two explore the tree until it ends, or the time."""
        tree = self._tree
        assert tree is not None
        assert self._nodes is not None
        self._futures.append(_workers.submit(partial(self._explore, tree, self._nodes.twin())))
        left_s, begun_s = self.run.remaining_s(self.budget), tree.work.seconds
        while (
            not tree.over
            and self.run.work.clock_s > 0
            and tree.work.seconds - begun_s < 2 * left_s
            and not self.run.closed(self.budget.gap)
        ):
            interrupts.check()
            for future in wait(self._futures, timeout=TURN_S, return_when=FIRST_COMPLETED).done:
                future.result()  # an error of either ends it

    def _grow(self, tree: Tree, nodes: Nodes) -> None:
        if not self._ended.wait(TREE_GRACE_S):
            self._explore(tree, nodes)

    def _explore(self, tree: Tree, nodes: Nodes) -> None:
        try:
            self.explorer(tree, nodes).run()
        except StoppedError:
            return

    def _rows(self, point: Point) -> list[Row]:
        with self.run.lock:  # two may explore
            rows = self.run.separate(self.model, point)
            self.sources |= {row.block for row in rows}
        return rows

    def _judged(self, point: Point) -> list[Row]:
        rows = [row for row in self._rows(point) if row.core]
        if not rows:
            schedule = self.run.chosen.points.schedule(self.model, point)
            self.run.offer(schedule, "branching")
            row = self.run.left_out(self.model, schedule)
            return [] if row is None else [row]
        return rows

    def _told(self, bound: float) -> bool:
        if math.isinf(bound):
            self.infeasible = bound > 0
            return self.infeasible
        self.run.raise_bound(bound, "branching")
        return self.run.closed(self.budget.gap)
