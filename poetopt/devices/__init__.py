"""Devices, and what operators cost on them. `poetopt.devices.cost` makes a training graph a problem."""

from poetopt.devices.loading import device, names
from poetopt.devices.model import Device, Figure, Kind, Storage, Work

__all__ = ["Device", "Figure", "Kind", "Storage", "Work", "device", "names"]
