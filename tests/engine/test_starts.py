"""Starts that are given to a solve never leave it with less than it would find on its own."""

from __future__ import annotations

import random

from poetopt.baselines import method
from poetopt.engine.loop import _first_schedules
from poetopt.engine.run import Run
from poetopt.engine.solution import Options
from poetopt.errors import NoScheduleError
from poetopt.plan.assemble import schedule_of
from poetopt.plan.simulate import simulate
from tests.baselines.chains import chain


def test_a_dear_start_doesnt_keep_from_looking_for_quick_ones() -> None:
    """As in a comparison at another method's time: paging is cheap and slow, so that what costs least comes late."""
    rng = random.Random(5)
    better = 0
    for _ in range(75):
        layers = rng.randint(6, 12)
        sizes, costs = ([rng.randint(1, 5) for _ in range(layers)] for _ in range(2))
        problem = chain(
            layers, sizes=sizes, costs=list(map(float, costs)), paging=True, dma=True, page_s=3.0, page_j=0.01
        )
        least = problem.least_ram_bytes
        ram = rng.randint(least, least + sum(tensor.nbytes for tensor in problem.tensors) // 3)
        try:
            plan = method("dtr").schedule(problem, ram)
        except NoScheduleError:
            continue
        dear = simulate(plan)
        options = Options(ram_bytes=ram, deadline_s=dear.makespan_s)
        alone, given = Run(problem, options, None), Run(problem, options, None)
        _first_schedules(alone, False)
        _first_schedules(given, False, [schedule_of(plan)])
        if alone.incumbent.value is not None:
            assert given.incumbent.value is not None
            assert given.incumbent.value <= alone.incumbent.value
            better += given.incumbent.value < dear.overhead_j
    assert better
