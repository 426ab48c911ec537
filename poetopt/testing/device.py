"""`check_device`: whether a device's figures can be true, and whether schedules on it are worth anything."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

from poetopt.devices import Device, device
from poetopt.devices.sanity import LONGEST_S, MOST_WAKE_J, contradictions, unusable
from poetopt.ops.flops import Work
from poetopt.testing.contract import ContractError, require
from poetopt.util.errors import DeviceError

LEAST_POWER_W, MOST_POWER_W = 1e-4, 1e5
"""Between a sleeping microcontroller and a rack."""
MOST_FLOP_PER_S = 1e16
MOST_BYTES_PER_S = 1e13
LEAST_RAM, MOST_RAM = 1024, 1 << 44
WORK = (Work(1_000, 4_000), Work(1_000_000, 40_000), Work(1_000_000_000, 40_000_000))
SIZES = (1, 512, 4_096, 1_000_000, 100_000_000)


@dataclass(frozen=True)
class DeviceCheck:
    """What `check_device` looked at: the device's name, and the power that it draws while it computes, in watts."""

    name: str
    power_w: float


def check_device(given: Device | str | os.PathLike[str]) -> DeviceCheck:
    """Hold a device against its contract.

    given
        A `Device`, the path of its TOML file, or its name in the catalogue.

    Checked are: RAM, rates, powers and latencies within what hardware has; more work and more bytes never cost less; a
    transfer takes at least as long as its bytes on the storage's bus; each figure has unit and source, and agrees with
    what the device counts with; and no two figures contradict each other.

    Raises ContractError for what is broken (a file that can't be read as a device included).
    """
    try:
        found = given if isinstance(given, Device) else device(given)
    except DeviceError as error:
        raise ContractError(str(error)) from error
    where = f"device '{found.name}'"
    require(found.name.strip() and found.description.strip(), f"{where}: it needs a name and a description")
    wrong = unusable(found)
    require(wrong is None, str(wrong))
    require(found.storage is not None or not found.dma, f"{where}: dma is of transfers, and there is no storage")
    _within(f"{where}: ram_bytes", found.ram_bytes, LEAST_RAM, MOST_RAM, "B")
    _within(f"{where}: flop_per_s", found.flop_per_s, 1.0, MOST_FLOP_PER_S, "FLOP/s")
    if found.memory_bytes_per_s is not None:
        _within(f"{where}: memory_bytes_per_s", found.memory_bytes_per_s, 1.0, MOST_BYTES_PER_S, "B/s")
    power_w = _computing(found, where)
    _storage(found, where)
    _figures(found, where)
    return DeviceCheck(found.name, power_w)


def _computing(found: Device, where: str) -> float:
    seconds = [found.compute_s((work,)) for work in WORK]
    joules = [found.compute_j((work,)) for work in WORK]
    for what, costs in (("seconds", seconds), ("joules", joules)):
        require(
            all(math.isfinite(c) and c > 0 for c in costs),
            f"{where}: computing {', '.join(str(w.flops) for w in WORK)} FLOP costs {costs} {what}; must be above 0",
        )
        require(costs == sorted(costs), f"{where}: more work costs fewer {what}: {costs}")
    power_w = joules[-1] / seconds[-1]
    _within(f"{where}: computing draws", power_w, LEAST_POWER_W, MOST_POWER_W, "W")
    return power_w


def _storage(found: Device, where: str) -> None:
    storage = found.storage
    if storage is None:
        return
    for way, latency, rate in (
        ("page_in", storage.page_in_latency_s, storage.page_in_bytes_per_s),
        ("page_out", storage.page_out_latency_s, storage.page_out_bytes_per_s),
    ):
        _within(f"{where}: {way}_latency_s", latency, 0.0, LONGEST_S, "s")
        _within(f"{where}: {way}_bytes_per_s", rate, 1.0, MOST_BYTES_PER_S, "B/s")
        if storage.bus_bytes_per_s is not None:
            require(
                rate <= storage.bus_bytes_per_s,
                f"{where}: {way}_bytes_per_s of {rate:g} is more than its bus carries, {storage.bus_bytes_per_s:g}",
            )
    _within(f"{where}: storage_power_w", storage.power_w, 0.0, MOST_POWER_W, "W")
    _within(f"{where}: transfer_cpu_power_w", storage.cpu_power_w, 0.0, MOST_POWER_W, "W")
    require(
        storage.power_w + storage.cpu_power_w > 0, f"{where}: a transfer takes no power at all; paging would be free"
    )
    _within(f"{where}: storage_wake_j", storage.wake_j, 0.0, MOST_WAKE_J, "J")
    require(storage.block_bytes >= 1, f"{where}: storage_block_bytes of {storage.block_bytes} must be at least 1")
    require(
        storage.erase_bytes % storage.block_bytes == 0 or storage.erase_bytes == 1,
        f"{where}: storage_erase_bytes of {storage.erase_bytes} are no blocks of {storage.block_bytes}",
    )
    if storage.capacity_bytes is not None:
        require(
            storage.capacity_bytes >= storage.block_bytes,
            f"{where}: a block of {storage.block_bytes} bytes is larger than the storage, {storage.capacity_bytes}",
        )
    for cost in (found.page_in_s, found.page_out_s, found.page_in_j, found.page_out_j):
        costs = [cost(nbytes) for nbytes in SIZES]
        require(all(math.isfinite(c) and c > 0 for c in costs), f"{where}: {cost.__name__} of {SIZES} bytes: {costs}")
        require(costs == sorted(costs), f"{where}: {cost.__name__} falls as bytes grow: {costs} for {SIZES}")


def _figures(found: Device, where: str) -> None:
    """Pedigrees are optional for a device made in Python; those that there are must be whole and true."""
    for figure in found.figures:
        require(figure.source.strip(), f"{where}: {figure.name} has no source")
        require(figure.unit or isinstance(figure.value, bool), f"{where}: {figure.name} has no unit")
        counted = getattr(found, figure.name, None)
        if counted is not None:
            require(
                math.isclose(float(counted), float(figure.value), rel_tol=1e-6, abs_tol=1.0),
                f"{where}: it counts with {figure.name} = {counted}, and the figure says {figure.value}",
            )
    errors = contradictions({figure.name: figure for figure in found.figures})[0] if found.figures else []
    require(not errors, f"{where}: {'; '.join(errors)}")


def _within(what: str, value: float, least: float, most: float, unit: str) -> None:
    require(
        math.isfinite(value) and least <= value <= most,
        f"{what} is {value:g} {unit}, which no hardware has (between {least:g} and {most:g}); check the unit",
    )
