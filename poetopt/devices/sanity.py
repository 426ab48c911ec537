"""Checks that a device's figures can all be true together, with the reason if they can't.

The constants of the paper's authors are kept as released, including contradictions: between two figures of kind `paper`
a contradiction is a note on the device, otherwise it is an error.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import fields
from decimal import Decimal
from fractions import Fraction
from numbers import Real
from typing import NamedTuple

from poetopt.devices.model import Device, Figure, Kind
from poetopt.ops.runtimes import unknown
from poetopt.util.errors import DeviceError

DISAGREEMENT = 2.0
"""Factor by which energy from power x time and energy from FLOPs per joule may differ."""


LONGEST_S = 60.0
"""Maximum seconds to the first byte of a storage; a tape takes longer."""


class Bounds(NamedTuple):
    """Unit of a figure, and generous bounds of its values: outside, the unit is wrong.

    Attributes
    ----------
    zero
        Whether it may be 0.
    """

    unit: str
    least: float
    most: float
    zero: bool = False


FIGURES: Mapping[str, Bounds] = {
    "ram_bytes": Bounds("B", 1, 2**50),
    "flop_per_s": Bounds("FLOP/s", 1, 1e18),
    "memory_bytes_per_s": Bounds("B/s", 0.1, 1e15),
    "active_power_w": Bounds("W", 1e-9, 1e5),
    "flop_per_j": Bounds("FLOP/J", 1, 1e18),
    "page_in_latency_s": Bounds("s", 1e-9, LONGEST_S, zero=True),
    "page_in_bytes_per_s": Bounds("B/s", 0.1, 1e13),
    "page_out_latency_s": Bounds("s", 1e-9, LONGEST_S, zero=True),
    "page_out_bytes_per_s": Bounds("B/s", 0.1, 1e13),
    "storage_power_w": Bounds("W", 0, 1e3, zero=True),
    "transfer_cpu_power_w": Bounds("W", 0, 1e5, zero=True),
    "storage_bytes": Bounds("B", 0, 2**60),
    "storage_block_bytes": Bounds("B", 0, 2**40),
    "storage_erase_bytes": Bounds("B", 0, 2**40),
    "storage_bus_bytes_per_s": Bounds("B/s", 0.1, 1e13),
    # A disk that spins up takes some hundred joules, and no storage to page to takes 10 kJ.
    "storage_wake_j": Bounds("J", 0, 1e4, zero=True),
    "flash_bytes": Bounds("B", 0, 2**50),
    "flash_reserve_bytes": Bounds("B", 0, 2**50, zero=True),
    "stack_bytes": Bounds("B", 0, 2**40, zero=True),
}
"""All figures of a device file, in the order of display."""
STORAGE = (*(name for name in FIGURES if name.startswith("page_")), "storage_power_w", "transfer_cpu_power_w")
"""Required figures of a storage: a device has all of them, or none."""
OF_STORAGE = {
    **{name: name for name in STORAGE},
    "storage_power_w": "power_w",
    "transfer_cpu_power_w": "cpu_power_w",
    "storage_bytes": "capacity_bytes",
    "storage_block_bytes": "block_bytes",
    "storage_erase_bytes": "erase_bytes",
    "storage_bus_bytes_per_s": "bus_bytes_per_s",
    "storage_wake_j": "wake_j",
}
"""All figures of a storage, with their names in `Storage`."""
MEASURED: Mapping[str, tuple[float, float]] = {
    "time_s": (0, 1e6),
    "energy_j": (0, 1e9),
    "workspace_bytes": (0, 2**50),
    "bytes": (0, 2**50),
}
"""Bounds of measurements of one operator or one transfer."""


def contradictions(figures: Mapping[str, Figure]) -> tuple[list[str], list[str]]:
    """Return contradictions between figures: errors, and notes on those within the paper's constants."""
    errors: list[str] = []
    notes: list[str] = []
    for involved, reason in _contradicting_figures(figures):
        verbatim = all(figures[name].kind is Kind.PAPER for name in involved)
        (notes if verbatim else errors).append(reason + ("; kept, as the authors released it" if verbatim else ""))
    return errors, notes


