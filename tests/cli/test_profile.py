"""`poetopt profile` and `solve --profile`."""

from __future__ import annotations

from pathlib import Path

import pytest

from poetopt.devices.profile import load_profile
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
    import poetopt as po
    from poetopt.devices.signature import signatures

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
