"""The other forms of a plan: trace, text and picture."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poetopt.graph.problem import Problem
from poetopt.plan.instructions import Plan
from poetopt.report.show import trace_text
from poetopt.report.text import ASCII, text_form
from poetopt.report.view import View
from tests.report.views import hostile_view, random_view
from tests.seeds import examples

seeds = st.integers(0, 2**32 - 1)
EMPTY = View(Plan(Problem("empty", "paper", (), ()), ()))


@settings(max_examples=examples(60), deadline=None)
@given(seeds, st.sampled_from([1.0, 1e-9, 1 / 3, 1234.5678]))
def test_slices_of_a_trace_never_overlap(seed: int, scale: float) -> None:
    view = random_view(seed)
    problem = view.problem
    operators = tuple(replace(o, time_s=o.time_s * scale) for o in problem.operators)
    tensors = tuple(
        t.moved_for(page_in_s=t.page_in_s * scale / 7, page_out_s=t.page_out_s * scale / 3) for t in problem.tensors
    )
    plan = replace(view.plan, problem=replace(problem, operators=operators, tensors=tensors))
    events = json.loads(trace_text(View(plan)))["traceEvents"]
    tracks = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            start, length = round(event["ts"] * 1000), round(event["dur"] * 1000)
            assert length > 0
            tracks[event["tid"]].append((start, start + length))
    for slices in tracks.values():
        assert slices == sorted(slices)
        assert all(before[1] <= after[0] for before, after in pairwise(slices))
    counters = [event for event in events if event["ph"] == "C"]
    assert [event["ts"] for event in counters] == sorted(event["ts"] for event in counters)
    assert max(event["args"]["bytes"] for event in counters) == max(View(plan).simulation.live_bytes)
    work = [event for event in events if event["ph"] in "Xi" and event["cat"] not in ("wait",)]
    assert len(work) == len([s for s in view.plan.instructions if s.action != "free"])


@settings(max_examples=examples(40), deadline=None)
@given(seeds, st.integers(40, 200))
def test_the_text_keeps_its_width_and_names_what_is_done(seed: int, width: int) -> None:
    view = random_view(seed)
    text = text_form(view, width)
    for line in text.partition("\n\nRecomputed")[0].splitlines():
        assert len(line) <= max(width, 60)
    simulation = view.simulation
    assert text.count("R") >= bool(simulation.recomputes)
    listed = {line.split()[0] for line in text.splitlines() if line.startswith("  ") and line.strip()}
    for index, again in enumerate(view.again):
        if again:
            assert view.operator_names[view.plan.instructions[index].target] in listed


def test_the_text_has_no_control_characters_and_an_ascii_form() -> None:
    text = text_form(hostile_view())
    assert all(character.isprintable() or character == "\n" for character in text)
    assert text_form(replace(random_view(4), report={}), 90, ASCII).isascii()
    assert "empty on paper" in text_form(EMPTY)


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


@pytest.mark.parametrize("seed", range(12))
def test_every_tensor_and_every_transfer_is_in_the_picture(seed: int) -> None:
    """Graph inputs too: left of the operators, from the first stage on."""
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    from poetopt.report.page import _matrix

    view = random_view(seed)
    axes = Figure().subplots()
    _matrix(axes, view)
    boxes = {str(c.get_label()): [path.get_extents() for path in c.get_paths()] for c in axes.collections}
    tensors = [buffer for buffer in view.buffers if not buffer.workspace]
    assert len(boxes["in RAM"]) == len(tensors)
    for buffer, box in zip(tensors, boxes["in RAM"], strict=True):
        assert (box.x0 < 0) == (view.problem.tensors[buffer.index].producer < 0)
        assert box.y0 == (view.stages[buffer.first] if buffer.first >= 0 else 0)
    moves = [step for step in view.plan.instructions if step.action in ("page_in", "page_out")]
    assert len(boxes.get("page in", [])) + len(boxes.get("page out", [])) == len(moves)
    assert axes.get_xlim()[0] == -len(view.problem.at_start)
