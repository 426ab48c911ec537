"""Modelled cycles of what an emulated core executes, by instruction: low, middle and high.

Figures are those of ARM's technical reference manuals, for memory that never makes the core wait: Cortex-M4 (DDI
0439, 3.3 and 7.2) and Cortex-M0+ (DDI 0484, 3.3, with the fast multiplier). What depends on the instructions around is
a range: a load of the M4 takes one cycle behind another one and two elsewhere, a branch refills one to three stages, a
result of the FPU isn't there for the next instruction. On a Cortex-M0+ refills alone are a range, for flash that is
slower than the core. Nothing here was calibrated on silicon.

Of a Cortex-M7 ARM publishes no timings. What there is are the widths and latencies that its compiler's scheduler has
(LLVM's ARMScheduleM7.td): two instructions a cycle, in order; two ALUs, two loads, one store, one multiplier, one FPU.
*Low* has each instruction share its cycle with another one, *high* has each wait for the one before it (float results
after 3 cycles, a load's after 2, 4 for a branch that was predicted wrongly), and *middle* is one a cycle where a unit
is there once, three quarters where it is there twice. By ARM's own CoreMark figures it does 1.5 times an M4's work a
cycle.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from poetopt.backends.c.elf import Image
from poetopt.backends.c.tracing import Weights
from poetopt.errors import BackendUnavailableError, OptionError

CLASSES = ("arithmetic", "multiply", "divide", "load", "store", "branch", "float", "float divide", "float move")
"""Of instructions, as reports name them."""
LEVELS = ("low", "middle", "high")
UNIT = 4
"""Cycles are counted in quarters."""

Cycles = tuple[float, float, float]
"""Low, middle, high."""


@dataclass(frozen=True, slots=True)
class Core:
    """How long a core takes.

    clock_hz
        Of the catalogue's device that has it.
    classes
        Cycles of one instruction of a class.
    word
        Cycles of each further word that a load or store of several moves.
    taken
        What a branch that is taken takes beside.
    fused
        Of a fused or chained multiply and add.
    """

    clock_hz: float
    classes: Mapping[str, Cycles]
    word: Cycles
    taken: Cycles
    fused: Cycles


def _all(cycles: float) -> Cycles:
    return cycles, cycles, cycles


CORES: Mapping[str, Core] = {
    "cortex-m4": Core(
        64e6,
        {
            "arithmetic": (1, 1, 1),
            "multiply": (1, 1, 1),
            "divide": (2, 7, 12),
            "load": (1, 1.5, 2),
            "store": (1, 1, 2),
            "branch": (1, 1, 1),
            "float": (1, 1.25, 2),
            "float divide": (14, 14, 15),
            "float move": (1, 1, 1),
        },
        _all(1),
        (1, 2, 3),
        (3, 3, 4),
    ),
    "cortex-m0plus": Core(
        48e6,
        {
            "arithmetic": _all(1),
            "multiply": _all(1),
            "divide": _all(1),
            "load": _all(2),
            "store": _all(2),
            "branch": _all(1),
            "float": _all(1),
            "float divide": _all(1),
            "float move": _all(1),
        },
        _all(1),
        (1, 1.5, 3),
        _all(1),
    ),
    "cortex-m7": Core(
        216e6,
        {
            "arithmetic": (0.5, 0.75, 1),
            "multiply": (0.5, 1, 2),
            "divide": (2, 7, 12),
            "load": (0.5, 0.75, 2),
            "store": (0.5, 1, 1),
            "branch": (0.5, 1, 1),
            "float": (0.5, 1, 3),
            "float divide": (3, 16, 18),
            "float move": (0.5, 1, 3),
        },
        (0.5, 1, 1),
        (0, 1, 4),
        (0.5, 1, 3),
    ),
}
"""By target."""


def core(target: str) -> Core:
    """The timings of `target`. Raises `OptionError` where there are none."""
    if target not in CORES:
        raise OptionError(
            f"--on {target}: its cycles can't be modelled from instructions; there are {', '.join(CORES)} (on this "
            "machine, poetopt profile without --on measures)"
        )
    return CORES[target]


def weigh(target: str, image: Image, flash: bytes) -> Weights:
    """Columns: instructions, those of each of `CLASSES`, and cycles in quarters, low, middle and high.

    Raises `BackendUnavailableError` without capstone.
    """
    if importlib.util.find_spec("capstone") is None:
        raise BackendUnavailableError(
            "the disassembler capstone is not installed; get it with: pip install 'poetopt[device]'"
        )
    capstone: Any = importlib.import_module("capstone")
    decoder = capstone.Cs(capstone.CS_ARCH_ARM, capstone.CS_MODE_THUMB | capstone.CS_MODE_MCLASS)
    found = np.zeros((len(flash) // 2, 1 + len(CLASSES) + len(LEVELS)), np.uint64)
    timings = core(target)
    for start, end in image.code:
        for address, _, mnemonic, operands in decoder.disasm_lite(flash[start:end], start):
            kind, cycles = timed(timings, mnemonic, operands)
            row = found[address // 2]
            row[0] = row[1 + CLASSES.index(kind)] = 1
            row[-len(LEVELS) :] = [round(UNIT * c) for c in cycles]
    return found


def timed(timings: Core, mnemonic: str, operands: str) -> tuple[str, Cycles]:
    """The class of an instruction, and what it takes where no branch is taken."""
    name = mnemonic.partition(".")[0]
    kind = _class(name, operands)
    cycles = timings.classes[kind]
    if name.startswith(("vmla", "vmls", "vfma", "vfms", "vnml", "vfnm")):
        cycles = timings.fused
    if words := _words(name, operands):
        cycles = _plus(timings.classes["branch"], _times(timings.word, words))  # one, and one a word
    if name in ("bl", "blx") and timings.classes["load"] == _all(2):  # a Cortex-M0+'s bl takes three
        cycles = _plus(cycles, timings.word)
    return kind, cycles


def _class(name: str, operands: str) -> str:
    if name.startswith("v"):
        if name.startswith(("vldr", "vldm", "vpop")):
            return "load"
        if name.startswith(("vstr", "vstm", "vpush")):
            return "store"
        if name.startswith(("vdiv", "vsqrt")):
            return "float divide"
        return "float move" if name.startswith(("vmov", "vmrs", "vmsr", "vcvt", "vcmp")) else "float"
    if name.startswith(("ldr", "ldm", "pop")):
        return "load"
    if name.startswith(("str", "stm", "push")):
        return "store"
    if name.startswith(("sdiv", "udiv")):
        return "divide"
    if re.match(r"(mul|mla|mls|[su]m[ul][al]l)", name):
        return "multiply"
    if re.match(r"(b|bl|bx|blx|cbz|cbnz|tbb|tbh)(eq|ne|hs|cs|lo|cc|mi|pl|vs|vc|hi|ls|ge|lt|gt|le|al)?$", name):
        return "branch"
    return "arithmetic"


def _words(name: str, operands: str) -> int:
    """How many words a load or store of several moves; 0 for others."""
    if name.startswith(("ldrd", "strd")):
        return 2
    if not name.startswith(("push", "pop", "ldm", "stm", "vpush", "vpop", "vldm", "vstm")):
        return 0
    registers = operands[operands.index("{") + 1 : operands.index("}")].split(", ")
    return len(registers) * (2 if registers[0].startswith("d") else 1)


def _plus(a: Cycles, b: Cycles) -> Cycles:
    return a[0] + b[0], a[1] + b[1], a[2] + b[2]


def _times(a: Cycles, count: int) -> Cycles:
    return a[0] * count, a[1] * count, a[2] * count
