"""Generations of what a step learns, as po_save.c keeps them: what lasts, where it lies, and the first one.

The two copies come behind all else on the storage. Each is a block that says what it is, and behind it all that lasts,
each from a block of its own on.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from poetopt.backends.c.program import DeviceProgram
from poetopt.backends.c.storage import BLOCK_BYTES
from poetopt.backends.step.places import input_offsets
from poetopt.graph.problem import ProblemTensor
from poetopt.plan.instructions import Plan
from poetopt.util.errors import PlanError

MAGIC = 0x706F7031
"""The first word of a copy: `po` and the version of its form."""


@dataclass(frozen=True, slots=True)
class Kept:
    """One piece that lasts from step to step: in RAM at an address, or on the storage from a block on.

    name
        The tensor's; "" for the resident region, which is one piece.
    address
        In C; "" on the storage.
    """

    name: str
    address: str
    nbytes: int
    block: int


def lying(plan: Plan) -> Iterator[tuple[ProblemTensor, int]]:
    """Gives what is in RAM from step to step, and where."""
    offsets = input_offsets(plan)
    for index in plan.problem.lasting:
        yield plan.problem.tensors[index], offsets[index]


def kept(program: DeviceProgram) -> list[Kept]:
    """All of it: the resident region, what lasts in the arena, and what is on the storage between steps."""
    nbytes, sums = program.resident.nbytes, {*program.graph.sums.values()}
    lasting = {tensor.name: offset for tensor, offset in lying(program.plan) if tensor.name not in sums}
    found = [Kept("", "po_resident", nbytes, 0)] if nbytes else []
    for name, block in program.storage.blocks.items():
        value = _value(program, name) if name in program.storage.first else None
        if value is not None:  # and no input
            at = f"po_arena + {lasting[name]}u" if name in lasting else ""
            found.append(Kept(name, at, value.nbytes, block))
    return found


def partly_stored(program: DeviceProgram) -> bool:
    """Say whether any of it is on the storage, where a step that is cut short has changed some."""
    return any(not one.address for one in kept(program))


def copy_blocks(program: DeviceProgram) -> int:
    """Blocks of one copy."""
    return 1 + sum(-(-one.nbytes // BLOCK_BYTES) for one in kept(program))


def blocks(program: DeviceProgram) -> int:
    """Blocks of the storage, both copies included."""
    return program.storage.count + 2 * copy_blocks(program)


def check_room(program: DeviceProgram) -> None:
    """Raise `PlanError` where the device's storage has other blocks, or no room for the step and both copies."""
    unit = program.plan.problem.storage_block_bytes
    if program.storage.count and BLOCK_BYTES % unit:
        raise PlanError(
            f"{program.shown}: the device writes its storage in blocks of {unit:,} B, and a program in C moves blocks "
            f"of {BLOCK_BYTES}; give a device with blocks of {BLOCK_BYTES} B or a part of that, or solve without paging"
        )
    room, taken = program.plan.problem.storage_bytes, blocks(program) * BLOCK_BYTES
    if room is not None and program.storage.count and taken > room:
        raise PlanError(
            f"{program.shown}: with the two copies that po_save keeps, the step takes {taken:,} B of storage, and the "
            f"device has {room:,}; give one with more, or solve with less on the storage"
        )


def network_of(program: DeviceProgram) -> bytes:
    """16 bytes by which copies of one network and plan are told from those of another."""
    graph, problem = program.graph, program.plan.problem
    lies = [(one.address, one.nbytes, one.block) for one in kept(program)]
    said = f"{graph.structure_hash} {graph.optimizer} {problem.runtime_version} {lies}"
    return hashlib.sha256(said.encode()).digest()[:16]


def first_copy(program: DeviceProgram) -> bytes:
    """The copy of all that lasts before the first step, as `po_save` would have written it."""
    data, crc = bytearray(), 0
    for one in kept(program):
        content = _region(program) if not one.name else _value(program, one.name).tobytes()
        crc = zlib.crc32(content, crc)
        data += content + bytes(-one.nbytes % BLOCK_BYTES)
    head = MAGIC.to_bytes(4, "little") + (1).to_bytes(4, "little") + network_of(program) + crc.to_bytes(4, "little")
    head += zlib.crc32(head).to_bytes(4, "little")
    return head + bytes(BLOCK_BYTES - len(head)) + bytes(data)


def _value(program: DeviceProgram, name: str) -> Any:
    """The first value of a tensor on the storage; all rows of a table; None of an input."""
    rows = program.graph.rows.get(name)
    return program.graph.joint.values.get(name) if rows is None else rows.values


def _region(program: DeviceProgram) -> bytes:
    """The resident region before the first step."""
    values, resident = program.graph.joint.values, program.resident
    region = bytearray(resident.nbytes)
    for span in resident.given:
        region[span.offset : span.offset + span.nbytes] = b"".join(values[name].tobytes() for name in span.names)
    words = b"".join(word.to_bytes(4, "little") for code in program.codes for word in code.state)
    region[resident.kept : resident.kept + len(words)] = words
    return bytes(region)
