"""A plan as a folder of C99, plain or as a package for another build system, and that folder compiled.

A package has the step without an example, a start-up or a linker script. Its constants are arrays of C, so that it
builds from any place.
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
"""Additional files for a bare board."""
INCLUDED = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
PREFIX = "po"
"""Prefix of file names and of all symbols."""
OURS = re.compile(r"(?:(?<![A-Za-z0-9])|(?<=\\n))(?:(po)(?=_|\.(?:h|ld|elf)\b)|(PO)(?=_))")
"""Matches the prefix, also after a newline within a string."""
STRING = re.compile(r'("(?:[^"\\\n]|\\.)*")')


def named(emitted_files: Mapping[str, bytes], prefix: str) -> Mapping[str, bytes]:
    """Return the emitted files with another prefix, so that several steps can be in one image.

    Raise `OptionError` for a prefix that isn't a C identifier.
    """
    if prefix == PREFIX:
        return emitted_files
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,40}", prefix):
        raise OptionError(f"--prefix {prefix}: must be a word of letters, digits and _, as in --prefix kws")

    def replace_prefix(text: str) -> str:
        return OURS.sub(lambda renamed_files: prefix if renamed_files[1] else prefix.upper(), text)

    renamed_files = {}
    for name, content in emitted_files.items():
        if not name.endswith(".bin"):
            pieces = STRING.split(content.decode()) if name == "po_tables.c" else [content.decode()]
            file_strings = (f".bss.{PREFIX}_", f"{PREFIX}.")  # all other strings there are the network's names
            content = "".join(
                piece if k % 2 and not piece[1:].startswith(file_strings) else replace_prefix(piece)
                for k, piece in enumerate(pieces)
            ).encode()
        renamed_files[replace_prefix(name)] = content
    return renamed_files


PLAIN = "plain"


def emitted(program: DeviceProgram, target: Target, form: str = PLAIN) -> Mapping[str, bytes]:
    """Return the files of a program for a package form, by name, without those of its build system.

    Raise `OptionError` for another form.
    """
    if form not in FORMS:
        raise OptionError(f"--package {form}: must be {', '.join(FORMS)}")
    is_plain = form == PLAIN
    weights, flash = text.weight_bytes(program), text.flash_bytes(program)
    texts = {
        "po.h": text.header(program),
        "po_step.c": text.step(program),
        "po_tables.c": text.tables(program),
        "po_weights.c": text.weights(program, text.data("weights", weights, array=not is_plain)),
        "po_flash.c": text.flash(program, text.data("flash", flash, array=not is_plain)),
        "po_save.c": text.saving(program),
    }
    texts |= _headers(program)
    for name in ("po_check.h", "po_rows.h"):
        if f'#include "{name}"' in texts["po_step.c"]:
            texts[name] = text.fixed(name)
    if target.bare and is_plain:
        texts |= {name: text.fixed(name) for name in BARE}
        texts["main.c"] = text.fixed("main_semihosting.c")
        texts |= {name: text.fixed(name) for name in ("main_sd.c", "driver_nor.c")}
        texts["po.ld"] = linker_script(board(program))
    elif is_plain:
        texts["main.c"] = text.fixed("main_posix.c")
    texts["README.md"] = readme(program, target, len(weights), plain=is_plain)
    contents = {name: content.encode() for name, content in texts.items()}
    contents["po_storage.bin"] = text.storage_bytes(program)
    if is_plain or program.weights:
        contents["po_weights.bin"] = weights
    return contents | ({"po_flash.bin": flash} if is_plain else {})


def _headers(program: DeviceProgram) -> Mapping[str, str]:
    """Return the kernels' headers, and the headers that they include."""
    pending = list(dict.fromkeys(pair for code in program.codes for pair in code.headers))
    texts: dict[str, str] = {}
    while pending:
        package, name = pending.pop()
        if name in texts:
            continue
        texts[name] = files(package).joinpath(name).read_text(encoding="utf-8")
        pending += [(package, included) for included in INCLUDED.findall(texts[name])]
    return texts


