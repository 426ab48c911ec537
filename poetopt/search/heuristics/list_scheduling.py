"""Relaxation-guided list scheduling: the greedy replay, which evicts and brings back by the relaxation's shares.

A relaxation that is nearly whole says nearly everything; rounded, it breaks some row. The replay keeps all of them by
construction: where memory is short it evicts what the relaxation keeps least of, and what is missing comes back in the
way of which the relaxation has more. It takes milliseconds, where a search for a point near the relaxation takes
seconds and may find none.

Source: list schedules in the order of a relaxation, as of Phillips, Stein and Wein, "Minimizing average completion time
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
"""Digits of a share that count: tensors that are kept alike are evicted by what they cost."""


@dataclass
class GuidedReplay(Replay):
    """A replay that follows the shares of a relaxation."""

    shares: FractionalSchedule = field(kw_only=True)

    def _pages(self, i: int) -> bool:
        stage, producer = self.stage, self._producer[i]
        paged = self.shares.page_ins.get((stage, i), 0.0)
        computed = self.shares.recomputes.get((stage, producer), 0.0)
        if computed > paged and self._may_recompute(producer) and self._recompute_cost(i) < math.inf:
            return False
        if paged > 0 and self._page_cost(i) < math.inf:
            return True
        return super()._pages(i)

    def _tiers(self, able: list[int]) -> Iterable[list[int]]:
        # as the step ends, what stays is brought back: shares are of the last stage then
        stage, next_read = min(self.stage, self.shares.kept.shape[1] - 1), self._next_read
        kept = np.round(self.shares.kept[able, stage], DIGITS).tolist()
        tiers: dict[float, list[int]] = {}
        for i, share in zip(able, kept, strict=True):
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
    """A schedule that aims at `ram_bytes` and follows `shares`, or None where nothing can be evicted.

    Like `greedy`, it isn't simulated, and runs forward operators again however long the chain.
    """
    ways = ways_of(problem, shares) if paging else ALL_PLAIN
    again, problem = may_run_again(problem, remat), lasting_of(problem, shares, streamed_out(problem, ways))
    if not problem.starts_within_storage:
        return None
    return GuidedReplay(
        problem, ram_bytes, paging and problem.paging, again, ways=ways, shares=shares, work=work or Work()
    ).run()
