"""Parameters with their home on storage: optima against exhaustive searches, plans against the simulator and files."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from poetopt.formulations import formulation
from poetopt.formulations.block import Limits
from poetopt.formulations.retention.enumeration import retention_space
from poetopt.graph.problem import Home, Problem
from poetopt.plan.assemble import plan_of, schedule_of
from poetopt.plan.codec import from_json, to_json
from poetopt.plan.compact import decode_compact, encode_compact
from poetopt.plan.instructions import Action
from poetopt.plan.layout import buffers, check_layout, lay_out
from poetopt.plan.normalize import normalize
from poetopt.plan.schedule import Schedule
from poetopt.plan.simulate import simulate
from poetopt.search.diagnosis.solve import solve
from poetopt.search.search import search
from poetopt.search.solution import Options, Solution, Status
from poetopt.testing.exhaustive import FEW_DECISIONS, best, decisions, valid
from poetopt.util.errors import PlanError
from tests.bruteforce import stage_optimum, steady_optimum
from tests.closed import closed
from tests.plan.three_steps import run_thrice
from tests.seeds import seeds, some
from tests.stored import tight_with_parameters

TOLERANCE = 1e-6


def optimal(problem: Problem, ram_bytes: int) -> Solution:
    options = Options(ram_bytes=ram_bytes, scope="full", gap=0.0, threads=1, time_limit_s=60)
    return search(problem, options)


def overhead(found: Solution) -> float | None:
    return None if found.simulation is None else found.simulation.overhead_j


@pytest.mark.parametrize("seed", seeds(400))
def test_optima_are_those_of_all_schedules_of_the_space(seed: int) -> None:
    rng = random.Random(seed)
    problem, ram_bytes = tight_with_parameters(rng, forward=rng.choice((1, 2, 2)))
    space = retention_space(problem, Limits(ram_bytes=ram_bytes), "full", True, True)
    if sum(map(len, decisions(space))) > FEW_DECISIONS:
        return
    known = best(formulation("retention"), valid(space, ram_bytes), ram_bytes)
    found = optimal(problem, ram_bytes)
    if known is None:
        assert found.status is Status.INFEASIBLE
        return
    assert found.scope_bound_j == pytest.approx(known[0], abs=TOLERANCE)
    if found.arena_bytes is not None and closed(found):
        assert overhead(found) == pytest.approx(known[0], abs=TOLERANCE)


@pytest.mark.parametrize("seed", seeds(300))
def test_optima_are_those_of_all_plans_that_can_be_repeated(seed: int) -> None:
    """Every plan of so small a step is in the space, instruction by instruction."""
    problem, ram_bytes = tight_with_parameters(random.Random(seed), forward=2)
    if len(problem.tensors) > 9:
        return
    known, found = steady_optimum(problem, ram_bytes), optimal(problem, ram_bytes)
    assert (known is None) is (found.status is Status.INFEASIBLE)
    if known is not None:
        assert found.scope_bound_j == pytest.approx(known.overhead_j, abs=TOLERANCE)


@pytest.mark.parametrize("seed", seeds(100))
def test_plans_survive_files_and_codes_and_stay_laid_out(seed: int) -> None:
    problem, ram_bytes = tight_with_parameters(random.Random(seed), forward=3)
    found = optimal(problem, ram_bytes).plan
    if found is None:
        return
    check_layout(found, ram_bytes)
    kept = {i for i in problem.stored_at_start if found.problem.tensors[i].home is Home.RAM}
    assert found.problem == problem.keeping(kept)
    assert from_json(to_json(found)).plan.problem.tensors == found.problem.tensors
    assert decode_compact(found.problem, encode_compact(found)).instructions == found.instructions
    assert simulate(normalize(found)).overhead_j <= simulate(found).overhead_j
    assert simulate(plan_of(problem, schedule_of(found))).overhead_j <= simulate(found).overhead_j + TOLERANCE
    for i in kept:
        # a step that leaves it anywhere else, or not at all, isn't one that can be repeated
        moved = tuple(step for step in found.instructions if (step.action, step.target) != (Action.PAGE_IN, i))
        if moved != found.instructions:
            with pytest.raises(PlanError):
                simulate(found.problem, moved)


def test_what_leaves_and_comes_back_ends_where_it_began() -> None:
    """Laid-out plans in which a tensor is in RAM at both ends and away in between."""
    seen = 0
    for seed in range(100):
        problem, _ = tight_with_parameters(random.Random(seed), forward=3)
        away = [i for i in problem.stored_at_start if len(problem.readers[i]) > 1]
        back = frozenset((problem.readers[i][1], i) for i in away)
        plan = lay_out(plan_of(problem, Schedule(page_ins=back)))
        check_layout(plan)
        for i in away:
            stays = [buffer for buffer in buffers(plan) if buffer.index == i and not buffer.workspace]
            assert len(stays) == 2
            assert stays[0].offset == stays[1].offset
            seen += 1
            shifted = list(plan.offsets)
            place = list(buffers(plan)).index(stays[1])
            shifted[place] = max(plan.offsets) + 100
            with pytest.raises(PlanError, match="and the next one begins with it at"):
                check_layout(replace(plan, offsets=tuple(shifted)))
    assert seen > 50


@pytest.mark.parametrize("seed", some(range(320), 12))
def test_poet_is_algorithm_1_over_steps(seed: int) -> None:
    """Parameters, states, ties and frozen ones, in Algorithm 1's stages; a plan has no less than those."""
    problem, ram_bytes = tight_with_parameters(random.Random(seed), forward=2)
    options = Options(ram_bytes=ram_bytes, formulation="poet", scope="full", gap=0.0, threads=1, time_limit_s=60)
    found, known = solve(problem, options), stage_optimum(problem, ram_bytes)
    plain = steady_optimum(problem, ram_bytes) if len(problem.tensors) <= 9 else None
    if known is None:
        assert found.status is Status.INFEASIBLE
        return
    assert found.scope_bound_j == pytest.approx(known.overhead_j, abs=TOLERANCE)
    if found.plan is not None:
        run_thrice(found.plan, ram_bytes)
    if closed(found):  # else its schedules of least energy have no layout in the budget
        assert overhead(found) == pytest.approx(known.overhead_j, abs=TOLERANCE)
    if plain is not None:
        assert plain.overhead_j <= known.overhead_j + TOLERANCE
