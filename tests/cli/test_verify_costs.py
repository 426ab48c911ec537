"""`poetopt verify` believes no byte, second or joule that model, device and profile don't give again."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import poetopt as po
from poetopt.plan.instructions import Action, Instruction, Plan
from poetopt.plan.layout import lay_out
from poetopt.plan.simulate import simulate
from poetopt.report.report import Report
from tests.support.cli import Runner

Change = Callable[[dict[str, Any]], object]


def all_of(table: str, **values: object) -> Change:
    return lambda document: [entry.update(values) for entry in document[table]]


def scaled(table: str, key: str, factor: float) -> Change:
    return lambda document: [entry.update({key: entry[key] * factor}) for entry in document[table]]


def device(**values: object) -> Change:
    return lambda document: document["device"].update(values)


@pytest.fixture(scope="module")
def report() -> Report:
    return po.solve(po.load("mlp").differentiate().cost("a72"), ram="92%")


@pytest.fixture
def plan(report: Report, tmp_path: Path) -> Path:
    report.save(tmp_path / "plan.json")
    return tmp_path / "plan.json"


def edited(plan: Path, change: Change) -> Path:
    """The plan after `change`, without a report, which the change would contradict."""
    document = json.loads(plan.read_text(encoding="utf-8"))
    document["report"] = {}
    change(document)
    place = plan.with_name("edited.json")
    place.write_text(json.dumps(document), encoding="utf-8")
    return place


@pytest.mark.parametrize(
    ("change", "field"),
    [(all_of("operators", workspace_bytes=0), "workspace_bytes"), (device(reserve_bytes=0), "reserve_bytes"),
     (device(alignment=1), "alignment"), (device(resident_bytes=0), "resident_bytes"),
     (device(ram_bytes=10**12), "device_ram_bytes"), (device(storage_bytes=None), "storage_bytes"),
     (device(storage_block_bytes=1), "storage_block_bytes"), (device(wake_j=1.0), "wake_j"), (device(dma=False), "dma"),
     (scaled("operators", "energy_j", 0.999), "energy_j"), (scaled("operators", "time_s", 2.0), "time_s"),
     (scaled("tensors", "page_in_j", 0.5), "page_in_j"), (scaled("tensors", "page_out_j", 0.5), "page_out_j"),
     (scaled("tensors", "page_out_s", 0.5), "page_out_s"), (all_of("operators", backward=True), "backward"),
     (all_of("operators", kind="Conv"), "kind"), (all_of("operators", count=7), "count"),
     (lambda document: document["model"].update(device="m4"), "dma"),
     (lambda document: document["model"].update(name="alexnet"), "name")],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_a_problem_that_isn_t_its_model_s_is_refused(run: Runner, plan: Path, change: Change, field: str) -> None:
    place = edited(plan, change)
    ended = run("verify", place)
    ended.assert_one_message(str(place), "The file was edited", code=2)
    assert field in ended.err or field == "dma"  # of a whole device, whatever is met first


def test_what_a_plan_says_is_whole_or_listed(run: Runner, plan: Path) -> None:
    found = run("verify", plan, "--strict", "--json", "-").document
    assert (found["whole"], found["taken_from_file"], found["not_certified"]) == (True, [], [])
    assert len(found["recomputed"]) == 3
    found = run("verify", plan, "--no-model", "--json", "-").document
    assert not found["whole"]
    assert len(found["taken_from_file"]) == 3
    ended = run("verify", plan, "--no-model", "--strict")
    assert ended.code == 5
    assert "taken from the file" in ended.err


def worse(report: Report) -> Report:
    """The same with a page-out that is of no use, and the claim that nothing costs less."""
    plan = report.plan
    assert plan is not None
    problem = plan.problem
    moved = {step.target for step in plan.instructions if step.action is Action.PAGE_OUT}
    at, tensor = next(
        (k, made)
        for k, step in enumerate(plan.instructions)
        if step.action is Action.COMPUTE
        for made in problem.operators[step.target].outputs
        if made not in moved
    )
    steps = (*plan.instructions[: at + 1], Instruction(Action.PAGE_OUT, tensor), *plan.instructions[at + 1 :])
    longer = lay_out(Plan(problem, steps))
    simulation = simulate(longer, ram_bytes=report.solution.options.ram_bytes)
    solution = replace(
        report.solution, plan=longer, simulation=simulation, overhead_bound_j=simulation.overhead_j,
        scope_bound=simulation.overhead_j, outdone=False,
    )  # fmt: skip
    return Report(problem=report.problem, solution=solution)


def test_a_claim_that_no_certificate_reaches_is_named(run: Runner, report: Report, tmp_path: Path) -> None:
    place, honest = tmp_path / "worse.json", tmp_path / "plan.json"
    report.save(honest)
    worse(report).save(place)
    ended = run("verify", place, "--bound")
    assert ended.code == 0
    assert "not certified" in ended.out
    ended = run("verify", place, "--strict")
    assert (ended.code, ended.err.count("poetopt: ")) == (5, 1)
    assert "not certified: overhead_bound_j" in ended.err
    assert run("verify", honest, "--strict").code == 0
