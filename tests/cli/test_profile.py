"""`poetopt profile` and `solve --profile`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import poetopt as po
from poetopt.backends.onnxruntime.profiling import machine
from poetopt.devices.profile import OperatorProfile, Profile, StorageProfile, load_profile
from poetopt.ops.nodes import signatures
from poetopt.report.execution import predicted_words
from tests.cli.support import Runner


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


def test_a_template_filled_in(run: Runner, tmp_path: Path) -> None:
    csv, place = tmp_path / "board.csv", tmp_path / "board.toml"
    ended = run("profile", "mlp", "--template", csv)
    assert ended.code == 0
    assert not place.exists()
    lines = csv.read_text().splitlines()
    csv.write_text("\n".join([lines[0], lines[1].replace(",,,,", ",0.25,,,")]))
    ended = run("profile", "mlp", "--from-csv", csv, "-o", place, "--power", "90mW", "--dma")
    assert (ended.code, ended.err) == (0, "")
    assert "from the roofline" in ended.out
    assert load_profile(place).power_w == 0.09
    notes = run("solve", "mlp", "--device", "m4", "--ram", "95%", "--profile", place, "--json", "-").document["notes"]
    assert any("not in the profile, so from the roofline: " in note for note in notes)


def test_a_run_is_held_against_this_machines_profile(run: Runner, tmp_path: Path) -> None:
    model = po.load("mlp")
    assert isinstance(model, po.Model)
    keys = signatures(model.differentiate().graph)
    storage = StorageProfile(
        page_in_latency_s=1.0, page_in_bytes_per_s=1e6, page_out_latency_s=1.0, page_out_bytes_per_s=1e6, power_w=1.0
    )
    here = Profile(
        about={"machine": machine()},
        operators={key: OperatorProfile(time_s=50.0) for key in keys.values()},
        storage=storage,
    )
    profiles = {
        "here": here,
        "elsewhere": replace(here, about={"machine": "another processor"}),
        "part": replace(here, operators=dict(list(here.operators.items())[1:])),
    }
    predicted: dict[str, object] = {}
    transfers: dict[str, object] = {}
    for name, profile in profiles.items():
        place, plan = tmp_path / f"{name}.toml", tmp_path / f"{name}.json"
        place.write_text(profile.text(), encoding="utf-8")
        solved = run("solve", "mlp", "--device", "a72", "--ram", "95%", "--profile", place, "-o", plan, "--json", "-")
        assert solved.code == 0, solved.err
        words = " ".join(run("run", plan).out.split())
        document = run("run", plan, "--json", "-").document
        predicted[name], transfers[name] = document["predicted_step_s"], document["predicted_transfer_s"]
        assert ("measured / predicted = 0.00" in words) == (name == "here")
        assert ("profile this model again" in words) == (name == "here")
        if name == "here":
            assert predicted[name] == solved.document["makespan_s"] >= 50.0 * len(keys)
    assert predicted["elsewhere"] is predicted["part"] is None
    simulated = po.simulate(po.load_plan(tmp_path / "here.json"))
    assert transfers == {"here": simulated.transfer_s, "elsewhere": None, "part": None}


def test_only_a_step_far_from_its_prediction_asks_for_a_new_profile() -> None:
    assert "again" not in predicted_words(1.0, 1.1)
    assert "= 1.20, more than 15% off" in predicted_words(1.0, 1.2)
    assert "= 0.80, more than 15% off" in predicted_words(1.0, 0.8)


def test_a_boards_profile_takes_no_figures_of_this_machine(run: Runner, tmp_path: Path) -> None:
    csv, place = tmp_path / "board.csv", tmp_path / "board.toml"
    run("profile", "mlp", "--template", csv)
    csv.write_text(csv.read_text().replace(",,,,", ",0.25,,,", 1))
    assert run("profile", "mlp", "--from-csv", csv, "-o", place, "--power", "90mW", "--dma").code == 0
    before = place.read_bytes()
    ended = run("profile", "mlp", "-o", place)
    ended.assert_one_message(str(place), "of measurements from board.csv", "another file (-o)", code=2)
    assert place.read_bytes() == before
    here = tmp_path / "here.toml"
    here.write_text(before.decode().replace("measurements from board.csv", "some processor"))
    run("profile", "mlp", "--from-csv", csv, "-o", here).assert_one_message("of some processor", code=2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--power", "3A"), "--power 3A: not a power"),
        (("--dma",), "--dma: it is for --from-csv"),
        (("--template", "a.csv", "--from-csv", "b.csv"), "choose one"),
        (("--from-csv", "nowhere.csv"), "nowhere.csv: the measurements can't be read"),
    ],
)
def test_bad_options(run: Runner, tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    run("profile", "mlp", "-o", tmp_path / "p.toml", *arguments).assert_one_message(message, code=2)
    assert not (tmp_path / "p.toml").exists()


def test_a_problem_file_has_nothing_to_measure(run: Runner, problem: Path, tmp_path: Path) -> None:
    place = tmp_path / "p.toml"
    run("profile", problem, "-o", place).assert_one_message("has no operators that could be measured", code=2)
    place.write_text("version = 1\n")
    run("solve", problem, "--device", "a72", "--ram", "70%", "--profile", place).assert_one_message(
        "a problem file has costs of its own", code=2
    )


def test_a_file_that_is_no_profile_is_left_alone(run: Runner, tmp_path: Path) -> None:
    place = tmp_path / "notes.toml"
    place.write_text("my = 'notes'\n")
    run("profile", "mlp", "-o", place).assert_one_message("not a usable profile", code=2)
    assert place.read_text() == "my = 'notes'\n"
