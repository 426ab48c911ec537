"""README.md of an emitted folder: what is in it, and how it is built and called."""

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
| `main.c` | an example, to be replaced by your own: it reads batches (and hyperparameters), trains, \
and writes losses and results |
"""
_BARE = """\
| `po_startup.c`, `po.ld` | start-up and linker script: RAM is what the step takes and the stack, nothing is left over |
| `main_sd.c` | in place of `main.c`: all is on an SD card on SPI; its first four functions are the board's |
| `driver_nor.c` | `po_read` and `po_write` for NOR flash on SPI; two functions are the board's |
| `po_libm.c` | functions of <math.h> that want no RAM |
| `freestanding/` | headers for compilers that come without a C library (`-Ifreestanding`), such as zig |"""

_STACK = """
`po.ld` sets {:,} B aside for the stack, interrupts and drivers: `poetopt run --on {}` says what a compiler takes of it.
"""
_PREDICTS = """\
   To use the network between two steps: write `po_predict_inputs[k].address`, call `po_predict()`, and read
   `po_outputs[k].address`. It takes no RAM beside that of a step, and changes nothing that lasts.
"""
_FED = "write the batch to `po_inputs[k].address`, and call `po_step()`. "
_FED_IN_PARTS = """\
a batch comes in {parts:,} parts. Write one of them after another to `po_inputs[k].address`, and call
   `po_part(0)`, `po_part(1)`, ... behind each; gradients are summed over them. `po_step()` behind the last one makes a
   step of them. """


def readme(program: DeviceProgram, target: Target, weight_bytes: int, *, plain: bool) -> str:
    """Instructions how a folder is built and called; a package, which isn't `plain`, has neither example nor board."""
    optimizer, parts = program.graph.optimizer, program.graph.parts
    updates = (
        "Parameters are yours to change in between, at `po_parameters[k].address`."
        if optimizer == "none"
        else f"The step updates the parameters itself; {optimizer}'s numbers are at `po_hyperparameters[k].address`."
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
            "weights_where": "blocks 0 and on of the storage" if program.weights else "flash",
            "weight_bytes": f"{weight_bytes:,}",
            "files": f"{_MAIN}{_BARE if target.bare else ''}" if plain else "",
            "build": _build(target),
            "paging": "This plan uses them." if program.storage.count else "This plan never calls them.",
            "updates": updates,
            "predicts": _PREDICTS if program.predicts is not None else "",
            "fed": _FED if parts == 1 else _FED_IN_PARTS.format(parts=parts),
            "call": "`po_step()`"
            if parts == 1
            else f"`po_part()` for each of {parts:,} parts of a batch, then `po_step()`,",
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