PACKAGE_FLAGS = "-ffp-contract=off -fno-math-errno"
FILES = {
    "cmake": ("CMakeLists.txt",),
    "zephyr": ("CMakeLists.txt", "zephyr/module.yml"),
    "esp-idf": ("CMakeLists.txt",),
    "platformio": ("library.json",),
    "arduino": ("library.properties",),
}
"""Files that each build system needs besides the sources."""
HOW: Mapping[str, str] = {
    "cmake": "`add_subdirectory` of this folder, and `target_link_libraries(app PRIVATE $name)`.",
    "zephyr": "Name this folder in `ZEPHYR_EXTRA_MODULES`, or in the manifest.",
    "esp-idf": "Put this folder into `components/$name`, and name `$name` in `REQUIRES`.",
    "platformio": "Put this folder into `lib/$name`.",
    "arduino": "Put this folder into `libraries/$name`, and include `$name.h`.",
}
FORMS = (PLAIN, *FILES)


def packaged(emitted_files: Mapping[str, bytes], form: str, prefix: str) -> Mapping[str, bytes]:
    """Return the files emitted for a form, whose names begin with `prefix`, with those of its build system."""
    if form == PLAIN:
        return emitted_files
    sources = sorted(name for name in emitted_files if name.endswith(".c"))
    values = {
        "name": prefix,
        "flags": PACKAGE_FLAGS,
        "version": __version__,
        "sources": "".join(f"  {name}\n" for name in sources),
    }
    usage = Template(HOW[form]).substitute(values)
    build = f"## Build\n\n{usage} Its sources want `{PACKAGE_FLAGS}`; never use `-ffast-math`.\n\n## Call"
    source_folder = "src/" if form == "arduino" else ""
    package_files = {
        f"{source_folder}{name}" if name.endswith((".c", ".h")) else name: content
        for name, content in emitted_files.items()
    }
    text_of = package_files["README.md"].decode()
    package_files["README.md"] = re.sub(r"## Build\n.*?## Call", lambda _: build, text_of, flags=re.DOTALL).encode()
    return package_files | {name: text.filled(f"packages/{form}/{name}", values).encode() for name in FILES[form]}


