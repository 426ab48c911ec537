"""README.md of an emitted folder: its files, how to build them, and how to call the step."""

from __future__ import annotations

from poetopt.backends.c import text
from poetopt.backends.c.generations import blocks
from poetopt.backends.c.linking import LINKED, STACK_BYTES
from poetopt.backends.c.operators import comment
from poetopt.backends.c.program import DeviceProgram
from poetopt.backends.c.targets import Target
from poetopt.util import __version__

README_FLAGS = "-std=c99 -O2 -ffp-contract=off -fno-math-errno"
_MAIN = """\
| `main.c` | an example program to replace by yours: it reads batches (and hyperparameters), trains, \
and writes losses and results |
"""
_BARE = """\
| `po_startup.c`, `po.ld` | start-up and linker script: RAM for the step and the stack, and no more |
| `main_sd.c` | example instead of `main.c`, with all data on an SD card on SPI; adapt its first four functions |
| `driver_nor.c` | `po_read` and `po_write` for NOR flash on SPI; write two functions for your board |
| `po_libm.c` | functions of <math.h> that need no RAM |
| `freestanding/` | headers for compilers without a C library (`-Ifreestanding`), such as zig |"""

_STACK = """
`po.ld` reserves {:,} B for the stack, interrupts and drivers; `poetopt run --on {}` measures the stack of a step.
"""
_PREDICTS = """\
   To predict between two steps, write the inputs to `po_predict_inputs[k].address`, call `po_predict()`, and read
   `po_outputs[k].address`. A prediction takes no more RAM than a step, and keeps the training state.
"""
_FED = "write the batch to `po_inputs[k].address`, and call `po_step()`. "
_FED_IN_PARTS = """\
a batch has {parts:,} micro-batches. Write each to `po_inputs[k].address`, and call `po_part(0)`,
   `po_part(1)`, ... after it; these sum the gradients. Call `po_step()` after the last one to complete the step. """


def readme(program: DeviceProgram, target: Target, weight_bytes: int, *, plain: bool) -> str:
    """Return the instructions for a folder; a package, which isn't `plain`, has neither example nor board."""
    optimizer, parts = program.graph.optimizer, program.graph.parts
    updates = (
        "Update the parameters at `po_parameters[k].address`."
        if optimizer == "none"
        else f"The step updates the parameters; {optimizer}'s hyperparameters are at `po_hyperparameters[k].address`."
    )
    return text.filled(
        "README.md",
        {
            "model": comment(program.shown),
            "version": __version__,
            "target": target.name,
            "does": text.does(program),
            "instructions": f"{program.instructions:,}",
            "operators": f"{len(program.codes):,}",
            "arena_bytes": f"{program.arena_bytes:,}",
            "resident_bytes": f"{program.resident.nbytes:,}",
            "flash_bytes": f"{program.flash.nbytes:,}",
            "stack": _STACK.format(program.plan.problem.stack_bytes or STACK_BYTES, target.name) if target.bare else "",
            "block_bytes": program.storage.block_bytes,
            "storage_bytes": f"{blocks(program) * program.storage.block_bytes:,}",
            "weights_where": "the first blocks of the storage" if program.weights else "flash",
            "weight_bytes": f"{weight_bytes:,}",
            "files": f"{_MAIN}{_BARE if target.bare else ''}" if plain else "",
            "build": _build(target),
            "paging": "This plan uses them." if program.storage.count else "This plan never calls them.",
            "updates": updates,
            "predicts": _PREDICTS if program.predicts is not None else "",
            "fed": _FED if parts == 1 else _FED_IN_PARTS.format(parts=parts),
            "call": "`po_step()`"
            if parts == 1
            else f"`po_part()` for each of {parts:,} micro-batches, then `po_step()`,",
        },
    )


def _build(target: Target) -> str:
    sources = "po_step.c po_tables.c po_weights.c po_flash.c po_save.c main.c"
    if not target.bare:
        return f"cc {README_FLAGS} {sources} -lm -o train"

    def line(name: str, core: tuple[str, ...], which: str) -> str:
        flags, libraries = LINKED[which]
        said = f"{name} {' '.join(core)} {README_FLAGS} {' '.join(flags)} -ffunction-sections -fdata-sections"
        behind = " ".join(("po_startup.c", "po_libm.c", *libraries))
        return f"{said} \\\n        {sources} {behind} -o train.elf"

    gcc, zig = line("arm-none-eabi-gcc", target.gcc, "gcc"), line("python3 -m ziglang cc", target.zig, "zig")
    return f"{gcc}\n\nor, with zig (`pip install ziglang`):\n\n    {zig}"
