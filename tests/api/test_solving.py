"""The Python interface: the chain, the options of `solve`, what it raises, plans and their models."""

from __future__ import annotations

import importlib
from pathlib import Path

import onnx
import pytest

import poetopt as po
from poetopt import zoo
from poetopt.search.solution import Progress
from tests.support.cli import chain, write_problem


@pytest.fixture
def problem(tmp_path: Path) -> po.Problem:
    return po.load(write_problem(tmp_path / "chain.json", chain(layers=6))).differentiate().cost("a72")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "net.onnx"
    onnx.save(zoo.build("mlp", 2), path)
    return path


def test_the_chain_of_the_documentation() -> None:
    problem = po.load("lenet").differentiate(loss="cross-entropy").cost(po.device("a72"))
    report = po.solve(problem, ram="100%", deadline="1.2x")
    assert report.status == "optimal"
    assert report.plan is not None
    assert po.simulate(report).peak_bytes == po.simulate(report.plan).peak_bytes
    assert po.store_all_peak_bytes(problem) == report.solution.store_all_peak_bytes


@pytest.mark.parametrize("name", ["retention", "poet"])
@pytest.mark.parametrize("blocks", [[], ["flash-wear=1MB"]])
def test_a_formulation_by_its_module(problem: po.Problem, name: str, blocks: list[str]) -> None:
    ram = problem.least_ram_bytes + problem.nbytes([0])
    asked = {"ram": ram, "blocks": blocks, "scope": "full", "gap": 0.9, "time_limit": 20}
    named = po.solve(problem, formulation=name, **asked)  # type: ignore[arg-type]
    module = importlib.import_module(f"poetopt.formulations.{name}")
    given = po.solve(problem, formulation=module, **asked)  # type: ignore[arg-type]
    assert (
        given.to_dict()["formulation"]
        == named.to_dict()["formulation"]
        == "+".join([name, *(["flash_wear"] * bool(blocks))])
    )
    assert given.plan is not None


def test_an_interrupt_gives_the_best_plan_so_far(problem: po.Problem) -> None:
    seen: list[Progress] = []

    def listener(progress: Progress) -> None:
        seen.append(progress)
        if progress.overhead_j is not None:
            raise KeyboardInterrupt

    report = po.solve(problem, ram=problem.least_ram_bytes + 2000, listener=listener)
    assert report.solution.interrupted
    assert report.plan is not None
    assert po.simulate(report, ram_bytes=report.solution.options.ram_bytes).overhead_j == pytest.approx(
        seen[-1].overhead_j
    )
    assert "interrupted" in str(report)


def saved(model: Path, folder: Path) -> Path:
    """A plan file for `model`."""
    place = folder / "plan.json"
    po.solve(po.load(model, train="fc1*").differentiate().cost("a72"), ram="100%").save(place)
    return place


def test_a_plan_finds_its_model_again(model: Path, tmp_path: Path) -> None:
    found = po.load_plan(saved(model, tmp_path))
    assert found.plan.problem.graph is not None
    assert all(name.startswith("fc1") for name in found.plan.problem.graph.trained)
    assert found.report["status"] == "optimal"
