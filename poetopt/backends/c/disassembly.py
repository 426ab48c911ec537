"""What a linked program's machine code says: its instructions, and the stack that it takes at most.

A function takes what its instructions take off the stack pointer, all together, whatever compiler or library it comes
from; a chain of calls takes the sum.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from poetopt.backends.c.linking import Image
from poetopt.util.errors import BackendUnavailableError

BRANCH = re.compile(r"(b|bl|bx|blx)(?:eq|ne|hs|cs|lo|cc|mi|pl|vs|vc|hi|ls|ge|lt|gt|le|al)?$")


def present() -> bool:
    """Say whether capstone is installed."""
    return importlib.util.find_spec("capstone") is not None


def instructions(image: Image) -> Iterator[tuple[int, str, str]]:
    """Address, name without its width, and operands of each instruction.

    Raises `BackendUnavailableError` without capstone.
    """
    if not present():
        raise BackendUnavailableError(
            "the disassembler capstone is not installed; get it with: pip install 'poetopt[device]'"
        )
    capstone: Any = importlib.import_module("capstone")
    decoder = capstone.Cs(capstone.CS_ARCH_ARM, capstone.CS_MODE_THUMB | capstone.CS_MODE_MCLASS)
    for start, end in image.code:
        for address, _, mnemonic, operands in decoder.disasm_lite(image.read(start, end - start), start):
            yield address, mnemonic.partition(".")[0], operands


def words(name: str, operands: str) -> int:
    """Words that a load or store of several moves; 0 for others."""
    if name.startswith(("ldrd", "strd")):
        return 2
    if not name.startswith(("push", "pop", "ldm", "stm", "vpush", "vpop", "vldm", "vstm")):
        return 0
    registers = operands[operands.index("{") + 1 : operands.index("}")].split(", ")
    return len(registers) * (2 if registers[0].startswith("d") else 1)


@dataclass(frozen=True, slots=True)
class Deepest:
    """The chain of calls that takes most of the stack, outermost first, and what it takes."""

    nbytes: int
    calls: tuple[str, ...]


def frames(image: Image) -> tuple[Mapping[int, int], Mapping[int, set[int]]]:
    """What each function takes off the stack pointer, and whom it calls, both by the address that it begins at.

    Raises `ValueError` where an instruction doesn't tell: a call through a register, or a frame of a computed size.
    """
    starts = sorted({start for start, _, _ in image.functions})
    taken, calls = dict.fromkeys(starts, 0), {start: set[int]() for start in starts}
    ends: dict[int, int] = {}
    for start, end, _ in image.functions:
        ends[start] = max(end, ends.get(start, 0))  # where a label of no size has another's address, the other's
    for start, end in ends.items():  # of a library's, some begin within others, or run into the next one
        following = starts[bisect_right(starts, start) : bisect_right(starts, start) + 1]
        calls[start] |= {place for place in following if end > place or end == start}
    loaded: dict[str, int] = {}
    for address, name, operands in instructions(image):
        inside = starts[bisect_right(starts, address) - 1]
        first, _, last = operands.rpartition(", ")
        if name == "ldr" and (found := re.match(r"(\w+), \[pc, #(\w+)\]", operands)):
            loaded[found[1]] = int.from_bytes(image.read((address + 4) // 4 * 4 + int(found[2], 0), 4), "little")
        elif name in ("push", "vpush") or (name in ("stmdb", "vstmdb") and operands.startswith("sp!")):
            taken[inside] += 4 * words(name, operands)
        elif found := re.search(r"\[sp, #-(\w+)\]!$", operands):
            taken[inside] += int(found[1], 0)
        elif name.startswith("sub") and first in ("sp", "sp, sp"):
            taken[inside] += _number(last, loaded, address)
        elif name == "add" and first in ("sp", "sp, sp") and not last.startswith("#"):
            taken[inside] += -_number(last, loaded, address) % 2**32 if last in loaded and loaded[last] >= 2**31 else 0
        elif found := BRANCH.match(name):
            if last.startswith("#"):
                place = starts[bisect_right(starts, int(last[1:], 0)) - 1]
                calls[inside] |= {place} - {inside}
            elif last != "lr":
                raise ValueError(f"the target of {name} {operands} at 0x{address:08x} is computed")
    return taken, calls


def _number(operand: str, loaded: Mapping[str, int], address: int) -> int:
    if operand.startswith("#"):
        return int(operand[1:], 0)
    if operand in loaded:
        return loaded[operand]
    raise ValueError(f"the frame at 0x{address:08x} is of a computed size")


def deepest(image: Image) -> Deepest:
    """The chain of calls that takes most of the stack, of all functions that the image has.

    Raises `ValueError` as `frames` does, and where functions call each other in a circle; `BackendUnavailableError`
    without capstone.
    """
    taken, calls = frames(image)
    names = {start: name for start, _, name in image.functions}
    known: dict[int, tuple[int, tuple[int, ...]]] = {}

    def worst(start: int, outer: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
        if start in outer:
            raise ValueError(f"{names[start]} calls itself")
        if start not in known:
            inner = max((worst(called, (*outer, start)) for called in calls[start]), default=(0, ()))
            known[start] = (taken[start] + inner[0], (start, *inner[1]))
        return known[start]

    nbytes, chain = max(worst(start, ()) for start in taken)
    return Deepest(nbytes, tuple(names[start] for start in chain))
