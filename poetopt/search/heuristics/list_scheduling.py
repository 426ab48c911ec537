"""Relaxation-guided list scheduling: the greedy replay, with the relaxation's shares as its priorities.

A relaxation that is nearly integral determines nearly everything, but rounded it breaks some row. The replay satisfies
all rows by construction. If memory is short, it evicts the tensors with the smallest shares. A missing tensor returns
in the way with the larger share. This takes milliseconds, while a search for a point near the relaxation takes seconds
and may find none.

Source: list schedules in the order of a relaxation, as in Phillips, Stein and Wein, "Minimizing average completion time
in the presence of release dates", Mathematical Programming 82 (1998); the replay is DTR's, as in `greedy`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from poetopt.graph.problem import Problem
from poetopt.plan.schedule import FractionalSchedule, Schedule
from poetopt.search.heuristics.greedy import Replay, may_run_again
from poetopt.search.heuristics.ways import ALL_PLAIN, lasting_of, streamed_out, ways_of
from poetopt.util.work import Work

DIGITS = 1
"""Significant decimals of a share: among tensors with equal shares, the cost decides about eviction."""


@dataclass
class GuidedReplay(Replay):
    """Replay that follows the shares of a relaxation."""

    shares: FractionalSchedule = field(kw_only=True)

    def _prefers_paging(self, i: int) -> bool:
        stage, producer = self.stage, self._producer[i]
        paged = self.shares.page_ins.get((stage, i), 0.0)
        computed = self.shares.recomputes.get((stage, producer), 0.0)
        if computed > paged and self._may_recompute(producer) and self._recompute_cost(i) < math.inf:
            return False
        if paged > 0 and self._page_cost(i) < math.inf:
            return True
        return super()._prefers_paging(i)

    def _tiers(self, evictable: list[int]) -> Iterable[list[int]]:
        # at the end of the step, tensors that stay return, by the shares of the last stage
        stage, next_read = min(self.stage, self.shares.kept.shape[1] - 1), self._next_read
        kept = np.round(self.shares.kept[evictable, stage], DIGITS).tolist()
        tiers: dict[float, list[int]] = {}
        for i, share in zip(evictable, kept, strict=True):
            tiers.setdefault(share if next_read[i] > stage else 1.0, []).append(i)
        return (tiers[share] for share in sorted(tiers))


def list_schedule(
    problem: Problem,
    ram_bytes: int,
    shares: FractionalSchedule,
    *,
    paging: bool,
    remat: bool,
    work: Work | None = None,
) -> Schedule | None:
    """Return a schedule that aims at `ram_bytes` and follows `shares`, or None if nothing can be evicted.

    Like that of `greedy` it isn't simulated, and recomputes forward operators in chains of any length.
    """
    variants = ways_of(problem, shares) if paging else ALL_PLAIN
    recomputable, problem = may_run_again(problem, remat), lasting_of(problem, shares, streamed_out(problem, variants))
    if not problem.starts_within_storage:
        return None
    return GuidedReplay(
        problem, ram_bytes, paging and problem.paging, recomputable, ways=variants, shares=shares, work=work or Work()
    ).run()
