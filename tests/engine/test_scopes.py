"""Scope after scope: when one is left for a deeper one, and what is said in the end."""

from __future__ import annotations

import random
import time
from dataclasses import replace

from poetopt.engine.proof import NEARLY, Proof
from poetopt.engine.run import Run
from poetopt.engine.scopes import claim
from poetopt.engine.solution import Options
from poetopt.schedule import Schedule
from tests.problems import random_problem


def proof(depth: int, bound: float, value: float | None, gap: float = 1e-3) -> Proof:
    closed = value is not None and value - bound <= gap * value
    return Proof(f"depth:{depth}", f"depth<={depth}", bound, False, value, closed)


def test_only_what_is_nearly_proven_makes_room_for_a_deeper_scope() -> None:
    problem = random_problem(random.Random(4), operators=6, training=True)
    run = Run(problem, Options(ram_bytes=10**9, time_limit_s=1000.0), None)
    run.soon = time.monotonic() - 1.0
    assert run.remaining_s > 100, "nothing is known yet"
    again = next(j for j, operator in enumerate(problem.operators) if operator.recomputable and operator.energy_j > 0)
    run.offer(Schedule(frozenset({(len(problem.operators) - 1, again)}), frozenset()), "test")
    value = run.incumbent.value
    assert value is not None
    assert value > 0
    run.bound = value * (1 - 2 * NEARLY)
    assert run.remaining_s > 100
    run.bound = value * (1 - NEARLY / 2)
    assert run.remaining_s < 0


def test_the_deepest_proof_is_claimed() -> None:
    proven, deeper = proof(4, 10.0, 10.0), proof(8, 7.0, 8.0)
    found = claim(proven, None, deeper, 1e-3)
    assert (found.scope, found.bound) == ("depth<=4", 10.0)
    assert "deeper scope depth<=8 was taken" in found.note
    assert claim(proven, None, proof(8, 8.0, 8.0), 1e-3).scope == "depth<=8"


def test_what_is_nearly_proven_is_claimed_unless_something_better_was_found_deeper() -> None:
    nearly = proof(4, 9.98, 10.0)
    assert nearly.within(NEARLY)
    assert not nearly.closed
    assert not proof(4, 7.0, 10.0).within(NEARLY)
    assert not proof(4, 7.0, None).within(NEARLY)
    found = claim(None, nearly, proof(8, 7.0, 10.0), 1e-3)
    assert (found.scope, found.closed) == ("depth<=4", False)
    assert "depth<=8 is open by 30.00%" in found.note
    better = claim(None, nearly, proof(8, 7.0, 8.0), 1e-3)
    assert (better.scope, better.value) == ("depth<=8", 8.0)
    assert claim(None, nearly, nearly, 1e-3) == nearly
    assert replace(found, note="") == nearly
