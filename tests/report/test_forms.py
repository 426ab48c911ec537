"""The other forms of a plan: text and picture."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poetopt.graph.problem import Problem
from poetopt.plan.instructions import Plan
from poetopt.report.show import text_form
from poetopt.report.view import View
from tests.report.views import hostile_view, random_view
from tests.seeds import examples

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


def test_the_text_has_no_control_characters() -> None:
    text = text_form(hostile_view())
    assert all(character.isprintable() or character == "\n" for character in text)
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
