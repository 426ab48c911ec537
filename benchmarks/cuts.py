"""Power that ends at each write of a block on an emulated Cortex-M4: what it holds after it came back, and wear.

    python -m benchmarks.cuts [NETWORK ...] [--every N] [--output FILE.md]

A plan of 64 KB with parameters on the storage is emitted, compiled and emulated with just its RAM. It takes three steps
of sgd, and saves after each. Then for each block that it wrote, in its order, the power ends half way through it: the
storage is as it was then, RAM is painted, and the same program begins anew with po_load(). All that lasts is held,
byte for byte, against what there was after the saves. The storage is laid out for sectors of 4 KB.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from hashlib import sha256
from itertools import groupby
from pathlib import Path
from typing import Any

import poetopt as po
from benchmarks.output import put
from poetopt.backends.c.build import Built, build, write
from poetopt.backends.c.emulator import PAINT, EmulatedMachine
from poetopt.backends.c.generations import blocks, copy_at, kept, saved_blocks
from poetopt.backends.c.linking import image
from poetopt.backends.c.program import DeviceProgram, device_program
from poetopt.backends.c.targets import TARGETS
from poetopt.backends.step.places import graph_of
from poetopt.plan.instructions import Plan

STORAGE, COMMAND, PAGE = 0x6000_0000, 0x5FFF_F000, 4096
WRITES, LOADED, STEPPED, SAVED = 1, 2, 3, 4
SECTOR, STEPS = 4096, 3
NETWORKS = ("lenet", "ds-cnn")
Write = tuple[int, bytes, str]
"""A block, what was written to it, and of which function."""


class PoweredBoard(EmulatedMachine):
    """The core with its RAM, and a storage that stays as the power ends."""

    def __init__(self, built: Built) -> None:
        assert built.board is not None
        super().__init__(built, image(built.executable), built.board)
        self.program = built.program
        self.block = self.program.storage.block_bytes
        self.nbytes = blocks(self.program) * self.block
        self.machine.mem_map(COMMAND, PAGE)
        self.machine.mem_map(STORAGE, -(-self.nbytes // PAGE) * PAGE)
        self.writes: list[Write] = []
        self.states: list[bytes] = []

    def power(self, storage: bytes, steps: int) -> None:
        """Begin with a storage: `writes` and `states`, what lasts after the load and after each save, say what came."""
        machine, registers = self.machine, self.registers
        self.steps, self.writes, self.states = steps, [], []
        machine.mem_write(STORAGE, storage)
        machine.mem_write(COMMAND, steps.to_bytes(4, "little"))
        machine.mem_write(self.ram.origin, bytes([PAINT]) * self.ram.nbytes)
        machine.reg_write(registers.UC_ARM_REG_SP, self.image.symbols["po_stack_top"])
        machine.emu_start(self.image.entry | 1, 0xFFFF_FFFE)
        assert self.fault is None, self._fault_message(*self.fault)

    def _interrupt(self, machine: Any, number: int, data: object) -> None:
        registers = self.registers
        place, operation, argument = (
            machine.reg_read(register)
            for register in (registers.UC_ARM_REG_PC, registers.UC_ARM_REG_R0, registers.UC_ARM_REG_R1)
        )
        machine.reg_write(registers.UC_ARM_REG_PC, (place + 2) | 1)
        if operation == WRITES:
            block, address, nbytes = (int.from_bytes(machine.mem_read(argument + at, 4), "little") for at in (0, 4, 8))
            content = bytes(machine.mem_read(address, nbytes))
            machine.mem_write(STORAGE + block * self.block, content)
            if self.steps:
                where = "save" if block >= copy_at(self.program, 0) else "step" if self.states else "load"
                for at in range(0, nbytes, self.block):
                    self.writes.append((block + at // self.block, content[at : at + self.block], where))
            return
        assert operation in (LOADED, STEPPED, SAVED), f"code {argument}"
        if operation != STEPPED:
            self.states.append(self._lasting())
        if len(self.states) > self.steps:
            machine.emu_stop()

    def _lasting(self) -> bytes:
        """A digest of all that lasts."""
        found = sha256()
        for one in kept(self.program):
            name, _, offset = one.address.partition(" + ")
            base = self.image.symbols[name] if name else STORAGE + one.block * self.block
            found.update(self.machine.mem_read(base + int(offset.rstrip("u") or 0), one.nbytes))
        return found.digest()


def plan_of(name: str) -> Plan:
    """A plan of 64 KB in all, for sectors."""
    device = po.device("m4")
    assert device.storage is not None
    device = replace(device, storage=replace(device.storage, erase_bytes=SECTOR))
    report = po.solve(
        name, batch=1, device=device, total_ram="64KB", parameters="paged", optimizer="sgd", time_limit="20s", threads=1
    )
    assert report.plan is not None
    return report.plan


def compiled(plan: Plan, folder: Path) -> Built:
    """The program of a plan, for a storage that outlives the power."""
    program = device_program(plan, graph_of(plan))
    target = TARGETS["cortex-m4"]
    write(program, target, folder)
    (folder / "main.c").write_text((Path(__file__).parent / "cuts.c").read_text())
    return build(program, target, folder, warnings=("-Wall", "-Wextra", "-Wconversion", "-Werror"))


def measured(name: str, built: Built, every: int = 1) -> tuple[list[str], list[str]]:
    """A row of the table, and the lines of its wear."""
    program, board = built.program, PoweredBoard(built)
    first = (built.folder / "po_storage.bin").read_bytes().ljust(board.nbytes, b"\xff")
    board.power(first, STEPS)
    writes, states = board.writes, board.states
    assert len({*states}) == STEPS + 1
    storage, saved, held = bytearray(first), 0, Counter[int]()
    for cut, (block, content, where) in enumerate(writes):
        at = block * board.block
        storage[at : at + len(content) // 2] = content[: len(content) // 2]
        if cut % every == 0:
            board.power(bytes(storage), 0)
            # -1: the state before the cut's step; 0: the one that its save was to keep; else a mixture
            held[states.index(board.states[0]) - saved if board.states[0] in states else 9] += 1
        storage[at : at + len(content)] = content
        last = cut + 1 == len(writes) or (where == "save" and writes[cut + 1][2] != "save")
        saved += last
    mixed = sum(count for which, count in held.items() if which not in (0, 1))
    steps = sum(where == "step" for _, _, where in writes)
    row = [
        name, f"{built.sizes.ram_bytes if built.sizes else program.ram_bytes:,}", f"{board.nbytes:,}",
        f"{steps // STEPS:,}", f"{saved_blocks(program):,}", f"{sum(held.values()):,}", f"{held[0]:,}", f"{held[1]:,}",
        f"{mixed:,}",
    ]  # fmt: skip
    return row, list(wear(program, writes))


def wear(program: DeviceProgram, writes: Sequence[Write]) -> Iterator[str]:
    """Rows: sectors one after another that are written as often. A run of writes to one sector is one erase."""
    block = program.storage.block_bytes
    step, save = ([b * block // SECTOR for b, _, where in writes if where == of] for of in ("step", "save"))
    often = [Counter(found) for of in (step, save) for found in (of, [key for key, _ in groupby(of)])]
    sectors = range(blocks(program) * block // SECTOR)
    copies = copy_at(program, 0) * block // SECTOR
    for (copied, counts), group in groupby(sectors, lambda k: (k >= copies, [count[k] / STEPS for count in often])):
        run = list(group)
        what = f"{run[0]} to {run[-1]}" if len(run) > 1 else f"{run[0]}"
        figures = " | ".join(f"{count:.3g}" for count in counts)
        yield f"| {what} | {'copies' if copied else 'step'} | {figures} |"


HEAD = (
    "network", "RAM linked, B", "storage, B", "blocks that a step writes", "a save", "cuts", "the older generation",
    "the newer one", "anything else",
)  # fmt: skip
WEAR = ("sectors", "hold", "blocks written a step", "erased a step", "blocks written a save", "erased a save")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=NETWORKS)
    parser.add_argument("--every", type=int, default=1, help="cut at each N-th write alone")
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    rows, tables = list[str](), list[str]()
    for name in given.networks:
        with tempfile.TemporaryDirectory() as folder:
            row, found = measured(name, compiled(plan_of(name), Path(folder)), given.every)
        rows.append("| " + " | ".join(row) + " |")
        tables += ["", f"{name}, wear:", "", "| " + " | ".join(WEAR) + " |", "|" + "---|" * len(WEAR), *found]
        print(rows[-1], flush=True)
    lines = ["# Power that ends at each write of a block", "", "    python -m benchmarks.cuts", "", *ABOUT, ""]
    put([*lines, "| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD), *rows, *tables], given.output)


ABOUT = (
    "An emulated Cortex-M4 with just the plan's RAM takes three steps of sgd of batch 1 and saves after each. For each",
    f"block that it writes the power ends half way through it; then po_load() begins anew. Sectors of {SECTOR:,} B:",
    "a driver with a buffer of one of them erases it for each run of writes. Of three saves, one copy takes two.",
)

if __name__ == "__main__":
    main()
