"""Outputs that are written over an input: optima against exhaustive searches, plans by all their readers."""

from __future__ import annotations

import random

import pytest

from poetopt.comparison.baselines import method
from poetopt.plan.assemble import plan_of, schedule_of
from poetopt.plan.codec import from_json, to_json
from poetopt.plan.instructions import Plan
from poetopt.plan.layout import arena_bytes, check_layout, lay_out
from poetopt.plan.normalize import normalize
from poetopt.plan.schedule import Schedule
from poetopt.plan.simulate import simulate
from poetopt.search.diagnosis.minimum_budget import least_ram
from poetopt.search.search import search
from poetopt.search.solution import Options, Status
from tests.seeds import some
from tests.support.bruteforce import stage_optimum
from tests.support.closed import closed
from tests.support.taken import tight_with_takes
from tests.support.three_steps import run_thrice

TOLERANCE = 1e-6
X, Y, DY, DX, DW = range(5)


@pytest.mark.parametrize("seed", some(range(400), 10))
def test_optima_are_those_of_exhaustive_searches(seed: int) -> None:
    problem, ram_bytes = tight_with_takes(random.Random(seed))
    found = {
        name: search(problem, Options(ram_bytes=ram_bytes, scope="full", formulation=name, gap=0.0, threads=1))
        for name in ("retention", "poet")
    }
    by_stages = stage_optimum(problem, ram_bytes)
    for one in found.values():
        if one.simulation is None:
            assert by_stages is None or one.status is not Status.INFEASIBLE
            continue
        assert one.simulation.peak_bytes <= ram_bytes
    if by_stages is not None and closed(found["poet"]):
        assert found["poet"].scope_bound_j == pytest.approx(by_stages.overhead_j, abs=TOLERANCE)


@pytest.mark.parametrize("seed", some(range(200), 10))
def test_plans_of_all_makers_are_laid_out_and_written(seed: int) -> None:
    problem, ram_bytes = tight_with_takes(random.Random(1000 + seed))
    plans = [plan_of(problem, Schedule())]
    known = least_ram(problem, Options(ram_bytes=simulate(plans[0]).peak_bytes))
    found = search(problem, Options(ram_bytes=known or ram_bytes, scope="depth:2", threads=1))
    plans += [found.plan] if found.plan is not None else []
    plans.append(method("dtr").schedule(problem, simulate(plans[0]).peak_bytes))
    for plan in plans:
        plain = normalize(Plan(problem, plan.instructions))
        assert simulate(plain).peak_bytes <= simulate(plan).peak_bytes
        again = plan_of(problem, schedule_of(plain))
        assert simulate(again).peak_bytes <= simulate(plain).peak_bytes
        laid = lay_out(again)
        check_layout(laid, arena_bytes(laid))
        run_thrice(laid)
        assert from_json(to_json(laid)).plan.problem.operators == problem.operators
