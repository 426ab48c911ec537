"""Devices, and costs of operators on them: seconds and joules depend on the device, bytes on its runtime."""

from poetopt.devices.cost import cost
from poetopt.devices.loading import device, names
from poetopt.devices.model import Device, Figure, Kind, Storage
from poetopt.ops.flops import Work
from poetopt.ops.nodes import resident_breakdown

__all__ = ["Device", "Figure", "Kind", "Storage", "Work", "cost", "device", "names", "resident_breakdown"]
