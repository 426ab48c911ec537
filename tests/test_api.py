"""The Python interface: the chain, the options of `solve`, what it raises, plans and their models."""

from __future__ import annotations

import importlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

import poetopt as po
from poetopt import zoo
from poetopt.search.solution import Progress
from poetopt.util.errors import DeviceError, InfeasibleError, OptionError, PlanError
from tests.cli.support import chain, write_problem


@pytest.fixture
def problem(tmp_path: Path) -> po.Problem:
    return po.load(write_problem(tmp_path / "chain.json", chain(layers=6))).differentiate().cost("a72")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "net.onnx"
    onnx.save(zoo.build("mlp", 2), path)
    return path


def small(problem: po.Problem) -> po.Report:
    """A solve that has to save something, but not much."""
    return po.solve(problem, ram=problem.least_ram_bytes + problem.nbytes([0]), time_limit=20)


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


def test_a_model_in_memory() -> None:
    problem = po.load(zoo.build("mlp", 2)).differentiate().cost("a72")
    named = po.load("mlp", batch=2).differentiate().cost("a72")
    assert problem.model_hash == named.model_hash
    assert (problem.operators, problem.tensors) == (named.operators, named.tensors)


def test_costs_take_a_device_or_its_name() -> None:
    training = po.load("lenet").differentiate()
    assert training.cost("m4") == training.cost(po.device("m4"))
    with pytest.raises(DeviceError, match="a72"):
        training.cost("a73")


def test_a_problem_file_is_differentiated_already(tmp_path: Path) -> None:
    loaded = po.load(write_problem(tmp_path / "chain.json", chain()))
    assert isinstance(loaded, po.TrainingFile)
    assert loaded.differentiate() is loaded
    assert loaded.cost(po.device("a72")) == loaded.cost("a72")
    with pytest.raises(OptionError, match="--loss"):
        loaded.differentiate(loss="mse")


def test_reports_show_the_same_figures_everywhere(problem: po.Problem) -> None:
    report = small(problem)
    figures = report.to_dict()
    assert json.loads(json.dumps(figures, allow_nan=False)) == figures
    summary, page = str(report), report._repr_html_()
    for shown in (f"{figures['peak_bytes']:,} B", f"{figures['recomputes']} recomputes"):
        assert shown in summary
        assert shown in page
    assert page.startswith("<table>")
    assert 'sandbox="allow-scripts"' in page.partition("<details>")[2]
    assert "<script" not in page


def test_html_is_escaped(tmp_path: Path) -> None:
    content = {**chain(), "name": "<b>&"}
    problem = po.load(write_problem(tmp_path / "x.json", content)).differentiate().cost("a72")
    assert "<b>" not in small(problem)._repr_html_()


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


def test_an_interrupt_with_nothing_in_hand_is_one(problem: po.Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("poetopt.search.search.first_schedules", interrupt)
    with pytest.raises(KeyboardInterrupt):
        po.solve(problem, ram=problem.least_ram_bytes)


def test_infeasible_carries_the_report(problem: po.Problem) -> None:
    with pytest.raises(InfeasibleError, match="3,000") as raised:
        po.solve(problem, ram="10B")
    assert raised.value.report is not None
    assert raised.value.report["ram_bound_bytes"] == 3000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ram": "many"}, "--ram"),
        ({"deadline": -1}, "--deadline"),
        ({"steps": 2}, "--steps"),
        ({"scope": "wide"}, "--scope"),
        ({"gap": 2}, "--gap"),
        ({"threads": -1}, "--threads"),
        ({"time_limit": 0}, "--time-limit"),
        ({"deadline_model": "wall"}, "--deadline-model"),
    ],
)
def test_options(problem: po.Problem, options: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        po.solve(problem, **{"ram": "50%", **options})  # type: ignore[arg-type]


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


def test_a_model_that_moved(model: Path, tmp_path: Path) -> None:
    plan = saved(model, tmp_path)
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    moved = shutil.move(model, folder / "net.onnx")
    with pytest.raises(PlanError, match="--model"):
        po.load_plan(plan)
    assert po.load_plan(plan, model=moved).plan.problem.graph is not None
    beside = shutil.move(plan, folder / "plan.json")
    assert po.load_plan(beside).plan.problem.graph is not None


def test_a_model_that_changed(model: Path, tmp_path: Path) -> None:
    plan = saved(model, tmp_path)
    onnx.save(zoo.build("mlp", 3), model)
    with pytest.raises(PlanError, match=r"it is not the model that .*--model"):
        po.load_plan(plan)


def test_plans_of_problem_files_are_not_executed(problem: po.Problem, tmp_path: Path) -> None:
    report = small(problem)
    with pytest.raises(PlanError, match="problem file"):
        po.execute(report)
    report.save(tmp_path / "plan.json")
    with pytest.raises(PlanError, match="problem file"):
        po.load_plan(tmp_path / "plan.json")


def test_a_plan_by_its_path(model: Path, tmp_path: Path) -> None:
    plan = saved(model, tmp_path)
    loaded = po.load_plan(plan)
    assert po.simulate(plan) == po.simulate(loaded)
    execution = po.execute(str(plan))
    assert execution.bit_identical
    assert execution.budget_bytes == loaded.ram_bytes
    assert po.train(plan, 2, 0.1, check=1).bit_identical


@pytest.mark.parametrize("use", [po.store_all_peak_bytes, po.formulations.retention.build])
def test_what_is_no_problem_yet_says_what_is_missing(use: Callable[..., object]) -> None:
    given = {"ram_bytes": 1} if use == po.formulations.retention.build else {}
    model = po.load("lenet")
    for wrong, missing in [
        ("lenet", r"not a str: as of po\.load\(model\)"),
        (model, r"a Model: call its \.differentiate\(\)\.cost\(device\)"),
        (model.differentiate(), r"a Training: call its \.cost\(device\)"),
    ]:
        with pytest.raises(TypeError, match=missing):
            use(wrong, **given)
    with pytest.raises(TypeError, match="not Model"):
        po.execute(model)  # type: ignore[arg-type]


def test_models_and_plans_are_looked_at(model: Path, tmp_path: Path) -> None:
    looked = po.inspect(po.load(model), device="m4")
    assert "least RAM known" in str(looked)
    plan = saved(model, tmp_path)
    assert po.verify(plan).simulation == po.simulate(plan)
