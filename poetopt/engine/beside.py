"""A tree of ours beside the solver's search of the same model, in a thread of its own.

The one proves what the other finds: both tell the run of bounds and schedules as they come, and whoever closes the gap
ends both.
"""

from __future__ import annotations

import math
import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from poetopt.backends.nodes import Nodes, StoppedError
from poetopt.backends.solver import Capability, Point, Session
from poetopt.engine.branching import BranchAndCut
from poetopt.engine.guided import Guide
from poetopt.engine.run import Run
from poetopt.formulations.language import Formulation, Row

INTERRUPTED_S = 0.1
GRACE_S = 0.3
"""What a solver closes in less isn't worth a second copy of the model."""

_worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="branching")
"""One thread for all trees of this process: HiGHS keeps its scheduler per thread."""


@dataclass
class Beside:
    """As a context: the tree of `model` grows inside. A backend without nodes, or a run kept to one thread, has none.

    infeasible
        Whether the tree proved that there is no schedule.
    sources
        The blocks whose rows the tree's bounds rest on.
    """

    run: Run
    chosen: Formulation
    model: Any
    session: Session
    infeasible: bool = False
    sources: frozenset[str] = frozenset()
    _ended: threading.Event = field(default_factory=threading.Event)
    _nodes: Nodes | None = None
    _future: Future[None] | None = None

    def __enter__(self) -> Self:
        if self.run.options.threads != 1 and Capability.NODES in self.session.capabilities:
            self._nodes = self.session.nodes()
            self._future = _worker.submit(self._grow, self._nodes)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._future is None or self._nodes is None:
            return
        self._ended.set()
        self._nodes.stop()
        if not self._future.cancel():
            # After an interrupt a tree that is slow to notice is left behind: what it tells is not heard any more.
            wait([self._future], timeout=INTERRUPTED_S if isinstance(error, KeyboardInterrupt) else None)
            if error is None:
                self._future.result()

    def tree(self, nodes: Nodes) -> BranchAndCut:
        """The tree from `nodes`, which tells the run what it finds."""
        return BranchAndCut(
            nodes,
            separate=self._rows,
            judge=self._judged,
            cutoff=lambda: math.inf if self.run.incumbent.value is None else self.run.incumbent.value,
            on_bound=self._told,
            gap=self.run.options.gap / 2,
            follow=Guide(self.run, self.chosen, self.model).follow_some,
        )

    def _grow(self, nodes: Nodes) -> None:
        if self._ended.wait(GRACE_S):
            return
        try:
            self.tree(nodes).run()
        except StoppedError:
            return

    def _rows(self, point: Point) -> list[Row]:
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
        return self.run.closed(self.run.options.gap)
