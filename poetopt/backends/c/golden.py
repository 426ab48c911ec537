"""The golden batch of po_selftest: inputs that a device draws itself, and what onnxruntime makes of them.

Of each tensor that comes out, the sum of its elements with signs drawn likewise is held against onnxruntime's. It may
be off by `SIGMAS` times what `run --on` allows the tensor to be off in the norm: differences of that norm with random
signs add up to less.
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
    """An input: each element is `least` and a number below `span`, times `unit`.

    later
        How many elements of the batch come before those of part 1; 0 where every part has the same.
    """

    least: int
    span: int
    unit: float
    later: int


@dataclass(frozen=True, slots=True)
class SignedSum:
    """The sum of a tensor's elements with signs, and how far off it may be."""

    total: float
    most: float


@dataclass(frozen=True, slots=True)
class Golden:
    """All of it, by the tables of po.h: inputs of a step and of a prediction, results, parameters, outputs.

    Tensors that aren't float are None.
    """

    inputs: Sequence[Drawn]
    asked: Sequence[Drawn]
    results: Sequence[SignedSum | None]
    parameters: Sequence[SignedSum | None]
    outputs: Sequence[SignedSum | None]


def mixed(numbers: NDArray[np.uint32], salt: int) -> NDArray[np.uint32]:
    """Numbers that look random; `mixed` of po_selftest.c gives the same."""
    x = numbers + np.uint32(salt * 0x9E3779B9 & 0xFFFFFFFF)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = (x ^ x >> np.uint32(shift)) * np.uint32(factor)
    found: NDArray[np.uint32] = x ^ x >> np.uint32(16)
    return found


def golden_of(program: DeviceProgram) -> Golden:
    """The golden batch of a program, and what comes of a step from the first values, and of a prediction before it."""
    graph = program.graph
    inputs = [_drawn(graph, row, graph.split) for row in program.inputs]
    batch = {**random_batch(graph.whole), **_values(graph.whole, program.inputs, inputs)}
    sessions = Sessions(graph, 1)
    exact, *near = (Steps(graph, sessions, seed).step(batch) for seed in (None, *range(TRIALS)))
    names = (*graph.targets, *graph.gradients.values(), *graph.states.values())
    kept = {name: exact[name] for name in names if exact[name].dtype.kind == "f"}
    each = sensitivity(kept, near, kept)
    parameters = list[SignedSum | None]()
    together = each.together
    if not graph.gradients:
        first, (ends, *others) = whole(graph), [_ends(graph, one) for one in (exact, *near)]
        ways = sensitivity(moved_by(graph, first, ends), [moved_by(graph, first, one) for one in others], ends)
        together = max(together, ways.together)
        parameters = [_sum(ends[row.name], row.name, ways, together) for row in program.parameters]
    asked, outputs = list[Drawn](), list[SignedSum | None]()
    if program.predicts is not None:
        network = graph_of(program.predicts.plan)
        asked = [_drawn(graph, row) for row in program.asked]
        found = predicted(network, whole(graph.joint), [_values(network, program.asked, asked)])
        outputs = [_sum(found.exact[row.name][0], row.name, found, found.together) for row in program.outputs]
    results = [_sum(exact[name], name, each, together) for name in names]
    return Golden(inputs, asked, results, parameters or [None] * len(program.parameters), outputs)


def _ends(graph: TrainingGraph, found: Mapping[str, Array]) -> Mapping[str, Array]:
    return {name: found[graph.joint.carried[name]] for name in graph.trained}


def _drawn(graph: TrainingGraph, row: TableRow, split: Sequence[str] = ()) -> Drawn:
    """The numbers that an input is drawn from: those of `random_batch`, but for floats."""
    later = row.tensor.size if row.name in split else 0
    found = limits(graph, row.name)
    if row.tensor.dtype == "bool" or (found is not None and found.what == TRUTH):
        return Drawn(0, 2, 1.0, later)
    if "float" in row.tensor.dtype:
        # floats are multiples of 1/64 from -2 to 2
        return Drawn(-128, 256, 1 / 64, later)
    least = 1 if found is None or found.what == LENGTH else 0
    return Drawn(least, 1 if found is None else found.most + 1 - least, 1.0, later)


def _values(graph: TrainingGraph, rows: Iterable[TableRow], drawn: Iterable[Drawn]) -> dict[str, Array]:
    """The arrays of inputs; `graph` has them whole."""
    found = dict[str, "Array"]()
    for salt, (row, how) in enumerate(zip(rows, drawn, strict=True)):
        tensor = graph.tensors[row.name]
        numbers = mixed(np.arange(tensor.size, dtype=np.uint32), salt) % np.uint32(how.span)
        values = (numbers.astype(np.int64) + how.least) * how.unit
        found[row.name] = values.astype(numpy_dtype(tensor.dtype)).reshape(tensor.shape)
    return found


def _sum(array: Array, name: str, measured: UlpSensitivity, together: float) -> SignedSum | None:
    """The sum of what comes out as `array`, whose name among what was `measured` is `name`."""
    if array.dtype.kind != "f":
        return None
    # salt of the signs, in po_selftest.c too; an input's is its number in the table
    signs = (mixed(np.arange(array.size, dtype=np.uint32), 977) & np.uint32(1)).astype(np.float64) * 2 - 1
    flat = array.reshape(-1).astype(np.float64)
    norm = float(np.linalg.norm(measured.exact[name]))
    return SignedSum(float(flat @ signs), SIGMAS * TOLERANCE * max(measured.each[name], together * norm))
