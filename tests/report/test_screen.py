"""What a screen, a text and a picture show: figures that add up, lanes, names of what is done."""

from __future__ import annotations

import itertools
import json
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poetopt.graph.problem import Problem
from poetopt.plan.assemble import plan_of
from poetopt.plan.instructions import Plan
from poetopt.plan.layout import lay_out
from poetopt.plan.schedule import Schedule
from poetopt.report.page import page_data
from poetopt.report.show import text_form
from poetopt.report.view import Lane, View, recomputed, streamed, timeline
from tests.plan.test_streamed import STREAMED, network
from tests.seeds import examples
from tests.support.problems import steps
from tests.support.views import hostile_view, random_view


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


seeds = st.integers(0, 2**32 - 1)
EMPTY = View(Plan(Problem("empty", "paper", (), ()), ()))


@settings(max_examples=examples(40), deadline=None)
@given(seeds, st.integers(40, 200))
def test_the_text_keeps_its_width_and_names_what_is_done(seed: int, width: int) -> None:
    view = random_view(seed)
    text = text_form(view, width)
    for line in text.partition("\n\nRecomputed")[0].splitlines():
        assert len(line) <= max(width, 60)
    listed = {line.split()[0] for line in text.splitlines() if line.startswith("  ") and line.strip()}
    for index, again in enumerate(view.again):
        if again:
            assert view.operator_names[view.plan.instructions[index].target] in listed


@pytest.mark.parametrize("form", ["png", "svg"])
def test_pictures_are_pictures_and_always_the_same(form: str) -> None:
    pytest.importorskip("matplotlib")
    from poetopt.report.page import figure_bytes

    for view in (hostile_view(), EMPTY, random_view(2, dma=True)):
        picture = figure_bytes(view, form)
        if form == "svg":
            assert ElementTree.fromstring(picture).tag.endswith("svg")
        else:
            assert picture.startswith(b"\x89PNG")
    assert picture == figure_bytes(view, form)
