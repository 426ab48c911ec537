"""Checks that a device's figures can all be true at once, with the reason where they can't.

The authors' constants are kept as they were released, contradictions included: between two figures of kind `paper`
a contradiction is a note on the device, elsewhere it is an error.
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
"""Energy by power x time and energy by FLOPs a joule may differ by this factor."""


LONGEST_S = 60.0
"""No storage takes longer to its first byte; a tape does."""


class Bounds(NamedTuple):
    """A figure's base unit, and what no machine goes below or beyond, with room to spare: outside, the unit is wrong.

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
    # a disk that spins up takes some hundred joules; nothing that is paged to takes this
    "storage_wake_j": Bounds("J", 0, 1e4, zero=True),
    "flash_bytes": Bounds("B", 0, 2**50),
    "flash_reserve_bytes": Bounds("B", 0, 2**50, zero=True),
    "stack_bytes": Bounds("B", 0, 2**40, zero=True),
}
"""All figures of a device file, in the order in which they are shown."""
STORAGE = (*(name for name in FIGURES if name.startswith("page_")), "storage_power_w", "transfer_cpu_power_w")
"""Figures of a storage: all of them, or none."""
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
"""All that may be said of a storage, and its name in `Storage`."""
MEASURED: Mapping[str, tuple[float, float]] = {
    "time_s": (0, 1e6),
    "energy_j": (0, 1e9),
    "workspace_bytes": (0, 2**50),
    "bytes": (0, 2**50),
}
"""The same for what is measured of one operator or one transfer: under a fortnight, for one."""


def contradictions(figures: Mapping[str, Figure]) -> tuple[list[str], list[str]]:
    """Gives what can't be true together: as errors, and (where the paper says it) as notes."""
    errors: list[str] = []
    notes: list[str] = []
    for involved, reason in _found(figures):
        verbatim = all(figures[name].kind is Kind.PAPER for name in involved)
        (notes if verbatim else errors).append(reason + ("; kept, as the authors released it" if verbatim else ""))
    return errors, notes


def out_of_range(name: str, value: Fraction, unit: str) -> str | None:
    """Gives what is wrong with a figure that no device has, in words; None where nothing is.

    value
        In base units, exact: it may be more than a float holds.
    """
    _, least, most, _ = FIGURES[name]
    if Fraction(least) <= value <= Fraction(most) or not value:
        return None
    beyond, limit = ("more", most) if value > most else ("less", least)
    return f"{name}: {_short(value)} {unit} is {beyond} than any device has ({limit:.4g} {unit}); check the unit"


def check_usable(device: Device) -> None:
    """Raises DeviceError where `unusable` has something to say."""
    wrong = unusable(device)
    if wrong is not None:
        raise DeviceError(wrong)


def unusable(device: Device) -> str | None:
    """Says why nothing can be costed on a device made in Python; None where it can. Files are checked as read."""
    if device.active_power_w is None and device.flop_per_j is None:
        return f"device '{device.name}': the energy of computing is missing: give active_power_w or flop_per_j"
    wrong = unknown(device.runtime)
    if wrong is not None:
        return f"device '{device.name}': {wrong}"
    figures = {name: getattr(device, name) for name in FIGURES if hasattr(device, name)}
    if device.storage is not None:
        figures |= {entry.name: getattr(device.storage, entry.name) for entry in fields(device.storage)}
    maybe_nothing = {OF_STORAGE.get(name, name) for name, bounds in FIGURES.items() if bounds.zero}
    for name, value in figures.items():
        if value is None:
            continue
        if not isinstance(value, Real) or not math.isfinite(value):
            return f"device '{device.name}': {name} must be a finite number, and is {value!r}"
        if value < 0 or (value == 0 and name not in maybe_nothing):
            least = "0 or above" if name in maybe_nothing else "above 0"
            return f"device '{device.name}': {name} must be {least}, and is {value:g}"
    return None


def _short(value: Fraction) -> str:
    """A number in four digits, also one that no float holds."""
    return f"{Decimal(value.numerator) / Decimal(value.denominator):.4g}"


def _found(figures: Mapping[str, Figure]) -> Iterator[tuple[tuple[str, ...], str]]:
    value = {name: float(figure.value) for name, figure in figures.items()}
    bus = value.get("storage_bus_bytes_per_s")
    for way in ("page_in_bytes_per_s", "page_out_bytes_per_s"):
        if bus is not None and way in value and value[way] > bus:
            yield (
                (way, "storage_bus_bytes_per_s"),
                f"{way}: {_bytes(value[way])}/s are more than the storage's bus can carry, {_bytes(bus)}/s "
                "(storage_bus_bytes_per_s)",
            )
        memory = value.get("memory_bytes_per_s")
        if memory is not None and way in value and value[way] > memory:
            yield (
                (way, "memory_bytes_per_s"),
                f"{way}: {_bytes(value[way])}/s are more than RAM itself can carry, {_bytes(memory)}/s "
                "(memory_bytes_per_s)",
            )
    if "active_power_w" in value and "flop_per_j" in value:
        implied = value["flop_per_s"] / value["flop_per_j"]
        factor = implied / value["active_power_w"]
        apart = max(factor, 1 / factor)
        if apart > DISAGREEMENT:
            yield (
                ("active_power_w", "flop_per_s", "flop_per_j"),
                f"flop_per_j: at {value['flop_per_s']:.4g} FLOP/s it implies {implied:.3g} W, and active_power_w says "
                f"{value['active_power_w']:.3g} W: {apart:.3g} times apart, more than {DISAGREEMENT:g}",
            )
    for name in value:
        if FIGURES[name].unit == "B" and value[name] != int(value[name]):
            yield (name,), f"{name}: {value[name]:g} is no whole number of bytes"
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
            f"storage_erase_bytes: {_bytes(erased)} are no whole blocks of {_bytes(block or 1)}",
        )


def _bytes(count: float) -> str:
    for factor, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count:g} B"
