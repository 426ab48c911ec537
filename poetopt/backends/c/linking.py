"""Linker scripts of bare boards, and what a linked file says: symbols, sizes, code."""

from __future__ import annotations

import importlib.util
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from poetopt.backends.c.program import DeviceProgram
from poetopt.backends.c.text import filled
from poetopt.util.errors import BackendUnavailableError


@dataclass(frozen=True, slots=True)
class LinkedSizes:
    """Bytes of a program.

    ram_bytes
        Of all that can be written, the stack aside.
    code_bytes
        Of instructions and what is only read, the weights aside.
    """

    ram_bytes: int
    code_bytes: int


@dataclass(frozen=True, slots=True)
class Segment:
    """Bytes that a linked file has for an address."""

    address: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Image:
    """A linked file for a bare board.

    entry
        Where it begins.
    segments
        What is in flash.
    symbols
        Addresses by name.
    functions
        Start, end and name of each function, by address.
    code
        Start and end of each run of instructions: functions without the constants in them.
    """

    entry: int
    segments: tuple[Segment, ...]
    symbols: dict[str, int]
    functions: tuple[tuple[int, int, str], ...]
    code: tuple[tuple[int, int], ...]

    def function(self, address: int) -> str:
        """The function that an address is in; "" where it is in none."""
        return next((name for start, end, name in self.functions if start <= address < end), "")

    def read(self, address: int, count: int) -> bytes:
        """Bytes of flash; none where nothing is."""
        for segment in self.segments:
            if segment.address <= address < segment.address + len(segment.data):
                return segment.data[address - segment.address :][:count]
        return b""


def present() -> bool:
    """Says whether pyelftools is installed."""
    return importlib.util.find_spec("elftools") is not None


def sizes(paths: Sequence[Path], weight_bytes: int) -> LinkedSizes:
    """Of an ELF file, or of several object files together. Raises `BackendUnavailableError` without pyelftools."""
    ram = code = 0
    for path in paths:
        for name, flags, size in _sections(path):
            written, allocated = flags & 1, flags & 2  # SHF_WRITE, SHF_ALLOC
            if not allocated or name.startswith((".stack", ".eh_frame", ".note")):
                continue
            if written and not name.startswith(".data.rel.ro"):
                ram += size
            else:
                code += size
    return LinkedSizes(ram, code - weight_bytes)


def image(path: Path) -> Image:
    """A linked file. Raises `BackendUnavailableError` without pyelftools."""
    with path.open("rb") as file:
        read = _elffile()(file)
        segments = tuple(
            Segment(segment["p_paddr"], segment.data())
            for segment in read.iter_segments("PT_LOAD")
            if segment["p_filesz"]
        )
        symbols: dict[str, int] = {}
        functions: list[tuple[int, int, str]] = []
        marks: list[tuple[int, bool]] = []
        table = read.get_section_by_name(".symtab")
        for symbol in table.iter_symbols() if table is not None else ():
            symbols[symbol.name] = symbol["st_value"]
            if symbol.name.startswith(("$t", "$d")):
                marks.append((symbol["st_value"], symbol.name.startswith("$t")))
            if symbol["st_info"]["type"] == "STT_FUNC":
                start = symbol["st_value"] & ~1
                functions.append((start, start + symbol["st_size"], symbol.name))
        code = tuple(_code(sorted(functions), sorted(marks)))
        return Image(read["e_entry"], segments, symbols, tuple(sorted(functions)), code)


def _code(functions: list[tuple[int, int, str]], marks: list[tuple[int, bool]]) -> Iterator[tuple[int, int]]:
    """The parts of functions that are marked as instructions, each once."""
    places = [place for place, _ in marks]
    done = 0
    for start, end, _ in functions:
        at = max(start, done)
        k = bisect_right(places, at) - 1
        while at < end:
            stop = min(end, places[k + 1]) if k + 1 < len(places) else end
            if k >= 0 and marks[k][1]:
                yield at, stop
            at, k = stop, k + 1
        done = max(done, end)


def _sections(path: Path) -> Iterator[tuple[str, int, int]]:
    with path.open("rb") as file:
        for section in _elffile()(file).iter_sections():
            yield section.name, section["sh_flags"], section["sh_size"]


def _elffile() -> Any:
    if not present():
        raise BackendUnavailableError("pyelftools is not installed; get it with: pip install 'poetopt[device]'")
    from elftools.elf.elffile import ELFFile

    return ELFFile


BARE_FLAGS = ("-ffreestanding", "-Wl,--gc-sections", "-Wl,-T,po.ld")
LINKED: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "gcc": ((*BARE_FLAGS, "-nostdlib"), ("-lc", "-lgcc")),
    # of its own accord it links what the core lacks (float64, division), and no C library where there is none
    "zig": ((*BARE_FLAGS, "-Wl,--entry=po_reset", "-Ifreestanding"), ()),
}
"""Flags by which a bare board's program is linked, and libraries behind its sources, by the compiler."""
STACK_BYTES = 4096
"""What is set aside for the stack of a device that doesn't say."""
PAGE = 1024
"""Emulators map memory in pages of it."""


@dataclass(frozen=True, slots=True)
class Board:
    """Says where RAM is, and how much of it.

    origin, nbytes
        Its first byte, and its size.
    stack_bytes
        Its part at the bottom that is the stack's.
    """

    origin: int
    nbytes: int
    stack_bytes: int


def board(program: DeviceProgram, stack_bytes: int | None = None, *, at_end_of_page: bool = False) -> Board:
    """RAM of exactly what the step takes.

    stack_bytes
        By default what the device sets aside.
    at_end_of_page
        Whether it ends with a page, so that an emulator, which maps whole pages, maps nothing behind it.
    """
    if stack_bytes is None:
        stack_bytes = program.plan.problem.stack_bytes or STACK_BYTES
    nbytes = program.ram_bytes + stack_bytes
    origin = 0x2000_0000
    if at_end_of_page:
        origin += -(nbytes + -nbytes % 8) % PAGE
    # Arena and resident region start at multiples of 8; what that takes, the stack gives.
    gap = -program.arena_bytes % 8
    return Board(origin, nbytes, stack_bytes - (8 if gap else 0))


def linker_script(found: Board) -> str:
    """po.ld."""
    return filled(
        "po.ld",
        {
            "flash_origin": "0x00000000",
            # nearly as much as a Cortex-M has of addresses below its RAM; the board's own size may take its place
            "flash_bytes": "0x10000000",
            "ram_origin": f"0x{found.origin:08x}",
            "ram_bytes": found.nbytes,
            "stack_bytes": found.stack_bytes,
        },
    )
