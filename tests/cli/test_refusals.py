"""Options that contradict each other or the machine: one message that names the option, code 2, nothing written."""

from __future__ import annotations

from pathlib import Path

import pytest

from poetopt.util.text import closest
from tests.cli.support import Runner

SOLVE = ("--device", "a72", "--ram", "70%")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--threads", "100000"), ("--threads 100000", "512")),
        (("--gap", "200%"), ("--gap 200%", "0.1%")),
        (("--gap", "2"), ("--gap 2", "write 2%")),
        (("--with", "static-power=-1W"), ("--with static-power=-1W", "3W")),
        (("--with", "static-power=1W", "--with", "static-power=2W"), ("--with static-power=2W", "already")),
        (("--with", "flash-wear=1MB", "--with", "flash-wear=2MB"), ("--with flash-wear=2MB", "already")),
        (("--formulation", "retension"), ("retension", "closest: retention")),
        (("--with", "solver-option=zzzzzz=1"), ("--with solver-option=zzzzzz=1", "see the list")),
        (("--with", "sensitivity"), ("--with sensitivity: it is gone", 'base = "a72"')),
    ],
    ids=lambda value: " ".join(value),
)
def test_options_of_solve(
    run: Runner, problem: Path, tmp_path: Path, options: tuple[str, ...], said: tuple[str, ...]
) -> None:
    plan = tmp_path / "plan.json"
    run("solve", problem, *SOLVE, *options, "-o", plan).assert_one_message(*said, code=2)
    assert not plan.exists()


def test_far_from_every_name_no_name_is_called_the_closest(run: Runner, problem: Path) -> None:
    ended = run("solve", problem, *SOLVE, "--formulation", "zzzzzz")
    ended.assert_one_message("retention, poet", code=2)
    assert "closest" not in ended.err
    assert closest("retension", ["poet", "retention"]) == "; closest: retention"


def test_a_limit_that_is_too_low_blames_nothing_else(run: Runner, problem: Path) -> None:
    ended = run("solve", problem, *SOLVE, "--with", "energy-limit=0.5x")
    ended.assert_one_message("energy limit", "without the block", code=3)
    assert "--ram" not in ended.err


def test_plans_go_into_a_folder(run: Runner, problem: Path, tmp_path: Path) -> None:
    file = tmp_path / "plans"
    file.write_text("kept")
    run("compare", problem, "--device", "a72", "--plans", file).assert_one_message("--plans", "folder", code=2)
    assert file.read_text() == "kept"


def test_messages_name_the_model_first(run: Runner) -> None:
    run("inspect", "lenet", "--train", "zzz*").assert_one_message("lenet: --train 'zzz*'", code=2)
    run("grad", "lenet", "-o", "never.onnx", "--output", "nope").assert_one_message("lenet: no output 'nope'", code=2)


def test_an_unknown_output_is_said_with_its_file(run: Runner, tmp_path: Path) -> None:
    path = tmp_path / "mine.onnx"
    run("zoo", "lenet", "-o", path)
    ended = run("inspect", path, "--output", "nope")
    ended.assert_one_message(f"{path}: ", "no output 'nope'; there are logits", code=2)
