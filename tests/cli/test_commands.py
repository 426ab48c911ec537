"""The commands as people and scripts use them: summaries, JSON, files, the program itself."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

import poetopt as po
from poetopt import zoo
from tests.cli.support import REPORT_KEYS, Runner

PROGRAM = (sys.executable, "-c", "from poetopt.cli.app import main; main()")


def test_solve_summary_and_json_say_the_same(run: Runner, problem: Path, tmp_path: Path) -> None:
    place = tmp_path / "report.json"
    ended = run("solve", problem, "--device", "a72", "--ram", "70%", "--json", place)
    assert (ended.code, ended.err) == (0, "")
    document = json.loads(place.read_text())
    assert document.keys() >= REPORT_KEYS
    assert f"{document['ram_budget_bytes']:,} B" in ended.out
    assert f"{document['recomputes']} recomputes" in ended.out
    assert document["status"] == "optimal"
    assert document["peak_bytes"] <= document["ram_budget_bytes"]
    assert document["energy_j"] == pytest.approx(document["baseline_energy_j"] + document["overhead_j"])
    assert document["energy_bound_j"] <= document["energy_j"] * (1 + 1e-9)


def test_store_all_leaves_nothing_to_save(run: Runner) -> None:
    ended = run("solve", "lenet", "--device", "a72")
    assert ended.code == 0
    assert "nothing to save" in ended.out
    document = run("solve", "lenet", "--device", "a72", "--json", "-").document
    assert document["store_all_fits"]
    assert (document["overhead_j"], document["overhead_gap"], document["status"]) == (0, 0, "optimal")
    assert document["ram_budget_bytes"] == document["device_ram_bytes"] - document["resident_bytes"]


def test_a_share_is_of_the_store_all_peak(run: Runner, problem: Path) -> None:
    document = run("solve", problem, "--device", "a72", "--ram", "70%", "--json", "-").document
    assert document["ram_budget_bytes"] == int(0.7 * document["store_all_peak_bytes"])


def test_a_factor_is_of_one_pass_and_steps_divide_a_time(run: Runner, problem: Path) -> None:
    common = ("solve", problem, "--device", "a72", "--ram", "100%", "--json", "-")
    factor = run(*common, "--deadline", "1.5x").document
    assert factor["deadline_s"] == pytest.approx(1.5 * factor["baseline_time_s"])
    assert run(*common, "--deadline", "1h", "--steps", "10").document["deadline_s"] == pytest.approx(360)


def test_blocks_can_be_left_out(run: Runner, problem: Path) -> None:
    common = ("solve", problem, "--device", "a72", "--ram", "80%", "--json", "-")
    free = run(*common).document
    without_paging = run(*common, "--no-paging").document
    without_remat = run(*common, "--no-remat").document
    assert without_paging["page_outs"] == without_paging["page_ins"] == 0
    assert without_remat["recomputes"] == 0
    assert free["energy_j"] <= min(without_paging["energy_j"], without_remat["energy_j"]) * (1 + 1e-9)


def test_inspect_shows_what_training_takes(run: Runner) -> None:
    ended = run("inspect", "lenet", "--device", "m0", "--runtime", "onnxruntime")
    assert ended.code == 0
    document = run("inspect", "lenet", "--device", "m0", "--runtime", "onnxruntime", "--json", "-").document
    training = document["training"]
    assert f"{training['store_all_peak_bytes']:,} B" in ended.out
    assert training["binding_operator"] in ended.out
    assert sum(entry["bytes"] for entry in training["peak"]) == training["store_all_peak_bytes"]
    assert training["ram_bound_bytes"] <= training["least_ram_bytes"] <= training["store_all_peak_bytes"]
    assert sum(document["resident"].values()) == training["resident_bytes"]
    assert document["unsupported"] == []
    kernels = run("inspect", "lenet", "--device", "m0", "--json", "-").document["training"]
    assert kernels["least_ram_bytes"] < training["least_ram_bytes"]


def test_inspect_names_unsupported_operators_first(run: Runner, tmp_path: Path) -> None:
    from onnx import TensorProto, helper

    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "w"], ["h"]), helper.make_node("Erf", ["h"], ["e"]),
         helper.make_node("GlobalLpPool", ["e"], ["y"], name="total")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 4])],
        [helper.make_tensor("w", TensorProto.FLOAT, [4], [1.0] * 4)],
    )  # fmt: skip
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    ended = run("inspect", path)
    assert ended.code == 0
    assert "GlobalLpPool" in ended.out.splitlines()[1] + ended.out.splitlines()[2]
    assert "total" in {entry["node"] for entry in run("inspect", path, "--json", "-").document["unsupported"]}


@pytest.mark.parametrize("dtype", ["float", "float16", "double", "bfloat16"])
def test_types_that_runtimes_leave_out_are_told(run: Runner, tmp_path: Path, dtype: str) -> None:
    """`inspect` and `solve` say that `run` may refuse; solving alone is right in every type."""
    header = '<ir_version: 8, opset_import: ["": 18]> g'
    model = onnx.parser.parse_model(f"{header} ({dtype}[4,6] x) => ({dtype}[4,3] y) {{ h = MatMul(x, w) y = Relu(h) }}")
    elem = model.graph.input[0].type.tensor_type.elem_type
    model.graph.initializer.append(onnx.helper.make_tensor("w", elem, [6, 3], [0.5] * 18))
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    name = {"double": "float64", "bfloat16": "bfloat16"}.get(dtype)
    for command in (("inspect", path), ("solve", path, "--device", "a72", "--ram", "100%", "-o", tmp_path / "p.json")):
        ended = run(*command)
        assert ended.code == 0
        assert ended.out.count("onnxruntime may") == bool(name)
        assert f"operators in {name} (MatMul, Relu" in ended.out or not name
    board = " ".join(run("inspect", path, "--device", "m4").out.split())
    assert ("no C is emitted for its plans: MatMul of" in board) == (dtype != "float")
    solved = run("solve", path, "--device", "m4", "--ram", "100%", "-o", tmp_path / "board.json")
    assert solved.code == (0 if dtype == "float" else 2)
    assert ("(MatMul): the runtime c can't run it: MatMul of" in solved.err) == (dtype != "float")
    assert ("plan with --runtime onnxruntime" in solved.err) == (dtype != "float")
    assert (tmp_path / "board.json").exists() == (dtype == "float")


def test_inspect_of_a_problem_file(run: Runner, problem: Path) -> None:
    document = run("inspect", problem, "--json", "-").document
    assert document["training"]["ram_bound_bytes"] == 3000


def test_grad_writes_a_standard_model(run: Runner, tmp_path: Path) -> None:
    place = tmp_path / "train.onnx"
    ended = run("grad", "lenet", "-o", place, "--train", "fc*")
    assert (ended.code, ended.err) == (0, "")
    model = onnx.load(place)
    onnx.checker.check_model(model)
    outputs = {output.name for output in model.graph.output}
    trained = po.load("lenet", train="fc*").graph.trained  # type: ignore[union-attr]
    assert {"loss", *(f"{name}.grad" for name in trained)} <= outputs
    assert not any(name.startswith("conv") for name in outputs)


def test_grad_says_which_statistic_becomes_which(run: Runner, tmp_path: Path) -> None:
    place = tmp_path / "train.onnx"
    told = " ".join(run("grad", "resnet18-cifar", "-o", place).out.split())
    states = json.loads(run("grad", "resnet18-cifar", "-o", place, "--json", "-").out)["states"]
    old, new = next(iter(states.items()))
    assert f"{old} -> {new}" in told
    assert f"({len(states)} in --json)" in told
    assert {output.name for output in onnx.load(place).graph.output} >= set(states.values())
    assert "are trained (inferred; --train to choose)" in told


def test_zoo_lists_and_writes(run: Runner, tmp_path: Path) -> None:
    assert all(name in run("zoo").out for name in zoo.names())
    place = tmp_path / "mlp.onnx"
    assert run("zoo", "mlp", "-o", place).code == 0
    assert onnx.load(place).SerializeToString() == zoo.build("mlp").SerializeToString()


def test_devices(run: Runner) -> None:
    table = run("devices").out
    for name in po.devices.names():
        assert f"\n{name} " in table
        shown = run("devices", "--show", name).out
        document = run("devices", "--show", name, "--json", "-").document
        assert document["figures"]
        told = " ".join(shown.split())
        assert all(" ".join(figure["source"].split()) in told for figure in document["figures"].values())


def test_help_and_version(run: Runner) -> None:
    assert run("--version").out == f"poetopt {po.__version__}\n"
    listing = run("--help").out
    for command in ("solve", "run", "inspect", "grad", "devices", "zoo"):
        assert command in listing
        assert run(command, "--help").code == 0
    assert run().out == listing


def test_the_program_ends_with_the_code() -> None:
    ended = subprocess.run([*PROGRAM, "solve", "nothing.onnx", "--device", "a72"], capture_output=True, text=True)
    assert ended.returncode == 2
    assert ended.stderr.startswith("poetopt: nothing.onnx")
    assert ended.stdout == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_stdout_is_an_error() -> None:
    with open("/dev/full", "w") as full:
        ended = subprocess.run([*PROGRAM, "devices"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert ended.returncode == 2
    assert ended.stderr.count("poetopt: ") == 1
    assert "Traceback" not in ended.stderr


def test_a_defect_is_one_message_too() -> None:
    code = "import poetopt.cli.app as c, poetopt.cli.console as k\nk.own_the_process()\nc.say(c.undefined)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 1
    assert ended.stderr.startswith("poetopt: a defect in poetopt: AttributeError")
    assert "Traceback" not in ended.stderr


def test_interrupt_outside_a_solve() -> None:
    code = (
        "import os, signal, sys, poetopt.cli.app as c, poetopt.cli.models as k\n"
        "k.check_outputs = lambda *a: os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.argv = ['poetopt', 'devices']\nc.main()"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 128 + signal.SIGINT
    assert ended.stderr == "poetopt: interrupted\n"


def test_a_closed_stdout(problem: Path, tmp_path: Path) -> None:
    def closed(*arguments: str) -> subprocess.CompletedProcess[str]:
        script = 'exec "$@" >&-'
        return subprocess.run(["sh", "-c", script, "sh", *PROGRAM, *arguments], stderr=subprocess.PIPE, text=True)

    place = tmp_path / "plan.json"
    ended = closed("solve", str(problem), "--device", "a72", "--ram", "70%", "-o", str(place))
    assert (ended.returncode, ended.stderr) == (0, "")
    assert place.exists()
    ended = closed("devices", "--json", "-")
    assert ended.returncode == 2
    assert ended.stderr.startswith("poetopt: --json -: the standard output is closed")
