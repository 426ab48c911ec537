"""The page: its data is the simulation, nothing in it is the model's to run, and it stays small."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poetopt.graph.problem import Problem
from poetopt.plan.instructions import Action, Instruction
from poetopt.report.page import page
from tests.seeds import examples
from tests.support.views import hostile_view, random_view

seeds = st.integers(0, 2**32 - 1)


class Reader(HTMLParser):
    """The elements of a page in order, the text of its scripts, and what else it says."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text: list[str] = []
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += data
        else:
            self.text.append(data)


def data_of(text: str) -> dict[str, Any]:
    found = json.loads(Reader(text).scripts[0])
    assert isinstance(found, dict)
    return found


def ordinary_bytes(problem: Problem) -> list[int]:
    """Bytes in RAM while each operator runs in ordinary training: a tensor lives from its writer to its last reader."""
    found = []
    for k, operator in enumerate(problem.operators):
        live = problem.reserve_bytes + operator.workspace_bytes
        for index, tensor in enumerate(problem.tensors):
            last = max(problem.readers[index], default=tensor.producer)
            live += tensor.nbytes if tensor.producer <= k <= last else 0
        found.append(live)
    return found


@settings(max_examples=examples(30), deadline=None)
@given(seeds)
def test_the_data_is_the_simulation(seed: int) -> None:
    view = random_view(seed)
    data, simulation = data_of(page(view)), view.simulation
    steps, buffers = data["steps"], data["buffers"]
    assert steps["live_bytes"] == list(simulation.live_bytes)
    assert steps["start_s"] == list(simulation.start_s)
    assert steps["end_s"] == list(simulation.end_s)
    assert [data["peak_bytes"], data["energy_j"]] == [simulation.peak_bytes, simulation.energy_j]
    actions = (Action.COMPUTE, Action.PAGE_OUT, Action.PAGE_IN, Action.FREE)
    said = [Instruction(actions[a], t) for a, t in zip(steps["action"], steps["target"], strict=True)]
    assert said == list(view.plan.instructions)
    # The page stacks its memory chart from the buffers alone: they must add up to the simulator's bytes.
    for index, live in enumerate(simulation.live_bytes):
        alive = zip(buffers["first"], buffers["last"], buffers["bytes"], strict=True)
        assert data["reserve_bytes"] + sum(n for first, last, n in alive if first <= index <= last) == live
    assert buffers["offset"] == list(view.plan.offsets)
    assert data["store_all_live_bytes"] == ordinary_bytes(view.problem)
    joules = sum(entry["energy_j"] for entry in data["recomputed"] + data["paged"])
    assert joules == pytest.approx(simulation.overhead_j)


def test_names_are_data_and_never_markup() -> None:
    plain, hostile = Reader(page(random_view(3, operators=30))), Reader(page(hostile_view()))
    assert len(hostile.scripts) == len(plain.scripts) == 2
    assert hostile.scripts[1] == plain.scripts[1]
    tags = {tag for tag, _ in hostile.elements}
    assert tags == {tag for tag, _ in plain.elements} | {"li"}
    for _, attributes in hostile.elements:
        assert not any(name.startswith("on") for name in attributes)
        assert "src" not in attributes
    view = hostile_view()
    data = data_of(page(view))
    assert data["operators"]["name"] == list(view.operator_names)
    assert data["tensors"]["name"] == list(view.tensor_names)
    assert not re.search(r"\{\{[A-Z]", "".join(hostile.text).replace("{{DATA}}", ""))


def test_the_scripts_set_no_markup_and_load_nothing() -> None:
    text = page(random_view(5))
    script = Reader(text).scripts[1]
    for word in ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval(", "fetch(", "XMLHttp", "import("):
        assert word not in script
    assert not re.search(r"https?://|@import|url\(", text)
    policy = next(a["content"] for tag, a in Reader(text).elements if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'")
