"""A compiled step on one batch: on this machine, or on an emulated board."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from poetopt.backends.c.build import Built
from poetopt.backends.c.emulator import Emulated, emulate
from poetopt.backends.c.generations import blocks
from poetopt.backends.c.linking import Board
from poetopt.backends.c.program import DeviceProgram, TableRow
from poetopt.backends.c.tracing import Weigh, ones
from poetopt.backends.step.memory import numpy_dtype
from poetopt.backends.step.parted import cut
from poetopt.util.errors import ExecutionError

if TYPE_CHECKING:
    from poetopt.graph import Array


@dataclass(frozen=True, slots=True)
class Ran:
    """Holds what a run gave.

    results
        Loss, gradients and statistics, and the parameters after the last step, by name.
    again
        The same of a second step in the memory that the first one left, where there was one.
    losses
        Of each of several steps.
    stack_bytes
        The most that was taken of the stack; None of several steps on this machine.
    step_s
        Median seconds of a step; None on an emulator, and of several steps.
    instructions
        How many were executed, the example's own among them; None on this machine.
    counts
        What was executed on an emulator, as `Trace.sums` has it; None on this machine.
    outputs
        What the network makes of each of the inputs that it was asked of, after the last step.
    """

    results: Mapping[str, Array]
    again: Mapping[str, Array] = field(default_factory=dict)
    losses: Array = field(default_factory=lambda: np.empty(0))
    stack_bytes: int | None = None
    step_s: float | None = None
    instructions: int | None = None
    counts: NDArray[np.uint64] | None = None
    outputs: Sequence[Mapping[str, Array]] = ()


def run(
    built: Built,
    *batches: Mapping[str, Array],
    said: Sequence[Mapping[str, Array]] | None = None,
    asked: Sequence[Mapping[str, Array]] = (),
    ram: Board | None = None,
    weigh: Weigh = ones,
) -> Ran:
    """One step, which is measured, or by the emitted example a step on each of `batches`; from the emitted weights.

    built
        Of several steps, not `measuring`.
    said
        The hyperparameters of each step, by what the optimizer calls them; None of a step that is measured.
    asked
        What to predict after the last one, where the program can.
    ram
        On an emulator: what is mapped; by default what the program was linked for.
    weigh
        On an emulator: what is counted; by default instructions.

    Raises `ExecutionError` where it fails, as `emulate` does.
    """
    program = built.program
    files = {"batches.bin": b"".join(fed_with(program, batch) for batch in batches)}
    if said is not None:
        files["hyperparameters.bin"] = b"".join(laid_out(program.hyperparameters, one) for one in said)
    # steps are timed on this machine for about so long
    found, ended = _ended(built, files, asked, *(["0.5"] if said is None else []), ram=ram, weigh=weigh)
    losses = np.frombuffer(
        found["losses.bin"] if said is not None else b"", numpy_dtype(program.results[0].tensor.dtype)
    )
    if said is not None and len(losses) != len(batches):
        raise ExecutionError(f"{program.shown} took {len(losses):,} steps, and should take {len(batches):,}")
    twice = said is None and not isinstance(ended, Emulated)
    data = found["results.bin"]
    half = len(data) // 2 if twice else len(data)
    again = _arrays(program, data[half:]) if twice else {}
    ran = Ran(_arrays(program, data[:half]), again, losses, outputs=_outputs(program, found))
    if isinstance(ended, Emulated):
        counted = int(ended.counts[:, 0].sum())
        return replace(ran, stack_bytes=ended.stack_bytes, instructions=counted, counts=ended.counts)
    if said is not None:
        return ran
    stack, *times = ended.split()
    step_s = median(float(time) for time in times) / 1e9 if times else None
    return replace(ran, stack_bytes=int(stack), step_s=step_s)


def _ended(
    built: Built,
    files: Mapping[str, bytes],
    asked: Sequence[Mapping[str, Array]],
    *arguments: str,
    ram: Board | None = None,
    weigh: Weigh = ones,
) -> tuple[Mapping[str, bytes], Emulated | str]:
    """Run a program to its end: the files that it left, and what the emulator showed, or what it printed."""
    program = built.program
    files = {**files, "pages.bin": first_pages(built), **_asked(program, asked)}
    if built.board is not None:
        emulated = emulate(built, files, ram=ram, weigh=weigh)
        return emulated.files, emulated
    for name, content in files.items():
        (built.folder / name).write_bytes(content)
    command = [str(built.executable), *arguments]
    ended = subprocess.run(command, cwd=built.folder, capture_output=True, text=True, check=False)
    if ended.returncode:
        why = f"signal {-ended.returncode}" if ended.returncode < 0 else "its storage failed"
        raise ExecutionError(f"the compiled step of {program.shown} failed: {ended.stderr.strip() or why}")
    written = (built.folder / name for name in ("losses.bin", "results.bin", "outputs.bin"))
    return {file.name: file.read_bytes() for file in written if file.exists()}, ended.stdout


def _asked(program: DeviceProgram, asked: Sequence[Mapping[str, Array]]) -> Mapping[str, bytes]:
    if program.predicts is None:
        return {}
    return {"asked.bin": b"".join(laid_out(program.asked, one) for one in asked)}


def _outputs(program: DeviceProgram, files: Mapping[str, bytes]) -> Sequence[Mapping[str, Array]]:
    """The predictions in outputs.bin, one after another."""
    data = files.get("outputs.bin", b"")
    each = sum(row.tensor.nbytes for row in program.outputs)
    pieces = (data[at : at + each] for at in range(0, len(data), each or 1))
    return [_tables(program, program.outputs, piece) for piece in pieces]


def fed_with(program: DeviceProgram, batch: Mapping[str, Array]) -> bytes:
    """The inputs of a step, part after part."""
    return b"".join(laid_out(program.inputs, part) for part in cut(program.graph, batch))


def laid_out(rows: Sequence[TableRow], arrays: Mapping[str, Array]) -> bytes:
    """Gives what a table's tensors get, in its order."""
    return b"".join(np.ascontiguousarray(arrays[row.name]).tobytes() for row in rows)


def first_pages(built: Built) -> bytes:
    """The storage as it is before the first step."""
    first = (built.folder / "po_storage.bin").read_bytes()
    return first + bytes(blocks(built.program) * built.program.storage.block_bytes - len(first))


def _arrays(program: DeviceProgram, data: bytes) -> Mapping[str, Array]:
    return _tables(program, (*program.results, *program.parameters), data)


def _tables(program: DeviceProgram, rows: Sequence[TableRow], data: bytes) -> Mapping[str, Array]:
    found: dict[str, Array] = {}
    at = 0
    for row in rows:
        piece = data[at : at + row.tensor.nbytes]
        found[row.name] = np.frombuffer(piece, numpy_dtype(row.tensor.dtype)).reshape(row.tensor.shape)
        at += row.tensor.nbytes
    if at != len(data):
        raise ExecutionError(f"the step of {program.shown} gave {len(data):,} B of results, and should give {at:,}")
    return found
