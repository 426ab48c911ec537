"""Golden batch of po_selftest: inputs that a device draws itself, and onnxruntime's results for them.

The sum of each result's elements, with random signs, is compared with onnxruntime's. The tolerance is `SIGMAS` times
the distance that `run --on` allows the tensor in the norm: differences of that norm with random signs add up to less.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from poetopt.autodiff.passes.rows import whole
from poetopt.backends.c.execution import TOLERANCE
from poetopt.backends.c.program import DeviceProgram, TableRow
from poetopt.backends.c.sensitivity import TRIALS, Steps, UlpSensitivity, moved_by, predicted, sensitivity
from poetopt.backends.onnxruntime.batch import LENGTH, TRUTH, limits, random_batch
from poetopt.backends.onnxruntime.sessions import Sessions
from poetopt.backends.step.memory import numpy_dtype
from poetopt.backends.step.places import graph_of
from poetopt.graph import TrainingGraph

if TYPE_CHECKING:
    from poetopt.graph import Array

SIGMAS = 4


@dataclass(frozen=True, slots=True)
class Drawn:
    """Input whose elements are `least` plus a random number below `span`, times `unit`.

    Attributes
    ----------
    later
        Number of elements of the batch before those of part 1; 0 where every part has the same.
    """

    least: int
    span: int
    unit: float
    later: int


@dataclass(frozen=True, slots=True)
class SignedSum:
    """Signed sum of a tensor's elements, and its tolerance."""

    total: float
    most: float


@dataclass(frozen=True, slots=True)
class Golden:
    """Golden batch by the tables of po.h: inputs of a step and of a prediction, results, parameters, outputs.

    Tensors that aren't float are None.
    """

    inputs: Sequence[Drawn]
    asked: Sequence[Drawn]
    results: Sequence[SignedSum | None]
    parameters: Sequence[SignedSum | None]
    outputs: Sequence[SignedSum | None]


def hash_numbers(numbers: NDArray[np.uint32], salt: int) -> NDArray[np.uint32]:
    """Return pseudorandom numbers; they equal those of `mixed` in po_selftest.c."""
    state = numbers + np.uint32(salt * 0x9E3779B9 & 0xFFFFFFFF)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        state = (state ^ state >> np.uint32(shift)) * np.uint32(factor)
    hashed: NDArray[np.uint32] = state ^ state >> np.uint32(16)
    return hashed


def golden_of(program: DeviceProgram) -> Golden:
    """Return the golden batch of a program: results of a step from the first values, and of a prediction before it."""
    graph = program.graph
    inputs = [_drawn(graph, row, graph.split) for row in program.inputs]
    batch = {**random_batch(graph.whole), **_values(graph.whole, program.inputs, inputs)}
    sessions = Sessions(graph, 1)
    exact, *near = (Steps(graph, sessions, seed).step(batch) for seed in (None, *range(TRIALS)))
    names = (*graph.targets, *graph.gradients.values(), *graph.states.values())
    float_results = {name: exact[name] for name in names if exact[name].dtype.kind == "f"}
    each = sensitivity(float_results, near, float_results)
    parameters = list[SignedSum | None]()
    together = each.together
    if not graph.gradients:
        first, (ends, *others) = whole(graph), [_ends(graph, ended) for ended in (exact, *near)]
        changes = sensitivity(moved_by(graph, first, ends), [moved_by(graph, first, ended) for ended in others], ends)
        together = max(together, changes.together)
        parameters = [_sum(ends[row.name], row.name, changes, together) for row in program.parameters]
    prediction_inputs, outputs = list[Drawn](), list[SignedSum | None]()
    if program.predicts is not None:
        network = graph_of(program.predicts.plan)
        prediction_inputs = [_drawn(graph, row) for row in program.asked]
        outputs_and_sensitivity = predicted(
            network, whole(graph.joint), [_values(network, program.asked, prediction_inputs)]
        )
        outputs = [
            _sum(
                outputs_and_sensitivity.exact[row.name][0],
                row.name,
                outputs_and_sensitivity,
                outputs_and_sensitivity.together,
            )
            for row in program.outputs
        ]
    results = [_sum(exact[name], name, each, together) for name in names]
    return Golden(inputs, prediction_inputs, results, parameters or [None] * len(program.parameters), outputs)


def _ends(graph: TrainingGraph, results: Mapping[str, Array]) -> Mapping[str, Array]:
    return {name: results[graph.joint.carried[name]] for name in graph.trained}


def _drawn(graph: TrainingGraph, row: TableRow, split: Sequence[str] = ()) -> Drawn:
    """Return the random range of an input: that of `random_batch`, except for floats."""
    later = row.tensor.size if row.name in split else 0
    input_limits = limits(graph, row.name)
    if row.tensor.dtype == "bool" or (input_limits is not None and input_limits.what == TRUTH):
        return Drawn(0, 2, 1.0, later)
    if "float" in row.tensor.dtype:
        # floats are multiples of 1/64 from -2 to 2
        return Drawn(-128, 256, 1 / 64, later)
    least = 1 if input_limits is None or input_limits.what == LENGTH else 0
    return Drawn(least, 1 if input_limits is None else input_limits.most + 1 - least, 1.0, later)


def _values(graph: TrainingGraph, rows: Iterable[TableRow], drawn: Iterable[Drawn]) -> dict[str, Array]:
    """Return the arrays of inputs; `graph` has their full shapes."""
    arrays = dict[str, "Array"]()
    for salt, (row, drawn_input) in enumerate(zip(rows, drawn, strict=True)):
        tensor = graph.tensors[row.name]
        numbers = hash_numbers(np.arange(tensor.size, dtype=np.uint32), salt) % np.uint32(drawn_input.span)
        values = (numbers.astype(np.int64) + drawn_input.least) * drawn_input.unit
        arrays[row.name] = values.astype(numpy_dtype(tensor.dtype)).reshape(tensor.shape)
    return arrays


def _sum(array: Array, name: str, measured: UlpSensitivity, together: float) -> SignedSum | None:
    """Return the signed sum of `array`, whose name in `measured` is `name`; None where it isn't float."""
    if array.dtype.kind != "f":
        return None
    # salt of the signs, as in po_selftest.c; an input's salt is its number in the table
    signs = (hash_numbers(np.arange(array.size, dtype=np.uint32), 977) & np.uint32(1)).astype(np.float64) * 2 - 1
    flat = array.reshape(-1).astype(np.float64)
    norm = float(np.linalg.norm(measured.exact[name]))
    return SignedSum(float(flat @ signs), SIGMAS * TOLERANCE * max(measured.each[name], together * norm))
