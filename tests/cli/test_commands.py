"""The commands as people and scripts use them: summaries, JSON, files, the program itself."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

import poetopt as po
from benchmarks.language import Llama, llama
from tests.support.cli import REPORT_KEYS, Runner

PROGRAM = (sys.executable, "-c", "from poetopt.cli.app import main; main()")


def test_solve_summary_and_json_say_the_same(run: Runner, problem: Path, tmp_path: Path) -> None:
    place = tmp_path / "report.json"
    ended = run("solve", problem, "--device", "a72", "--ram", "70%", "--json", place, "--verbose")
    assert (ended.code, ended.err) == (0, "")
    document = json.loads(place.read_text())
    assert document.keys() >= REPORT_KEYS
    assert f"{document['ram_budget_bytes']:,} B" in ended.out
    assert f"{document['recomputes']} recompute" in ended.out
    assert document["status"] == "optimal"
    assert document["peak_bytes"] <= document["ram_budget_bytes"]
    assert document["energy_j"] == pytest.approx(document["baseline_energy_j"] + document["overhead_j"])
    assert document["energy_bound_j"] <= document["energy_j"] * (1 + 1e-9)


def labels(text: str) -> list[str]:
    """Labels of a summary's rows."""
    return re.findall(r"^  ([a-zA-Z][a-zA-Z ]*?)  ", text, flags=re.MULTILINE)


def test_every_command_answers_first(run: Runner, tmp_path: Path) -> None:
    """Fit, cost, proof and the next command stand before all else; exact bytes come with --verbose."""
    plan = tmp_path / "plan.json"
    solved = ("solve", "mlp", "--device", "a72", "--ram", "80%", "-o", plan)
    for command in (
        solved, ("run", plan), ("verify", plan), ("inspect", "mlp", "--device", "a72"),
        ("pareto", "mlp", "--device", "a72", "--points", "2", "--time-limit", "5s"),
        ("compare", "mlp", "--device", "a72", "--ram", "100%", "--methods", "poet"),
    ):  # fmt: skip
        ended = run(*command)
        assert ended.code == 0, ended.err
        assert labels(ended.out)[:4] == ["fit", "cost", "proof", "next"], command
        assert not re.search(r"\d,\d{3} B\b", ended.out), command
    whole, verbose = (" ".join(run(*solved, *more).out.split()) for more in ((), ("-v",)))  # lines may be wrapped
    assert f"poetopt run {plan}" in whole
    assert re.search(r"\d,\d{3} B\b", verbose)


def test_a_factor_is_of_one_pass_and_steps_divide_a_time(run: Runner, problem: Path) -> None:
    common = ("solve", problem, "--device", "a72", "--ram", "100%", "--json", "-")
    factor = run(*common, "--deadline", "1.5x").document
    assert factor["deadline_s"] == pytest.approx(1.5 * factor["baseline_time_s"])
    assert run(*common, "--deadline", "1h", "--steps", "10").document["deadline_s"] == pytest.approx(360)


def test_inspect_shows_what_training_takes(run: Runner) -> None:
    ended = run("inspect", "lenet", "--device", "m0", "--runtime", "onnxruntime", "-v")
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


def test_compare_writes_everything(run: Runner, problem: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture, plans, document = (tmp_path / name for name in ("a.svg", "plans", "a.json"))
    ended = run(
        "compare", problem, "--device", "a72", "--ram", "60%..100%/3", "--methods", "dtr,checkpoint-all,poet",
        "-o", picture, "--plans", plans, "--json", document, "--time-limit", "5s",
    )  # fmt: skip
    assert ended.code == 0, ended.err
    assert ended.err == ""
    assert "checkpoint-all" in ended.out
    rows = json.loads(document.read_text())["rows"]
    assert len(rows) == 9
    assert picture.read_text().count("<svg") == 1
    assert len(list(plans.glob("*.json"))) == sum(row["energy_j"] is not None for row in rows)


def test_pareto(run: Runner, problem: Path) -> None:
    ended = run("pareto", problem, "--device", "a72", "--points", "4", "--time-limit", "10s", "--json", "-")
    assert ended.code == 0, ended.err
    points = ended.document["points"]
    assert 2 <= len(points) <= 4
    assert points[-1]["overhead_j"] == 0


def test_the_largest_batch_within_an_overhead(run: Runner, tmp_path: Path) -> None:
    """No row beyond it is as cheap, the next larger batch is a row, and the sentence names it."""
    asked = ("fit", "lenet", "--device", "m4", "--optimizer", "sgd", "--memory", "320KB", "--time-limit", "1s")
    ended = run(*asked, "--overhead", "50%", "--json", tmp_path / "fits.json")
    rows = {row["batch"]: row for row in json.loads((tmp_path / "fits.json").read_text())["rows"]}
    cheap = [batch for batch, row in rows.items() if row["overhead"] is not None and row["overhead"] <= 0.5]
    assert list(rows) == sorted(rows)
    assert max(cheap) + 1 in rows
    assert f"batch {max(cheap)} fits with" in ended.out
    again = run(*asked, "--batches", str(max(cheap) + 1)).out
    assert f"batch {max(cheap) + 1} fits" not in again
    run(*asked, "--overhead", "10J").assert_one_message("--overhead 10J: not a share", code=2)
    run(*asked, "--overhead", "1%", "--batches", "2").assert_one_message("Leave --batches out", code=2)


SHAPE = Llama(1, 32, 2, 2, 32, 256)


def written(path: Path) -> Path:
    path.write_bytes(llama(SHAPE, 8, rank=0).SerializeToString())
    return path


def test_a_language_model_is_adapted_to_a_text_and_merged(run: Runner, tmp_path: Path) -> None:
    net, adapted, plan = written(tmp_path / "net.onnx"), tmp_path / "adapted.onnx", tmp_path / "plan.json"
    ended = run("lora", net, "-o", adapted, "--rank", "4", "--targets", "*q_proj")
    assert ended.code == 0
    assert "pairs beside 1 of its products, 256 numbers" in ended.out
    run("solve", adapted, "--device", "a72", "--optimizer", "adamw", "-o", plan)
    text = tmp_path / "text.txt"
    text.write_text("the same words again, and the same words again. " * 4)
    trained, merged = tmp_path / "trained.onnx", tmp_path / "merged.onnx"
    ended = run("train", plan, "--data", text, "-o", trained, "--lr", "0.05", "--epochs", "2", "--json", "-")
    first, second = ended.document["losses"]
    assert second < first
    assert run("lora", trained, "--merge", "-o", merged).code == 0
    assert not any("lora" in one.name for one in onnx.load(merged).graph.initializer)
