"""Saved generations of trained values, as po_save.c keeps them: pieces, addresses, and the first copy.

The two copies follow all else on the storage, each in separate erase blocks, if the device has such. A copy has all
lasting values, each piece from its own block on, and a last block with its head.
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
"""First word of a copy: `po` and the version of its format."""
HEAD = struct.Struct("<II16sII")
"""Head of a copy: that word, the generation, the network, and checksums of the content and of the head."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Piece that lasts from step to step: in RAM at an address, or on the storage from a block on.

    Attributes
    ----------
    name
        Name of the tensor; "" for the resident region, which is one piece.
    address
        Address in C; "" on the storage.
    """

    name: str
    address: str
    nbytes: int
    block: int


def kept(program: DeviceProgram) -> list[Kept]:
    """Return all pieces: the resident region, lasting values in the arena, and values on the storage between steps."""
    nbytes, sums = program.resident.nbytes, {*program.graph.sums.values()}
    lasting = {name: address for name, (address, _) in lasting_at(program.plan).items() if name not in sums}
    pieces = [Kept("", "po_resident", nbytes, 0)] if nbytes else []
    for name, block in program.storage.blocks.items():
        value = _first_value(program, name) if name in program.storage.first else None
        if value is not None:  # and no input
            address = f"po_arena + {lasting[name]}u" if name in lasting else ""
            pieces.append(Kept(name, address, value.nbytes, block))
    return pieces


def partly_stored(program: DeviceProgram) -> bool:
    """Return whether any piece is on the storage, where an interrupted step has changed part of it."""
    return any(not piece.address for piece in kept(program))


def saved_blocks(program: DeviceProgram) -> int:
    """Return the blocks that one copy takes, and `po_save` writes."""
    return 1 + sum(-(-piece.nbytes // program.storage.block_bytes) for piece in kept(program))


def copy_at(program: DeviceProgram, which: int) -> int:
    """Return the first block of copy 0 or 1; for 2, the end of the storage."""
    unit = erased_blocks(program.plan.problem)
    return -(-program.storage.count // unit) * unit + which * -(-saved_blocks(program) // unit) * unit


def head_at(program: DeviceProgram, which: int) -> int:
    """Return the block of a copy's head: its last one."""
    return copy_at(program, which) + saved_blocks(program) - 1


def blocks(program: DeviceProgram) -> int:
    """Return the number of blocks of the storage, both copies included."""
    return copy_at(program, 2)


def check_room(program: DeviceProgram) -> None:
    """Raise `PlanError` where blocks of the storage can't be aligned or held, or both copies don't fit."""
    problem, block = program.plan.problem, program.storage.block_bytes
    device_block, erase_bytes = problem.storage_block_bytes, problem.storage_erase_bytes
    if program.storage.count and (block % ALIGNMENT or (erase_bytes > block and erase_bytes % block)):
        raise PlanError(
            f"{program.shown}: a program in C moves {block:,} B of storage at once, which must be a multiple of "
            f"{ALIGNMENT} B and divide the erase block; the device has blocks of {device_block:,} B and erases "
            f"{erase_bytes:,} B at once; give another device, or solve without paging"
        )
    # functions with a storage block on the stack need 384 B more
    min_stack_bytes = block + 384
    if program.storage.count and problem.stack_bytes and problem.stack_bytes < min_stack_bytes:
        raise PlanError(
            f"{program.shown}: functions that move blocks of {block:,} B of storage hold one on the stack, and the "
            f"device's stack_bytes are {problem.stack_bytes:,}; give a device with {min_stack_bytes:,}, or solve "
            "without paging"
        )
    device_bytes, needed_bytes = problem.storage_bytes, blocks(program) * block
    if device_bytes is not None and program.storage.count and needed_bytes > device_bytes:
        raise PlanError(
            f"{program.shown}: with the two copies of po_save, the step needs {needed_bytes:,} B of storage, and the "
            f"device has {device_bytes:,}; give a device with more, or solve with less on the storage"
        )


