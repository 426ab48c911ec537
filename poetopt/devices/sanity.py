"""Checks that a device's figures can all be true at once, with the reason where they can't.

The authors' constants are kept as they were released, contradictions included: between two figures of kind `paper`
a contradiction is a note on the device, elsewhere it is an error.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields
from decimal import Decimal
from fractions import Fraction
from numbers import Real

from poetopt.devices.model import Device, Figure, Kind
from poetopt.ops.runtimes import unknown
from poetopt.util.errors import DeviceError

DISAGREEMENT = 2.0
"""Energy by power x time and energy by FLOPs a joule may differ by this factor."""


LONGEST_S = 60.0
"""No storage takes longer to its first byte; a tape does."""
MOST_WAKE_J = 1e4
"""A disk that spins up takes some hundred joules; nothing that is paged to takes this."""
RANGES: Mapping[str, tuple[float, float]] = {
    "ram_bytes": (1, 2**50),
    "flash_bytes": (1, 2**50),
    "flash_reserve_bytes": (0, 2**50),
    "stack_bytes": (0, 2**40),
    "flop_per_s": (1, 1e18),
    "memory_bytes_per_s": (0.1, 1e15),
    "active_power_w": (1e-9, 1e5),
    "flop_per_j": (1, 1e18),
    "page_in_bytes_per_s": (0.1, 1e13),
    "page_out_bytes_per_s": (0.1, 1e13),
    "storage_power_w": (0, 1e3),
    "transfer_cpu_power_w": (0, 1e5),
    "storage_bytes": (1, 2**60),
    "storage_block_bytes": (0, 2**40),
    "storage_erase_bytes": (0, 2**40),
    "storage_bus_bytes_per_s": (0.1, 1e13),
}
"""What no machine goes below or beyond, with room to spare: a figure outside has the wrong unit."""
MEASURED: Mapping[str, tuple[float, float]] = {
    "time_s": (0, 1e6),
    "energy_j": (0, 1e9),
    "workspace_bytes": (0, 2**50),
    "bytes": (0, 2**50),
}
"""The same for what is measured of one operator or one transfer: under a fortnight, for one."""
WHOLE = (
    "ram_bytes", "flash_bytes", "flash_reserve_bytes", "stack_bytes", "storage_bytes", "storage_block_bytes",
    "storage_erase_bytes",
)  # fmt: skip
"""Figures that count bytes."""


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
    least, most = RANGES.get(name, (0.0, sys.float_info.max))
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
    figures: dict[str, object] = {
        "ram_bytes": device.ram_bytes,
        "flop_per_s": device.flop_per_s,
        "memory_bytes_per_s": device.memory_bytes_per_s,
        "active_power_w": device.active_power_w,
        "flop_per_j": device.flop_per_j,
        "flash_bytes": device.flash_bytes,
        "flash_reserve_bytes": device.flash_reserve_bytes,
        "stack_bytes": device.stack_bytes,
    }
    maybe_nothing = {
        "flash_reserve_bytes",
        "power_w",
        "cpu_power_w",
        "page_in_latency_s",
        "page_out_latency_s",
        "wake_j",
        "stack_bytes",
    }
    if device.storage is not None:
        figures |= {entry.name: getattr(device.storage, entry.name) for entry in fields(device.storage)}
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
    for way in ("page_in_latency_s", "page_out_latency_s"):
        # no storage answers sooner; a figure under it has the wrong unit
        if 0 < value.get(way, 0.0) < 1e-9:
            yield (way,), f"{way}: {value[way]:.3g} s is sooner than any storage answers; check the unit"
        if value.get(way, 0.0) > LONGEST_S:
            yield (
                (way,),
                f"{way}: {value[way]:.3g} s is later than any storage answers ({LONGEST_S:g} s)",
            )
    if value.get("storage_wake_j", 0.0) > MOST_WAKE_J:
        yield (
            ("storage_wake_j",),
            f"storage_wake_j: {value['storage_wake_j']:.3g} J are more than waking any storage takes "
            f"({MOST_WAKE_J:g} J); check the unit",
        )
    for name in WHOLE:
        if name in value and value[name] != int(value[name]):
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
