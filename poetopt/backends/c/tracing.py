"""Instruction counts of an emulated program, operator by operator, and a model of the cycles of instructions.

Cycles are modelled by instruction: low, middle and high.

Figures are those of ARM's technical reference manuals, for memory that never makes the core wait: Cortex-M4 (DDI
0439, 3.3 and 7.2) and Cortex-M0+ (DDI 0484, 3.3, with the fast multiplier). Figures that depend on neighbouring
instructions are a range: a load of the M4 takes one cycle after another load and two elsewhere, a branch refills one to
three stages, a result of the FPU isn't ready for the next instruction. On a Cortex-M0+ only refills are a range, for
flash that is slower than the core. Nothing was calibrated on silicon.

ARM publishes no timings of the Cortex-M7. The widths and latencies are those of its compiler's scheduler (LLVM's
ARMScheduleM7.td): two instructions a cycle, in order; two ALUs, two loads, one store, one multiplier, one FPU. *Low*
lets each instruction share its cycle with another one. *High* lets each wait for the one before it (float results after
3 cycles, a load's after 2, 4 for a mispredicted branch). *Middle* is one cycle where there is one unit, three quarters
where there are two. By ARM's own CoreMark figures an M7 does 1.5 times an M4's work a cycle.
"""

from __future__ import annotations

import ctypes
import importlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poetopt.backends.c.build import Built
from poetopt.backends.c.disassembly import instructions, words
from poetopt.backends.c.linking import Image
from poetopt.backends.c.program import DeviceProgram
from poetopt.backends.c.targets import LINUX, TARGETS, compiler
from poetopt.backends.c.text import fixed
from poetopt.plan.instructions import Action
from poetopt.util.errors import ExecutionError, OptionError

Weights = NDArray[np.uint64]
"""[halfwords, columns]: weights of the instruction that begins at a halfword of flash; 0 where none begins."""
Weigh = Callable[[Image, bytes], Weights]
"""Returns the weights of the instructions of a program and its flash."""


def ones(image: Image, flash: bytes) -> Weights:
    """Return the weight 1 for each instruction."""
    words = np.frombuffer(flash, "<u2")
    weights = np.zeros((len(words), 1), np.uint64)
    for start, end in image.code:
        index = start // 2
        while index < end // 2:
            weights[index] = 1
            # a halfword whose five highest bits are at least these begins an instruction of two halfwords
            index += 2 if int(words[index]) >> 11 >= 0b11101 else 1
    return weights


class _Counts(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("base", "halfwords", "columns")),
        *((name, ctypes.c_void_p) for name in ("before", "kind", "order")),
        *((name, ctypes.c_uint64) for name in ("calls", "rest")),
        ("sums", ctypes.c_void_p),
        *((name, ctypes.c_uint64) for name in ("call", "row", "end", "last")),
    )