def write_folder(contents: Mapping[str, bytes], folder: str | os.PathLike[str]) -> None:
    """Write files into a folder atomically: a temporary folder is written, and renamed.

    A folder that was emitted before is replaced. Raise `OutputError` where it has other files, or can't be written.
    """
    target = Path(folder)
    check_folder_free(target)
    temporary = target.parent / f".poetopt-{os.getpid()}-{target.name}"
    old = target.parent / f".poetopt-{os.getpid()}-{target.name}.old"
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        for name, content in contents.items():
            file = temporary / name
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(content)
        if target.exists():
            os.replace(target, old)
        os.replace(temporary, target)
    except OSError as error:
        if old.exists() and not target.exists():
            os.replace(old, target)
        raise OutputError(
            f"can't write the folder {target}: {error.strerror or error}; give another path, or free space and check "
            "permissions there"
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def check_folder_free(folder: str | os.PathLike[str]) -> None:
    """Raise `OutputError` where `folder` is something that may not be replaced."""
    target = Path(folder)
    if not target.exists():
        return
    if not target.is_dir():
        raise OutputError(f"can't write the folder {target}: it is a file; give another path")
    # this file marks an emitted folder
    if any(target.iterdir()) and not any(target.rglob("*_tables.c")):
        raise OutputError(f"can't write the folder {target}: it has files that weren't emitted; give another path")


FLAGS = (*KERNEL_FLAGS, "-O2", "-fno-math-errno", "-fno-common", "-ffunction-sections", "-fdata-sections")
WARNINGS = ("-Wall", "-Wextra", "-Wconversion")
"""Warnings that the emitted code must not have."""
STEP = ("po_step.c", "po_tables.c", "po_weights.c", "po_flash.c", "po_save.c")
"""Source files of a step on every target."""


@dataclass(frozen=True, slots=True)
class Built:
    """Compiled program.

    Attributes
    ----------
    folder
        Folder of sources and executable.
    executable
        Path of the executable.
    sizes
        None where no tool is installed that reads them.
    board
        RAM that it was linked for; None on a machine with an operating system.
    stack
        Most stack that it can use; None with an operating system, and where its code doesn't tell.
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
        """Bytes that the device reserves for the stack."""
        return self.program.plan.problem.stack_bytes or linking.STACK_BYTES

    def check_stack(self) -> None:
        """Raise `ExecutionError` where the program can use more stack than it was linked for."""
        if self.board is None or self.stack is None or self.stack.nbytes <= self.board.stack_bytes:
            return
        raise ExecutionError(
            f"{self.program.shown} on {self.target.name}: compiled by {self.compiler.name}, the program takes up to "
            f"{self.stack.nbytes:,} B of stack ({' > '.join(self.stack.calls)}), and "
            f"{self.stack_reserved_bytes:,} B are reserved for it; give a device whose stack_bytes are "
            f"{self.stack.nbytes + 8:,} plus the stack of its interrupts, and solve again, or use another compiler"
        )


def _find_deepest(executable: Path) -> Deepest | None:
    if disassembly.present():
        with suppress(ValueError):  # then only the painted stack of the emulator tells
            return disassembly.deepest(linking.image(executable))
    return None


def write(program: DeviceProgram, target: Target, folder: Path) -> None:
    """Write the emitted files, as `emit` does, into a private folder."""
    for name, content in emitted(program, target).items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)


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
    """Compile the files of `folder`: on the host with a main that measures, else with the emitted one.

    Parameters
    ----------
    ram
        RAM to link a bare board's program for; by default exactly what it needs, with `stack_bytes` of stack.
    warnings
        Additional flags.
    measuring
        On the host: False for the emitted main.
    by
        By default the preferred compiler.

    Raises
    ------
    ExecutionError
        The compiler or the linker fails.
    BackendUnavailableError
        There is no compiler.
    """
    c_compiler = compiler(target) if by is None else by
    weights = (folder / "po_weights.bin").stat().st_size if not program.weights else 0
    weights += program.flash.nbytes
    if target.bare:
        ram = board(program, stack_bytes, at_end_of_page=True) if ram is None else ram
        (folder / "po.ld").write_text(linker_script(ram), encoding="utf-8")
        sources = (*STEP, "po_startup.c", "po_libm.c", "main.c")
        flags, libraries = LINKED["zig" if c_compiler.name == ZIG else "gcc"]
        # keep functions that an application calls and the example doesn't: figures of stack and code include them
        c_compiler.run(
            (*FLAGS, *warnings, *flags, "-Wl,-u,po_save", "-Wl,-u,po_restore", *sources, *libraries, "-o", "po.elf"),
            folder,
        )
        executable = folder / "po.elf"
        linked = linking.sizes([executable], weights)
        return Built(program, target, c_compiler, folder, executable, linked, ram, _find_deepest(executable))
    main = "po_measure.c" if measuring else "main.c"
    if measuring:
        (folder / main).write_text(fixed(main), encoding="utf-8")
    objects: list[Path] = []
    for source in (*STEP, main):
        objects.append(folder / source.replace(".c", ".o"))
        c_compiler.run(
            (*FLAGS, *(() if source == "po_measure.c" else warnings), "-c", source, "-o", objects[-1]), folder
        )
    executable = folder / "po"
    c_compiler.run((*objects, "-lm", "-lpthread", "-o", executable), folder)
    sizes = linking.sizes(objects[:-1], weights) if linking.present() else None
    return Built(program, target, c_compiler, folder, executable, sizes, None)
