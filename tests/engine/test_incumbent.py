"""What is offered to an incumbent, quickly or for good."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from poetopt.engine.incumbent import Incumbent
from poetopt.engine.solution import DeadlineModel, Options
from poetopt.heuristics.greedy import greedy
from poetopt.plan.assemble import plan_of
from poetopt.plan.simulate import simulate
from poetopt.testing.problems import tight
from tests.seeds import seeds


def test_a_quick_offer_that_has_no_layout_says_nothing_of_a_schedule() -> None:
    """It is taken once there is time for its layout, and none of it counts towards what the search tightens by."""
    placed = later = 0
    for seed in seeds(150):
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
    assert placed > 2 / 3 * len(seeds(150))
    assert later > 0


@pytest.mark.parametrize("model", list(DeadlineModel))
@pytest.mark.parametrize("dma", [False, True])
def test_what_is_late_in_any_order_of_transfers_weighs_nothing(model: DeadlineModel, dma: bool) -> None:
    late = 0
    for seed in range(60):
        problem, ram_bytes = tight(random.Random(seed), forward=8)
        problem = replace(problem, dma=dma)
        schedule = greedy(problem, ram_bytes, paging=True, remat=True)
        options = Options(ram_bytes=ram_bytes, deadline_s=1.05 * problem.baseline_time_s, deadline_model=model)
        incumbent = Incumbent(problem, options)
        if schedule is None or Incumbent(problem, Options(ram_bytes=ram_bytes)).weigh(schedule) == math.inf:
            continue
        if incumbent.weigh(schedule) == math.inf:
            assert not incumbent.offer(schedule)
            assert incumbent.makespan_excess_s is not None
            late += 1
    assert late > 5
