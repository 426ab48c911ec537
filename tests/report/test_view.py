"""Views: stages, moments and names of any plan; what a timeline and the facts make of them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poetopt.plan.instructions import Action
from poetopt.report.summary import proof, proof_exact
from poetopt.report.view import Lane, SliceKind, paged, recomputed, timeline
from tests.seeds import examples
from tests.support.views import random_view

seeds = st.integers(0, 2**32 - 1)


@settings(max_examples=examples(80), deadline=None)
@given(seeds)
def test_the_timeline_is_the_simulation(seed: int) -> None:
    view = random_view(seed)
    pieces, simulation = timeline(view), view.simulation
    for lane in Lane:
        own = [piece for piece in pieces if piece.lane is lane]
        assert all(before.end_s <= after.start_s for before, after in pairwise(own))

    def seconds(*kinds: SliceKind) -> float:
        return sum(piece.end_s - piece.start_s for piece in pieces if piece.kind in kinds)

    assert seconds(SliceKind.FORWARD, SliceKind.BACKWARD, SliceKind.RECOMPUTE) == pytest.approx(simulation.compute_s)
    assert seconds(SliceKind.PAGE_IN, SliceKind.PAGE_OUT) == pytest.approx(simulation.transfer_s)
    assert seconds(SliceKind.WAIT) == pytest.approx(simulation.waits_s if view.problem.dma else simulation.transfer_s)
    assert sum(piece.kind is SliceKind.RECOMPUTE for piece in pieces) == simulation.recomputes
    for piece in pieces:
        if piece.kind is SliceKind.WAIT:
            # Its end is the end of the transfer that is named.
            assert view.plan.instructions[piece.cause].action in (Action.PAGE_IN, Action.PAGE_OUT)
            assert simulation.end_s[piece.cause] == piece.end_s


@settings(max_examples=examples(60), deadline=None)
@given(seeds)
def test_the_ledger_adds_up_to_the_overhead(seed: int) -> None:
    view = random_view(seed)
    again, moved, simulation = recomputed(view), paged(view), view.simulation
    assert sum(len(entry.steps) for entry in again) == simulation.recomputes
    assert sum(len(entry.outs) for entry in moved) == simulation.page_outs
    assert sum(len(entry.ins) for entry in moved) == simulation.page_ins
    total = sum(entry.energy_j for entry in again) + sum(entry.energy_j for entry in moved)
    assert total == pytest.approx(simulation.overhead_j)


def test_a_proof_is_of_this_plan_or_of_nothing() -> None:
    view = random_view(11)
    overhead = view.simulation.overhead_j
    assert overhead > 0
    assert "recomputed in a row, each once, nothing paged in between, saves more than 50 %" in proof(view.document)
    assert proof_exact(view.document).startswith("At most 50 % of the overhead can be saved among schedules whose")

    def said(**report: object) -> str:
        return proof(replace(view, report={**view.report, **report}).document)

    assert "nothing is proven" in said(overhead_j=overhead / 2)
    assert "nothing is proven" in proof(replace(view, report={}).document)
    of_all = {"overhead_bound_j": overhead, "scope_bound_j": overhead}
    assert said(status="optimal", **of_all) == "Optimal: no schedule costs less."
    # a file of a version that knew the scope's bound alone
    older = said(status="optimal", overhead_bound_j=overhead)
    assert older.startswith("Feasible: other schedules may save up to all of the overhead")
    assert "recomputed in a row, each once, nothing paged in between, costs less" in older
    better = said(overhead_bound_j=0.0, scope_bound_j=overhead, beyond_scope=True, scope="depth<=8")
    assert "Better than every schedule with up to 8 operators" in better
    assert "nothing is proven of better ones" in said(overhead_bound_j=None)
    assert "may save up to all of the overhead" in said(overhead_bound_j=0.0)
    assert "ptimal" not in said(status="optimal", overhead_bound_j=overhead / 2)
    for bound in (0.0, overhead / 2, None):
        assert "ptimal" not in said(overhead_bound_j=bound)