class Trace:
    """Instruction counts of an emulated program; C code counts.

    Attributes
    ----------
    sums
        [operators + 1, columns + 1]: a row for each of the program's `operator_names`, and one for all other code. The
        last column counts taken branches.
    """

    def __init__(self, built: Built, image: Image, flash: bytes, weigh: Weigh = ones) -> None:
        weights = weigh(image, flash)
        halfwords, columns = weights.shape
        program = built.program
        self.rest = len(program.operator_names)
        self.before = np.zeros((halfwords + 1, columns), np.uint64)
        np.cumsum(weights, axis=0, out=self.before[1:])
        self.kind = np.zeros(halfwords, np.uint8)
        operators = {code.function for code in program.codes}
        for start, end, name in image.functions:
            # functions that call operators
            if name.partition(".")[0] in ("po_step", "po_part", "po_run", "po_last"):
                self.kind[start // 2 : end // 2] = 1  # SCHEDULE of po_count.c
            elif name in operators:
                self.kind[start // 2] = 2  # ENTRY
        self.order = np.array(list(_order(program)), np.uint32)
        self.sums = np.zeros((self.rest + 1, columns + 1), np.uint64)
        self._counts = _Counts(
            0, halfwords, columns, self.before.ctypes.data, self.kind.ctypes.data, self.order.ctypes.data,
            len(self.order), self.rest, self.sums.ctypes.data, 0, self.rest, 0, 0,
        )  # fmt: skip
        self._handle = ctypes.c_size_t()
        self._hook = _compile_hook(built.folder)

    @property
    def operator(self) -> int | None:
        """Index of the running operator; None between operators."""
        return None if self._counts.row == self.rest else int(self._counts.row)

    def attach(self, machine: Any, unicorn: Any) -> None:
        """Count the instructions that `machine` executes."""
        binding: Any = importlib.import_module("unicorn.unicorn_py3.unicorn")
        status = binding.uclib.uc_hook_add(
            machine._uch,
            ctypes.byref(self._handle),
            unicorn.UC_HOOK_BLOCK,
            ctypes.cast(self._hook, ctypes.c_void_p),
            ctypes.cast(ctypes.pointer(self._counts), ctypes.c_void_p),
            ctypes.c_uint64(1),
            ctypes.c_uint64(0),
        )
        if status:
            raise ExecutionError(f"Unicorn can't count instructions: error {status}")


def _order(program: DeviceProgram) -> Iterator[int]:
    """Yield the operators of a step in order, each by its index among the operators of all routines."""
    first = 0
    for number, routine in enumerate(program.routines):
        computed = [first + s.target for s in routine.plan.instructions if s.action is Action.COMPUTE]
        yield from (1 if number else program.graph.parts) * computed
        first += len(routine.plan.problem.operators)


def _compile_hook(folder: Path) -> Any:
    """Return the function of po_count.c. Raise `BackendUnavailableError` without a compiler for this machine."""
    source, library = folder / "po_count.c", folder / "po_count.so"
    source.write_text(fixed("po_count.c"), encoding="utf-8")
    compiler(TARGETS[LINUX]).run(("-O2", "-shared", "-fPIC", source, "-o", library), folder)
    return ctypes.CDLL(str(library)).po_count


CLASSES = ("arithmetic", "multiply", "divide", "load", "store", "branch", "float", "float divide", "float move")
"""Classes of instructions, as reports name them."""
LEVELS = ("low", "middle", "high")
UNIT = 4
"""Counted units a cycle: quarters."""

Cycles = tuple[float, float, float]
"""Low, middle, high."""


@dataclass(frozen=True, slots=True)
class _CoreTimings:
    """Timings of a core.

    Attributes
    ----------
    clock_hz
        Clock of the catalogue's device with this core.
    classes
        Cycles of one instruction of a class.
    word
        Cycles of each further word that a load or store of several registers moves.
    taken
        Additional cycles of a taken branch.
    fused
        Cycles of a fused or chained multiply and add.
    """

    clock_hz: float
    classes: Mapping[str, Cycles]
    word: Cycles
    taken: Cycles
    fused: Cycles


def _exactly(cycles: float) -> Cycles:
    return cycles, cycles, cycles


def _make_core(
    clock_hz: float, classes: tuple[Cycles, ...], word: Cycles, taken: Cycles, fused: Cycles
) -> _CoreTimings:
    return _CoreTimings(clock_hz, dict(zip(CLASSES, classes, strict=True)), word, taken, fused)


CORES: Mapping[str, _CoreTimings] = {
    "cortex-m4": _make_core(
        64e6,
        ((1, 1, 1), (1, 1, 1), (2, 7, 12), (1, 1.5, 2), (1, 1, 2), (1, 1, 1), (1, 1.25, 2), (14, 14, 15), (1, 1, 1)),
        _exactly(1), (1, 2, 3), (3, 3, 4),
    ),
    "cortex-m0plus": _make_core(
        48e6, (*map(_exactly, (1, 1, 1, 2, 2, 1, 1, 1, 1)),), _exactly(1), (1, 1.5, 3), _exactly(1)
    ),
    "cortex-m7": _make_core(
        216e6,
        ((0.5, 0.75, 1), (0.5, 1, 2), (2, 7, 12), (0.5, 0.75, 2), (0.5, 1, 1), (0.5, 1, 1), (0.5, 1, 3), (3, 16, 18),
         (0.5, 1, 3)),
        (0.5, 1, 1), (0, 1, 4), (0.5, 1, 3),
    ),
}  # fmt: skip
"""Timings by target."""


def core(target: str) -> _CoreTimings:
    """Return the timings of `target`. Raise `OptionError` where there are none."""
    if target not in CORES:
        raise OptionError(
            f"--on {target}: there is no model of its cycles; choose {', '.join(CORES)} (without --on, poetopt profile "
            "measures this machine)"
        )
    return CORES[target]


def weigh(target: str, image: Image, flash: bytes) -> Weights:
    """Return columns of weights: instructions, each of `CLASSES`, and cycles in quarters, low, middle and high.

    Raise `BackendUnavailableError` without capstone.
    """
    weights = np.zeros((len(flash) // 2, 1 + len(CLASSES) + len(LEVELS)), np.uint64)
    timings = core(target)
    for address, name, operands in instructions(image):
        kind, cycles = timed(timings, name, operands)
        row = weights[address // 2]
        row[0] = row[1 + CLASSES.index(kind)] = 1
        row[-len(LEVELS) :] = [round(UNIT * c) for c in cycles]
    return weights


def timed(timings: _CoreTimings, mnemonic: str, operands: str) -> tuple[str, Cycles]:
    """Return the class of an instruction, and its cycles where no branch is taken."""
    name = mnemonic.partition(".")[0]
    kind = _class_of(name, operands)
    cycles = timings.classes[kind]
    if name.startswith(("vmla", "vmls", "vfma", "vfms", "vnml", "vfnm")):
        cycles = timings.fused
    if count := words(name, operands):
        cycles = _add_cycles(timings.classes["branch"], _scale_cycles(timings.word, count))  # one cycle, and one a word
    if name in ("bl", "blx") and timings.classes["load"] == _exactly(2):  # a Cortex-M0+'s bl takes three
        cycles = _add_cycles(cycles, timings.word)
    return kind, cycles


def _class_of(name: str, operands: str) -> str:
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


def _add_cycles(a: Cycles, b: Cycles) -> Cycles:
    return a[0] + b[0], a[1] + b[1], a[2] + b[2]


def _scale_cycles(a: Cycles, count: int) -> Cycles:
    return a[0] * count, a[1] * count, a[2] * count
