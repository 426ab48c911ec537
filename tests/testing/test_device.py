"""`check_device` passes the catalogue and catches nonsense."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import poetopt as po
from poetopt import devices
from poetopt.devices import Device, Storage
from poetopt.testing import ContractError, check_device


@pytest.mark.parametrize("name", devices.names())
def test_the_catalogue(name: str) -> None:
    found = check_device(name)
    assert found.name == name
    assert found.power_w > 0


def good() -> Device:
    found = po.device("m4")
    assert found.storage is not None
    return found


def storage(**changes: float) -> Storage:
    found = good().storage
    assert found is not None
    return replace(found, **changes)  # type: ignore[arg-type]


class Falling(Device):
    """A device on which a larger transfer is quicker."""

    def page_in_s(self, nbytes: int) -> float:
        return 1.0 / nbytes


NONSENSE = {
    "no RAM": (replace(good(), ram_bytes=0), "ram_bytes"),
    "negative rate": (replace(good(), flop_per_s=-1.0), "flop_per_s"),
    "not a number": (replace(good(), flop_per_s=float("nan")), "flop_per_s"),
    "a power station": (replace(good(), flop_per_j=1e-9), "draws"),
    "free computing": (replace(good(), active_power_w=0.0, flop_per_j=None), "above 0"),
    "no energy": (replace(good(), active_power_w=None, flop_per_j=None), "energy of computing is missing"),
    "a card of years": (replace(good(), storage=storage(page_in_latency_s=1e9)), "page_in_latency_s"),
    "negative latency": (replace(good(), storage=storage(page_out_latency_s=-1.0)), "page_out_latency_s"),
    "faster than its bus": (replace(good(), storage=storage(bus_bytes_per_s=10.0)), "bus"),
    "free paging": (replace(good(), storage=storage(power_w=0.0, cpu_power_w=0.0)), "no power at all"),
    "blocks of nothing": (replace(good(), storage=storage(block_bytes=0)), "block"),
    "figures that differ": (replace(good(), ram_bytes=good().ram_bytes * 2), "counts with ram_bytes"),
    "no name": (replace(good(), name=" "), "name"),
    "falling": (
        Falling(**{name: getattr(good(), name) for name in Device.__dataclass_fields__}),
        "falls as bytes grow",
    ),
}


@pytest.mark.parametrize("case", NONSENSE)
def test_nonsense_is_caught(case: str) -> None:
    broken, complaint = NONSENSE[case]
    with pytest.raises(ContractError, match=complaint):
        check_device(broken)


def test_a_file_that_is_no_device(tmp_path: Path) -> None:
    path = tmp_path / "board.toml"
    path.write_text('name = "board"\n', encoding="utf-8")
    with pytest.raises(ContractError, match="not a usable device"):
        check_device(path)
