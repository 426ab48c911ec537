"""A plan whose runs stream operands, as reports show it: lanes, joules, bytes, and words."""

from __future__ import annotations

import itertools
import json

import pytest

from poetopt.plan.assemble import plan_of
from poetopt.plan.instructions import Plan
from poetopt.plan.layout import lay_out
from poetopt.plan.schedule import Schedule
from poetopt.report.page import page, page_data
from poetopt.report.summary import rows
from poetopt.report.view import Lane, View, recomputed, streamed, timeline
from tests.plan.test_streamed import STREAMED, network, steps


def view(*, dma: bool = False) -> View:
    return View(lay_out(Plan(network(dma=dma), steps(STREAMED))), None, None, {})


@pytest.mark.parametrize("dma", [False, True])
def test_a_streamed_run_is_on_both_lanes_and_neither_is_taken_twice(dma: bool) -> None:
    shown = timeline(view(dma=dma))
    for lane in Lane:
        own = [piece for piece in shown if piece.lane is lane]
        assert all(a.end_s <= b.start_s for a, b in itertools.pairwise(own))
    chunks = [piece for piece in shown if piece.lane is Lane.CHANNEL]
    assert [(piece.start_s, piece.end_s) for piece in chunks] == [(0.0, 9.0), (9.0, 13.0), (13.0, 16.0)]


def test_joules_and_bytes_are_the_simulators() -> None:
    found = view()
    data = page_data(found)
    more = [way["more_j"] for way in json.loads(json.dumps(data["streamed"])).values()]
    assert sum(more) == pytest.approx(found.simulation.overhead_j)
    assert set(streamed(found)) == {0, 1, 3}
    assert found.simulation.bytes_written == found.simulation.bytes_streamed_out == 50
    again = Schedule(recomputes=frozenset({(1, 0)}), variants=frozenset({(0, 0, 1), (1, 0, 1), (2, 2, 1)}))
    assert recomputed(View(plan_of(network(), again), None, None, {}))[0].energy_j == 3.0


def test_it_is_said() -> None:
    found = view()
    said = dict(rows(found.document))
    assert "3 runs streamed" in said["schedule"]
    assert said["transfers"].startswith("120 B")
    plain = View(plan_of(network(), Schedule(page_ins=frozenset({(0, 1), (2, 1)}))), None, None, {})
    assert "streamed" not in dict(rows(plain.document))["schedule"]
    assert ', streaming"' in page(found)
