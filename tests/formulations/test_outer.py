"""Where nothing is found, it is said of all plans only by proof: against searches instruction by instruction."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from poetopt.formulations import formulation
from poetopt.formulations.flash_wear import flash_wear
from poetopt.formulations.goal import ENERGY, TIME, Goal
from poetopt.formulations.language import Formulation
from poetopt.formulations.within import within
from poetopt.graph.problem import Problem
from poetopt.search.outer import no_plan
from poetopt.search.run import Run
from poetopt.search.search import search
from poetopt.search.solution import Options, Status
from tests.bruteforce import plan_optimum
from tests.problems import random_few
from tests.seeds import some

SLACK = 1e-9


def proven(problem: Problem, ram_bytes: int, chosen: Formulation, deadline_s: float | None = None) -> bool:
    """Whether the outer approximation says that there is no plan."""
    asked = Options(ram_bytes=ram_bytes, formulation=chosen, deadline_s=deadline_s, threads=1)
    run = Run(problem, asked, None)
    return no_plan(run, run.budget)


def bounded(goal: Goal, most: float) -> Formulation:
    return formulation("retention").with_block(within(goal, most))


def priced(problem: Problem, goal: str) -> Problem:
    """`problem` with seconds, or bytes written, in the place of joules."""
    timed = goal == "time"
    operators = [replace(one, energy_j=one.time_s if timed else 0.0) for one in problem.operators]
    tensors = [
        one.moved_for(
            page_in_j=one.page_in_s if timed else 0.0, page_out_j=one.page_out_s if timed else float(one.nbytes)
        )
        for one in problem.tensors
    ]
    return replace(problem, operators=tuple(operators), tensors=tuple(tensors))


def test_what_a_plan_keeps_is_never_said_to_be_impossible() -> None:
    """At the least energy, time or wear of any plan there is one; with nearly a tenth less there is none."""
    certain = {"energy": 0, "time": 0, "wear": 0, "remat": 0}
    for seed in some(range(400), 40):
        problem, ram_bytes = random_few(random.Random(seed))
        kind = tuple(certain)[seed % len(certain)]
        if kind == "remat":
            found = plan_optimum(problem, ram_bytes, paging=False)
            none = proven(replace(problem, paging=False), ram_bytes, formulation("retention"))
            assert not (none and found is not None)
            certain[kind] += none
            continue
        known = plan_optimum(problem if kind == "energy" else priced(problem, kind), ram_bytes)
        if known is None:
            continue
        least, less = known.overhead_j + SLACK, 0.92 * known.overhead_j - SLACK
        for most in (least, less) if less > 0 else (least,):
            none = (
                proven(problem, ram_bytes, formulation("retention").with_block(flash_wear(int(most + 2 * SLACK))))
                if kind == "wear"
                else proven(problem, ram_bytes, bounded(ENERGY if kind == "energy" else TIME, most))
            )
            assert not (none and most == least), (seed, kind)
            certain[kind] += none
    assert min(certain.values()) > 0, certain


@pytest.mark.parametrize("name", ["retention", "poet"])
def test_a_status_is_of_all_plans(name: str) -> None:
    """Against searches of all plans: no bound above the optimum, and no 'optimal' of anything else."""
    said = dict.fromkeys(Status, 0)
    for seed in some(range(400), 40)[:30]:
        problem, ram_bytes = random_few(random.Random(seed))
        known = plan_optimum(problem, ram_bytes)
        least = None if known is None else known.overhead_j
        found = search(problem, Options(ram_bytes=ram_bytes, formulation=name, threads=1))
        said[found.status] += 1
        if found.simulation is None:
            continue
        assert least is not None
        assert found.overhead_bound_j is not None
        assert found.scope_bound_j is not None
        assert found.overhead_gap is not None
        assert found.scope_gap is not None
        assert found.overhead_bound_j <= least + 1e-6
        assert found.overhead_bound_j <= found.scope_bound_j
        assert found.scope_gap <= found.overhead_gap
        if found.status is Status.OPTIMAL:
            assert found.simulation.overhead_j <= least + 1e-6
    assert said[Status.OPTIMAL] > 15, said
