"""What a linked or compiled file holds, section by section, by pyelftools."""

from __future__ import annotations

import importlib.util
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from poetopt.errors import BackendUnavailableError

_ALLOC, _WRITE, _EXECUTE = 2, 1, 4


@dataclass(frozen=True, slots=True)
class Sizes:
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


def present() -> bool:
    """Whether pyelftools is installed."""
    return importlib.util.find_spec("elftools") is not None


def sizes(paths: Sequence[Path], weight_bytes: int) -> Sizes:
    """Of an ELF file, or of several object files together. Raises `BackendUnavailableError` without pyelftools."""
    ram = code = 0
    for path in paths:
        for name, flags, size in _sections(path):
            if not flags & _ALLOC or name.startswith((".stack", ".eh_frame", ".note")):
                continue
            if flags & _WRITE and not name.startswith(".data.rel.ro"):
                ram += size
            else:
                code += size
    return Sizes(ram, code - weight_bytes)


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
