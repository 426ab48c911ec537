"""Machine code of a linked program: its instructions, and the most stack that it needs.

The frame of a function is the sum of what its instructions subtract from the stack pointer, whatever compiler or
library it comes from. A chain of calls needs the sum of its frames.
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
    """Return whether capstone is installed."""
    return importlib.util.find_spec("capstone") is not None


def instructions(image: Image) -> Iterator[tuple[int, str, str]]:
    """Yield address, name without its width, and operands of each instruction.

    Raise `BackendUnavailableError` without capstone.
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
    """Return the number of words that a load or store of several registers moves; 0 for other instructions."""
    if name.startswith(("ldrd", "strd")):
        return 2
    if not name.startswith(("push", "pop", "ldm", "stm", "vpush", "vpop", "vldm", "vstm")):
        return 0
    registers = operands[operands.index("{") + 1 : operands.index("}")].split(", ")
    return len(registers) * (2 if registers[0].startswith("d") else 1)


@dataclass(frozen=True, slots=True)
class Deepest:
    """Chain of calls that needs most stack, outermost first, and its bytes."""

    nbytes: int
    calls: tuple[str, ...]


def frames(image: Image) -> tuple[Mapping[int, int], Mapping[int, set[int]]]:
    """Return the frame of each function, and the functions that it calls, both by start address.

    Raise `ValueError` for a call through a register, or a frame of a computed size.
    """
    starts = sorted({start for start, _, _ in image.functions})
    frame_bytes, calls = dict.fromkeys(starts, 0), {start: set[int]() for start in starts}
    ends: dict[int, int] = {}
    for start, end, _ in image.functions:
        ends[start] = max(end, ends.get(start, 0))  # a label without a size may share the address of a function
    for start, end in ends.items():  # some library functions begin within others, or run into the next one
        following = starts[bisect_right(starts, start) : bisect_right(starts, start) + 1]
        calls[start] |= {callee for callee in following if end > callee or end == start}
    loaded: dict[str, int] = {}
    for address, name, operands in instructions(image):
        function = starts[bisect_right(starts, address) - 1]
        first, _, operand = operands.rpartition(", ")
        if name == "ldr" and (match := re.match(r"(\w+), \[pc, #(\w+)\]", operands)):
            loaded[match[1]] = int.from_bytes(image.read((address + 4) // 4 * 4 + int(match[2], 0), 4), "little")
        elif name in ("push", "vpush") or (name in ("stmdb", "vstmdb") and operands.startswith("sp!")):
            frame_bytes[function] += 4 * words(name, operands)
        elif match := re.search(r"\[sp, #-(\w+)\]!$", operands):
            frame_bytes[function] += int(match[1], 0)
        elif name.startswith("sub") and first in ("sp", "sp, sp"):
            frame_bytes[function] += _number(operand, loaded, address)
        elif name == "add" and first in ("sp", "sp, sp") and not operand.startswith("#"):
            frame_bytes[function] += (
                -_number(operand, loaded, address) % 2**32 if operand in loaded and loaded[operand] >= 2**31 else 0
            )
        elif match := BRANCH.match(name):
            if operand.startswith("#"):
                callee = starts[bisect_right(starts, int(operand[1:], 0)) - 1]
                calls[function] |= {callee} - {function}
            elif operand != "lr":
                raise ValueError(f"the target of {name} {operands} at 0x{address:08x} is computed")
    return frame_bytes, calls


def _number(operand: str, loaded: Mapping[str, int], address: int) -> int:
    if operand.startswith("#"):
        return int(operand[1:], 0)
    if operand in loaded:
        return loaded[operand]
    raise ValueError(f"the frame at 0x{address:08x} is of a computed size")


def deepest(image: Image) -> Deepest:
    """Return the chain of calls that needs most stack, of all functions in the image.

    Raise `ValueError` as `frames` does, and for recursion; `BackendUnavailableError` without capstone.
    """
    frame_bytes, calls = frames(image)
    names = {start: name for start, _, name in image.functions}
    known: dict[int, tuple[int, tuple[int, ...]]] = {}

    def deepest_from(start: int, outer: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
        if start in outer:
            raise ValueError(f"{names[start]} calls itself")
        if start not in known:
            inner = max((deepest_from(called, (*outer, start)) for called in calls[start]), default=(0, ()))
            known[start] = (frame_bytes[start] + inner[0], (start, *inner[1]))
        return known[start]

    nbytes, chain = max(deepest_from(start, ()) for start in frame_bytes)
    return Deepest(nbytes, tuple(names[start] for start in chain))
