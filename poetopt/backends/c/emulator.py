"""A bare board in Unicorn: the core, exactly the linked RAM, the flash, and files by semihosting."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poetopt.backends.c.build import Built
from poetopt.backends.c.linking import PAGE, Board, Image, image
from poetopt.backends.c.tracing import Trace, Weigh, ones
from poetopt.util.errors import BackendUnavailableError, ExecutionError


class _Operation(IntEnum):
    """Semihosting operations of the emitted example."""

    OPEN = 0x01
    CLOSE = 0x02
    WRITE = 0x05
    READ = 0x06
    SEEK = 0x0A
    EXIT = 0x18


FAILED = 0xFFFF_FFFF


class Files:
    """Files by name, and their use by a program.

    Attributes
    ----------
    read, write
        Read and write the program's memory.
    code
        Exit reason of the program; None before its end.
    """

    def __init__(
        self,
        files: dict[str, bytearray],
        read: Callable[[int, int], bytes],
        write: Callable[[int, bytes], None],
    ) -> None:
        self.files = files
        self.code: int | None = None
        self._read = read
        self._write = write
        self._open: dict[int, list[int | str]] = {}
        self._next = 1

    def handle(self, operation: int, argument: int) -> int:
        """Serve one request; return the program's result."""
        if operation == _Operation.EXIT:
            self.code = argument
            return 0
        words = self._words(argument, 3 if operation in (_Operation.OPEN, _Operation.READ, _Operation.WRITE) else 2)
        match operation:
            case _Operation.OPEN:
                return self._open_file(words)
            case _Operation.CLOSE:
                return 0 if self._open.pop(words[0], None) else FAILED
            case _Operation.SEEK:
                self._open[words[0]][1] = words[1]
                return 0
            case _Operation.READ | _Operation.WRITE:
                return self._transfer(operation, *words)
        return FAILED

    def _open_file(self, words: list[int]) -> int:
        name = self._read(words[0], words[2]).decode("ascii", "replace")
        # modes that truncate the file
        if words[1] in (4, 5, 6, 7):
            self.files[name] = bytearray()
        if name not in self.files:
            return FAILED
        self._open[self._next] = [name, 0]
        self._next += 1
        return self._next - 1

    def _transfer(self, operation: int, file: int, address: int, count: int) -> int:
        """Read or write; return the number of bytes that were not moved."""
        state = self._open[file]
        content, position = self.files[str(state[0])], int(state[1])
        if operation == _Operation.READ:
            data = bytes(content[position : position + count])
            self._write(address, data)
        else:
            data = self._read(address, count)
            content += bytes(max(0, position - len(content)))
            content[position : position + count] = data
        state[1] = position + len(data)
        return count - len(data)

    def _words(self, address: int, count: int) -> list[int]:
        data = self._read(address, 4 * count)
        return [int.from_bytes(data[k : k + 4], "little") for k in range(0, 4 * count, 4)]


PAINT = 0xA5


@dataclass(frozen=True, slots=True)
class EmulatedRun:
    """Result of a run on an emulator.

    Attributes
    ----------
    files
        Files that the program wrote or changed, by name.
    stack_bytes
        Most bytes of stack used, from its top down, by paint.
    counts
        Instruction counts, as in `Trace.sums`.
    """

    files: Mapping[str, bytes]
    stack_bytes: int
    counts: NDArray[np.uint64]


def check_present() -> None:
    """Raise `BackendUnavailableError` where Unicorn or pyelftools isn't installed."""
    for module, name in (("unicorn", "the emulator Unicorn"), ("elftools", "pyelftools")):
        if importlib.util.find_spec(module) is None:
            raise BackendUnavailableError(f"{name} is not installed; get it with: pip install 'poetopt[device]'")


def emulate(built: Built, files: Mapping[str, bytes], *, ram: Board | None = None, weigh: Weigh = ones) -> EmulatedRun:
    """Run a program that was built for a bare board to its end.

    Parameters
    ----------
    files
        Files that it finds, by name.
    ram
        RAM to map; by default the linked one.
    weigh
        Weights to count; by default instructions.

    Raises
    ------
    BackendUnavailableError
        Unicorn isn't installed.
    ExecutionError
        The program accesses or executes unmapped memory (the message has operator and address), or reports a failure.
    """
    check_present()
    linked = built.board
    assert linked is not None, "built for a bare board"
    return EmulatedMachine(built, image(built.executable), linked if ram is None else ram).run(files, weigh)


