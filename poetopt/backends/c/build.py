"""Compiling what was emitted."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from poetopt.backends.c import linking
from poetopt.backends.c.emit import emitted
from poetopt.backends.c.linking import Board, LinkedSizes, board, linker_script
from poetopt.backends.c.program import DeviceProgram
from poetopt.backends.c.targets import Compiler, Target, compiler
from poetopt.backends.c.text import CODE, fixed
from poetopt.ops.runtimes.c.kernel import FLAGS as KERNEL_FLAGS

FLAGS = (*KERNEL_FLAGS, "-O2", "-fno-math-errno", "-fno-common", "-ffunction-sections", "-fdata-sections")
WARNINGS = ("-Wall", "-Wextra", "-Wconversion")
"""What the emitted code has none of."""
STEP = ("po_step.c", "po_tables.c", "po_weights.c", "po_flash.c")
"""What a step is made of on every target."""


@dataclass(frozen=True, slots=True)
class Built:
    """A compiled program.

    folder
        Where sources and executable lie.
    executable
        The executable.
    sizes
        None where nothing is installed that tells them.
    board
        The RAM that it was linked for; None on a machine with an operating system.
    """

    program: DeviceProgram
    target: Target
    compiler: Compiler
    folder: Path
    executable: Path
    sizes: LinkedSizes | None
    board: Board | None


def write(program: DeviceProgram, target: Target, folder: Path, schedule: str = CODE) -> None:
    """The emitted files, as `emit` writes them, into a folder of this process's own."""
    for name, content in emitted(program, target, schedule).items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)


def build(
    program: DeviceProgram,
    target: Target,
    folder: Path,
    *,
    stack_bytes: int | None = None,
    ram: Board | None = None,
    warnings: tuple[str, ...] = (),
    measuring: bool = True,
) -> Built:
    """Compile the files of `folder`: on the host with a main that measures, else with the one that was emitted.

    ram
        What to link a bare board's program for; by default exactly what it takes, with `stack_bytes` of stack.
    warnings
        Flags beside ours.
    measuring
        On the host: False for the main that was emitted.

    Raises `ExecutionError` where the compiler or the linker refuses, `BackendUnavailableError` where there is none.
    """
    found = compiler(target)
    weights = (folder / "po_weights.bin").stat().st_size if not program.weights else 0
    weights += program.flash.nbytes
    if target.bare:
        ram = board(program, stack_bytes, at_end_of_page=True) if ram is None else ram
        (folder / "po.ld").write_text(linker_script(ram), encoding="utf-8")
        sources = (*STEP, "po_startup.c", "po_libm.c", "main.c")
        flags: tuple[str, ...] = ("-ffreestanding", "-Wl,--gc-sections", "-Wl,-T,po.ld")
        if found.name.startswith("zig"):
            # of its own accord it links what the core lacks (float64, division), and no C library where there is none
            flags = (*flags, "-Wl,--entry=po_reset", "-Ifreestanding")
            libraries: tuple[str, ...] = ()
        else:
            flags = (*flags, "-nostdlib")
            libraries = ("-lc", "-lgcc")
        found.run((*FLAGS, *warnings, *flags, *sources, *libraries, "-o", "po.elf"), folder)
        executable = folder / "po.elf"
        return Built(program, target, found, folder, executable, linking.sizes([executable], weights), ram)
    main = "po_measure.c" if measuring else "main.c"
    if measuring:
        (folder / main).write_text(fixed(main), encoding="utf-8")
    objects: list[Path] = []
    for source in (*STEP, main):
        objects.append(folder / source.replace(".c", ".o"))
        found.run((*FLAGS, *(() if source == "po_measure.c" else warnings), "-c", source, "-o", objects[-1]), folder)
    executable = folder / "po"
    found.run((*objects, "-lm", "-lpthread", "-o", executable), folder)
    sizes = linking.sizes(objects[:-1], weights) if linking.present() else None
    return Built(program, target, found, folder, executable, sizes, None)
