"""A compiled step on one batch: on this machine, or on an emulated board."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from poetopt.backends.c.build import Built
from poetopt.backends.c.emulator import emulate
from poetopt.backends.c.generations import blocks
from poetopt.backends.c.linking import Board
from poetopt.backends.c.program import DeviceProgram, TableRow
from poetopt.backends.c.tracing import Weigh, ones
from poetopt.backends.step.memory import numpy_dtype
from poetopt.backends.step.parted import cut
from poetopt.util.errors import ExecutionError

if TYPE_CHECKING:
    from poetopt.graph import Array

TIMED_S = 0.5
"""Steps are timed on this machine for about so long."""


@dataclass(frozen=True, slots=True)
class Ran:
    """Holds what a run gave.

    results
        Loss, gradients and statistics, and the parameters after the step, by name.
    again
        The same of a second step in the memory that the first one left, where there was one.
    stack_bytes
        The most that the step took of the stack.
    step_s
        Median seconds of a step; None on an emulator.
    instructions
        How many were executed, the example's own among them; None on this machine.
    counts
        What was executed on an emulator, as `Trace.sums` has it; None on this machine.
    outputs
        What the network makes of each of the inputs that it was asked of, after the step.
    """

    results: Mapping[str, Array]
    again: Mapping[str, Array]
    stack_bytes: int
    step_s: float | None
    instructions: int | None
    counts: NDArray[np.uint64] | None
    outputs: Sequence[Mapping[str, Array]] = ()


@dataclass(frozen=True, slots=True)
class RanSteps:
    """Holds what steps one after another gave.

    losses
        Of each step.
    results
        As in `Ran`, after the last step.
    stack_bytes
        The most that they took of the stack; None on this machine.
    instructions
        As in `Ran`, of all steps.
    outputs
        As in `Ran`, after the last step.
    """

    losses: Array
    results: Mapping[str, Array]
    stack_bytes: int | None
    instructions: int | None
    outputs: Sequence[Mapping[str, Array]] = ()


def run(
    built: Built,
    batch: Mapping[str, Array],
    *,
    asked: Sequence[Mapping[str, Array]] = (),
    ram: Board | None = None,
    weigh: Weigh = ones,
) -> Ran:
    """One step on `batch`, from the weights that were emitted.

    asked
        What to predict after it, where the program can.
    ram
        On an emulator: what is mapped; by default what the program was linked for.
    weigh
        On an emulator: what is counted; by default instructions.

    Raises `ExecutionError` where it fails, as `emulate` does.
    """
    program = built.program
    files = {"batches.bin": fed_with(program, batch), "pages.bin": first_pages(built), **_asked(program, asked)}
    if built.board is not None:
        ended = emulate(built, files, ram=ram, weigh=weigh)
        results, outputs = _arrays(program, ended.files["results.bin"]), _outputs(program, ended.files)
        return Ran(results, {}, ended.stack_bytes, None, int(ended.counts[:, 0].sum()), ended.counts, outputs)
    folder = built.folder
    for name, content in files.items():
        (folder / name).write_bytes(content)
    ended_process = subprocess.run(
        [built.executable, str(TIMED_S)], cwd=folder, capture_output=True, text=True, check=False
    )
    if ended_process.returncode:
        why = f"signal {-ended_process.returncode}" if ended_process.returncode < 0 else "its storage failed"
        raise ExecutionError(f"the compiled step of {program.shown} failed: {why}")
    stack, *times = ended_process.stdout.split()
    data = (folder / "results.bin").read_bytes()
    half = len(data) // 2
    return Ran(
        _arrays(program, data[:half]),
        _arrays(program, data[half:]),
        int(stack),
        median(float(time) for time in times) / 1e9 if times else None,
        None,
        None,
        _outputs(program, _written(folder)),
    )


def run_steps(
    built: Built,
    batches: Sequence[Mapping[str, Array]],
    hyperparameters: Sequence[Mapping[str, Array]],
    asked: Sequence[Mapping[str, Array]] = (),
) -> RanSteps:
    """A step on each of `batches`, by the emitted example, from the weights that were emitted.

    built
        On this machine: not `measuring`.
    hyperparameters
        Of each step, by what the optimizer calls them.
    asked
        What to predict after the last one, where the program can.

    Raises `ExecutionError` as `run` does.
    """
    program = built.program
    files = {
        "batches.bin": b"".join(fed_with(program, batch) for batch in batches),
        "hyperparameters.bin": b"".join(laid_out(program.hyperparameters, said) for said in hyperparameters),
        "pages.bin": first_pages(built),
        **_asked(program, asked),
    }
    stack = instructions = None
    if built.board is not None:
        ended = emulate(built, files)
        written, stack, instructions = ended.files, ended.stack_bytes, int(ended.counts[:, 0].sum())
    else:
        for name, content in files.items():
            (built.folder / name).write_bytes(content)
        process = subprocess.run([built.executable], cwd=built.folder, capture_output=True, text=True, check=False)
        if process.returncode:
            why = process.stderr.strip() or f"code {process.returncode}"
            raise ExecutionError(f"the compiled steps of {program.shown} failed: {why}")
        written = _written(built.folder)
    losses = np.frombuffer(written["losses.bin"], numpy_dtype(program.results[0].tensor.dtype))
    if len(losses) != len(batches):
        raise ExecutionError(f"{program.shown} took {len(losses):,} steps, and should take {len(batches):,}")
    outputs = _outputs(program, written)
    return RanSteps(losses, _arrays(program, written["results.bin"]), stack, instructions, outputs)


def _written(folder: Path) -> Mapping[str, bytes]:
    """Gives what a program on this machine has written."""
    there = (folder / name for name in ("losses.bin", "results.bin", "outputs.bin"))
    return {file.name: file.read_bytes() for file in there if file.exists()}


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
