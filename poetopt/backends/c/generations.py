"""Generations of what a step learns, as po_save.c keeps them: what lasts, where it lies, and the first one.

The two copies come behind all else on the storage, each in erase blocks of its own, if the device has such. A copy is
all that lasts, each piece from a block of its own on, and behind it a block that says what the copy is.
"""

from __future__ import annotations

import hashlib
import math
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from poetopt.backends.c.program import DeviceProgram
from poetopt.backends.c.storage import erased_blocks
from poetopt.backends.step.memory import numpy_dtype
from poetopt.ops.runtimes.c.kernel import ALIGNMENT
from poetopt.plan.layout import lasting_at
from poetopt.util.errors import ModelError, PlanError

if TYPE_CHECKING:
    from poetopt.graph import Array

MAGIC = 0x706F7031
"""The first word of a copy: `po` and the version of its form."""
HEAD = struct.Struct("<II16sII")
"""The head of a copy: that word, the generation, the network, and checksums of the content and of all that."""


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


def kept(program: DeviceProgram) -> list[Kept]:
    """All of it: the resident region, what lasts in the arena, and what is on the storage between steps."""
    nbytes, sums = program.resident.nbytes, {*program.graph.sums.values()}
    lasting = {name: at for name, (at, _) in lasting_at(program.plan).items() if name not in sums}
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


def saved_blocks(program: DeviceProgram) -> int:
    """Blocks that one copy takes, and `po_save` writes."""
    return 1 + sum(-(-one.nbytes // program.storage.block_bytes) for one in kept(program))


def copy_at(program: DeviceProgram, which: int) -> int:
    """The first block of copy 0 or 1; of 2, which there isn't, where the storage ends."""
    unit = erased_blocks(program.plan.problem)
    return -(-program.storage.count // unit) * unit + which * -(-saved_blocks(program) // unit) * unit


def head_at(program: DeviceProgram, which: int) -> int:
    """The block that says what a copy is: its last one."""
    return copy_at(program, which) + saved_blocks(program) - 1


def blocks(program: DeviceProgram) -> int:
    """Blocks of the storage, both copies included."""
    return copy_at(program, 2)


def check_room(program: DeviceProgram) -> None:
    """Raise `PlanError` where blocks of the storage can't be aligned or held, or there is no room for both copies."""
    problem, block = program.plan.problem, program.storage.block_bytes
    unit, erased = problem.storage_block_bytes, problem.storage_erase_bytes
    if program.storage.count and (block % ALIGNMENT or (erased > block and erased % block)):
        raise PlanError(
            f"{program.shown}: the device's storage has blocks of {unit:,} B and erases {erased:,} at once, and a "
            f"program in C moves {block:,} B at once: that must be a multiple of {ALIGNMENT} B, and an erase block one "
            "of that; give a device whose blocks are, or solve without paging"
        )
    # what functions that hold a block of the storage take of the stack beside it
    least = block + 384
    if program.storage.count and problem.stack_bytes and problem.stack_bytes < least:
        raise PlanError(
            f"{program.shown}: functions that move blocks of {block:,} B of storage hold one on the stack, and the "
            f"device's stack_bytes are {problem.stack_bytes:,}; give a device with {least:,}, or solve without paging"
        )
    room, taken = problem.storage_bytes, blocks(program) * block
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
        data += content + bytes(-one.nbytes % program.storage.block_bytes)
    head = HEAD.pack(MAGIC, 1, network_of(program), crc, 0)[:-4]
    head += zlib.crc32(head).to_bytes(4, "little")
    return bytes(data) + head + bytes(program.storage.block_bytes - len(head))


def first_checksum(program: DeviceProgram) -> int:
    """The checksum of all that lasts before the first step."""
    found: int = HEAD.unpack(first_copy(program)[-program.storage.block_bytes :][: HEAD.size])[3]
    return found


def newest(program: DeviceProgram, storage: bytes) -> tuple[int, Mapping[str, Array]]:
    """The number of the newest whole generation on a device's storage, and all values of it, by name.

    Raises `ModelError` where there is none of this program's network and plan.
    """
    found = [copy for which in (0, 1) if (copy := _copy(program, storage, which)) is not None]
    if not found:
        raise ModelError(
            f"{program.shown}: no whole generation of this network and plan is on the storage of {len(storage):,} B; "
            f"give all of it, from its first block on ({blocks(program) * program.storage.block_bytes:,} B), and the "
            "plan that the program was emitted of"
        )
    number, content = max(found)
    joint, values, at = program.graph.joint, {}, 0
    for one in kept(program):
        piece = content[at : at + one.nbytes]
        at += one.nbytes
        places = program.resident.offsets if not one.name else {one.name: 0}
        for name, offset in places.items():
            tensor = joint.tensors[name]
            rows = joint.rows.get(name)
            shape = tensor.shape if rows is None else rows.values.shape
            size = math.prod(shape)
            values[name] = np.frombuffer(piece, numpy_dtype(tensor.dtype), size, offset).reshape(shape)
    return number, values


def _copy(program: DeviceProgram, storage: bytes, which: int) -> tuple[int, bytes] | None:
    """The generation and the content of a copy; None where it isn't whole, or another program's."""
    at = head_at(program, which) * program.storage.block_bytes
    head = storage[at : at + HEAD.size]
    if len(head) < HEAD.size:
        return None
    magic, generation, network, data, check = HEAD.unpack(head)
    if magic != MAGIC or network != network_of(program) or check != zlib.crc32(head[:-4]):
        return None
    pieces, at = list[bytes](), copy_at(program, which) * program.storage.block_bytes
    for one in kept(program):
        pieces.append(storage[at : at + one.nbytes])
        at += -(-one.nbytes // program.storage.block_bytes) * program.storage.block_bytes
    content = b"".join(pieces)
    return (generation, content) if zlib.crc32(content) == data else None


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
    for old, new in program.carried:  # po_carry may come before the first step
        first, at = values[old.name].tobytes(), resident.offsets[new.place.root]
        region[at : at + len(first)] = first
    words = b"".join(word.to_bytes(4, "little") for code in program.codes for word in code.state)
    region[resident.kept : resident.kept + len(words)] = words
    return bytes(region)
