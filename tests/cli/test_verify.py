"""`poetopt verify`: a plan is believed again only after it was simulated again, a report only where it follows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

import poetopt as po
from poetopt import zoo
from poetopt.cli.app import invoke
from poetopt.plan import codec
from tests.seeds import turns
from tests.support.cli import Runner, chain, write_problem
from tests.support.each import each


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("verify") / "plan.json"
    report = po.solve(po.load("mlp").differentiate().cost("a72"), ram="92%")
    report.save(path)
    return path


@pytest.fixture(scope="module")
def solved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan that pages within a deadline, of a chain that lies beside it."""
    folder = tmp_path_factory.mktemp("chain")
    problem = write_problem(folder / "chain.json", chain())
    place = folder / "plan.json"
    assert invoke(["solve", str(problem), "--device", "a72", "--ram", "70%", "--deadline", "2x", "-o", str(place)]) == 0
    return place


def forged(plan: Path, tmp_path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    document = json.loads(plan.read_text(encoding="utf-8"))
    change(document)
    place = tmp_path / "forged.json"
    place.write_text(json.dumps(document), encoding="utf-8")
    return place


def test_the_bound_is_certified(plan: Path, tmp_path: Path) -> None:
    out = tmp_path / "verified.json"
    assert invoke(["verify", str(plan), "--bound", "--json", str(out)]) == 0
    found = json.loads(out.read_text())
    assert found["valid"] is True
    assert found["certificate"]["bound_j"] <= found["overhead_j"]
    assert (found["model_checked"], found["model_not_checked"]) == ("mlp", None)


CONTRADICTIONS: list[tuple[str, object]] = [
    ("energy_j", 0.5),
    ("energy_j", 10**400),
    ("energy_j", "0.5"),
    ("energy_j", None),
    ("energy_j", True),
    ("overhead_bound_j", 1e9),
    ("overhead_bound_j", -1.0),
    ("overhead_bound_j", None),
    ("energy_bound_j", 1e9),
    ("energy_bound_j", None),
    ("overhead_gap", 0.5),
    ("overhead_gap", None),
    ("gap", "none"),
    ("status", "proven"),
    ("status", "infeasible"),
    ("status", None),
    ("scope", "5"),
    ("scope", "depth<=x"),
    ("scope", "store-all"),
    ("scope", None),
    ("arena_bytes", 1),
    ("arena_bytes", None),
    ("recomputes", 1),
    ("page_ins", 1.5),
    ("page_outs", 99),
    ("bytes_paged", 0),
    ("plan_bytes", 1),
    ("ram_budget_bytes", 10**6),
    ("store_all_peak_bytes", 5),
    ("store_all_fits", True),
    ("baseline_energy_j", 0.0),
    ("baseline_time_s", "1"),
    ("makespan_s", []),
    ("hidden_s", 7.0),
    ("deadline_s", 1e-6),
    ("deadline_s", None),
    ("deadline_model", "foo"),
    ("deadline_model", "paper"),
    ("deadline_model", None),
    ("deadline_model", 5),
    ("device", "m4"),
    ("model_hash", "0" * 64),
    ("operators", 3),
    ("resident_bytes", 17),
    ("paging", False),
    ("paging", 1),
    ("formulation", None),
    ("solve_s", "soon"),
    ("objective", None),
    ("ram_bound_bytes", 1),
    ("least_ram_bytes", 10**9),
    ("deadline_bound_s", 1e-9),
    ("least_deadline_s", 10.0),
    ("why", ["no schedule has less"]),
    ("asked_scope", "all orders"),
    ("solve_s", 1e6),
]
"""Fields of a report, and what its plan isn't."""


@each(
    ("key", "value", "bound"),
    [(*one, b) for place, one in enumerate(CONTRADICTIONS) for b in turns(place, ((), ("--bound",)))],
)
def test_a_report_that_its_plan_contradicts_is_refused(
    run: Runner, solved: Path, tmp_path: Path, key: str, value: object, bound: tuple[str, ...]
) -> None:
    place = forged(solved, tmp_path, lambda document: document["report"].update({key: value}))
    ended = run("verify", place, *bound)
    assert (ended.code, ended.err.count("poetopt: ")) == (5, 1)
    assert f"{key} = " in ended.err
    assert "computed again" in ended.err
    assert "differs" in ended.out


@pytest.mark.parametrize(
    ("key", "value"),
    [("name", "time"), ("unit", "s"), ("value", 0.0), ("overhead", 0.01), ("bound", 1e9), ("baseline", None)],
)
def test_an_objective_that_the_plan_contradicts_is_refused(
    run: Runner, solved: Path, tmp_path: Path, key: str, value: object
) -> None:
    place = forged(solved, tmp_path, lambda document: document["report"]["objective"].update({key: value}))
    assert run("verify", place).code == 5


def test_a_field_that_every_report_has_is_missed(run: Runner, solved: Path, tmp_path: Path) -> None:
    place = forged(solved, tmp_path, lambda document: document["report"].pop("overhead_bound_j"))
    ended = run("verify", place)
    assert ended.code == 5
    assert "overhead_bound_j (the report lacks" in ended.err


def test_optimal_is_no_word_for_an_open_gap(run: Runner, solved: Path, tmp_path: Path) -> None:
    def weaken(document: dict[str, Any]) -> None:
        report = document["report"]
        half = report["overhead_j"] / 2
        report |= {"overhead_bound_j": half, "energy_bound_j": report["baseline_energy_j"] + half, "overhead_gap": 0.5}
        report |= {"gap": half / report["energy_j"], "objective": {**report["objective"], "bound": half}}

    place = forged(solved, tmp_path, weaken)
    assert 'status = "optimal"' in run("verify", place).err

    def own_up(document: dict[str, Any]) -> None:
        weaken(document)
        document["report"]["status"] = "feasible"

    assert run("verify", forged(solved, tmp_path, own_up)).code == 0


def test_a_plan_that_misses_its_deadline_is_refused(run: Runner, solved: Path, tmp_path: Path) -> None:
    def hurry(document: dict[str, Any]) -> None:
        document["budget"]["deadline_s"] = document["report"]["deadline_s"] = 1e-6

    place = forged(solved, tmp_path, hurry)
    run("verify", place).assert_one_message(str(place), "deadline of 1e-06 s", code=2)


def test_the_paper_s_deadline_is_of_the_computes(run: Runner, problem: Path, tmp_path: Path) -> None:
    place = tmp_path / "plan.json"
    asked = ("--device", "m4", "--ram", "70%", "--deadline", "1.05x", "--deadline-model", "paper")
    assert run("solve", problem, *asked, "-o", place).code == 0
    assert run("verify", place, "--bound").code == 0
    late = forged(place, tmp_path, lambda document: document["report"].update(deadline_s=1e-6))
    assert "deadline_s = 1e-06 in the file" in run("verify", late).err


def test_a_file_without_a_layout_is_told_so(run: Runner, solved: Path, tmp_path: Path) -> None:
    assert "layout sound" in run("verify", solved).out

    def strip(document: dict[str, Any]) -> None:
        document["inputs_at"] = None
        document["instructions"] = [step[:2] for step in document["instructions"]]

    ended = run("verify", forged(solved, tmp_path, strip))
    assert ended.code == 0
    assert "layout sound" not in ended.out
    assert "no layout to check" in " ".join(ended.out.split())


def test_a_bare_plan_is_one_without_budget_and_report(run: Runner, solved: Path, tmp_path: Path) -> None:
    place = tmp_path / "bare.json"
    codec.save(codec.load(solved).plan, place)
    ended = run("verify", place)
    assert ended.code == 0
    assert "names no budget" in ended.out
    assert "report" in ended.out
    run("verify", place, "--bound").assert_one_message(str(place), "no RAM budget", code=2)


def test_a_budget_that_was_taken_out_is_missed(run: Runner, solved: Path, tmp_path: Path) -> None:
    place = forged(solved, tmp_path, lambda document: document["budget"].update(ram_bytes=None))
    assert "ram_budget_bytes" in run("verify", place).err


def test_what_was_forbidden_is_said_with_the_bound(run: Runner, problem: Path, tmp_path: Path) -> None:
    place = tmp_path / "plan.json"
    assert run("solve", problem, "--device", "m4", "--ram", "70%", "--no-remat", "-o", place).code == 0
    assert "no schedule with nothing recomputed has less overhead" in " ".join(
        run("verify", place, "--bound").out.split()
    )


def test_a_plan_that_recomputes_was_not_made_without(run: Runner, problem: Path, tmp_path: Path) -> None:
    place = tmp_path / "plan.json"
    assert run("solve", problem, "--device", "m4", "--ram", "85%", "--no-paging", "-o", place).code == 0
    assert "nothing paged has less overhead" in " ".join(run("verify", place, "--bound").out.split())
    place = forged(place, tmp_path, lambda document: document["report"].update(remat=False))
    ended = run("verify", place, "--bound")
    assert (ended.code, "remat = false in the file, true" in ended.err) == (5, True)


@pytest.mark.parametrize(
    "asked",
    ["a72", "m4", "m4 --ram 100%", "a72 --ram 85% --formulation poet --time-limit 2s", "m4 --no-remat",
     "a72 --block flash-wear=10kB", "m4 --block static-power=1W", "a72 --block static-power=1W --steps 10",
     "m4 --energy-limit 2x", "a72 --scope forward --deadline 3x"],
)  # fmt: skip
def test_what_solve_writes_is_valid(run: Runner, problem: Path, tmp_path: Path, asked: str) -> None:
    place = tmp_path / "plan.json"
    ended = run("solve", problem, "--ram", "70%", "--device", *asked.split(), "-o", place)
    assert ended.code == 0, ended.err
    ended = run("verify", place)
    assert (ended.code, ended.err) == (0, "")


def test_what_compare_writes_is_valid(run: Runner, problem: Path, tmp_path: Path) -> None:
    folder = tmp_path / "plans"
    asked = ("--device", "m4", "--ram", "60%,100%", "--deadline", "3x", "--time-limit", "2s", "--plans", folder)
    assert run("compare", problem, *asked).code == 0
    plans = sorted(folder.iterdir())
    assert len(plans) > 5
    for place in plans:
        ended = run("verify", place)
        assert (ended.code, ended.err) == (0, ""), place
    elsewhere = forged(plans[0], tmp_path, lambda document: document["report"].update(scope="depth<=" + "9" * 5000))
    ended = run("verify", elsewhere, "--bound")
    assert (ended.code, f"{elsewhere}: its report" in ended.err, "scope = " in ended.err) == (5, True, True)
    raised = forged(plans[0], tmp_path, lambda document: document["report"].update(page_ins=99))
    assert (run("verify", raised).code, "page_ins" in run("verify", raised).err) == (5, True)


def test_the_problem_is_compared_with_its_model(run: Runner, tmp_path: Path) -> None:
    model, place = tmp_path / "lenet.onnx", tmp_path / "plan.json"
    onnx.save(zoo.build("lenet", 4), model)
    assert run("solve", model, "--device", "m4", "--ram", "99%", "--time-limit", "10s", "-o", place).code == 0
    assert f"computed again from {model} on m4" in " ".join(run("verify", place).out.split())

    def rename(document: dict[str, Any]) -> None:
        document["tensors"][0]["name"] += "?"

    other = forged(place, tmp_path, rename)
    run("verify", other).assert_one_message(str(other), "has changed", code=2)
    assert run("verify", other, "--no-model").code == 0

    onnx.save(zoo.build("lenet", 5), model)
    run("verify", place).assert_one_message("not the model", str(place), code=2)
    model.unlink()
    ended = run("verify", place)
    assert ended.code == 0
    assert "lenet.onnx is missing" in " ".join(ended.out.split())
    onnx.save(zoo.build("lenet", 4), tmp_path / "moved.onnx")
    moved = tmp_path / "moved.onnx"
    assert f"computed again from {moved} on m4" in " ".join(run("verify", place, "--model", moved).out.split())
    run("verify", place, "--model", model, "--no-model").assert_one_message("--no-model", code=2)


def test_a_problem_file_is_compared_too(run: Runner, problem: Path, tmp_path: Path) -> None:
    place = tmp_path / "plan.json"
    assert run("solve", problem, "--device", "m4", "--ram", "70%", "-o", place).code == 0
    write_problem(problem, chain(nbytes=2000))
    run("verify", place).assert_one_message("not the model", str(place), code=2)


def test_certificates_that_are_not_there_name_the_file(run: Runner, problem: Path, tmp_path: Path) -> None:
    place = tmp_path / "plan.json"
    asked = ("--device", "m4", "--ram", "85%", "--formulation", "poet", "--time-limit", "2s")
    assert run("solve", problem, *asked, "-o", place).code == 0
    run("verify", place, "--bound").assert_one_message(str(place), "retention", code=2)


def test_a_network_that_is_called_like_its_file_may_be_moved(run: Runner, tmp_path: Path) -> None:
    model = zoo.build("mlp", 2)
    model.graph.name = "main_graph"
    onnx.save(model, tmp_path / "spotter.onnx")
    place = tmp_path / "plan.json"
    assert run("solve", tmp_path / "spotter.onnx", "--device", "m4", "--ram", "100%", "-o", place).code == 0
    (tmp_path / "spotter.onnx").rename(tmp_path / "moved.onnx")
    assert run("verify", place, "--model", tmp_path / "moved.onnx").code == 0
    assert run("run", place, "--model", tmp_path / "moved.onnx").code == 0
