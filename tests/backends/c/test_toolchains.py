"""Bare boards by each compiler that there is: what emitted C calls is there, and the stack is what it takes."""

from __future__ import annotations

import re
import struct
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

import poetopt as po
from poetopt.backends.c.build import FLAGS, STEP, build, write
from poetopt.backends.c.disassembly import deepest, frames
from poetopt.backends.c.execute import unscheduled as once
from poetopt.backends.c.golden import golden_of
from poetopt.backends.c.linking import Image, Segment, image
from poetopt.backends.c.program import device_program
from poetopt.backends.c.run import run
from poetopt.backends.c.targets import TARGETS, ZIG, Compiler, compilers
from poetopt.backends.onnxruntime.batch import random_batch
from poetopt.backends.step.places import graph_of
from poetopt.ops.runtimes.c.kernel import Arguments
from poetopt.ops.runtimes.c.steps import call_of, kernels
from poetopt.search.predicting import prediction_of
from poetopt.util.errors import ExecutionError
from tests.seeds import some
from tests.support.c import WARNINGS, needs_emulator, paged_parameters, same, unscheduled
from tests.support.draws import cases_of

CORES = [name for name, found in TARGETS.items() if found.bare]
WAYS = [(core, one.name) for core in CORES for one in compilers(TARGETS[core])]
"""Each core by each compiler, as far as there are any."""


def compiler_of(core: str, name: str) -> Compiler:
    return next(found for found in compilers(TARGETS[core]) if found.name == name)


def zig_of(core: str) -> Compiler:
    if (core, ZIG) not in WAYS:
        pytest.skip("zig isn't installed (pip install 'poetopt[device]')")
    return compiler_of(core, ZIG)


def every_kernel() -> Iterator[str]:
    """A function for a call of each kernel, which any file may call."""
    for k, kernel in enumerate(kernels().values()):
        yield from (f'#include "{header}"' for header in kernel.headers)
        for case in cases_of(kernel, 1):
            call = call_of(case.operator, case.node, case.tensors)
            inputs = tuple(f"in[{n}]" if tensor is not None else "" for n, tensor in enumerate(call.inputs))
            outputs = tuple(f"out[{n}]" if tensor is not None else "" for n, tensor in enumerate(call.outputs))
            code = kernel.code(call, Arguments(inputs, outputs, "scratch", "state"))
            yield f"void po_any_{k}(void **in, void **out, void *scratch, void *state)\n{{\n{code}\n}}"


def symbols(places: Iterable[Path], *, defined: bool) -> set[str]:
    found: set[str] = set()
    for place in places:
        with place.open("rb") as file:
            table = ELFFile(file).get_section_by_name(".symtab")
            assert isinstance(table, SymbolTableSection)
            for symbol in table.iter_symbols():
                bound = symbol["st_info"]["bind"] != "STB_LOCAL"
                found |= {symbol.name} if bound and (symbol["st_shndx"] != "SHN_UNDEF") == defined else set()
    return found


@pytest.mark.parametrize("core", some(CORES, 1))
def test_what_c_calls_is_declared_and_defined_without_a_c_library(core: str, tmp_path: Path) -> None:
    """Of all kernels, the emitted files and the examples: of what their objects leave open, not by a list."""
    zig, plan = zig_of(core), paged_parameters()
    graph = graph_of(plan)
    program = device_program(plan, graph, prediction=prediction_of(plan, graph))
    write(replace(program, golden=golden_of(program)), TARGETS[core], tmp_path)
    for header in files("poetopt.ops.runtimes.c.include").iterdir():
        if header.name.endswith(".h"):
            (tmp_path / header.name).write_bytes(header.read_bytes())
    (tmp_path / "kernels.c").write_text("\n".join(every_kernel()))
    sources = (*STEP, "main.c", "main_sd.c", "driver_nor.c", "po_startup.c")
    objects = []
    for source in (*sources, "kernels.c"):
        objects.append(tmp_path / source.replace(".c", ".o"))
        warnings = () if source == "kernels.c" else WARNINGS
        zig.run(
            (*FLAGS, *warnings, "-Werror", "-ffreestanding", "-Ifreestanding", "-c", source, "-o", objects[-1]),
            tmp_path,
        )
    called = symbols(objects, defined=False) - symbols(objects, defined=True)
    called = {name for name in called if not name.startswith(("__", "po_", "nor_"))}
    headers = "".join(place.read_text() for place in (tmp_path / "freestanding").iterdir())
    declared = set(re.findall(r"(\w+)\([^()]*\);", headers))
    assert {"memcmp", "sqrtf"} <= called <= declared
    table = ", ".join(f"(any){name}" for name in sorted(declared))
    (tmp_path / "all.c").write_text(
        "#include <math.h>\n#include <string.h>\ntypedef void (*any)(void);\n"
        f"static const any all[] = {{{table}}};\nany po_all(int k) {{ return all[k]; }}\n"
    )
    flags = (*FLAGS, "-ffreestanding", "-Ifreestanding", "-Wl,--entry=po_all")
    zig.run((*flags, "all.c", "po_libm.c", "-o", "all.elf"), tmp_path)


