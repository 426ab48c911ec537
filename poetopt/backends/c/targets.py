"""Describes where C can run, and the compilers that are there for it."""

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
"""What `run --on` calls the machine that it runs on; it is compiled for the target `linux`."""
LINUX = "linux"


@dataclass(frozen=True, slots=True)
class Target:
    """A processor to compile for.

    name
        As in `emit --target`.
    gcc
        Flags of arm-none-eabi-gcc that choose the core and how floats are passed; none for the host.
    zig
        The same for `zig cc`, whose names of cores differ.
    unicorn
        The constant of Unicorn that names the core.
    qemu
        A machine of qemu-system-arm that has it, with its options; none where there is no such machine.
    """

    name: str
    gcc: tuple[str, ...] = ()
    zig: tuple[str, ...] = ()
    unicorn: str = ""
    qemu: tuple[str, ...] = ()

    @property
    def bare(self) -> bool:
        """Says whether it runs without an operating system: with a start-up and a linker script of ours."""
        return self.name != LINUX


THRIFTY = ("-fomit-frame-pointer", "-fno-unroll-loops", "-mllvm", "-disable-constant-hoisting")
"""Has zig unroll no loop, which gains a Cortex-M0+ nothing, and keep no addresses on the stack: frames are gcc's."""
ROLLED = ("-fomit-frame-pointer", "-mllvm", "-unroll-max-count=2")
"""Has it unroll loops once, which gives most of what more would: ds-cnn takes 53 million instructions in 40.6 KB of
code by zig's own choice, 56 in 31.1 KB so, 68 in 23.1 KB with loops as they are."""

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
    """The target called `name`; `host` is this machine's. Raises `OptionError` for another name."""
    if option == "--on":
        known = (HOST, *(found for found in TARGETS if found != LINUX))
        wanted = LINUX if name == HOST else name
    else:
        known, wanted = tuple(TARGETS), name
    if name not in known:
        raise OptionError(f"{option} {name}: there are {', '.join(known)}{closest(name, known)}")
    return TARGETS[wanted]


ZIG = "zig cc"


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
            # lines of a compiler's complaint that are shown
            shown = "\n".join(said[:12])
            raise ExecutionError(f"{self.name} refuses the emitted code:\n{shown}")

    def says(self, *arguments: str) -> str:
        """The first line that it prints."""
        ended = subprocess.run([*self.command, *arguments], capture_output=True, text=True, check=False)
        return ended.stdout.partition("\n")[0].strip()


def compilers(target: Target) -> Iterator[Compiler]:
    """All compilers for `target` that are there, those that are preferred first."""
    names: tuple[str, ...]
    flags: tuple[str, ...]
    if target.bare:
        names, flags = ("arm-none-eabi-gcc",), target.gcc
    else:
        names, flags = tuple(filter(None, (os.environ.get("CC"), "cc", "gcc", "clang"))), ()
    for name in names:
        if found := shutil.which(name):
            yield Compiler(name, (found, *flags))
    if zig := _zig():
        yield Compiler(ZIG, (*zig, *target.zig))


@cache
def compiler(target: Target) -> Compiler:
    """The compiler for `target` that is preferred.

    Raises `BackendUnavailableError` where there is none, with how to get one.
    """
    for found in compilers(target):
        return found
    system = "the package gcc-arm-none-eabi of your system" if target.bare else "cc, gcc or clang from your system"
    raise BackendUnavailableError(
        f"no C compiler for {target.name} is installed; get one with: pip install 'poetopt[device]' (zig), or {system}"
    )


def _zig() -> tuple[str, ...]:
    if importlib.util.find_spec("ziglang") is not None:
        return (sys.executable, "-m", "ziglang", "cc")
    found = shutil.which("zig")
    return (found, "cc") if found else ()
