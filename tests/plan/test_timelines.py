"""Ten plans over the zoo and the catalogue: the simulator's clock against the event queue of `reference`."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

import poetopt as po
from poetopt.graph.problem import Problem
from poetopt.plan.instructions import Action, Plan
from poetopt.plan.simulate import simulate
from poetopt.search.diagnosis.solve import solve
from poetopt.search.solution import Options
from tests.plan.reference import reference

CELLS = (
    ("lenet", "m4", False, 0.97, None),
    ("lenet", "rp2350", True, 0.97, 1.5),
    ("mlp", "m0", False, 0.8, 3.0),
    ("mlp", "stm32h743", True, 0.8, 1.2),
    ("vgg16-cifar", "m4", True, 0.9, 1.1),
    ("vgg16-cifar", "a72", False, 0.6, 1.5),
    ("vgg16-cifar", "orin-nano", True, 0.6, 2.0),
    ("bert-tiny", "a72", True, 0.5, 1.5),
    ("bert-tiny", "phone-a76", True, 0.45, None),
    ("bert-tiny", "rpi5", False, 0.5, 2.0),
)


@cache
def training(network: str) -> po.Training:
    found = po.load(network).differentiate()
    assert isinstance(found, po.Training)
    return found


def solved(network: str, device: str, dma: bool, share: float, factor: float | None) -> tuple[Problem, Options, Plan]:
    problem = training(network).cost(replace(po.device(device), dma=dma))
    options = Options(
        ram_bytes=int(share * po.store_all_peak_bytes(problem)),
        deadline_s=None if factor is None else factor * problem.baseline_time_s,
        scope="depth:4",
        time_limit_s=20.0,
        threads=1,
    )
    plan = solve(problem, options).plan
    assert plan is not None
    return problem, options, plan


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: "-".join(map(str, cell)))
def test_the_timeline_is_that_of_an_independent_event_queue(cell: tuple[str, str, bool, float, float | None]) -> None:
    problem, options, plan = solved(*cell)
    assert problem.dma == cell[2]
    found, expected = simulate(plan), reference(plan)
    assert list(found.live_bytes) == expected.live_bytes
    assert found.peak_bytes == expected.peak_bytes <= options.ram_bytes
    assert found.energy_j == pytest.approx(expected.energy_j, rel=1e-12)
    assert found.makespan_s == pytest.approx(expected.makespan_s, rel=1e-12)
    if options.deadline_s is not None:
        assert expected.makespan_s <= options.deadline_s * (1 + 1e-9)
    assert len(expected.start_s) == len(plan.instructions)
    for k, step in enumerate(plan.instructions):
        if step.action is not Action.FREE:
            assert found.start_s[k] == pytest.approx(expected.start_s[k], rel=1e-12, abs=1e-15)
            assert found.end_s[k] == pytest.approx(expected.end_s[k], rel=1e-12, abs=1e-15)
