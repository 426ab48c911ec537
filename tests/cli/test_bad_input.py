"""Whatever is wrong with input or outputs: one message that says what, where and the remedy, and the exit code."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from poetopt import zoo
from tests.cli.support import Runner, chain, write_problem

SOLVE = ("--device", "a72", "--ram", "50%")


def save(path: Path, nodes: list[onnx.NodeProto], *, batch: int | str = 2, opset: int = 17) -> Path:
    """A model of `nodes` from `x` [batch, 4] to `y` [batch, 4] with a weight `w` [4, 4]."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 4])],
        [numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8), path)
    return path


def test_truncated_file(run: Runner, tmp_path: Path) -> None:
    whole = zoo.build("mlp").SerializeToString()
    path = tmp_path / "cut.onnx"
    path.write_bytes(whole[: len(whole) // 2])
    run("solve", path, *SOLVE).assert_one_message("cut.onnx", code=2)


def test_missing_file(run: Runner, tmp_path: Path) -> None:
    run("solve", tmp_path / "none.onnx", *SOLVE).assert_one_message("none.onnx", "no such file", code=2)


@pytest.mark.parametrize("command", ["solve", "inspect", "compare"])
def test_an_empty_name(run: Runner, command: str) -> None:
    run(command, "", "--device", "a72").assert_one_message("the name of the model is empty", "resnet18-cifar", code=2)


def test_operator_without_a_rule(run: Runner, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="mul"),
        helper.make_node("GlobalLpPool", ["h"], ["y"], name="total"),
    ]
    path = save(tmp_path / "m.onnx", nodes)
    run("solve", path, *SOLVE, "--loss", "mse").assert_one_message(
        "m.onnx", "total", "GlobalLpPool", "opset", "register_vjp", code=2
    )


def test_symbolic_batch(run: Runner, tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", [helper.make_node("MatMul", ["x", "w"], ["y"], name="one")], batch="N")
    run("solve", path, *SOLVE).assert_one_message("--batch", code=2)


def test_a_batch_of_zero_is_no_batch(run: Runner, tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", [helper.make_node("MatMul", ["x", "w"], ["y"], name="one")], batch=0)
    run("solve", path, *SOLVE).assert_one_message("dimension 0 of input 'x' has no size", "--batch", code=2)
    assert run("solve", path, "--device", "a72", "--batch", 3).code == 0


def test_unknown_device_of_a_problem_file(run: Runner, problem: Path) -> None:
    run("solve", problem, "--device", "tx2", "--ram", "50%").assert_one_message("tx2", "a72", code=2)


@pytest.mark.parametrize("number", [math.nan, -1.0, math.inf, None, "1"])
@pytest.mark.parametrize("column", ["compute_s", "page_in_j"])
def test_costs_that_are_no_costs(run: Runner, tmp_path: Path, number: object, column: str) -> None:
    content = chain()
    content["costs"]["a72"][column][2] = number
    path = write_problem(tmp_path / "bad.json", content)
    run("solve", path, *SOLVE).assert_one_message("bad.json", f"{column}[2]", code=2)


@pytest.mark.parametrize("content", ["[]", "{}", "{", '{"nodes": []}', "[" * 100_000])
def test_problem_files_that_are_none(run: Runner, tmp_path: Path, content: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(content)
    run("solve", path, *SOLVE).assert_one_message("bad.json", code=2)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--ram", "3 parsec"), ("--ram", "-1"), ("--ram", "nan"), ("--ram", "300kb"), ("--deadline", "soon"),
        ("--deadline", "0x"), ("--deadline", "-1s"), ("--time-limit", "0"), ("--gap", "5"), ("--gap", "x"),
        ("--scope", "deep"), ("--scope", "depth:x"), ("--formulation", "retentoin"), ("--deadline-model", "wall"),
        ("--steps", "0"), ("--steps", "3"), ("--batch", "0"), ("--loss", "hinge"),
        ("--threads", "-1"), ("--nothing", "1"),
    ],
)  # fmt: skip
def test_options_that_make_no_sense(run: Runner, option: str, value: str) -> None:
    ended = run("solve", "mlp", *SOLVE, option, value)
    ended.assert_one_message(code=2)
    assert option in ended.err or value in ended.err


def test_ram_has_to_be_said_where_no_device_knows_it(run: Runner, problem: Path) -> None:
    run("solve", problem, "--device", "a72").assert_one_message("--ram", code=2)


def test_unwritable_output_is_found_before_the_solve(run: Runner, tmp_path: Path, problem: Path) -> None:
    missing = tmp_path / "none" / "plan.json"
    for option in ("-o", "--json"):
        run("solve", problem, *SOLVE, "--ram", "1B", option, missing).assert_one_message(str(missing), code=2)
    run("solve", problem, *SOLVE, "-o", tmp_path).assert_one_message("it is a folder", code=2)
    if os.geteuid():
        tmp_path.chmod(0o500)
        run("solve", problem, *SOLVE, "-o", tmp_path / "plan.json").assert_one_message("plan.json", code=2)
        tmp_path.chmod(0o700)


def test_outputs_do_not_overwrite_the_input_or_each_other(run: Runner, tmp_path: Path, problem: Path) -> None:
    before = problem.read_bytes()
    run("solve", problem, *SOLVE, "-o", problem).assert_one_message("input", code=2)
    assert problem.read_bytes() == before
    both = tmp_path / "both.json"
    run("solve", problem, *SOLVE, "-o", both, "--json", both).assert_one_message("-o", code=2)
    assert not both.exists()


@pytest.mark.parametrize("target", ["-", "file"])
def test_budget_below_what_any_schedule_needs(run: Runner, tmp_path: Path, problem: Path, target: str) -> None:
    place = "-" if target == "-" else tmp_path / "report.json"
    ended = run("solve", problem, "--device", "a72", "--ram", "1500", "--json", place)
    assert ended.code == 3
    assert ended.err.count("poetopt: ") == 1
    assert "3,000" in ended.err
    document: dict[str, Any] = ended.document if target == "-" else json.loads(Path(place).read_text())
    assert document["status"] == "infeasible"
    assert document["ram_bound_bytes"] == document["least_ram_bytes"] == 3000
    assert document["reason"]
    assert document["energy_j"] is None


def test_every_byte_of_store_all_is_store_all(run: Runner) -> None:
    """The arena pads buffers: a share of 100 % holds them all the same."""
    document = run("solve", "mlp", "--device", "a72", "--ram", "100%", "--batch", "3", "--json", "-").document
    assert document["store_all_fits"]
    assert document["arena_bytes"] <= document["ram_budget_bytes"] == document["store_all_peak_bytes"]
    below = run(
        "solve", "mlp", "--device", "a72", "--ram", document["ram_budget_bytes"] - 1, "--batch", "3", "--json", "-"
    )
    assert not below.document["store_all_fits"]


def test_the_smallest_ram_of_a_network_is_found(run: Runner) -> None:
    """Where no heuristic has a schedule, the solver decides."""
    document = run("solve", "lenet", "--device", "a72", "--ram", "10%", "--json", "-").document
    assert document["ram_bound_bytes"] <= document["least_ram_bytes"] <= document["store_all_peak_bytes"]
    assert run("solve", "lenet", "--device", "a72", "--ram", document["least_ram_bytes"], "--gap", "100%").code == 0


def test_the_smallest_ram_that_it_names_is_feasible(run: Runner, problem: Path) -> None:
    least = run("solve", problem, "--device", "a72", "--ram", "1B", "--json", "-").document["least_ram_bytes"]
    assert run("solve", problem, "--device", "a72", "--ram", least).code == 0


def test_the_smallest_ram_that_it_names_has_no_byte_too_many(run: Runner, tmp_path: Path) -> None:
    """Bisection ends within a fraction of the budget; the schedule that it found says what it takes."""
    content = chain(5)
    content["nodes"][0]["bytes"] = 1500
    path = write_problem(tmp_path / "chain.json", content)
    asked = ("solve", path, "--device", "a72", "--no-paging", "--ram")
    assert run(*asked, "20%", "--json", "-").document["least_ram_bytes"] == 4000
    assert run(*asked, "4000").code == 0


def test_the_deadlines_that_it_names_are_feasible(run: Runner, tmp_path: Path) -> None:
    """One pass, and the quickest within the RAM: neither is rounded down."""
    content = chain()
    content["costs"]["a72"]["compute_s"][3] += 4e-7
    path = write_problem(tmp_path / "chain.json", content)
    for asked, ram, words in (("0.9x", "100%", "one pass over all operators, "), ("1.001x", "60%", "feasible is ")):
        ended = run("solve", path, "--device", "a72", "--ram", ram, "--deadline", asked)
        assert ended.code == 3, ended.err
        named = ended.err.split(words)[1].split(" s")[0]
        assert run("solve", path, "--device", "a72", "--ram", ram, "--deadline", f"{named}s").code == 0


def test_resident_region_over_the_ram(run: Runner) -> None:
    resident = ("solve", "mlp", "--device", "m0", "--parameters", "resident")
    run(*resident).assert_one_message("resident", "32,768", code=3)
    ended = run(*resident, "--json", "-")
    document = ended.document
    assert f"{document['resident_bytes']:,}" in ended.err


def test_a_problem_file_has_no_loss_to_choose(run: Runner, problem: Path, tmp_path: Path) -> None:
    run("solve", problem, *SOLVE, "--loss", "mse").assert_one_message("--loss", code=2)
    run("grad", problem, "-o", tmp_path / "t.onnx").assert_one_message("no network", code=2)
    assert not (tmp_path / "t.onnx").exists()


def test_zoo_needs_a_name_and_a_place(run: Runner, tmp_path: Path) -> None:
    run("zoo", "mlp").assert_one_message("-o", code=2)
    run("zoo", "resnet18", "-o", tmp_path / "r.onnx").assert_one_message("resnet18-cifar", code=2)
    run("zoo", "-o", tmp_path / "r.onnx").assert_one_message("mlp", code=2)
