"""The RAM of a bare board, and the linker script that holds it."""

from __future__ import annotations

from dataclasses import dataclass

from poetopt.backends.c.program import DeviceProgram
from poetopt.backends.c.text import filled

STACK_BYTES = 4096
"""What is set aside for the stack of a device that doesn't say."""
RAM_ORIGIN = 0x2000_0000
FLASH_BYTES = 0x1000_0000
"""As much as a Cortex-M has of addresses below its RAM, nearly; the board's own size may take its place."""
PAGE = 1024
"""Emulators map memory in pages of it."""


@dataclass(frozen=True, slots=True)
class Board:
    """Where RAM is, and how much of it.

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
    origin = RAM_ORIGIN
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
            "flash_bytes": f"0x{FLASH_BYTES:08x}",
            "ram_origin": f"0x{found.origin:08x}",
            "ram_bytes": found.nbytes,
            "stack_bytes": found.stack_bytes,
        },
    )
