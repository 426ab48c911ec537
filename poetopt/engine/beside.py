"""A tree of ours beside the solver's search of the same model, in a thread of its own.

The one proves what the other finds: both tell the run of bounds and schedules as they come, and whoever closes the gap
ends both. A search that falls behind and finds nothing any more makes room for a second one at the tree.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from poetopt import interrupts
from poetopt.backends.attend import TURN_S
from poetopt.backends.nodes import Nodes, StoppedError
from poetopt.backends.solver import Capability, Point, Session
from poetopt.branching.branch_and_cut import BranchAndCut
from poetopt.branching.candidates import worth
from poetopt.branching.tree import Tree
from poetopt.engine.guide import Guide
from poetopt.engine.run import Run
from poetopt.formulations.language import Formulation
from poetopt.formulations.rows import PointLike, Row

INTERRUPTED_S = 0.1
GRACE_S = 0.3
"""What a solver closes in less isn't worth a second copy of the model."""

LEAD = 0.3
"""The tree leads where it has closed this share of what the search's bound leaves open."""
FRUITLESS_S = 5.0
"""A search that is behind goes on for this long, and for twice the time that it took to find what it found."""

_workers = ThreadPoolExecutor(max_workers=2, thread_name_prefix="branching")
"""The threads for all trees of this process: HiGHS keeps its scheduler per thread."""


@dataclass
class Beside:
    """As a context: the tree of `model` grows inside. A backend without nodes, or a run kept to one thread, has none.

    relaxed
        The point to which the relaxation came: counts that it leaves open may be branched on.
    rare
        Whether better schedules are, so that the tree doesn't look for any.
    infeasible
        Whether the tree proved that there is no schedule.
    sources
        The blocks whose rows the tree's bounds rest on.
    """

    run: Run
    chosen: Formulation
    model: Any
    session: Session
    relaxed: PointLike | None = None
    rare: bool = False
    infeasible: bool = False
    sources: frozenset[str] = frozenset()
    _ended: threading.Event = field(default_factory=threading.Event)
    _nodes: Nodes | None = None
    _tree: Tree | None = None
    _futures: list[Future[None]] = field(default_factory=list)

    def __enter__(self) -> Self:
        if self.run.options.threads != 1 and Capability.NODES in self.session.capabilities:
            counts = [] if self.relaxed is None else worth(self.chosen.counts(self.model), self.relaxed)
            self._nodes = self.session.nodes(counts)
            self._tree = self.tree(self._nodes)
            self._futures.append(_workers.submit(self._grow, self._tree, self._nodes))
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
            gap=self.run.gap / 2,
            remaining_s=lambda: self.run.remaining_s,
            dives=not self.rare,
        )

    def explorer(self, tree: Tree, nodes: Nodes) -> BranchAndCut:
        """One who explores it, and tells the run what is found."""
        guide = Guide(self.run, self.chosen, self.model)

        def follow(point: Point) -> None:
            guide.follow_some(point)
            if not tree.quick and not self.rare:  # dear relaxations leave time for it
                guide.wander(point)

        return BranchAndCut(
            tree,
            nodes,
            separate=self._rows,
            judge=self._judged,
            follow=follow,
        )

    @property
    def grows(self) -> bool:
        """Whether there is a tree that isn't given up."""
        return self._tree is not None and not self._tree.over

    def leads(self, bound: float, found_s: float, searched_s: float) -> bool:
        """Whether the processor of the search would be better used here.

        bound
            The search's.
        found_s, searched_s
            When it found its last schedule, and how long it has been at work.
        """
        tree, value = self._tree, self.run.incumbent.value
        explorers = sum(not future.done() for future in self._futures)
        if tree is None or tree.over or explorers > 1 or value is None:
            return False
        return searched_s > FRUITLESS_S + 2 * found_s and tree.bound - bound > LEAD * (value - bound)

    @property
    def failed(self) -> bool:
        """Whether an error (a separator's, say) ended one who explores it: it is raised where the context ends."""
        return any(future.done() and future.exception() is not None for future in self._futures)

    @property
    def wide(self) -> bool:
        """Whether the tree doesn't get on."""
        return self._tree is not None and self._tree.wide

    def take_over(self, *, unless_wide: bool = False) -> None:
        """Two explore the tree until it ends, or the time.

        unless_wide
            The second one leaves once the tree is wide: a solver's search gets on better then.
        """
        tree = self._tree
        assert tree is not None
        assert self._nodes is not None
        self._futures.append(
            _workers.submit(self._explore, tree, self._nodes.twin(), lambda: unless_wide and tree.wide)
        )
        while not tree.over and self.run.remaining_s > 0 and not self.run.closed(self.run.gap):
            interrupts.check()
            if unless_wide and tree.wide:
                return
            for future in wait(self._futures, timeout=TURN_S, return_when=FIRST_COMPLETED).done:
                future.result()  # an error of either ends it

    def _grow(self, tree: Tree, nodes: Nodes) -> None:
        if not self._ended.wait(GRACE_S):
            self._explore(tree, nodes)

    def _explore(self, tree: Tree, nodes: Nodes, leaves: Callable[[], bool] = lambda: False) -> None:
        try:
            self.explorer(tree, nodes).run(leaves)
        except StoppedError:
            return

    def _rows(self, point: Point) -> list[Row]:
        with self.run.guard:  # two may explore
            rows = self.run.separate(self.model, point)
            self.sources |= {row.block for row in rows}
        return rows

    def _judged(self, point: Point) -> list[Row]:
        rows = [row for row in self._rows(point) if row.core]
        if not rows:
            self.run.offer(self.chosen.schedule(self.model, point), "branching")
        return rows

    def _told(self, bound: float) -> bool:
        if math.isinf(bound):
            self.infeasible = bound > 0
            return self.infeasible
        self.run.raise_bound(bound, "branching")
        return self.run.closed(self.run.gap)
