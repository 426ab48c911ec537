"""The host's side of semihosting: files in memory, for a program that an emulator runs.

Operations and their blocks of words are those of Arm's "Semihosting for AArch32 and AArch64".
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum


class Operation(IntEnum):
    """What the emitted example asks for."""

    OPEN = 0x01
    CLOSE = 0x02
    WRITE = 0x05
    READ = 0x06
    SEEK = 0x0A
    EXIT = 0x18


WRITES_ANEW = frozenset({4, 5, 6, 7})
"""Modes that empty the file first."""
ENDED_WELL = 0x20026
FAILED = 0xFFFF_FFFF


class Files:
    """Files by name, and what a program does with them.

    read, write
        Move bytes from and to the program's memory.
    code
        The reason that the program gave when it ended; None before.
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
        """One request; what it returns to the program."""
        if operation == Operation.EXIT:
            self.code = argument
            return 0
        words = self._words(argument, 3 if operation in (Operation.OPEN, Operation.READ, Operation.WRITE) else 2)
        match operation:
            case Operation.OPEN:
                return self._opened(words)
            case Operation.CLOSE:
                return 0 if self._open.pop(words[0], None) else FAILED
            case Operation.SEEK:
                self._open[words[0]][1] = words[1]
                return 0
            case Operation.READ | Operation.WRITE:
                return self._moved(operation, *words)
        return FAILED

    def _opened(self, words: list[int]) -> int:
        name = self._read(words[0], words[2]).decode("ascii", "replace")
        if words[1] in WRITES_ANEW:
            self.files[name] = bytearray()
        if name not in self.files:
            return FAILED
        self._open[self._next] = [name, 0]
        self._next += 1
        return self._next - 1

    def _moved(self, operation: int, file: int, address: int, count: int) -> int:
        """The bytes that were not moved."""
        state = self._open[file]
        content, place = self.files[str(state[0])], int(state[1])
        if operation == Operation.READ:
            data = bytes(content[place : place + count])
            self._write(address, data)
        else:
            data = self._read(address, count)
            content += bytes(max(0, place - len(content)))
            content[place : place + count] = data
        state[1] = place + len(data)
        return count - len(data)

    def _words(self, address: int, count: int) -> list[int]:
        data = self._read(address, 4 * count)
        return [int.from_bytes(data[k : k + 4], "little") for k in range(0, 4 * count, 4)]
