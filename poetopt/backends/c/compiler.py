"""The C compilers that are there: the machine's own, one for ARM, or zig, which is both."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from poetopt.backends.c.targets import Target
from poetopt.errors import BackendUnavailableError, ExecutionError

SHOWN = 12
"""Lines of a compiler's complaint that are shown."""


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C compiler for one target.

    name
        What reports call it.
    command
        What its command line begins with, the flags for the target among it.
    """

    name: str
    command: tuple[str, ...]

    def run(self, arguments: Sequence[str | os.PathLike[str]], folder: Path) -> None:
        """Compile or link in `folder`. Raises `ExecutionError` with the first lines of what the compiler says."""
        command = [*self.command, *(os.fspath(argument) for argument in arguments)]
        ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", check=False)
        if ended.returncode:
            said = (ended.stderr or ended.stdout).strip().splitlines()
            shown = "\n".join(said[:SHOWN])
            raise ExecutionError(f"{self.name} refuses the emitted code:\n{shown}")

    def says(self, *arguments: str) -> str:
        """The first line that it prints."""
        ended = subprocess.run([*self.command, *arguments], capture_output=True, text=True, check=False)
        return ended.stdout.partition("\n")[0].strip()


@cache
def compiler(target: Target) -> Compiler:
    """A compiler for `target`.

    Raises `BackendUnavailableError` where there is none, with how to get one.
    """
    if target.bare:
        if found := shutil.which("arm-none-eabi-gcc"):
            return Compiler("arm-none-eabi-gcc", (found, *target.gcc))
        if zig := _zig():
            return Compiler("zig cc", (*zig, *target.zig))
        raise BackendUnavailableError(
            f"no C compiler for {target.name} is installed; get one with: pip install 'poetopt[device]' (zig), or the "
            "package gcc-arm-none-eabi of your system"
        )
    for name in filter(None, (os.environ.get("CC"), "cc", "gcc", "clang")):
        if found := shutil.which(name):
            return Compiler(name, (found,))
    if zig := _zig():
        return Compiler("zig cc", zig)
    raise BackendUnavailableError(
        "no C compiler is installed (cc, gcc, clang); get one from your system, or zig with: pip install "
        "'poetopt[device]'"
    )


def _zig() -> tuple[str, ...]:
    if importlib.util.find_spec("ziglang") is not None:
        return (sys.executable, "-m", "ziglang", "cc")
    found = shutil.which("zig")
    return (found, "cc") if found else ()
