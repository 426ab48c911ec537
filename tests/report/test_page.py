"""The page: its data is the simulation, nothing in it is the model's to run, and it stays small."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poetopt.graph.problem import Problem, ProblemOperator, ProblemTensor, Transfers
from poetopt.plan.instructions import Action, Instruction, Plan
from poetopt.plan.layout import lay_out
from poetopt.report.page import frame, page
from poetopt.report.view import View
from tests.report.views import hostile_view, random_view
from tests.seeds import examples

seeds = st.integers(0, 2**32 - 1)
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


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


def test_a_frame_holds_the_page() -> None:
    view = hostile_view()
    elements = Reader(frame(view, 500)).elements
    assert [tag for tag, _ in elements] == ["iframe"]
    assert elements[0][1]["srcdoc"] == page(view)


def test_every_chart_can_be_reached_by_keyboard_and_says_what_it_is() -> None:
    text = page(random_view(5))
    elements = Reader(text).elements
    charts = [attributes for tag, attributes in elements if tag == "canvas"]
    assert {chart["id"] for chart in charts} == {"matrix", "memory", "arena", "lanes", "energy"}
    assert all(chart["tabindex"] == "0" for chart in charts)
    identities = [attributes["id"] for _, attributes in elements if "id" in attributes]
    assert len(set(identities)) == len(identities)
    assert set(re.findall(r'byId\("([a-z-]+)"\)', Reader(text).scripts[1])) <= set(identities)


def deep(operators: int) -> View:
    """A chain with one backward operator each that recomputes as deep as it can: very many instructions."""
    half, names = operators // 2, "model.encoder.layers.{}.attention.self.query.dense/MatMul"
    tensors = [ProblemTensor("input", 4096, -1)]
    tensors += [
        ProblemTensor(f"{names.format(k)}_out", 1 << 20, k, Transfers(0.01, 0.02, 0.03, 0.04)) for k in range(operators)
    ]
    built = [ProblemOperator(names.format(k), (k,), (k + 1,), 0.0123, 0.0456) for k in range(half)]
    built += [
        ProblemOperator(names.format(k), tuple(sorted({k, operators - k - 1})), (k + 1,), 0.0123, 0.0456, backward=True)
        for k in range(half, operators)
    ]
    problem = Problem("deep", "paper", tuple(built), tuple(tensors))
    every = 18
    steps: list[Instruction] = []
    alive = {0}

    def compute(k: int, keep: set[int]) -> None:
        steps.append(Instruction(Action.COMPUTE, k))
        alive.add(k + 1)
        for i in sorted(alive - keep - {k + 1, 0}):
            steps.append(Instruction(Action.FREE, i))
            alive.discard(i)

    kept = {i for i in range(1, half + 1) if i % every == 0}
    for k in range(half):
        compute(k, kept)
    for k in range(half, operators):
        wanted = operators - k - 1
        if wanted not in alive:
            start = max(i for i in alive if i <= wanted)
            for j in range(start, wanted):
                compute(j, kept | {k})
        compute(k, kept)
    return View(lay_out(Plan(problem, tuple(steps))), 1 << 30)


def test_a_large_schedule_is_a_small_page() -> None:
    view = deep(900)
    assert len(view.plan.instructions) > 9000
    assert len(page(view).encode()) < 3_000_000


def test_a_plan_without_layout_or_report_or_instructions() -> None:
    bare = random_view(8, laid_out=False)
    assert data_of(page(replace(bare, report={}, ram_bytes=None, deadline_s=None)))["arena_bytes"] is None
    empty = View(Plan(Problem("empty", "paper", (), ()), ()))
    assert data_of(page(empty))["steps"]["action"] == []


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium to look with")
@pytest.mark.parametrize("case", ["hostile", "random", "bare", "empty"])
def test_a_browser_shows_it_without_a_complaint(case: str, tmp_path: Path) -> None:
    views = {
        "hostile": hostile_view(),
        "random": random_view(12, dma=True, operators=9),
        "bare": View(random_view(8, laid_out=False).plan),
        "empty": View(Plan(Problem("empty", "paper", (), ()), ())),
    }
    place = tmp_path / "page.html"
    place.write_text(page(views[case]), encoding="utf-8")
    assert CHROMIUM is not None
    browser = subprocess.run(
        [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
            f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr", "--virtual-time-budget=3000",
            "--dump-dom", place.as_uri(),
        ],
        capture_output=True, text=True, encoding="utf-8", errors="replace", check=False, timeout=120,
    )  # fmt: skip
    if "<html" not in browser.stdout:
        pytest.skip(f"Chromium does not run here: {browser.stderr[-200:]}")
    assert "CONSOLE" not in browser.stderr
    shown = Reader(browser.stdout)
    assert len(shown.scripts) == 2
    assert not [tag for tag, _ in shown.elements if tag == "img"]
    legend = sum(tag == "li" for tag, _ in shown.elements)
    assert legend > 10
