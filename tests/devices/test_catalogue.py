"""The catalogue: every file valid, every figure with its pedigree, and messages that help."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from poetopt.devices import Kind, device, names
from poetopt.devices.sanity import FIGURES, STORAGE
from poetopt.util.errors import DeviceError
from tests.each import each

GROUNDED = ("m0", "m4", "a72", "tx2")
BEYOND = ("rpi5", "orin-nano", "esp32-s3", "stm32f767", "stm32h743", "rp2040", "rp2350", "phone-a76")
PAPER = ("paper-m0", "paper-m4", "paper-a72", "paper-a72-nocache", "paper-tx2")


def test_the_catalogue_has_the_papers_devices_twice_and_eight_more() -> None:
    assert set(GROUNDED + BEYOND + PAPER) == set(names())
    assert names() == tuple(sorted(names()))


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


@each("name", PAPER)
def test_the_authors_constants_are_called_theirs(name: str) -> None:
    found = device(name)
    ours = {figure.name for figure in found.figures if figure.kind is not Kind.PAPER}
    assert ours == ({"flop_per_s"} if name == "paper-tx2" else set())
    if name == "paper-tx2":
        assert "mix" in found.description
        assert any("mix" in note for note in found.notes)


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


@each("name", GROUNDED + BEYOND)
def test_storages_of_our_own_are_complete(name: str) -> None:
    storage = device(name).storage
    assert storage is not None
    assert storage.capacity_bytes
    assert storage.block_bytes in (512, 4096)
    assert storage.bus_bytes_per_s is not None
    assert max(storage.page_in_bytes_per_s, storage.page_out_bytes_per_s) <= storage.bus_bytes_per_s


def test_a_cpu_that_waits_for_its_transfers_pays_for_them() -> None:
    found = device("m0")
    assert not found.dma
    assert found.storage is not None
    assert found.storage.cpu_power_w == found.active_power_w
    for name in ("m4", "a72", "tx2"):
        other = device(name)
        assert other.dma
        assert other.storage is not None
        assert other.storage.cpu_power_w == 0


def test_names_don_t_mind_case() -> None:
    assert device("A72") == device("a72")


@pytest.mark.parametrize(("wrong", "close"), [("a7", "a72"), ("paper-a73", "paper-a72"), ("paper_m5", "paper-m4")])
def test_an_unknown_name_is_told_the_closest(wrong: str, close: str) -> None:
    with pytest.raises(DeviceError, match=f"unknown device '{wrong}': did you mean .*{close}"):
        device(wrong)


def test_an_unknown_name_without_a_close_one_is_told_all() -> None:
    with pytest.raises(DeviceError, match="unknown device 'zzz': The catalogue has a72, esp32-s3, m0"):
        device("zzz")


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
        (("value = 250", "value = nan"), r"figures\.active_power_w\.value"),
        (("value = 250", "value = inf"), r"figures\.active_power_w\.value: .*finite"),
        (("value = 250", 'value = "250"'), r"figures\.active_power_w\.value: .*valid number"),
        (("value = 0.1", "value = 0"), r"flop_per_s: the value must be positive, not 0"),
        (('unit = "mW"', 'unit = "mA"'), r"active_power_w: the unit 'mA' is not W"),
        (('unit = "mW"', 'unit = "xW"'), r"active_power_w: the unit 'xW' is not W"),
        (('source = "multimeter"', ""), r"figures\.active_power_w\.source: Field required"),
        (('source = "multimeter"', 'source = " "'), r"figures\.active_power_w\.source: .*at least 1 character"),
        (('kind = "measured"', 'kind = "hearsay"'), r"figures\.active_power_w\.kind: .*'measured', 'datasheet'"),
        (("[figures.active_power_w]", "[figures.power]"), r"figures\.power: Extra inputs are not permitted"),
        (("value = false", 'value = "no"'), r"dma\.value: .*valid boolean"),
        (('description = "a board"', ""), r"description: Field required"),
        (('name = "board"', 'name = "bo\\u001b[31mard"'), r"name: .*control character U\+001B"),
        (
            ("value = 0.1", "value = 1e308"),
            r"flop_per_s: 1\.000e\+317 FLOP/s is more than any device has \(1e\+18 FLOP/s\)",
        ),
        (("value = 0.1", "value = 1e-320"), r"flop_per_s: .* is less than any device has \(1 FLOP/s\)"),
        (("value = 1.5", "value = 1e24"), r"ram_bytes: .* is more than any device has"),
    ],
)
def test_nonsense_is_refused_where_it_stands(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    assert change[0] in BOARD
    path = write(tmp_path, BOARD.replace(*change))
    with pytest.raises(DeviceError, match=message) as caught:
        device(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_half_a_storage_is_refused(tmp_path: Path) -> None:
    head, _, _ = DISK.rpartition("[figures.")
    with pytest.raises(DeviceError, match="a storage needs all its figures, or none: transfer_cpu_power_w missing"):
        device(write(tmp_path, BOARD + head))


def test_energy_needs_a_figure(tmp_path: Path) -> None:
    head, _, _ = BOARD.rpartition("[figures.")
    with pytest.raises(DeviceError, match="figures: the energy of computing is missing: give active_power_w"):
        device(write(tmp_path, head))


def figure(name: str, value: float, unit: str, kind: str = "estimate") -> str:
    return f'[figures.{name}]\nvalue = {value}\nunit = "{unit}"\nkind = "{kind}"\nsource = "guess"\n'


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            DISK + figure("storage_bus_bytes_per_s", 0.5, "B/s"),
            r"page_in_bytes_per_s: 1 B/s are more than the storage's bus can carry, 0\.5 B/s",
        ),
        (DISK + figure("memory_bytes_per_s", 0.5, "B/s"), r"page_out_bytes_per_s: 1 B/s are more than RAM itself"),
        (
            figure("flop_per_j", 1e9, "FLOP/J"),
            r"flop_per_j: at 1e\+08 FLOP/s it implies 0\.1 W, and active_power_w says 0\.25 W: 2\.5 times apart",
        ),
        (figure("flop_per_j", 1e8, "FLOP/J"), r"it implies 1 W, .* 4 times apart, more than 2"),
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
        (DISK + figure("storage_block_bytes", 0, "B"), "storage_block_bytes: the value must be positive, not 0"),
        (DISK + figure("storage_bytes", 1000.5, "B"), "storage_bytes: 1000.5 is no whole number of bytes"),
        (DISK + figure("storage_block_bytes", 0.5, "B"), "storage_block_bytes: 0.5 is no whole number of bytes"),
        (
            DISK + figure("storage_block_bytes", 4, "KiB") + figure("storage_bytes", 1, "kB"),
            "a block of 4.1 kB is larger than the storage, 1 kB",
        ),
        (
            DISK + figure("storage_block_bytes", 512, "B") + figure("storage_erase_bytes", 1000, "B"),
            "storage_erase_bytes: 1 kB are no whole blocks of 512 B",
        ),
        (figure("storage_block_bytes", 512, "B"), "a storage needs all its figures, or none"),
    ],
)
def test_figures_that_contradict_each_other_are_refused_with_the_reason(
    tmp_path: Path, more: str, message: str
) -> None:
    with pytest.raises(DeviceError, match=message):
        device(write(tmp_path, BOARD + more))


def test_half_a_byte_of_ram_and_a_dma_engine_without_a_storage_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=r"ram_bytes: 1000\.5 is no whole number of bytes"):
        device(write(tmp_path, BOARD.replace('value = 1.5\nunit = "MiB"', 'value = 1000.5\nunit = "B"')))
    with pytest.raises(DeviceError, match="dma: true needs a storage"):
        device(write(tmp_path, BOARD.replace("value = false", "value = true")))


@pytest.mark.parametrize("flop_per_j", [2.01e8, 4e8, 7.99e8])
def test_figures_within_a_factor_of_two_agree(tmp_path: Path, flop_per_j: float) -> None:
    found = device(write(tmp_path, BOARD + figure("flop_per_j", flop_per_j, "FLOP/J")))
    assert found.flop_per_j == flop_per_j


def test_the_authors_contradiction_is_a_note() -> None:
    (note,) = [note for note in device("paper-a72").notes if "times apart" in note]
    assert "implies 49.9 W, and active_power_w says 3 W: 16.6 times apart" in note
    assert "kept" in note
    assert not [note for note in device("paper-a72-nocache").notes if "times apart" in note]


def test_blocks_and_waking(tmp_path: Path) -> None:
    more = figure("storage_block_bytes", 512, "B") + figure("storage_wake_j", 2, "mJ")
    more += figure("storage_erase_bytes", 4, "KiB")
    found = device(write(tmp_path, BOARD + DISK + more))
    storage = found.storage
    assert storage is not None
    assert storage.erase_bytes == 4096
    assert storage.wake_j == 0.002
    assert [storage.moved_bytes(count) for count in (0, 1, 512, 513)] == [0, 512, 512, 1024]
    assert found.page_out_s(1) == found.page_out_s(512) == 513
    assert found.page_in_s(513) == 1025


def test_files_that_can_t_be_read(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=r"nothing\.toml: no such file"):
        device(tmp_path / "nothing.toml")
    with pytest.raises(DeviceError, match=r"board\.toml: not valid TOML: .*line 2"):
        device(write(tmp_path, 'name = "board"\nram = = 3\n'))
    path = tmp_path / "board.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DeviceError, match="it is not UTF-8 text"):
        device(path)


def test_a_device_is_frozen() -> None:
    found: Any = device("a72")
    with pytest.raises(AttributeError, match="ram_bytes"):
        found.ram_bytes = 1


def test_importing_devices_loads_nothing_heavy() -> None:
    code = (
        "import sys, poetopt.devices, poetopt.devices.cost\n"
        "print(sorted({'pydantic', 'onnx', 'onnxruntime', 'pyomo', 'highspy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
