"""Where parameters, optimizer states and constants are when a step begins: in RAM, on storage, or in mapped flash.

What nobody trains lies in mapped flash where a device has some, at no RAM and at no cost; the largest first, as long as
they fit. The rest is the resident region, or, where parameters are paged, has its home on storage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from poetopt.devices.model import Device
from poetopt.graph import Role, TrainingGraph
from poetopt.ops.nodes import resident_storages
from poetopt.util.errors import DeviceError, OptionError

PARAMETERS = ("resident", "paged")
"""What a problem may be made with: parameters in RAM for good, or scheduled like everything else."""
SCHEDULED = frozenset({Role.PARAMETER, Role.GRADIENT_SUM, Role.OPTIMIZER_STATE, Role.CONSTANT})
"""The roles whose tensors may have their home on storage."""
SMALL_BYTES = 64
"""What takes less stays in RAM: a place of its own on storage is worth nothing there."""
STREAM = ("auto", "never")
"""Whether operators may stream operands from and to storage."""


@dataclass(frozen=True)
class Homes:
    """The storages (root tensors) of what a step finds when it begins.

    ram
        The resident region.
    storage
        Those with their home on storage, and the operator that updates each, by name; empty for none.
    flash
        Those in mapped flash.
    """

    ram: Mapping[str, Role]
    storage: Mapping[str, str]
    flash: Mapping[str, Role]


def homes(graph: TrainingGraph, device: Device, parameters: str = PARAMETERS[0]) -> Homes:
    """Where everything is.

    parameters
        `resident` or `paged`.

    Raises OptionError for another word, DeviceError where a device without storage is to page.
    """
    if parameters not in PARAMETERS:
        raise OptionError(f"--parameters {parameters}: must be auto, {' or '.join(PARAMETERS)}")
    if parameters == "paged" and device.storage is None:
        raise DeviceError(f"{device.name} has no storage to page parameters to; leave out --parameters paged")
    resident = dict(resident_storages(graph))
    updaters = {graph.root(old): operator.name for old, operator in graph.updaters.items()}
    sizes = {name: graph.tensors[name].nbytes for name in resident}
    flash = {name: resident.pop(name) for name in in_flash(graph, device.flash_room_bytes)}
    storage: dict[str, str] = {}
    if parameters == "paged":
        for name, role in list(resident.items()):
            if role in SCHEDULED and sizes[name] > SMALL_BYTES:
                storage[name] = updaters.get(name, "")
                del resident[name]
    return Homes(resident, storage, flash)


def in_flash(graph: TrainingGraph, room_bytes: int) -> tuple[str, ...]:
    """The storages that lie in mapped flash of so many bytes; the same ones for the sum of theirs."""
    updated = {graph.root(old) for old in graph.updaters}
    resident = resident_storages(graph)
    frozen = [name for name, role in resident.items() if role in SCHEDULED and name not in updated]
    frozen = [name for name in frozen if resident[name] is not Role.GRADIENT_SUM]  # which parts write
    frozen = [name for name in frozen if name not in graph.trained]
    found: list[str] = []
    for name in sorted(frozen, key=lambda name: (-graph.tensors[name].nbytes, name)):
        if graph.tensors[name].nbytes <= room_bytes:
            found.append(name)
            room_bytes -= graph.tensors[name].nbytes
    return tuple(found)
