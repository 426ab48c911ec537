"""Devices of one's own over others: `base`, and files to start from; the catalogue's other names."""

from __future__ import annotations

from pathlib import Path

import pytest

import poetopt as po
from poetopt.devices import Kind, device, names
from poetopt.devices.loading import aliases, canonical
from poetopt.util.errors import DeviceError
from tests.cli.support import Runner, runner


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Runner:
    return runner(capsys)


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_one_line_changes_one_figure(tmp_path: Path) -> None:
    board = device(written(tmp_path / "board.toml", 'base = "a72"\nfigures.ram_bytes = "512 MiB"\n'))
    base = device("a72")
    assert (board.name, board.ram_bytes, base.ram_bytes) == ("board", 512 * 2**20, 2 * 2**30)
    assert board.description == "as a72, but for ram_bytes"
    assert board.notes[0] == "based on a72: its figures, but for ram_bytes"
    mine = {figure.name: figure for figure in board.figures}
    theirs = {figure.name: figure for figure in base.figures}
    assert mine.pop("ram_bytes").kind is Kind.ESTIMATE
    assert "board.toml" in next(figure.source for figure in board.figures if figure.name == "ram_bytes")
    del theirs["ram_bytes"]
    assert mine == theirs
    assert po.device(tmp_path / "board.toml").name == "board"


@pytest.mark.parametrize(
    "line",
    [
        'figures.ram_bytes = "1 GiB"',
        "figures.ram_bytes = 1",
        "figures.ram_bytes.value = 1",
        '[figures.ram_bytes]\nvalue = 1048576\nunit = "KiB"\nkind = "measured"\nsource = "free -b"',
    ],
)
def test_a_figure_in_each_form(tmp_path: Path, line: str) -> None:
    board = device(written(tmp_path / "board.toml", f'name = "mine"\nbase = "pi4"\n{line}\n'))
    assert (board.name, board.ram_bytes) == ("mine", 2**30)
    (ram,) = [figure for figure in board.figures if figure.name == "ram_bytes"]
    measured = "measured" in line
    assert ram.kind is (Kind.MEASURED if measured else Kind.ESTIMATE)
    assert ram.source == ("free -b" if measured else "given in board.toml, which is based on a72")


def test_bases_have_bases_and_are_found_beside_their_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "boards").mkdir()
    written(tmp_path / "boards" / "one.toml", 'base = "a72"\ndma = false\nfigures.flop_per_s = "1 GFLOP/s"\n')
    two = written(tmp_path / "two.toml", 'base = "boards/one.toml"\nfigures.active_power_w = "900 mW"\n')
    monkeypatch.chdir(tmp_path.parent)
    board = device(two)
    assert (board.dma, board.flop_per_s, board.active_power_w) == (False, 1e9, 0.9)
    assert board.storage == device("a72").storage
    assert board.notes[:2] == (
        "based on one: its figures, but for active_power_w",
        "based on a72: its figures, but for flop_per_s, dma",
    )
    training = po.load("lenet").differentiate()
    assert training.cost(two).device == "two"


def test_bases_that_lead_nowhere(tmp_path: Path) -> None:
    one = written(tmp_path / "one.toml", 'base = "./two.toml"\n')
    written(tmp_path / "two.toml", 'base = "./one.toml"\n')
    with pytest.raises(DeviceError, match=r"leads back to where it began .*one.toml -> .*two.toml -> .*one.toml"):
        device(one)
    for base, said in (
        ('"a73"', "base: unknown device 'a73': did you mean a72"),
        ('"./gone.toml"', "no such file"),
        ("3", "base: must be a device's name"),
    ):
        with pytest.raises(DeviceError, match=said):
            device(written(tmp_path / "board.toml", f"base = {base}\n"))
    for line, said in (
        ('figures.ram_bytes = "much"', "'much' is no figure; write it as"),
        ('figures.ram_bytes = "1 GHz"', "the unit 'GHz' is not B"),
        ('figures.storage_blocks = "1 B"', "figures.storage_blocks"),
        ("figures = 3", "figures: must be tables"),
    ):
        with pytest.raises(DeviceError, match=said):
            device(written(tmp_path / "board.toml", f'base = "a72"\n{line}\n'))


def test_other_names_are_of_one_device_each() -> None:
    listed = [alias for name in names() for alias in device(name).aliases]
    assert len(set(listed)) == len(listed) == len(aliases())
    assert not set(listed) & set(names())
    assert all(alias == alias.lower() and " " not in alias for alias in listed)
    for name in names():
        assert bool(device(name).aliases) != name.startswith("paper-")


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("pi4", "a72"), ("raspberry", "a72"), ("Raspberry Pi 4", "a72"), ("raspberry_pi_5", "rpi5"), ("PICO", "rp2040"),
        ("nRF52840", "m4"), ("MKR1000", "m0"), ("jetson", "tx2"), ("A72", "a72"),
    ],
)  # fmt: skip
def test_devices_by_the_names_that_people_know(asked: str, name: str) -> None:
    assert device(asked).name == name == canonical(asked)


def test_a_problem_files_devices_have_the_same_names(run: Runner, tmp_path: Path) -> None:
    from tests.cli.support import chain, write_problem

    loaded = po.load(write_problem(tmp_path / "chain.json", chain()))
    assert loaded.differentiate().cost("pi4") == loaded.differentiate().cost("a72")


def test_a_file_that_is_not_there_is_no_name(run: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "board.toml", 'base = "a72"\n')
    run("devices", "--show", "board.tml").assert_one_message(
        "board.tml: no such file (did you mean board.toml?)", code=2
    )
    run("devices", "--show", "board").assert_one_message("unknown device 'board': did you mean ./board.toml", code=2)
