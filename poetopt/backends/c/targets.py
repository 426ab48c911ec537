"""Targets for emitted C, and their installed compilers."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from poetopt.util.errors import BackendUnavailableError, ExecutionError, OptionError
from poetopt.util.text import closest

HOST = "host"
"""Name of this machine in `run --on`; it is compiled for the target `linux`."""
LINUX = "linux"


@dataclass(frozen=True, slots=True)
class Target:
    """Processor to compile for.

    Attributes
    ----------
    name
        As in `emit --target`.
    gcc
        Flags of arm-none-eabi-gcc for the core and the passing of floats; none for the host.
    zig
        The same for `zig cc`, whose names of cores differ.
    unicorn
        Unicorn's constant for the core.
    qemu
        Machine of qemu-system-arm with the core, and its options; none where there is none.
    """

    name: str
    gcc: tuple[str, ...] = ()
    zig: tuple[str, ...] = ()
    unicorn: str = ""
    qemu: tuple[str, ...] = ()

    @property
    def bare(self) -> bool:
        """Return whether it runs without an operating system: with poetopt's start-up and linker script."""
        return self.name != LINUX


THRIFTY = ("-fomit-frame-pointer", "-fno-unroll-loops", "-mllvm", "-disable-constant-hoisting")
"""Flags for zig against loop unrolling, which gains a Cortex-M0+ nothing, and against addresses kept on the stack:
frames are then as large as gcc's."""
ROLLED = ("-fomit-frame-pointer", "-mllvm", "-unroll-max-count=2")
"""Flags for zig to unroll loops only once, which gains most of the speed: ds-cnn takes 53 million instructions in
40.6 KB of code by zig's default, 56 in 31.1 KB with these flags, 68 in 23.1 KB without unrolling."""

TARGETS = {
    target.name: target
    for target in (
        Target(LINUX),
        Target(
            "cortex-m0plus",
            gcc=("-mcpu=cortex-m0plus", "-mthumb", "-mfloat-abi=soft"),
            zig=("-target", "thumb-freestanding-eabi", "-mcpu=cortex_m0plus", *THRIFTY),
            unicorn="UC_CPU_ARM_CORTEX_M0",
        ),
        Target(
            "cortex-m4",
            gcc=("-mcpu=cortex-m4", "-mthumb", "-mfloat-abi=hard", "-mfpu=fpv4-sp-d16"),
            zig=("-target", "thumb-freestanding-eabihf", "-mcpu=cortex_m4+vfp4d16sp", *ROLLED),
            unicorn="UC_CPU_ARM_CORTEX_M4",
            qemu=("-machine", "mps2-an386", "-cpu", "cortex-m4"),
        ),
        Target(
            "cortex-m7",
            gcc=("-mcpu=cortex-m7", "-mthumb", "-mfloat-abi=hard", "-mfpu=fpv5-sp-d16"),
            zig=("-target", "thumb-freestanding-eabihf", "-mcpu=cortex_m7+fp_armv8d16sp", *ROLLED),
            unicorn="UC_CPU_ARM_CORTEX_M7",
            qemu=("-machine", "mps2-an500", "-cpu", "cortex-m7"),
        ),
    )
}
"""By name, the host first."""


def target(name: str, option: str = "--target") -> Target:
    """Return the target called `name`; `host` is this machine's. Raise `OptionError` for another name."""
    if option == "--on":
        known = (HOST, *(known_target for known_target in TARGETS if known_target != LINUX))
        target_name = LINUX if name == HOST else name
    else:
        known, target_name = tuple(TARGETS), name
    if name not in known:
        raise OptionError(f"{option} {name}: choose {', '.join(known)}{closest(name, known)}")
    return TARGETS[target_name]


ZIG = "zig cc"


@dataclass(frozen=True, slots=True)
class Compiler:
    """C compiler for one target.

    Attributes
    ----------
    name
        Name in reports.
    command
        Start of its command line, with the target's flags.
    """

    name: str
    command: tuple[str, ...]

    def run(self, arguments: Sequence[str | os.PathLike[str]], folder: Path) -> None:
        """Compile or link in `folder`. Raise `ExecutionError` with the first lines of the compiler's output."""
        command = [*self.command, *(os.fspath(argument) for argument in arguments)]
        process = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", check=False)
        if process.returncode:
            output_lines = (process.stderr or process.stdout).strip().splitlines()
            # show at most 12 lines of the compiler's output
            shown = "\n".join(output_lines[:12])
            raise ExecutionError(f"{self.name} refuses the emitted code:\n{shown}")

    def says(self, *arguments: str) -> str:
        """Return the first line of its output."""
        process = subprocess.run([*self.command, *arguments], capture_output=True, text=True, check=False)
        return process.stdout.partition("\n")[0].strip()


def compilers(target: Target) -> Iterator[Compiler]:
    """Yield all installed compilers for `target`, preferred ones first."""
    names: tuple[str, ...]
    flags: tuple[str, ...]
    if target.bare:
        names, flags = ("arm-none-eabi-gcc",), target.gcc
    else:
        names, flags = tuple(filter(None, (os.environ.get("CC"), "cc", "gcc", "clang"))), ()
    for name in names:
        if path := shutil.which(name):
            yield Compiler(name, (path, *flags))
    if zig := _find_zig():
        yield Compiler(ZIG, (*zig, *target.zig))


@cache
def compiler(target: Target) -> Compiler:
    """Return the preferred compiler for `target`.

    Raise `BackendUnavailableError`, with an install command, where there is none.
    """
    for installed in compilers(target):
        return installed
    system = "the package gcc-arm-none-eabi of your system" if target.bare else "cc, gcc or clang from your system"
    raise BackendUnavailableError(
        f"no C compiler for {target.name} is installed; get one with: pip install 'poetopt[device]' (zig), or {system}"
    )


def _find_zig() -> tuple[str, ...]:
    if importlib.util.find_spec("ziglang") is not None:
        return (sys.executable, "-m", "ziglang", "cc")
    path = shutil.which("zig")
    return (path, "cc") if path else ()