def out_of_range(name: str, value: Fraction, unit: str) -> str | None:
    """Return a message about a figure that no device has, or None.

    Parameters
    ----------
    value
        Value in base units, exact: it may be too large for a float.
    """
    _, least, most, _ = FIGURES[name]
    if Fraction(least) <= value <= Fraction(most) or not value:
        return None
    beyond, limit = ("more", most) if value > most else ("less", least)
    return f"{name}: {_four_digits(value)} {unit} is {beyond} than any device has ({limit:.4g} {unit}). Check the unit"


def check_usable(device: Device) -> None:
    """Raise DeviceError if `unusable` returns a reason."""
    reason = unusable(device)
    if reason is not None:
        raise DeviceError(reason)


def unusable(device: Device) -> str | None:
    """Return why no costs can be computed on a device made in Python, or None. Files are checked when read."""
    if device.active_power_w is None and device.flop_per_j is None:
        return f"device '{device.name}': the energy of computing is missing. Give active_power_w or flop_per_j"
    reason = unknown(device.runtime)
    if reason is not None:
        return f"device '{device.name}': {reason}"
    figures = {name: getattr(device, name) for name in FIGURES if hasattr(device, name)}
    if device.storage is not None:
        figures |= {entry.name: getattr(device.storage, entry.name) for entry in fields(device.storage)}
    may_be_zero = {OF_STORAGE.get(name, name) for name, bounds in FIGURES.items() if bounds.zero}
    for name, value in figures.items():
        if value is None:
            continue
        if not isinstance(value, Real) or not math.isfinite(value):
            return f"device '{device.name}': {name} must be a finite number, but is {value!r}"
        if value < 0 or (value == 0 and name not in may_be_zero):
            least = "0 or above" if name in may_be_zero else "above 0"
            return f"device '{device.name}': {name} must be {least}, but is {value:g}"
    return None


def _four_digits(value: Fraction) -> str:
    """Return a number with four digits; it may be too large for a float."""
    return f"{Decimal(value.numerator) / Decimal(value.denominator):.4g}"


def _contradicting_figures(figures: Mapping[str, Figure]) -> Iterator[tuple[tuple[str, ...], str]]:
    value = {name: float(figure.value) for name, figure in figures.items()}
    bus = value.get("storage_bus_bytes_per_s")
    for rate in ("page_in_bytes_per_s", "page_out_bytes_per_s"):
        if bus is not None and rate in value and value[rate] > bus:
            yield (
                (rate, "storage_bus_bytes_per_s"),
                f"{rate}: {_bytes(value[rate])}/s exceed the rate of the storage's bus, {_bytes(bus)}/s "
                "(storage_bus_bytes_per_s)",
            )
        memory = value.get("memory_bytes_per_s")
        if memory is not None and rate in value and value[rate] > memory:
            yield (
                (rate, "memory_bytes_per_s"),
                f"{rate}: {_bytes(value[rate])}/s exceed the rate of RAM, {_bytes(memory)}/s (memory_bytes_per_s)",
            )
    if "active_power_w" in value and "flop_per_j" in value:
        implied = value["flop_per_s"] / value["flop_per_j"]
        factor = implied / value["active_power_w"]
        ratio = max(factor, 1 / factor)
        if ratio > DISAGREEMENT:
            yield (
                ("active_power_w", "flop_per_s", "flop_per_j"),
                f"flop_per_j: at {value['flop_per_s']:.4g} FLOP/s it implies {implied:.3g} W, but active_power_w is "
                f"{value['active_power_w']:.3g} W: they differ by {ratio:.3g}, more than {DISAGREEMENT:g}",
            )
    for name in value:
        if FIGURES[name].unit == "B" and value[name] != int(value[name]):
            yield (name,), f"{name}: {value[name]:g} is not a whole number of bytes"
    block, capacity = value.get("storage_block_bytes"), value.get("storage_bytes")
    if block is not None and capacity is not None and block > capacity:
        yield (
            ("storage_block_bytes", "storage_bytes"),
            f"storage_block_bytes: a block of {_bytes(block)} is larger than the storage, {_bytes(capacity)}",
        )
    erased = value.get("storage_erase_bytes")
    if erased is not None and erased % (block or 1):
        yield (
            ("storage_erase_bytes", "storage_block_bytes"),
            f"storage_erase_bytes: {_bytes(erased)} are not a multiple of the block of {_bytes(block or 1)}",
        )


def _bytes(count: float) -> str:
    for factor, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count:g} B"