def told_frames(folder: Path, name: str) -> dict[str, int]:
    """What the compiler says that each function takes of the stack, as it was asked."""
    if name != ZIG:
        lines = (line.split("\t") for place in folder.glob("*.su") for line in place.read_text().splitlines())
        return {line[0].rpartition(":")[2]: int(line[1]) for line in lines}
    names = {start: function for start, _, function in image(folder / "po.elf").functions}
    found = {}
    with (folder / "po.elf").open("rb") as file:
        section = ELFFile(file).get_section_by_name(".stack_sizes")
        assert section is not None
        data, at = section.data(), 0
        while at < len(data):
            (address,), at, value, shift = struct.unpack_from("<I", data, at), at + 4, 0, 0
            while shift == 0 or data[at - 1] & 0x80:
                value, shift, at = value | (data[at] & 0x7F) << shift, shift + 7, at + 1
            found[names.get(address & ~1, "")] = value
    return found


@needs_emulator
@pytest.mark.parametrize(("core", "name"), some(WAYS, 4))
def test_the_stack_and_the_bits_are_the_same_by_each_compiler(core: str, name: str, tmp_path: Path) -> None:
    """Frames are what the compiler says; the deepest chain is what is painted, or more; the bits are one plan's."""
    found = compiler_of(core, name)
    asked = replace(found, command=(*found.command, "-fstack-size-section" if name == ZIG else "-fstack-usage"))
    ran = []
    for plan, folder in ((paged_parameters(), tmp_path / "paged"), (once(paged_parameters()), tmp_path / "whole")):
        graph = graph_of(plan)
        program = device_program(plan, graph, prediction=prediction_of(plan, graph))
        write(program, TARGETS[core], folder)
        built = build(program, TARGETS[core], folder, warnings=("-Werror", *WARNINGS), by=asked)
        ran.append(run(built, random_batch(graph, 3)))
        loaded = image(built.executable)
        taken, told = frames(loaded)[0], told_frames(folder, name)
        mine = {function: taken[start] for start, _, function in loaded.functions if function in told}
        assert mine == {function: told[function] for function in mine}
        assert {"po_step", "po_save", "po_restore", "main"} <= {*mine}
        assert built.stack == deepest(loaded)
        assert built.stack is not None
        assert ran[-1].stack_bytes is not None
        assert ran[-1].stack_bytes <= built.stack.nbytes <= built.stack_reserved_bytes
        assert built.stack.nbytes >= program.storage.block_bytes
    assert same(ran[0].results, ran[1].results)


def test_a_label_at_a_function_does_not_run_into_the_next_one() -> None:
    """As in libgcc's division, where the next one is what calls it."""
    pytest.importorskip("capstone")
    code = struct.pack("<6H", 0xB500, 0xBD00, 0x4770, 0x4770, 0xE7FA, 0x4770)  # push, pop, bx lr; b to the push
    functions = ((0, 0, ".label"), (0, 8, "divide"), (8, 12, "remainder"))
    found = deepest(Image(1, (Segment(0, code),), {}, functions, ((0, 12),)))
    assert (found.nbytes, found.calls) == (4, ("remainder", "divide"))


@needs_emulator
def test_a_stack_that_does_not_suffice_is_told_before_anything_runs() -> None:
    plan = unscheduled()
    small = replace(plan, problem=replace(plan.problem, stack_bytes=128))
    with pytest.raises(ExecutionError, match=r"\d+ B of stack \(po_.*128"):
        po.execute_on(small, "cortex-m4")


@pytest.mark.parametrize(("core", "name"), some(WAYS, 2))
def test_a_folder_builds_as_its_readme_says(core: str, name: str, tmp_path: Path) -> None:
    po.emit(unscheduled(), tmp_path / "c", target=core)
    text = (tmp_path / "c" / "README.md").read_text().replace("\\\n", " ")
    begins = "python3 -m ziglang cc " if name == ZIG else f"{name} "
    (line,) = (line.split() for line in text.splitlines() if line.startswith("    " + begins))
    command = [sys.executable, *line[1:]] if name == ZIG else line
    subprocess.run(command, cwd=tmp_path / "c", check=True)
    made = image(tmp_path / "c" / "train.elf")
    assert made.entry | 1 == made.symbols["po_reset"] | 1
