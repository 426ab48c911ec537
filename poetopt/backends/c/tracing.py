"""What an emulated program executes, counted by operators: instructions, or what each of them weighs."""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poetopt.backends.c.build import Built
from poetopt.backends.c.compiler import compiler
from poetopt.backends.c.elf import Image
from poetopt.backends.c.program import DeviceProgram
from poetopt.backends.c.targets import LINUX, TARGETS
from poetopt.backends.c.text import fixed
from poetopt.errors import BackendUnavailableError, ExecutionError
from poetopt.plan.instructions import Action

WIDE = 0b11101
"""A halfword whose five highest bits are at least these begins an instruction of two halfwords."""
SCHEDULE, ENTRY = 1, 2
"""Kinds of blocks, as po_count.c has them."""
CALLERS = ("po_step", "po_part", "po_run", "po_last", "po_compute", "po_stream")
"""The functions that call operators."""

Weights = NDArray[np.uint64]
"""[halfwords, columns]: what the instruction that begins at a halfword of flash counts; 0 where none does."""
Weigh = Callable[[Image, bytes], Weights]
"""What instructions count, of a program and its flash."""


def ones(image: Image, flash: bytes) -> Weights:
    """One for each instruction."""
    words = np.frombuffer(flash, "<u2")
    found = np.zeros((len(words), 1), np.uint64)
    for start, end in image.code:
        place = start // 2
        while place < end // 2:
            found[place] = 1
            place += 2 if int(words[place]) >> 11 >= WIDE else 1
    return found


class _Counts(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("base", "halfwords", "columns")),
        *((name, ctypes.c_void_p) for name in ("before", "kind", "order")),
        *((name, ctypes.c_uint64) for name in ("calls", "rest")),
        ("sums", ctypes.c_void_p),
        *((name, ctypes.c_uint64) for name in ("call", "row", "end", "last")),
    )


class Trace:
    """Counts in C where a compiler for this machine is there, else here.

    sums
        [operators + 1, columns + 1]: by `operator_names` of the program, and of what is no operator's; the last
        column is of branches that were taken.
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
            if name.partition(".")[0] in CALLERS:
                self.kind[start // 2 : end // 2] = SCHEDULE
            elif name in operators:
                self.kind[start // 2] = ENTRY
        self.order = np.array(list(_order(program)), np.uint32)
        self.sums = np.zeros((self.rest + 1, columns + 1), np.uint64)
        self._counts = _Counts(
            0, halfwords, columns, self.before.ctypes.data, self.kind.ctypes.data, self.order.ctypes.data,
            len(self.order), self.rest, self.sums.ctypes.data, 0, self.rest, 0, 0,
        )  # fmt: skip
        self._handle = ctypes.c_size_t()
        self._hook = _compiled(built.folder)

    @property
    def operator(self) -> int | None:
        """The operator that runs, by its index; None between operators."""
        return None if self._counts.row == self.rest else int(self._counts.row)

    def attach(self, machine: Any, unicorn: Any) -> None:
        """Count what `machine` executes."""
        if self._hook is None:
            machine.hook_add(unicorn.UC_HOOK_BLOCK, self._count)
            return
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

    def _count(self, machine: Any, address: int, size: int, data: object) -> None:
        """What po_count does."""
        c, first, end = self._counts, address // 2, (address + size) // 2
        if end > c.halfwords:
            return
        self.sums[c.row, -1] += np.uint64(first != c.end)
        if self.kind[first] == SCHEDULE:
            c.row = c.rest
        elif self.kind[first] == ENTRY and c.last == SCHEDULE:
            c.row = int(self.order[c.call % c.calls])
            c.call += 1
        self.sums[c.row, :-1] += self.before[end] - self.before[first]
        c.end, c.last = end, int(self.kind[first])


def _order(program: DeviceProgram) -> Iterator[int]:
    """Operators as a step calls them, each by its place among the operators of all routines."""
    first = 0
    for k, routine in enumerate(program.routines):
        run = [first + s.target for s in routine.plan.instructions if s.action is Action.COMPUTE]
        yield from (1 if k else program.graph.parts) * run
        first += len(routine.plan.problem.operators)


def _compiled(folder: Path) -> Any:
    """The function of po_count.c; None without a compiler for this machine."""
    try:
        host = compiler(TARGETS[LINUX])
    except BackendUnavailableError:
        return None
    source, library = folder / "po_count.c", folder / "po_count.so"
    source.write_text(fixed("po_count.c"), encoding="utf-8")
    host.run(("-O2", "-shared", "-fPIC", source, "-o", library), folder)
    return ctypes.CDLL(str(library)).po_count
