"""Arrays by input name as a data set: which are rows, which are the same for every batch, and what fits no input."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from poetopt.backends.ort.batch import check_names, check_values, misfit
from poetopt.errors import ModelError
from poetopt.graph import TrainingGraph
from poetopt.telling import Told, paced, silent
from poetopt.training.data.columns import Column, InMemory
from poetopt.training.data.digest import Digest

if TYPE_CHECKING:
    from poetopt.graph import Array

CHECKED_BYTES = 1 << 20
"""So much of an array is looked at together."""


class Columns:
    """A data set of one column for each input that has rows.

    shown
        The file, or "the data".
    fixed
        What every batch has alike.
    """

    def __init__(
        self, graph: TrainingGraph, shown: str, columns: Mapping[str, Column], fixed: Mapping[str, Array] | None = None
    ) -> None:
        self.graph, self.shown = graph, shown
        self.columns, self.fixed = columns, fixed or {}
        self.rows = next(iter(columns.values())).rows

    def take(self, rows: Array) -> Mapping[str, Array]:
        """See `DataSet`."""
        return {**self.fixed, **{name: column.take(rows) for name, column in self.columns.items()}}

    def where(self, row: int) -> str:
        """See `DataSet`."""
        return f"{self.shown}, row {row}"

    def check(self, told: Told = silent) -> str:
        """See `DataSet`."""
        pace, digest = paced(told), Digest()
        for name, array in self.fixed.items():
            digest.add(name, array)
        for name, column in self.columns.items():
            row_bytes = column.take(np.arange(1)).nbytes
            step = max(1, CHECKED_BYTES // max(1, row_bytes))
            for start in range(0, self.rows, step):
                pace(f"checking the data: row {start:,} of {self.rows:,} of {name}")
                part = column.take(np.arange(start, min(start + step, self.rows)))
                if fault(self.graph, name, part):
                    k = next(k for k in range(len(part)) if fault(self.graph, name, part[k : k + 1]))
                    what = fault(self.graph, name, part[k : k + 1])
                    raise ModelError(f"{self.where(start + k)}: {what}")
                digest.add(name, part)
        return digest.text


def fault(graph: TrainingGraph, name: str, array: Array) -> str:
    """What is wrong with values of an input; empty where nothing is."""
    if array.dtype.kind in "fc" and not np.isfinite(array).all():
        what = "NaN" if np.isnan(array).any() else "infinity"
        return f"{name!r} holds {what}, of which no gradient can be; leave such rows out, or fill them"
    try:
        check_values(graph, name, array)
    except ModelError as error:
        return str(error).removeprefix("the data's ")
    return ""


def of_arrays(graph: TrainingGraph, data: Mapping[str, object]) -> Columns:
    """Arrays in memory as a data set. Raises ModelError for those that fit no input."""
    arrays: dict[str, Array] = {}
    for name in graph.inputs:
        if name in data:
            arrays[name] = _array(name, data[name])
    shapes = {name: (array.shape, array.dtype) for name, array in arrays.items()}
    rows, fixed = which_are_rows(graph, "the data", {**data, **arrays}, shapes)
    return Columns(graph, "the data", {name: InMemory(arrays[name]) for name in rows}, {n: arrays[n] for n in fixed})


def _array(name: str, value: object) -> Array:
    try:
        found: Array = np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:
        raise ModelError(f"the data's {name!r} is no array: {error}") from error
    return found


def which_are_rows(
    graph: TrainingGraph,
    shown: str,
    data: Mapping[str, object],
    shapes: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]],
) -> tuple[list[str], list[str]]:
    """Names of the inputs that have rows, and of those that every batch has alike.

    shapes
        Shape and type of each array. What has an input's shape exactly, while others have more rows, is alike in every
        batch, unless it has the rows of one batch.

    Raises ModelError where an input is missing, or has another shape or type, or no rows.
    """
    said = told_of(shown)
    said(lambda: check_names(graph, data))
    count = 0
    for name in graph.inputs:
        shape, tensor = shapes[name][0], graph.tensors[name]
        if len(shape) == len(tensor.shape) > 0 and shape[1:] == tensor.shape[1:]:
            count = max(count, shape[0])
        elif shape != tensor.shape:
            raise ModelError(f"{shown}: {misfit(tensor, shape)}, or longer along its first axis")
    rows = [name for name in graph.inputs if shapes[name][0][:1] == (count,) and graph.tensors[name].shape]
    if not count or not rows:
        raise ModelError(f"{shown}: it holds no rows; leave it out, or give some")
    fixed = [name for name in graph.inputs if name not in rows]
    for name in fixed:
        shape, tensor = shapes[name][0], graph.tensors[name]
        of_a_batch = graph.tensors[rows[0]].shape[:1]
        if shape != tensor.shape or name in graph.added_inputs or (shape[:1] == of_a_batch != (1,)):
            raise ModelError(
                f"{shown}: {rows[0]!r} has {count} rows, and {name!r} {', '.join(map(str, shape[:1])) or 'none'}; each "
                "row of one belongs to a row of the other: cut the longer"
            )
    for name in graph.inputs:
        said(lambda name=name: check_type(graph, name, shapes[name][1]))  # type: ignore[misc]
    return rows, fixed


def told_of(shown: str) -> Callable[[Callable[[], object]], None]:
    """Call something whose ModelErrors then begin with `shown`."""

    def call(act: Callable[[], object]) -> None:
        try:
            act()
        except ModelError as error:
            text = str(error)
            raise ModelError(text if text.startswith(shown) else f"{shown}: {text}") from error

    return call


def check_type(graph: TrainingGraph, name: str, dtype: np.dtype[Any]) -> None:
    """Raise ModelError for a type that can't be an input's, whatever the values are."""
    from poetopt.step.memory import numpy_dtype

    tensor = graph.tensors[name]
    wanted = numpy_dtype(tensor.dtype)
    target = name in graph.added_inputs and "float" in tensor.dtype
    whole = dtype.kind in "iub" if target else dtype.kind in "iu" and wanted.kind in "iu"
    if dtype != wanted and not whole:
        raise ModelError(
            f"{name!r} has type {dtype}; it must be {tensor.dtype}: convert it with .astype({tensor.dtype!r})"
        )
