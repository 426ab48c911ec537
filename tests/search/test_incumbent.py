"""What is offered to an incumbent, quickly or for good."""

from __future__ import annotations

import random

from poetopt.plan.assemble import plan_of
from poetopt.plan.simulate import simulate
from poetopt.search.heuristics.greedy import greedy
from poetopt.search.incumbent import Incumbent
from poetopt.search.solution import Options
from poetopt.testing.problems import tight
from tests.seeds import some


def test_a_quick_offer_that_has_no_layout_says_nothing_of_a_schedule() -> None:
    """It is taken once there is time for its layout, and none of it counts towards what the search tightens by."""
    placed = later = 0
    for seed in some(range(150), 40):
        problem, ram_bytes = tight(random.Random(seed), forward=20)
        schedule = greedy(problem, ram_bytes, paging=True, remat=True)
        if schedule is None:
            continue
        peak = simulate(plan_of(problem, schedule)).peak_bytes
        incumbent = Incumbent(problem, Options(ram_bytes=peak))
        if incumbent.offer(schedule, quick=True):
            placed += 1
            assert incumbent.best is not None
            assert incumbent.best.arena_bytes <= peak
            continue
        assert incumbent.best is None
        assert incumbent.refused(schedule) is None
        assert incumbent.arena_excess is None
        assert not incumbent.offer(schedule, quick=True)
        later += incumbent.offer(schedule)
    assert placed > 2 / 3 * len(some(range(150), 40))
    assert later > 0
