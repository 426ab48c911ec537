"""A plan as a folder of C99, plain or as a package of somebody else's build, and that folder compiled.

A package has the step without an example, a start-up or a linker script, and constants as arrays of C, so that it is
built from wherever it lies.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Template

from poetopt.backends.c import disassembly, linking, text
from poetopt.backends.c.disassembly import Deepest
from poetopt.backends.c.linking import LINKED, Board, LinkedSizes, board, linker_script
from poetopt.backends.c.program import DeviceProgram
from poetopt.backends.c.readme import readme
from poetopt.backends.c.targets import ZIG, Compiler, Target, compiler
from poetopt.backends.c.text import fixed
from poetopt.ops.runtimes.c.kernel import FLAGS as KERNEL_FLAGS
from poetopt.util import __version__
from poetopt.util.errors import ExecutionError, OptionError, OutputError

BARE = ("po_startup.c", "po_libm.c", "freestanding/math.h", "freestanding/string.h")
"""What a bare board needs beside."""
INCLUDED = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
PREFIX = "po"
"""The beginning of names of files and of all that the linker sees."""
OURS = re.compile(r"(?:(?<![A-Za-z0-9])|(?<=\\n))(?:(po)(?=_|\.(?:h|ld|elf)\b)|(PO)(?=_))")
"""Its places, also behind a line's end within a string."""
STRING = re.compile(r'("(?:[^"\\\n]|\\.)*")')


def named(made: Mapping[str, bytes], prefix: str) -> Mapping[str, bytes]:
    """The emitted files with another prefix, so that several steps can be in one image.

    Raises `OptionError` for what no identifier of C can begin with.
    """
    if prefix == PREFIX:
        return made
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,40}", prefix):
        raise OptionError(f"--prefix {prefix}: must be a word of letters, digits and _, as in --prefix kws")

    def ours(text: str) -> str:
        return OURS.sub(lambda found: prefix if found[1] else prefix.upper(), text)

    found = {}
    for name, content in made.items():
        if not name.endswith(".bin"):
            pieces = STRING.split(content.decode()) if name == "po_tables.c" else [content.decode()]
            kept = (f".bss.{PREFIX}_", f"{PREFIX}.")  # all other strings there are names of the network's
            content = "".join(
                piece if k % 2 and not piece[1:].startswith(kept) else ours(piece) for k, piece in enumerate(pieces)
            ).encode()
        found[ours(name)] = content
    return found


PLAIN = "plain"


def emitted(program: DeviceProgram, target: Target, form: str = PLAIN) -> Mapping[str, bytes]:
    """The files of a program, by name; those that a package of this form has beside its build's own.

    Raises `OptionError` for another form.
    """
    if form not in FORMS:
        raise OptionError(f"--package {form}: must be {', '.join(FORMS)}")
    plain = form == PLAIN
    weights, flash = text.weight_bytes(program), text.flash_bytes(program)
    found = {
        "po.h": text.header(program),
        "po_step.c": text.step(program),
        "po_tables.c": text.tables(program),
        "po_weights.c": text.weights(program, text.data("weights", weights, array=not plain)),
        "po_flash.c": text.flash(program, text.data("flash", flash, array=not plain)),
        "po_save.c": text.saving(program),
    }
    found |= _headers(program)
    for name in ("po_check.h", "po_rows.h"):
        if f'#include "{name}"' in found["po_step.c"]:
            found[name] = text.fixed(name)
    if target.bare and plain:
        found |= {name: text.fixed(name) for name in BARE}
        found["main.c"] = text.fixed("main_semihosting.c")
        found |= {name: text.fixed(name) for name in ("main_sd.c", "driver_nor.c")}
        found["po.ld"] = linker_script(board(program))
    elif plain:
        found["main.c"] = text.fixed("main_posix.c")
    found["README.md"] = readme(program, target, len(weights), plain=plain)
    made = {name: content.encode() for name, content in found.items()}
    made["po_storage.bin"] = text.storage_bytes(program)
    if plain or program.weights:
        made["po_weights.bin"] = weights
    return made | ({"po_flash.bin": flash} if plain else {})


def _headers(program: DeviceProgram) -> Mapping[str, str]:
    """The kernels' headers, and those that they include beside them."""
    waiting = list(dict.fromkeys(pair for code in program.codes for pair in code.headers))
    found: dict[str, str] = {}
    while waiting:
        package, name = waiting.pop()
        if name in found:
            continue
        found[name] = files(package).joinpath(name).read_text(encoding="utf-8")
        waiting += [(package, included) for included in INCLUDED.findall(found[name])]
    return found


PACKAGE_FLAGS = "-ffp-contract=off -fno-math-errno"
FILES = {
    "cmake": ("CMakeLists.txt",),
    "zephyr": ("CMakeLists.txt", "zephyr/module.yml"),
    "esp-idf": ("CMakeLists.txt",),
    "platformio": ("library.json",),
    "arduino": ("library.properties",),
}
"""Files that each build wants beside the sources."""
HOW: Mapping[str, str] = {
    "cmake": "`add_subdirectory` of this folder, and `target_link_libraries(app PRIVATE $name)`.",
    "zephyr": "Name this folder in `ZEPHYR_EXTRA_MODULES`, or in the manifest.",
    "esp-idf": "Put this folder into `components/$name`, and name `$name` in `REQUIRES`.",
    "platformio": "Put this folder into `lib/$name`.",
    "arduino": "Put this folder into `libraries/$name`, and include `$name.h`.",
}
FORMS = (PLAIN, *FILES)


