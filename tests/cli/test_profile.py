"""`poetopt profile` and `solve --profile`."""

from __future__ import annotations

from pathlib import Path

import pytest

import poetopt as po
from poetopt.devices.profile import load_profile
from poetopt.ops.nodes import signatures
from tests.support.cli import Runner


def test_measure_and_solve(run: Runner, tmp_path: Path) -> None:
    place = tmp_path / "p.toml"
    ended = run("profile", "mlp", "-o", place, "--power", "2W")
    assert (ended.code, ended.err) == (0, "")
    assert "missing" not in ended.out
    assert f"solve --profile {place}" in " ".join(ended.out.split())
    profile = load_profile(place)
    solved = run("solve", "mlp", "--device", "a72", "--ram", "95%", "--profile", place, "--json", "-").document
    assert solved["baseline_time_s"] == pytest.approx(run_step(run, place, tmp_path), rel=1e-9)
    assert profile.power_w is not None
    more = run("profile", "lenet", "-o", place, "--json", "-").document
    assert more["missing"] == []
    assert more["in_profile"] == len(load_profile(place).operators) > len(profile.operators)


def run_step(run: Runner, place: Path, tmp_path: Path) -> float:
    """Seconds of the step by the profile's figures alone."""
    model = po.load("mlp")
    assert isinstance(model, po.Model)
    operators = load_profile(place).operators
    return sum(operators[key].time_s for key in signatures(model.differentiate().graph).values())
