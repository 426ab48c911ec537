"""Where nothing is found, it is said of all plans only by proof: against searches instruction by instruction."""

from __future__ import annotations

import random
from collections.abc import Hashable
from dataclasses import replace

import pytest

from poetopt.formulations import formulation
from poetopt.formulations.flash_wear import flash_wear
from poetopt.formulations.goal import ENERGY, TIME, Goal
from poetopt.formulations.language import Formulation
from poetopt.formulations.within import within
from poetopt.graph.problem import Problem
from poetopt.plan.ends import without_ends
from poetopt.report.proof import failure_words
from poetopt.search.cutting import session_of
from poetopt.search.outer import SUPPORTS, no_plan
from poetopt.search.run import Run
from poetopt.search.search import search
from poetopt.search.solution import Options, Status
from poetopt.util.errors import InfeasibleError, ProblemError
from tests.formulations.test_spaces import away_between_two_uses
from tests.seeds import some
from tests.support.every_plan import TooManyStatesError, least_overhead_j
from tests.support.problems import random_few
from tests.support.small import small_problem
from tests.support.stored import tight_with_parameters

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
            found = least_overhead_j(problem, ram_bytes, paging=False)
            none = proven(replace(problem, paging=False), ram_bytes, formulation("retention"))
            assert not (none and found is not None)
            certain[kind] += none
            continue
        known = least_overhead_j(problem if kind == "energy" else priced(problem, kind), ram_bytes)
        if known is None:
            continue
        least, less = known + SLACK, 0.92 * known - SLACK
        for most in (least, less) if less > 0 else (least,):
            none = (
                proven(problem, ram_bytes, formulation("retention").with_block(flash_wear(int(most + 2 * SLACK))))
                if kind == "wear"
                else proven(problem, ram_bytes, bounded(ENERGY if kind == "energy" else TIME, most))
            )
            assert not (none and most == least), (seed, kind)
            certain[kind] += none
    assert min(certain.values()) > 0, certain


@pytest.mark.parametrize("seed", some(range(200), 40)[:30])
def test_nor_what_a_step_with_paged_parameters_keeps(seed: int) -> None:
    problem, ram_bytes = tight_with_parameters(random.Random(seed), forward=2)
    if len(problem.tensors) > 9:
        return
    known = least_overhead_j(problem, ram_bytes)
    if known is not None:
        assert not proven(problem, ram_bytes, bounded(ENERGY, known + SLACK))


def test_stages_that_are_decided_together_bound_all_plans() -> None:
    """Against searches of all plans: few runs of stages have an optimum below the plans', and often just that.

    So they do with the cuts that were found in a scope, and in other runs of stages.
    """
    outer = formulation("retention").search.outer
    assert outer is not None
    same = joined = kept = 0
    for seed in some(range(600), 60):
        problem, ram_bytes, least = _known(seed)
        if least is None:
            continue
        keys: set[tuple[str, Hashable]] = set()
        if not any(operator.variants for operator in problem.operators):
            _optimum(formulation("retention"), problem, ram_bytes, "forward", keys)
        for most in (1, 5, 12, 3, 1):
            bound, together = _optimum(outer, problem, ram_bytes, f"full:{most}", keys)
            kept += together and len(keys) > 0
            assert bound <= least + 1e-6 * max(1.0, least), (seed, most)
            joined += together
            same += together and least > SLACK and bound > 0.9 * least
    assert joined > 40
    assert kept > 20
    assert same > 10


def _known(seed: int) -> tuple[Problem, int, float | None]:
    """A random problem, its budget, and the least overhead of any plan, in joules."""
    if seed % 2:
        case = replace(small_problem(seed), deadline_s=None)
        try:
            return case.problem, case.ram_bytes, case.serving_j
        except TooManyStatesError:
            return case.problem, case.ram_bytes, None
    problem, ram_bytes = random_few(random.Random(seed))
    return problem, ram_bytes, least_overhead_j(problem, ram_bytes)


def _optimum(
    outer: Formulation, problem: Problem, ram_bytes: int, scope: str, keys: set[tuple[str, Hashable]]
) -> tuple[float, bool]:
    """The optimum of the model in `scope`, with cuts by `keys`, and whether it joins stages; `keys` take its own."""
    try:
        problem = without_ends(problem)
        if problem.beyond(SUPPORTS) is not None:
            return 0.0, False
        model = outer.build(problem, ram_bytes=ram_bytes, scope=scope)
        session = session_of(model, Options(ram_bytes=ram_bytes, threads=1), scale=1.0)
    except (ProblemError, InfeasibleError):
        return 0.0, False
    session.add(outer.revive(model, sorted(keys, key=str)))
    for _ in range(5):
        point = session.relax(60.0).point
        cuts = [] if point is None else outer.separate(model, point)
        session.add(cuts)
        keys.update((row.block, row.key) for row in cuts if row.key is not None)
    while True:
        found = session.search(time_limit_s=60.0, gap=0.0, start=None, on_point=lambda _: None, on_bound=lambda _: None)
        rows = [] if found.point is None else [row for row in outer.separate(model, found.point) if row.core]
        if not rows:
            return found.objective, model.space.has_groups
        session.add(rows)


def test_a_plan_outside_of_every_scope_leaves_the_verdict_open() -> None:
    """`retention` pages y for 20 J; a plan takes 4."""
    problem, ram_bytes = away_between_two_uses()
    best = least_overhead_j(problem, ram_bytes)
    assert best is not None
    for most, status in ((best, Status.UNKNOWN), (best / 8, Status.INFEASIBLE)):
        for scope in ("auto", "full"):
            asked = Options(ram_bytes=ram_bytes, formulation=bounded(ENERGY, most), scope=scope, threads=1)
            found = search(problem, asked)
            assert found.plan is None
            assert found.status is status
            assert ("whether another one exists is open" in found.reason) is (status is Status.UNKNOWN)
            assert found.exhausted
            assert "--time-limit" not in failure_words(problem, found)


def test_an_optimum_of_its_scope_that_a_plan_beats_is_feasible() -> None:
    """`retention` pages y for 20 J in every scope; a plan takes 4."""
    problem, ram_bytes = away_between_two_uses()
    best = least_overhead_j(problem, ram_bytes)
    assert best is not None
    found = search(problem, Options(ram_bytes=ram_bytes, scope="forward", threads=1))
    assert found.simulation is not None
    assert found.overhead_bound_j is not None
    assert found.scope_gap == pytest.approx(0.0, abs=1e-6)
    assert found.status is Status.FEASIBLE
    assert found.overhead_bound_j <= best < found.simulation.overhead_j
