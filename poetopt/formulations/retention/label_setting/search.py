r"""Label setting: a dynamic program, stage by stage from the step's end to its beginning.

A *label* at the beginning of a stage is $(N, W, c)$: what the rest of the step needs in RAM, which tensors it pages in
(so that they are written out once), and what its recomputes and transfers cost. At the end it is
$(\emptyset, \emptyset, 0)$. Through stage t, backwards,

- t's own operator: $N := N \setminus out(t) \cup in(t)$, if $N$, its inputs, outputs and workspace fit;
- each operator j that may run again in t, the last first: not, or $N := N \setminus out(j) \cup in(j)$ for its cost, if
  $N \cap out(j) \ne \emptyset$ and $N$, its inputs, outputs and workspace fit (the intra-stage rows of `memory`);
- the tensors of $N$ that are read in t: kept, or paged in (and written out, where they aren't in $W$). A page-in at a
  stage that doesn't read it can wait for one that does. They come in where their operators would run again, so that
  what is decided last is decided sooner where an operator before that fits no other way.

What is needed is little where memory is tight, so labels are few where a relaxation mixes many schedules. Two things
keep them few. *Dominance*: of two labels one is left out whose $N$ holds the other's, and which costs no less than the
other with the page-outs that only it has paid. *Completion*: what is alive at an earlier stage s, and needed after it
(N, and real uses between s and t), is in RAM there or had again at a price of $\rho_i$ a byte at least (its operator
run again, or a page-in, with a page-out where it isn't in $W$). With $a_i$ the bytes of each and E what the room lacks,

$$ \min \Big\{ \sum_i \rho_i d_i : \sum_i d_i \ge E,\ 0 \le d_i \le a_i \Big\}
   = \max_\theta\ \theta E - \sum_i \max(0, \theta - \rho_i) a_i ; $$

any s and θ bound what the stages before t cost, and a label that comes to the limit so is left out.

A search below a limit ends with the least cost and its schedule, or proves that nothing costs less than the limit. What
it left out, it keeps for a higher limit.
"""

from __future__ import annotations

import math

import numpy as np

from poetopt.formulations.block import Limits
from poetopt.formulations.retention.enumeration import retention_space
from poetopt.formulations.retention.label_setting.dominance import undominated
from poetopt.formulations.retention.label_setting.extensions import WIDEST, Extensions, Key, Step
from poetopt.formulations.retention.space import RetentionSpace
from poetopt.graph.problem import Problem
from poetopt.plan.schedule import Schedule
from poetopt.util import interrupts
from poetopt.util.work import Work

FEW, GROWN = 50, 1.05
"""More labels than FEW are compared only where they are GROWN times those of the stage before."""


class Frontier:
    """The labels of one search, at the beginning of each stage: those that are followed, and those that wait.

    A label waits whose cost, with what completes it at least, isn't below any limit so far.
    """

    def __init__(self, extensions: Extensions, ceiling_j: float, seed: int | None) -> None:
        self._extensions, self._ceiling = extensions, ceiling_j
        self._draw = None if seed is None else np.random.default_rng(seed)
        stages = range(extensions.stages)
        self._costs: list[dict[Key, float]] = [{} for _ in stages]
        self._steps: list[dict[Key, Step]] = [{} for _ in stages]
        self._waiting: list[dict[Key, tuple[float, Step]]] = [{} for _ in stages]
        self._begun = False

    def below(self, limit_j: float, work: Work) -> tuple[float, Schedule] | bool:
        """The cheapest schedule, if it costs less than `limit_j`; True: there is none; False: it was given up.

        limit_j
            No less than the one before, and no more than the ceiling.
        work
            Counts what it does; once that is over it is given up, for good.
        """
        fresh: dict[Key, float] = {} if self._begun else {(0, 0): 0.0}
        self._begun, few = True, 0
        for t in range(self._extensions.stages - 1, -1, -1):
            interrupts.check()
            if fresh:
                found = self._extensions.before(t, fresh, self._ceiling, work)
                if found is None:
                    return False
                self._wait(t, found)
            coming = self._coming(t, limit_j)
            together = len(self._costs[t]) + len(coming)
            if together > WIDEST:
                return False
            if coming and (together < FEW or together > GROWN * few):
                kept = [label for label in self._costs[t].items() if label[0] not in coming]
                labels = [(key, step[0]) for key, step in coming.items()]
                chosen = undominated(self._extensions, kept, labels, work, self._draw)
                if chosen is None:
                    return False
                few = len(kept) + len(chosen)
                coming = {labels[x][0]: coming[labels[x][0]] for x in chosen}
            fresh = {key: step[0] for key, step in coming.items()}
            self._costs[t].update(fresh)
            self._steps[t].update(coming)
        ends = self._costs[0]
        if not ends:
            return True
        best = min(ends, key=lambda key: ends[key])
        return ends[best], self._schedule(best)

    def _wait(self, t: int, found: dict[Key, Step]) -> None:
        """Labels that are new or cheaper wait, if they may be completed below the ceiling."""
        known, waiting = self._costs[t], self._waiting[t]
        keys = [key for key, step in found.items() if step[0] < known.get(key, math.inf)]
        if not keys:
            return
        bits = self._extensions.bits([key[0] for key in keys]), self._extensions.bits([key[1] for key in keys])
        least = np.array([found[key][0] for key in keys]) + self._extensions.completion(*bits, t)
        for x in np.flatnonzero(least < self._ceiling):
            key, step = keys[x], found[keys[x]]
            if key not in waiting or step[0] < waiting[key][1][0]:
                waiting[key] = float(least[x]), step

    def _coming(self, t: int, limit_j: float) -> dict[Key, Step]:
        """The labels that need no longer wait."""
        known, waiting = self._costs[t], self._waiting[t]
        coming = {key: step for key, (least, step) in waiting.items() if least < limit_j}
        for key in coming:
            del waiting[key]
        return {key: step for key, step in coming.items() if step[0] < known.get(key, math.inf)}

    def _schedule(self, key: Key) -> Schedule:
        recomputes, page_ins = set[tuple[int, int]](), set[tuple[int, int]]()
        for stage, labels in enumerate(self._steps):
            _, _, following, decisions = labels[key]
            for again, x in decisions:
                (recomputes if again else page_ins).add((stage, x))
            key = following
        return Schedule(frozenset(recomputes), frozenset(page_ins))


class RetentionLabels:
    """The search over the labels of one space."""

    def __init__(self, space: RetentionSpace) -> None:
        self.space = space
        self._extensions = Extensions(space)

    @property
    def least_j(self) -> float:
        """What is plain of any schedule before a search."""
        return self._extensions.least_j

    def begin(self, ceiling_j: float, seed: int | None = None) -> Frontier:
        """A search below limits up to a ceiling; see `LabelSearch`."""
        return Frontier(self._extensions, ceiling_j, seed)


def label_search(problem: Problem, limits: Limits, scope: str, paging: bool, remat: bool) -> RetentionLabels | None:
    """The search over a scope; None where more counts than bytes and joules, or a label would be more than it is."""
    if limits.compute_s is not None or limits.makespan_s is not None or problem.wake_j:
        return None
    if problem.beyond() is not None:
        return None
    paging = paging and problem.paging
    capacity = problem.storage_blocks
    if paging and capacity is not None and sum(map(problem.blocks, range(len(problem.tensors)))) > capacity:
        return None
    if any(not math.isfinite(tensor.page_in_j + tensor.page_out_j) for tensor in problem.tensors):
        return None
    return RetentionLabels(retention_space(problem, limits, scope, paging, remat, True))