def network_of(program: DeviceProgram) -> bytes:
    """Return a 16-byte hash that identifies copies of one network and plan."""
    graph, problem = program.graph, program.plan.problem
    layout = [(piece.address, piece.nbytes, piece.block) for piece in kept(program)]
    text = f"{graph.structure_hash} {graph.optimizer} {problem.runtime_version} {layout}"
    return hashlib.sha256(text.encode()).digest()[:16]


def first_copy(program: DeviceProgram) -> bytes:
    """Return the copy of all lasting values before the first step, as `po_save` would write it."""
    data, crc = bytearray(), 0
    for piece in kept(program):
        content = _first_region(program) if not piece.name else _first_value(program, piece.name).tobytes()
        crc = zlib.crc32(content, crc)
        data += content + bytes(-piece.nbytes % program.storage.block_bytes)
    head = HEAD.pack(MAGIC, 1, network_of(program), crc, 0)[:-4]
    head += zlib.crc32(head).to_bytes(4, "little")
    return bytes(data) + head + bytes(program.storage.block_bytes - len(head))


def first_checksum(program: DeviceProgram) -> int:
    """Return the checksum of all lasting values before the first step."""
    checksum: int = HEAD.unpack(first_copy(program)[-program.storage.block_bytes :][: HEAD.size])[3]
    return checksum


def newest(program: DeviceProgram, storage: bytes) -> tuple[int, Mapping[str, Array]]:
    """Return the number of the newest complete generation on a device's storage, and its values by name.

    Raise `ModelError` where there is none of this program's network and plan.
    """
    copies = [copy for which in (0, 1) if (copy := _read_copy(program, storage, which)) is not None]
    if not copies:
        raise ModelError(
            f"{program.shown}: the storage of {len(storage):,} B has no complete generation of this network and plan; "
            f"give all of it, from its first block on ({blocks(program) * program.storage.block_bytes:,} B), and the "
            "plan of the emitted program"
        )
    number, content = max(copies)
    joint, values, position = program.graph.joint, {}, 0
    for kept_piece in kept(program):
        piece_bytes = content[position : position + kept_piece.nbytes]
        position += kept_piece.nbytes
        offsets = program.resident.offsets if not kept_piece.name else {kept_piece.name: 0}
        for name, offset in offsets.items():
            tensor = joint.tensors[name]
            rows = joint.rows.get(name)
            shape = tensor.shape if rows is None else rows.values.shape
            size = math.prod(shape)
            values[name] = np.frombuffer(piece_bytes, numpy_dtype(tensor.dtype), size, offset).reshape(shape)
    return number, values


def _read_copy(program: DeviceProgram, storage: bytes, which: int) -> tuple[int, bytes] | None:
    """Return the generation and the content of a copy; None where it is incomplete, or another program's."""
    position = head_at(program, which) * program.storage.block_bytes
    head = storage[position : position + HEAD.size]
    if len(head) < HEAD.size:
        return None
    magic, generation, network, data, check = HEAD.unpack(head)
    if magic != MAGIC or network != network_of(program) or check != zlib.crc32(head[:-4]):
        return None
    pieces, position = list[bytes](), copy_at(program, which) * program.storage.block_bytes
    for piece in kept(program):
        pieces.append(storage[position : position + piece.nbytes])
        position += -(-piece.nbytes // program.storage.block_bytes) * program.storage.block_bytes
    content = b"".join(pieces)
    return (generation, content) if zlib.crc32(content) == data else None


def _first_value(program: DeviceProgram, name: str) -> Any:
    """Return the first value of a tensor on the storage; all rows of a table; None for an input."""
    rows = program.graph.rows.get(name)
    return program.graph.joint.values.get(name) if rows is None else rows.values


def _first_region(program: DeviceProgram) -> bytes:
    """Return the resident region before the first step."""
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