def packaged(made: Mapping[str, bytes], form: str, prefix: str) -> Mapping[str, bytes]:
    """The files emitted for a form, whose names begin with `prefix`, with those of its build."""
    if form == PLAIN:
        return made
    sources = sorted(name for name in made if name.endswith(".c"))
    values = {
        "name": prefix,
        "flags": PACKAGE_FLAGS,
        "version": __version__,
        "sources": "".join(f"  {name}\n" for name in sources),
    }
    how = Template(HOW[form]).substitute(values)
    build = f"## Build\n\n{how} Its sources want `{PACKAGE_FLAGS}`; never use `-ffast-math`.\n\n## Call"
    inside = "src/" if form == "arduino" else ""
    found = {f"{inside}{name}" if name.endswith((".c", ".h")) else name: content for name, content in made.items()}
    text_of = found["README.md"].decode()
    found["README.md"] = re.sub(r"## Build\n.*?## Call", lambda _: build, text_of, flags=re.DOTALL).encode()
    return found | {name: text.filled(f"packages/{form}/{name}", values).encode() for name in FILES[form]}


def write_folder(made: Mapping[str, bytes], folder: str | os.PathLike[str]) -> None:
    """Write files into a folder, all or none: it is made beside, and renamed.

    A folder that was emitted before is replaced. Raises `OutputError` where anything else is there, or where it can't
    be written.
    """
    target = Path(folder)
    check_folder_free(target)
    beside = target.parent / f".poetopt-{os.getpid()}-{target.name}"
    old = target.parent / f".poetopt-{os.getpid()}-{target.name}.old"
    try:
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(parents=True)
        for name, content in made.items():
            place = beside / name
            place.parent.mkdir(exist_ok=True)
            place.write_bytes(content)
        if target.exists():
            os.replace(target, old)
        os.replace(beside, target)
    except OSError as error:
        if old.exists() and not target.exists():
            os.replace(old, target)
        raise OutputError(
            f"can't write the folder {target}: {error.strerror or error}; give another path, or make room and rights "
            "there"
        ) from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def check_folder_free(folder: str | os.PathLike[str]) -> None:
    """Raise `OutputError` where `folder` is something that may not be replaced."""
    target = Path(folder)
    if not target.exists():
        return
    if not target.is_dir():
        raise OutputError(f"can't write the folder {target}: it is a file; give another path")
    # the file by which a folder is known to have been emitted
    if any(target.iterdir()) and not any(target.rglob("*_tables.c")):
        raise OutputError(f"can't write the folder {target}: it has files that weren't emitted; give another path")


FLAGS = (*KERNEL_FLAGS, "-O2", "-fno-math-errno", "-fno-common", "-ffunction-sections", "-fdata-sections")
WARNINGS = ("-Wall", "-Wextra", "-Wconversion")
"""What the emitted code has none of."""
STEP = ("po_step.c", "po_tables.c", "po_weights.c", "po_flash.c", "po_save.c")
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
    stack
        What it takes of the stack at most; None there, and where its code doesn't tell.
    """

    program: DeviceProgram
    target: Target
    compiler: Compiler
    folder: Path
    executable: Path
    sizes: LinkedSizes | None
    board: Board | None
    stack: Deepest | None = None

    @property
    def stack_reserved_bytes(self) -> int:
        """What the device sets aside for the stack."""
        return self.program.plan.problem.stack_bytes or linking.STACK_BYTES

    def check_stack(self) -> None:
        """Raise `ExecutionError` where it may take more of the stack than it was linked for."""
        if self.board is None or self.stack is None or self.stack.nbytes <= self.board.stack_bytes:
            return
        raise ExecutionError(
            f"{self.program.shown} on {self.target.name}: as {self.compiler.name} compiles it, the program takes up to "
            f"{self.stack.nbytes:,} B of stack ({' > '.join(self.stack.calls)}), and "
            f"{self.stack_reserved_bytes:,} are reserved for it; give a device whose stack_bytes are "
            f"{self.stack.nbytes + 8:,} and what its interrupts take, and solve anew, or take another compiler"
        )


def _deepest(executable: Path) -> Deepest | None:
    if disassembly.present():
        with suppress(ValueError):  # what the emulator paints is left to tell then
            return disassembly.deepest(linking.image(executable))
    return None


def write(program: DeviceProgram, target: Target, folder: Path) -> None:
    """The emitted files, as `emit` writes them, into a folder of this process's own."""
    for name, content in emitted(program, target).items():
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
    by: Compiler | None = None,
) -> Built:
    """Compile the files of `folder`: on the host with a main that measures, else with the one that was emitted.

    ram
        What to link a bare board's program for; by default exactly what it takes, with `stack_bytes` of stack.
    warnings
        Flags beside ours.
    measuring
        On the host: False for the main that was emitted.
    by
        By default the compiler that is preferred.

    Raises `ExecutionError` where the compiler or the linker refuses, `BackendUnavailableError` where there is none.
    """
    found = compiler(target) if by is None else by
    weights = (folder / "po_weights.bin").stat().st_size if not program.weights else 0
    weights += program.flash.nbytes
    if target.bare:
        ram = board(program, stack_bytes, at_end_of_page=True) if ram is None else ram
        (folder / "po.ld").write_text(linker_script(ram), encoding="utf-8")
        sources = (*STEP, "po_startup.c", "po_libm.c", "main.c")
        flags, libraries = LINKED["zig" if found.name == ZIG else "gcc"]
        # the linker keeps what an application calls and the example doesn't: stack and code are for it, too
        found.run(
            (*FLAGS, *warnings, *flags, "-Wl,-u,po_save", "-Wl,-u,po_restore", *sources, *libraries, "-o", "po.elf"),
            folder,
        )
        executable = folder / "po.elf"
        linked = linking.sizes([executable], weights)
        return Built(program, target, found, folder, executable, linked, ram, _deepest(executable))
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
