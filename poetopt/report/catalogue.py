"""Devices as tables: a line for each, or one device with the source of every figure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

from poetopt.devices import Device, Figure
from poetopt.ops.runtimes import DEFAULT
from poetopt.report.layout import columns
from poetopt.util.units import show_bytes


def device_document(device: Device) -> dict[str, object]:
    """Return a device as plain data for JSON: its figures with value, unit, kind and source."""
    return {
        "name": device.name,
        "description": device.description,
        "aliases": list(device.aliases),
        "runtime": device.runtime,
        "ram_bytes": device.ram_bytes,
        "dma": device.dma,
        "storage": device.storage is not None,
        "figures": {figure.name: {k: v for k, v in asdict(figure).items() if k != "name"} for figure in device.figures},
        "notes": list(device.notes),
    }


def table_lines(devices: Sequence[Device]) -> list[str]:
    """Return a heading, and a line for each device."""
    rows = [("name", "RAM", "FLOP/s", "J/GFLOP", "page in, out", "description; kinds of figures")]
    rows += [
        (
            device.name,
            show_bytes(device.ram_bytes),
            f"{device.flop_per_s:.3g}",
            f"{1e9 * _joules_per_flop(device):.3g}",
            _rates(device),
            f"{device.description}; {_kinds(device.figures)}",
        )
        for device in devices
    ]
    return columns(rows)


def device_lines(device: Device) -> list[str]:
    """Return the lines on one device: every figure with its value, kind and source."""
    rows = []
    for figure in device.figures:
        value = str(figure.value).lower() if isinstance(figure.value, bool) else f"{figure.value:.5g}"
        rows.append((f"  {figure.name}", f"{value} {figure.unit}", str(figure.kind), figure.source))
    lines = [f"{device.name}: {device.description}", *(columns(rows) if rows else [])]
    lines += [f"  runtime: {device.runtime}"] if device.runtime != DEFAULT else []
    lines += [f"  also called: {', '.join(device.aliases)}"] if device.aliases else []
    return [*lines, *(f"  note: {note}" for note in device.notes)]


def _joules_per_flop(device: Device) -> float:
    if device.flop_per_j is not None:
        return 1 / device.flop_per_j
    return (device.active_power_w or 0.0) / device.flop_per_s


def _rates(device: Device) -> str:
    storage = device.storage
    if storage is None:
        return "no storage"
    return f"{storage.page_in_bytes_per_s / 1e6:.3g}, {storage.page_out_bytes_per_s / 1e6:.3g} MB/s"


def _kinds(figures: Sequence[Figure]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(Counter(str(f.kind) for f in figures).items()))
