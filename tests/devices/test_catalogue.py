"""The catalogue and devices over others: every file valid, every figure with its pedigree, and messages that help."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

import poetopt as po
from poetopt.devices import Kind, Work, device, names
from poetopt.devices.sanity import FIGURES, STORAGE
from poetopt.util.errors import DeviceError
from tests.support.each import each


@each("name", names())
def test_every_figure_has_source_and_kind(name: str) -> None:
    found = device(name)
    assert found.name == name
    assert found.description
    given = {figure.name for figure in found.figures}
    assert given <= {*FIGURES, "dma"}
    assert {"ram_bytes", "flop_per_s", "dma", *STORAGE} <= given
    for figure in found.figures:
        assert figure.source.strip()
        assert figure.kind in Kind
        assert figure.unit == ("" if figure.name == "dma" else FIGURES[figure.name].unit)
        assert math.isfinite(figure.value)


@each("name", names())
def test_costs_grow_with_size(name: str) -> None:
    found = device(name)
    storage = found.storage
    assert storage is not None
    block = storage.block_bytes
    assert 0 < found.page_in_s(0) < found.page_in_s(10 * block) < found.page_in_s(20 * block)
    assert found.page_out_s(20 * block) - found.page_out_s(10 * block) == pytest.approx(
        found.page_out_s(10 * block) - found.page_out_s(0), rel=1e-6
    )
    assert found.page_in_s(9 * block + 1) == found.page_in_s(10 * block)
    assert found.page_out_j(1000) == pytest.approx(
        found.page_out_s(1000) * (storage.power_w + storage.cpu_power_w), rel=1e-12
    )


@pytest.mark.parametrize(("wrong", "close"), [("a7", "a72"), ("paper-a73", "paper-a72"), ("paper_m5", "paper-m4")])
def test_an_unknown_name_is_told_the_closest(wrong: str, close: str) -> None:
    with pytest.raises(DeviceError, match=f"unknown device '{wrong}'. Did you mean .*{close}"):
        device(wrong)


@pytest.mark.parametrize("wrong", ["Pi Zero", "raspberry-pi-zero", "rpi zero 2"])
def test_another_model_of_a_kind_is_told_its_kind(wrong: str) -> None:
    with pytest.raises(DeviceError, match=r"The catalogue has .*rpi4, rpi5 of its kind") as caught:
        device(wrong)
    assert "did you mean" not in str(caught.value)


def test_the_raspberry_pi_4_is_a_device_of_its_own_name() -> None:
    for name in ("rpi4", "pi4", "Raspberry Pi"):
        assert device(name).name == "rpi4"
    assert device("rpi4").figures == device("a72").figures
    assert device("cortex-a72").name == "a72"


BOARD = """
name = "board"
description = "a board"
[dma]
value = false
kind = "estimate"
source = "guess"
[figures.ram_bytes]
value = 1.5
unit = "MiB"
kind = "datasheet"
source = "sheet"
[figures.flop_per_s]
value = 0.1
unit = "GFLOP/s"
kind = "estimate"
source = "guess"
[figures.active_power_w]
value = 250
unit = "mW"
kind = "measured"
source = "multimeter"
"""

DISK = "".join(
    f'[figures.{name}]\nvalue = 1\nunit = "{FIGURES[name].unit}"\nkind = "estimate"\nsource = "guess"\n'
    for name in STORAGE
)


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "board.toml"
    path.write_text(text)
    return path


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    found = device(write(tmp_path, BOARD))
    assert found.ram_bytes == 3 * 2**19
    assert found.flop_per_s == 1e8
    assert found.active_power_w == 0.25
    assert found.storage is None
    assert found.page_in_s(100) == found.page_out_j(100) == 0.0
    assert device(str(write(tmp_path, BOARD + DISK))).storage is not None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("value = 250", "value = -250"), r"figures\.active_power_w\.value: .*greater than or equal to 0"),
        (("value = 250", 'value = "250"'), r"figures\.active_power_w\.value: .*valid number"),
        (("value = 0.1", "value = 0"), r"flop_per_s: the value must be positive, not 0"),
        (('unit = "mW"', 'unit = "mA"'), r"active_power_w: the unit 'mA' is not W"),
        (('source = "multimeter"', ""), r"figures\.active_power_w\.source: Field required"),
        (('kind = "measured"', 'kind = "hearsay"'), r"figures\.active_power_w\.kind: .*'measured', 'datasheet'"),
        (("[figures.active_power_w]", "[figures.power]"), r"figures\.power: Extra inputs are not permitted"),
        (("value = false", 'value = "no"'), r"dma\.value: .*valid boolean"),
        (('name = "board"', 'name = "bo\\u001b[31mard"'), r"name: .*control character U\+001B"),
        (
            ("value = 0.1", "value = 1e308"),
            r"flop_per_s: 1\.000e\+317 FLOP/s is more than any device has \(1e\+18 FLOP/s\)",
        ),
    ],
)
def test_nonsense_is_refused_where_it_stands(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    assert change[0] in BOARD
    path = write(tmp_path, BOARD.replace(*change))
    with pytest.raises(DeviceError, match=message) as caught:
        device(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def figure(name: str, value: float, unit: str, kind: str = "estimate") -> str:
    return f'[figures.{name}]\nvalue = {value}\nunit = "{unit}"\nkind = "{kind}"\nsource = "guess"\n'


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            DISK + figure("storage_bus_bytes_per_s", 0.5, "B/s"),
            r"page_in_bytes_per_s: 1 B/s exceed the rate of the storage's bus, 0\.5 B/s",
        ),
        (DISK + figure("memory_bytes_per_s", 0.5, "B/s"), r"page_out_bytes_per_s: 1 B/s exceed the rate of RAM"),
        (
            figure("flop_per_j", 1e9, "FLOP/J"),
            r"flop_per_j: at 1e\+08 FLOP/s it implies 0\.1 W, but active_power_w is 0\.25 W: they differ by 2\.5",
        ),
        (
            DISK.replace('unit = "s"', 'unit = "ns"', 1).replace("value = 1", "value = 0.5", 1),
            "page_in_latency_s: .* is less than any device has",
        ),
        (
            DISK.replace('unit = "s"', 'unit = "Ts"', 1),
            r"page_in_latency_s: 1\.000e\+12 s is more than any device has \(60 s\)",
        ),
        (DISK + figure("storage_wake_j", 1e308, "J"), r"storage_wake_j: 1\.000e\+308 J is more than any device has"),
        (
            DISK.replace('value = 1\nunit = "B/s"', 'value = 1e-12\nunit = "B/s"'),
            r"page_in_bytes_per_s: 1e-12 B/s is less than any device has",
        ),
        (DISK.replace('unit = "W"', 'unit = "TW"'), r"storage_power_w: 1\.000e\+12 W is more than any device has"),
        (DISK + figure("storage_bytes", 0, "B"), "storage_bytes: the value must be positive, not 0"),
        (DISK + figure("storage_bytes", 1000.5, "B"), "storage_bytes: 1000.5 is not a whole number of bytes"),
        (
            DISK + figure("storage_block_bytes", 4, "KiB") + figure("storage_bytes", 1, "kB"),
            "a block of 4.1 kB is larger than the storage, 1 kB",
        ),
        (
            DISK + figure("storage_block_bytes", 512, "B") + figure("storage_erase_bytes", 1000, "B"),
            "storage_erase_bytes: 1 kB are not a multiple of the block of 512 B",
        ),
        (figure("storage_block_bytes", 512, "B"), "a storage needs all its figures, or none"),
    ],
)
def test_figures_that_contradict_each_other_are_refused_with_the_reason(
    tmp_path: Path, more: str, message: str
) -> None:
    with pytest.raises(DeviceError, match=message):
        device(write(tmp_path, BOARD + more))


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
    ['figures.ram_bytes = "1 GiB"', "figures.ram_bytes = 1", "figures.ram_bytes.value = 1",
     '[figures.ram_bytes]\nvalue = 1048576\nunit = "KiB"\nkind = "measured"\nsource = "free -b"'],
)  # fmt: skip
def test_a_figure_in_each_form(tmp_path: Path, line: str) -> None:
    board = device(written(tmp_path / "board.toml", f'name = "mine"\nbase = "cortex-a72"\n{line}\n'))
    assert (board.name, board.ram_bytes) == ("mine", 2**30)
    (ram,) = [figure for figure in board.figures if figure.name == "ram_bytes"]
    measured = "measured" in line
    assert ram.kind is (Kind.MEASURED if measured else Kind.ESTIMATE)
    assert ram.source == ("free -b" if measured else "given in board.toml, which is based on a72")


INSTANCES = Path(__file__).resolve().parents[2] / "../shared/instances"
FILES = sorted(INSTANCES.glob("*.json"))
KEYS = {"m0": "paper-m0", "m4": "paper-m4", "a72": "paper-a72", "a72nocache": "paper-a72-nocache"}


@pytest.mark.skipif(not FILES, reason="the shared problem files are not here")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_costs_of_the_problem_files(path: Path) -> None:
    problem: dict[str, Any] = json.loads(path.read_text())
    # the exact_* files were made from constants rounded to five digits
    tolerance = 1e-4 if path.stem.startswith("exact_") else 1e-12
    assert set(problem["costs"]) <= set(KEYS)
    for key, costs in problem["costs"].items():
        found = device(KEYS[key])
        for k, node in enumerate(problem["nodes"]):
            nbytes = node["bytes"]
            work = (Work(node["flops"], 0),)
            if costs["compute_s"][k]:
                assert costs["compute_s"][k] == pytest.approx(found.compute_s(work), rel=tolerance)
                assert costs["compute_j"][k] == pytest.approx(found.compute_j(work), rel=tolerance)
            if nbytes:
                assert costs["page_in_s"][k] == pytest.approx(found.page_in_s(nbytes), rel=tolerance)
                assert costs["page_in_j"][k] == pytest.approx(found.page_in_j(nbytes), rel=tolerance)
                assert costs["page_out_s"][k] == pytest.approx(found.page_out_s(nbytes), rel=tolerance)
                assert costs["page_out_j"][k] == pytest.approx(found.page_out_j(nbytes), rel=tolerance)
