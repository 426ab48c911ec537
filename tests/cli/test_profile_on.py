"""`profile --on`: from a model to the costs of an emulated core by the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

import poetopt as po
from tests.backends.c.support import needs_emulator
from tests.cli.support import Runner


@needs_emulator
def test_a_profile_of_an_emulated_core_is_made_and_used(run: Runner, tmp_path: Path) -> None:
    pytest.importorskip("capstone")
    model = tmp_path / "tiny.onnx"
    model.write_bytes(po.zoo.build("mlp", 1).SerializeToString())
    place = tmp_path / "m4.toml"
    ended = run("profile", model, "--on", "cortex-m4", "--optimizer", "sgd", "--clock", "32MHz", "-o", place)
    assert ended.code == 0
    assert "never waits for memory" in " ".join(ended.out.split())
    again = run(
        "profile", model, "--on", "cortex-m4", "--optimizer", "sgd", "--clock", "32MHz", "-o", place, "--json", "-"
    )
    step = again.document["step"]
    assert step["cycles"]["middle"] / 32e6 == pytest.approx(again.document["step_s"])
    assert step["instructions"] == sum(one["instructions"] for one in again.document["by_operator"].values())
    solved = run(
        "solve", model, "--device", "m4", "--optimizer", "sgd", "--ram", "100%", "--profile", place, "--json", "-"
    )
    assert solved.document["makespan_s"] == pytest.approx(again.document["step_s"])
    other = run("profile", model, "--on", "cortex-m0plus", "-o", place)
    other.assert_one_message("its figures are of emulated cortex-m4 at 32 MHz", code=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--on", "host"), "--on host: its cycles can't be modelled"),
        (("--on", "cortex-m4", "--power", "3W"), "--on, --power:"),
        (("--clock", "64MHz"), "--clock, --optimizer: they are for --on"),
        (("--on", "cortex-m4", "--clock", "64MB"), "--clock 64MB: not a frequency"),
    ],
)
def test_options_that_make_no_sense(run: Runner, tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    run("profile", "mlp", *options, "-o", tmp_path / "p.toml").assert_one_message(message, code=2)
