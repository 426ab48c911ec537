"""What C is compiled for: the host, and Cortex-M cores with their emulators."""

from __future__ import annotations

from dataclasses import dataclass

from poetopt.closest import closest
from poetopt.errors import OptionError

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
    fpu
        Whether it computes in float32; else the compiler's library does.
    """

    name: str
    gcc: tuple[str, ...] = ()
    zig: tuple[str, ...] = ()
    unicorn: str = ""
    qemu: tuple[str, ...] = ()
    fpu: bool = True

    @property
    def bare(self) -> bool:
        """Whether it runs without an operating system: with a start-up and a linker script of ours."""
        return self.name != LINUX


TARGETS = {
    target.name: target
    for target in (
        Target(LINUX),
        Target(
            "cortex-m0plus",
            gcc=("-mcpu=cortex-m0plus", "-mthumb", "-mfloat-abi=soft"),
            zig=("-target", "thumb-freestanding-eabi", "-mcpu=cortex_m0plus"),
            unicorn="UC_CPU_ARM_CORTEX_M0",
            fpu=False,
        ),
        Target(
            "cortex-m4",
            gcc=("-mcpu=cortex-m4", "-mthumb", "-mfloat-abi=hard", "-mfpu=fpv4-sp-d16"),
            zig=("-target", "thumb-freestanding-eabihf", "-mcpu=cortex_m4+vfp4d16sp"),
            unicorn="UC_CPU_ARM_CORTEX_M4",
            qemu=("-machine", "mps2-an386", "-cpu", "cortex-m4"),
        ),
        Target(
            "cortex-m7",
            gcc=("-mcpu=cortex-m7", "-mthumb", "-mfloat-abi=hard", "-mfpu=fpv5-sp-d16"),
            zig=("-target", "thumb-freestanding-eabihf", "-mcpu=cortex_m7+fp_armv8d16sp"),
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
