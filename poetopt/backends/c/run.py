"""Run a compiled step on one batch: on this machine, or on an emulated board."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from poetopt.backends.c.build import Built
from poetopt.backends.c.emulator import EmulatedRun, emulate
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
    """Result of a run.

    Attributes
    ----------
    results
        Loss, gradients and statistics, and the parameters after the last step, by name.
    again
        Results of a second step in the memory that the first one left, where there was one.
    losses
        Losses of several steps.
    stack_bytes
        Most bytes of stack used; None for several steps on this machine.
    step_s
        Median seconds of a step; None on an emulator, and for several steps.
    instructions
        Number of executed instructions, including the example's; None on this machine.
    counts
        Instruction counts on an emulator, as in `Trace.sums`; None on this machine.
    outputs
        Predictions after the last step, one for each requested input.
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
    """Run one measured step, or a step on each of `batches` by the emitted example; from the emitted weights.

    Parameters
    ----------
    built
        For several steps, not `measuring`.
    said
        Hyperparameters of each step, by the optimizer's names; None for a measured step.
    asked
        Inputs for predictions after the last step, where the program predicts.
    ram
        On an emulator: RAM to map; by default the linked one.
    weigh
        On an emulator: weights to count; by default instructions.

    Raises
    ------
    ExecutionError
        The run fails, as in `emulate`.
    """
    program = built.program
    files = {"batches.bin": b"".join(fed_with(program, batch) for batch in batches)}
    if said is not None:
        files["hyperparameters.bin"] = b"".join(laid_out(program.hyperparameters, one) for one in said)
    # time steps on this machine for about half a second
    written_files, ended = _execute(built, files, asked, *(["0.5"] if said is None else []), ram=ram, weigh=weigh)
    losses = np.frombuffer(
        written_files["losses.bin"] if said is not None else b"", numpy_dtype(program.results[0].tensor.dtype)
    )
    if said is not None and len(losses) != len(batches):
        raise ExecutionError(f"{program.shown} took {len(losses):,} steps instead of {len(batches):,}")
    ran_twice = said is None and not isinstance(ended, EmulatedRun)
    data = written_files["results.bin"]
    half = len(data) // 2 if ran_twice else len(data)
    again = _arrays(program, data[half:]) if ran_twice else {}
    ran = Ran(_arrays(program, data[:half]), again, losses, outputs=_outputs(program, written_files))
    if isinstance(ended, EmulatedRun):
        counted = int(ended.counts[:, 0].sum())
        return replace(ran, stack_bytes=ended.stack_bytes, instructions=counted, counts=ended.counts)
    if said is not None:
        return ran
    stack, *times = ended.split()
    step_s = median(float(time) for time in times) / 1e9 if times else None
    return replace(ran, stack_bytes=int(stack), step_s=step_s)


def _execute(
    built: Built,
    files: Mapping[str, bytes],
    asked: Sequence[Mapping[str, Array]],
    *arguments: str,
    ram: Board | None = None,
    weigh: Weigh = ones,
) -> tuple[Mapping[str, bytes], EmulatedRun | str]:
    """Run a program to its end; return the files that it left, and the emulator's result or its output."""
    program = built.program
    files = {**files, "pages.bin": first_pages(built), **_prediction_inputs(program, asked)}
    if built.board is not None:
        emulated = emulate(built, files, ram=ram, weigh=weigh)
        return emulated.files, emulated
    for name, content in files.items():
        (built.folder / name).write_bytes(content)
    command = [str(built.executable), *arguments]
    ended = subprocess.run(command, cwd=built.folder, capture_output=True, text=True, check=False)
    if ended.returncode:
        reason = f"signal {-ended.returncode}" if ended.returncode < 0 else "its storage failed"
        raise ExecutionError(f"the compiled step of {program.shown} failed: {ended.stderr.strip() or reason}")
    written = (built.folder / name for name in ("losses.bin", "results.bin", "outputs.bin"))
    return {file.name: file.read_bytes() for file in written if file.exists()}, ended.stdout


def _prediction_inputs(program: DeviceProgram, asked: Sequence[Mapping[str, Array]]) -> Mapping[str, bytes]:
    if program.predicts is None:
        return {}
    return {"asked.bin": b"".join(laid_out(program.asked, one) for one in asked)}


def _outputs(program: DeviceProgram, files: Mapping[str, bytes]) -> Sequence[Mapping[str, Array]]:
    """Return the predictions in outputs.bin, one after another."""
    data = files.get("outputs.bin", b"")
    prediction_bytes = sum(row.tensor.nbytes for row in program.outputs)
    pieces = (data[start : start + prediction_bytes] for start in range(0, len(data), prediction_bytes or 1))
    return [_read_rows(program, program.outputs, piece) for piece in pieces]


def fed_with(program: DeviceProgram, batch: Mapping[str, Array]) -> bytes:
    """Return the inputs of a step, part after part."""
    return b"".join(laid_out(program.inputs, part) for part in cut(program.graph, batch))


def laid_out(rows: Sequence[TableRow], arrays: Mapping[str, Array]) -> bytes:
    """Return the bytes of a table's tensors, in its order."""
    return b"".join(np.ascontiguousarray(arrays[row.name]).tobytes() for row in rows)


def first_pages(built: Built) -> bytes:
    """Return the storage before the first step."""
    first = (built.folder / "po_storage.bin").read_bytes()
    return first + bytes(blocks(built.program) * built.program.storage.block_bytes - len(first))


def _arrays(program: DeviceProgram, data: bytes) -> Mapping[str, Array]:
    return _read_rows(program, (*program.results, *program.parameters), data)


def _read_rows(program: DeviceProgram, rows: Sequence[TableRow], data: bytes) -> Mapping[str, Array]:
    arrays: dict[str, Array] = {}
    position = 0
    for row in rows:
        piece = data[position : position + row.tensor.nbytes]
        arrays[row.name] = np.frombuffer(piece, numpy_dtype(row.tensor.dtype)).reshape(row.tensor.shape)
        position += row.tensor.nbytes
    if position != len(data):
        raise ExecutionError(f"the step of {program.shown} gave {len(data):,} B of results instead of {position:,} B")
    return arrays
