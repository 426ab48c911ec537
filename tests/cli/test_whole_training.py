"""`solve --epochs --samples`: the answer for all of the training, which is a step's times as many."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import poetopt as po
from poetopt.util.errors import OptionError
from tests.cli.support import Runner, chain, write_problem

LENET = ("solve", "lenet", "--device", "a72", "--ram", "100%", "--batch", "8")


def test_steps_hours_and_joules(run: Runner) -> None:
    told = run(*LENET, "--epochs", 3, "--samples", 1001, "--deadline", "1min", "--json", "-")
    document = told.document
    found = document["training"]
    steps = 3 * 125  # 1001 samples are 125 batches of 8, and one is left out
    assert found["left_out"] == 1
    assert (found["steps"], found["epochs"], found["samples"], found["batch"]) == (steps, 3, 1001, 8)
    assert found["time_s"] == pytest.approx(steps * document["makespan_s"])
    assert found["energy_j"] == pytest.approx(steps * document["energy_j"])
    assert found["deadline_s"] == pytest.approx(60)
    assert document["deadline_s"] == pytest.approx(60 / steps)
    report = po.solve("lenet", device="a72", ram="100%", batch=8, epochs=3, samples=1001, deadline=60)
    assert report.to_dict()["training"] == pytest.approx(found)
    assert "375 steps (3 x 1,001 samples in batches of 8, 1 left out)" in str(report)


def test_a_step_alone_has_no_training(run: Runner) -> None:
    assert run(*LENET, "--json", "-").document["training"] is None


def test_idle_power_that_is_asked_for_counts(run: Runner) -> None:
    without = run(*LENET, "--steps", 10, "--deadline", "1h", "--json", "-").document
    document = run(*LENET, "--steps", 10, "--deadline", "1h", "--with", "static-power=2W", "--json", "-").document
    idle_j = 2 * document["makespan_s"]
    assert document["training"]["energy_j"] == pytest.approx(10 * (document["energy_j"] + idle_j))
    assert without["training"]["energy_j"] == pytest.approx(10 * without["energy_j"])


def test_the_deadline_of_a_refusal_is_for_all_steps(run: Runner) -> None:
    step_s = run(*LENET, "--json", "-").document["baseline_time_s"]
    refused = run(*LENET, "--samples", 80, "--deadline", 9 * step_s)
    refused.assert_one_message("10 steps in", "each: ", "(--deadline ", "for 10 steps)", code=3)
    hint = refused.err.split("(--deadline ")[1].split(",")[0]
    assert float(hint.removesuffix("s")) == pytest.approx(10 * step_s, rel=1e-4)
    assert run(*LENET, "--samples", 80, "--deadline", hint).code == 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"epochs": 2}, "--epochs 2: how many samples has an epoch?"),
        ({"samples": 5}, "--samples 5: a batch has 8"),
        ({"samples": 5, "steps": 3}, "--steps 3: --epochs and --samples say how many steps"),
        ({"samples": 0}, "--samples 0: must be at least 1"),
    ],
)
def test_what_contradicts_itself_is_refused(options: dict[str, object], says: str) -> None:
    with pytest.raises(OptionError, match=re.escape(says)):
        po.solve("lenet", device="a72", ram="100%", **options)  # type: ignore[arg-type]


def test_a_problem_file_has_no_batch(tmp_path: Path) -> None:
    path = write_problem(tmp_path / "chain.json", chain())
    with pytest.raises(OptionError, match="has no batch to divide them by; give --steps"):
        po.solve(path, device="a72", samples=5)


def test_a_plan_file_that_says_otherwise_is_found(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    po.solve("lenet", device="a72", ram="100%", samples=1000).save(path)
    assert not po.verify(path).differs
    written = json.loads(path.read_text())
    for key in ("time_s", "energy_j", "bytes_written"):
        edited = json.loads(path.read_text())
        edited["report"]["training"][key] = written["report"]["training"][key] / 2 - 1
        (tmp_path / "edited.json").write_text(json.dumps(edited))
        (differs,) = po.verify(tmp_path / "edited.json").differs
        assert differs.name == "training"
        assert differs.file != differs.recomputed


def test_more_than_the_device_has_is_told_first(run: Runner) -> None:
    asked = ("solve", "lenet", "--device", "m4", "--ram", "1MB")
    ended = run(*asked)
    assert ended.code == 0
    document = run(*asked, "--json", "-")
    taken, has = document.document["total_ram_bytes"], document.document["device_ram_bytes"]
    assert has < taken
    assert document.document["fits_device"] is False
    warning = f"it takes {taken:,} bytes, and m4 has {has:,}"
    assert ended.out.splitlines()[1].split()[0] == "WARNING"
    assert warning in " ".join(ended.out.split())
    assert ended.err == ""
    assert document.err.startswith("poetopt: warning: the step doesn't fit")
    fits = run("solve", "lenet", "--device", "a72", "--json", "-")
    assert fits.document["fits_device"] is True
    assert fits.err == ""


def test_an_answer_says_what_inference_takes_of_the_same_ram(run: Runner, tmp_path: Path) -> None:
    """As `emit` finds it; an onnxruntime has no po_predict, and a network alone is one."""
    place = tmp_path / "plan.json"
    ended = run("solve", "lenet", "--batch", "1", "--device", "m4", "--total-ram", "64KB", "-o", place)
    report = json.loads(place.read_text())["report"]
    taken, arena = report["prediction_bytes"], report["arena_bytes"]
    assert 0 < taken <= arena
    assert f"fits in the same RAM: po_predict takes {taken:,} B of the {arena:,}" in " ".join(ended.out.split())
    assert po.emit(place, tmp_path / "c").prediction_bytes == taken
    edited = json.loads(place.read_text())
    edited["report"]["prediction_bytes"] = taken - 4
    place.write_text(json.dumps(edited))
    (differs,) = po.verify(place).differs
    assert (differs.name, differs.recomputed) == ("prediction_bytes", taken)
    for options in (("--device", "a72"), ("--device", "m4", "--loss", "forward-only")):
        other = run("solve", "mlp", *options, "--ram", "100%")
        assert other.code == 0
        assert "po_predict" not in other.out


@pytest.mark.parametrize("parameters", ["resident", "paged"])
def test_a_refusal_has_the_total_that_was_asked_for(run: Runner, parameters: str) -> None:
    asked = ("--total-ram", "300kB", "--parameters", parameters, "--json", "-")
    ended = run("solve", "lenet", "--device", "a72", *asked)
    assert ended.code == 3
    assert ended.document["total_ram_bytes"] == 300_000
    assert ended.document["fits_device"] is None
