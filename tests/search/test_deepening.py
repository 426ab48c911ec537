"""Scope after scope: when one is left for a deeper one, and what is said in the end."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

from poetopt.graph.problem import Problem
from poetopt.plan.assemble import schedule_of
from poetopt.plan.instructions import Plan
from poetopt.report.report import Report
from poetopt.search.deepening import claim
from poetopt.search.diagnosis.solve import solve
from poetopt.search.run import Proof
from poetopt.search.search import search
from poetopt.search.solution import Options, Progress, Solution, Status
from poetopt.search.tuning import NEARLY
from poetopt.util.errors import FormulationError
from tests.formulations.retention.test_streaming import tight_with_variants
from tests.support.closed import closed
from tests.support.problems import random_tight


def proof(depth: int, bound: float, value: float | None, gap: float = 1e-3) -> Proof:
    closed = value is not None and value - bound <= gap * value
    return Proof(f"depth:{depth}", f"depth<={depth}", bound, False, value, closed)


def test_the_deepest_proof_is_claimed() -> None:
    proven, deeper = proof(4, 10.0, 10.0), proof(8, 7.0, 8.0)
    found = claim(proven, None, deeper, 1e-3)
    assert (found.scope, found.bound) == ("depth<=4", 10.0)
    assert "the plan has up to 8 operators recomputed in a row" in found.note
    assert claim(proven, None, proof(8, 8.0, 8.0), 1e-3).scope == "depth<=8"


def test_what_is_nearly_proven_is_claimed_unless_something_better_was_found_deeper() -> None:
    nearly = proof(4, 9.98, 10.0)
    assert nearly.within(NEARLY)
    assert not nearly.closed
    assert not proof(4, 7.0, 10.0).within(NEARLY)
    assert not proof(4, 7.0, None).within(NEARLY)
    found = claim(None, nearly, proof(8, 7.0, 10.0), 1e-3)
    assert (found.scope, found.closed) == ("depth<=4", False)
    assert "up to 8 operators recomputed in a row may save up to 30 %" in found.note
    better = claim(None, nearly, proof(8, 7.0, 8.0), 1e-3)
    assert (better.scope, better.value) == ("depth<=8", 8.0)
    assert claim(None, nearly, nearly, 1e-3) == nearly
    assert replace(found, note="") == nearly


def deeper_pays() -> Iterator[tuple[Problem, Solution, Plan, float]]:
    """Problems with the best schedule of chains of 1, and the plan and overhead of a better one of any length."""
    rng = random.Random(5)
    for _ in range(60):
        problem, ram_bytes = random_tight(rng, operators=9, training=True)
        options = Options(ram_bytes=ram_bytes, scope="depth:1", gap=0.0, time_limit_s=30.0)
        shallow, deep = solve(problem, options), solve(problem, replace(options, scope="forward"))
        if not closed(shallow) or shallow.outdone:
            continue
        assert shallow.simulation is not None
        assert deep.plan is not None
        assert deep.simulation is not None
        if deep.simulation.overhead_j < 0.999 * shallow.simulation.overhead_j:
            yield problem, shallow, deep.plan, deep.simulation.overhead_j


def test_a_plan_from_outside_of_a_scope_ends_its_search() -> None:
    problem, shallow, plan, overhead_j = next(deeper_pays())
    assert str(Report(problem=problem, solution=shallow).to_dict()["proof_exact"]).startswith(
        "optimal among schedules whose recomputation chains have at most 1 operator"
    )
    found = solve(problem, shallow.options, starts=[schedule_of(plan)])
    assert closed(found)
    assert found.outdone
    assert found.simulation is not None
    assert found.scope_bound_j == found.simulation.overhead_j == overhead_j
    assert str(Report(problem=problem, solution=found).to_dict()["proof_exact"]).startswith(
        "better than all schedules whose recomputation chains have at most 1 operator"
    )


def test_an_interrupt_in_the_last_scope_leaves_what_was_proven_before() -> None:
    """The widest scope that is proven is claimed, and what is open beyond it is told."""

    def impatient(progress: Progress) -> None:
        if progress.scope == "forward":
            raise KeyboardInterrupt

    claimed = 0
    for seed in range(80):
        problem, ram_bytes = random_tight(random.Random(seed), operators=12, training=True)
        options = Options(ram_bytes=ram_bytes, gap=0.0, time_limit_s=30.0)
        found = solve(problem, options, impatient)
        if found.interrupted and found.plan is not None and found.scope.startswith("depth<="):
            claimed += 1
            assert found.scope_gap == pytest.approx(0.0, abs=1e-6)
            assert re.search("schedules? with |a better one with that", found.reason)
        if claimed > 1:
            break
    assert claimed > 1


def test_a_scope_that_a_formulation_lacks_is_refused() -> None:
    problem, ram_bytes = random_tight(random.Random(1), operators=6, training=True)
    with pytest.raises(FormulationError, match="has no scope 'depth:4'"):
        solve(problem, Options(ram_bytes=ram_bytes, formulation="poet", scope="depth:4"))


def test_a_gap_that_layouts_leave_is_said_to_be_theirs() -> None:
    """Each schedule that costs less keeps the budget in bytes, and has no layout within it; a byte more would do."""
    problem, least = tight_with_variants(random.Random(29), forward=2)
    ram_bytes = least + 1
    asked = Options(ram_bytes=ram_bytes, scope="depth:4", threads=1)
    found = search(problem, asked)
    assert found.status is Status.FEASIBLE
    assert "none that was tried has a memory layout within it, and the nearest takes 1 B more" in found.reason
    roomier = search(problem, replace(asked, ram_bytes=ram_bytes + 1))
    assert found.simulation is not None
    assert roomier.simulation is not None
    assert roomier.simulation.overhead_j < found.simulation.overhead_j