class EmulatedMachine:
    """Core with its flash, the mapped RAM, and a handler of its semihosting."""

    def __init__(self, built: Built, loaded: Image, ram: Board) -> None:
        unicorn: Any = importlib.import_module("unicorn")  # large parts of it have no types
        arm_const: Any = importlib.import_module("unicorn.arm_const")
        self.built = built
        self.image = loaded
        self.ram = ram
        self.registers = arm_const
        self.unicorn = unicorn
        self.error = unicorn.UcError
        self.machine: Any = unicorn.Uc(unicorn.UC_ARCH_ARM, unicorn.UC_MODE_THUMB | unicorn.UC_MODE_MCLASS)
        self.machine.ctl_set_cpu_model(getattr(arm_const, built.target.unicorn))
        self.fault: tuple[str, int, int] | None = None
        self._map()

    def _map(self) -> None:
        end = max(segment.address + len(segment.data) for segment in self.image.segments)
        self.flash_bytes = -(-end // PAGE) * PAGE
        self.machine.mem_map(0, self.flash_bytes, self.unicorn.UC_PROT_READ | self.unicorn.UC_PROT_EXEC)
        for segment in self.image.segments:
            self.machine.mem_write(segment.address, segment.data)
        low = self.ram.origin // PAGE * PAGE
        high = -(-(self.ram.origin + self.ram.nbytes) // PAGE) * PAGE
        self.machine.mem_map(low, high - low, self.unicorn.UC_PROT_READ | self.unicorn.UC_PROT_WRITE)
        # only whole pages can be mapped: a hook watches the part of the page below RAM
        self.machine.mem_write(low, bytes([PAINT]) * (high - low))
        if low < self.ram.origin:
            watched = self.unicorn.UC_HOOK_MEM_READ | self.unicorn.UC_HOOK_MEM_WRITE
            self.machine.hook_add(watched, self._outside, begin=low, end=self.ram.origin - 1)
        # system registers, where the start-up enables the floating-point unit
        self.machine.mem_map(0xE000_E000, 0x1000)
        self.machine.hook_add(self.unicorn.UC_HOOK_MEM_INVALID, self._outside)
        self.machine.hook_add(self.unicorn.UC_HOOK_INTR, self._interrupt)

    def _outside(self, machine: Any, access: int, address: int, size: int, value: int, data: object) -> bool:
        if self.fault is None:
            kind = {
                self.unicorn.UC_MEM_WRITE: "writes",
                self.unicorn.UC_MEM_WRITE_UNMAPPED: "writes",
                self.unicorn.UC_MEM_WRITE_PROT: "writes",
                self.unicorn.UC_MEM_FETCH_UNMAPPED: "executes",
                self.unicorn.UC_MEM_FETCH_PROT: "executes",
            }.get(access, "reads")
            self.fault = (kind, address, machine.reg_read(self.registers.UC_ARM_REG_PC))
        machine.emu_stop()
        return False

    def _interrupt(self, machine: Any, number: int, data: object) -> None:
        registers = self.registers
        place = machine.reg_read(registers.UC_ARM_REG_PC)
        # Unicorn's number of the exception of a BKPT
        if number != 7 or machine.mem_read(place, 1)[0] != 0xAB:
            self.fault = self.fault or (f"raises exception {number}", place, place)
            machine.emu_stop()
            return
        operation, argument = machine.reg_read(registers.UC_ARM_REG_R0), machine.reg_read(registers.UC_ARM_REG_R1)
        try:
            answer = self.files.handle(operation, argument)
        except self.error:
            self.fault = ("has the host use", argument, place)
            machine.emu_stop()
            return
        machine.reg_write(registers.UC_ARM_REG_R0, answer)
        machine.reg_write(registers.UC_ARM_REG_PC, (place + 2) | 1)
        if self.files.code is not None:
            machine.emu_stop()

    def run(self, files: Mapping[str, bytes], weigh: Weigh) -> EmulatedRun:
        machine, registers = self.machine, self.registers
        self.files = Files(
            {name: bytearray(content) for name, content in files.items()},
            lambda address, count: bytes(machine.mem_read(address, count)),
            machine.mem_write,
        )
        top = self.image.symbols["po_stack_top"]
        machine.reg_write(registers.UC_ARM_REG_SP, top)
        flash = bytes(machine.mem_read(0, self.flash_bytes))
        self.trace = Trace(self.built, self.image, flash, weigh)
        self.trace.attach(machine, self.unicorn)
        try:
            machine.emu_start(self.image.entry | 1, 0xFFFF_FFFE)
        except self.error as error:
            if self.fault is None:
                self.fault = (f"stops ({error})", 0, machine.reg_read(registers.UC_ARM_REG_PC))
        if self.fault is not None:
            raise ExecutionError(self._fault_message(*self.fault))
        if self.files.code != 0x20026:
            raise ExecutionError(
                f"the step on {self.built.target.name} reports a failure: of its storage, or of a short file"
            )
        stack = bytes(machine.mem_read(self.ram.origin, top - self.ram.origin))
        unused = len(stack) - len(stack.lstrip(bytes([PAINT])))
        return EmulatedRun(
            {name: bytes(content) for name, content in self.files.files.items()},
            len(stack) - unused,
            self.trace.sums,
        )

    def _fault_message(self, kind: str, address: int, place: int) -> str:
        operator = self.trace.operator
        if operator is not None:
            who = f"operator {self.built.program.operator_names[operator]!r}"
        else:
            who = f"function {self.image.function(place) or 'unknown'}"
        end = self.ram.origin + self.ram.nbytes
        return (
            f"on {self.built.target.name}, {who} {kind} the address 0x{address:08x} (instruction at 0x{place:08x}); "
            f"RAM is 0x{self.ram.origin:08x} to 0x{end:08x}, {self.ram.nbytes:,} B"
        )
