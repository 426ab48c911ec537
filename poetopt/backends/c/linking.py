"""Linker scripts of bare boards, and readers of a linked file: symbols, sizes, code."""

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

    Attributes
    ----------
    ram_bytes
        Bytes of all writable sections, without the stack.
    code_bytes
        Bytes of instructions and read-only data, without the weights.
    """

    ram_bytes: int
    code_bytes: int


@dataclass(frozen=True, slots=True)
class Segment:
    """Bytes of a linked file at an address."""

    address: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Image:
    """Linked file for a bare board.

    Attributes
    ----------
    entry
        Entry point.
    segments
        Contents of flash.
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
        """Return the function that contains an address; "" where there is none."""
        return next((name for start, end, name in self.functions if start <= address < end), "")

    def read(self, address: int, count: int) -> bytes:
        """Return bytes of flash; none where nothing is."""
        for segment in self.segments:
            if segment.address <= address < segment.address + len(segment.data):
                return segment.data[address - segment.address :][:count]
        return b""


def present() -> bool:
    """Return whether pyelftools is installed."""
    return importlib.util.find_spec("elftools") is not None


def sizes(paths: Sequence[Path], weight_bytes: int) -> LinkedSizes:
    """Return the sizes of an ELF file, or of several object files. It needs pyelftools."""
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
    """Read a linked file. Raise `BackendUnavailableError` without pyelftools."""
    with path.open("rb") as file:
        elf = _elffile()(file)
        segments = tuple(
            Segment(segment["p_paddr"], segment.data())
            for segment in elf.iter_segments("PT_LOAD")
            if segment["p_filesz"]
        )
        symbols: dict[str, int] = {}
        functions: list[tuple[int, int, str]] = []
        mapping_symbols: list[tuple[int, bool]] = []
        table = elf.get_section_by_name(".symtab")
        for symbol in table.iter_symbols() if table is not None else ():
            symbols[symbol.name] = symbol["st_value"]
            if symbol.name.startswith(("$t", "$d")):
                mapping_symbols.append((symbol["st_value"], symbol.name.startswith("$t")))
            if symbol["st_info"]["type"] == "STT_FUNC":
                start = symbol["st_value"] & ~1
                functions.append((start, start + symbol["st_size"], symbol.name))
        code = tuple(_code_ranges(sorted(functions), sorted(mapping_symbols)))
        return Image(elf["e_entry"], segments, symbols, tuple(sorted(functions)), code)


def _code_ranges(
    functions: list[tuple[int, int, str]], mapping_symbols: list[tuple[int, bool]]
) -> Iterator[tuple[int, int]]:
    """Yield the parts of functions that are marked as instructions, each once."""
    addresses = [place for place, _ in mapping_symbols]
    done = 0
    for start, end, _ in functions:
        at = max(start, done)
        k = bisect_right(addresses, at) - 1
        while at < end:
            stop = min(end, addresses[k + 1]) if k + 1 < len(addresses) else end
            if k >= 0 and mapping_symbols[k][1]:
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
    # zig itself links routines that the core lacks (float64, division), and no C library where there is none
    "zig": ((*BARE_FLAGS, "-Wl,--entry=po_reset", "-Ifreestanding"), ()),
}
"""Linker flags of a bare board's program, and libraries after its sources, by compiler."""
STACK_BYTES = 4096
"""Bytes of stack where the device sets none."""
PAGE = 1024
"""Bytes of a page in which emulators map memory."""


@dataclass(frozen=True, slots=True)
class Board:
    """Address and size of RAM.

    Attributes
    ----------
    origin, nbytes
        First byte, and size.
    stack_bytes
        Size of the stack, at the bottom of RAM.
    """

    origin: int
    nbytes: int
    stack_bytes: int


def board(program: DeviceProgram, stack_bytes: int | None = None, *, at_end_of_page: bool = False) -> Board:
    """Return RAM of exactly the step's size.

    Parameters
    ----------
    stack_bytes
        By default the device's reserve.
    at_end_of_page
        Whether it ends with a page, so that an emulator, which maps whole pages, maps nothing after it.
    """
    if stack_bytes is None:
        stack_bytes = program.plan.problem.stack_bytes or STACK_BYTES
    nbytes = program.ram_bytes + stack_bytes
    origin = 0x2000_0000
    if at_end_of_page:
        origin += -(nbytes + -nbytes % 8) % PAGE
    # arena and resident region start at multiples of 8; the stack gives up the bytes of that
    gap = -program.arena_bytes % 8
    return Board(origin, nbytes, stack_bytes - (8 if gap else 0))


def linker_script(target_board: Board) -> str:
    """Return po.ld."""
    return filled(
        "po.ld",
        {
            "flash_origin": "0x00000000",
            # nearly all addresses below a Cortex-M's RAM; replace it by the board's own size
            "flash_bytes": "0x10000000",
            "ram_origin": f"0x{target_board.origin:08x}",
            "ram_bytes": target_board.nbytes,
            "stack_bytes": target_board.stack_bytes,
        },
    )
