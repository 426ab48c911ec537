"""Batches for the execution of a step: random, or the user's own, checked against the graph's inputs."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from poetopt.backends.onnxruntime.archive import Archive, Header, opened
from poetopt.backends.step.memory import aligned_copy, numpy_dtype
from poetopt.graph import VIEW_OPS, Graph, Node, Tensor, TrainingGraph
from poetopt.ops.op import Choice, op_of
from poetopt.util.errors import ModelError
from poetopt.util.units import parse_whole

if TYPE_CHECKING:
    from poetopt.graph import Array


Batch = Mapping[str, "Array"]
"""Arrays by the graph's input names."""


def random_batch(graph: Graph, seed: int = 0) -> Batch:
    """Return a batch drawn with `seed`: floats are standard normal, labels and indices within their range.

    Lengths of sequences are drawn from one step to all, booleans and the target of bce evenly. Integers without a range
    are 1 (a mask that hides nothing).

    Raises
    ------
    ModelError
        An input has a type without a sensible random value.
    OptionError
        `seed` is no seed.
    """
    seed = parse_whole(seed, option="--seed", least=0)
    batch: dict[str, Array] = {}
    for name in graph.inputs:
        tensor = graph.tensors[name]
        rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
        dtype = numpy_dtype(tensor.dtype)
        if tensor.dtype == "bool" or name in _bce_targets(graph):
            array: Array = rng.integers(0, 2, tensor.shape).astype(dtype)
        elif dtype.kind in "iu":
            input_limits = limits(graph, name)
            least, most = (1, 1) if input_limits is None else (int(input_limits.what == LENGTH), input_limits.most)
            array = rng.integers(least, most + 1, tensor.shape).astype(dtype)
        elif "float" in tensor.dtype:
            array = rng.standard_normal(tensor.shape).astype(dtype)
        else:
            raise ModelError(f"input {name!r} has type {tensor.dtype}, which has no random values; give --data")
        batch[name] = aligned_copy(array)
    return batch


def load_batch(path: str | os.PathLike[str], graph: Graph | None = None, *, sets: bool = False) -> Batch:
    """Return the arrays of an `.npz` file, by name.

    Parameters
    ----------
    graph
        Only its inputs are read, after a check of their shapes.
    sets
        Whether an array may be longer than an input along the first axis.

    Raises
    ------
    ModelError
        The file can't be read, lacks an input, or has one of another shape.
    """
    with opened(path) as archive:
        if graph is None:
            return dict(archive)
        check_names(graph, archive)
        for name in graph.inputs:
            shape, tensor = archive.header(name).shape, graph.tensors[name]
            has_more_rows = sets and len(shape) == len(tensor.shape) > 0 and shape[1:] == tensor.shape[1:]
            if shape != tensor.shape and not (has_more_rows and shape[0] > tensor.shape[0]):
                raise misfit(tensor, shape)
        return {name: archive[name] for name in graph.inputs}


def batch_of(graph: Graph, data: Mapping[str, object] | str | os.PathLike[str] | None = None, seed: int = 0) -> Batch:
    """Return the batch in `data`, checked, or the random one of `seed`. Raise as `load_batch` and `check_batch` do."""
    if data is None:
        return random_batch(graph, seed)
    return check_batch(graph, data if isinstance(data, Mapping) else load_batch(data, graph))


def check_names(graph: Graph, data: Mapping[str, object]) -> None:
    """Raise `ModelError` where `data` lacks an input of `graph`."""
    if missing := [name for name in graph.inputs if name not in data]:
        missing_inputs = ", ".join(_described(graph.tensors[name]) for name in missing)
        arrays = ", ".join(f"{name!r}{_form(data, name)}" for name in sorted(data)[:8]) or "nothing"
        arguments = ", ".join(f"{name}=..." for name in graph.inputs)
        raise ModelError(
            f"the data lacks {missing_inputs}; it has {arrays}. Name the arrays: numpy.savez(path, {arguments})"
        )


def misfit(tensor: Tensor, shape: tuple[int, ...]) -> ModelError:
    """Return the error for data of a shape that an input can't have."""
    text = f"the data's {tensor.name!r} has shape {list(shape)}; it must be {_described(tensor)}"
    if tensor.name == "labels" and len(shape) == len(tensor.shape) + 1:
        text += (
            ". Pass a column as .reshape(-1)"
            if shape[-1] == 1
            else (
                ". Pass one-hot rows as .argmax(1). For class probabilities let the module compute the loss, as in "
                "-(target * scores.log_softmax(1)).sum(1).mean(), and plan it with --loss none"
            )
        )
    return ModelError(text)


def check_batch(graph: Graph, data: Mapping[str, object]) -> Batch:
    """Return `data` as a batch for `graph`: an array for each of its inputs, without arrays of other names.

    Integers of another width are converted where every value survives, as are integers and booleans of a loss's target.
    All other types must match. The target of bce lies in 0..1.

    Raises
    ------
    ModelError
        An input is missing, or has a wrong shape, type or range of values.
    """
    check_names(graph, data)
    batch: dict[str, Array] = {}
    for name in graph.inputs:
        tensor, array = graph.tensors[name], as_array(name, data[name])
        if array.shape != tensor.shape:
            raise misfit(tensor, array.shape)
        dtype = numpy_dtype(tensor.dtype)
        if array.dtype != dtype:
            is_target = isinstance(graph, TrainingGraph) and name in graph.added_inputs and "float" in tensor.dtype
            is_convertible = array.dtype.kind in "iub" if is_target else array.dtype.kind in "iu" and dtype.kind in "iu"
            if not is_convertible or not np.array_equal(array.astype(dtype), array):
                raise ModelError(
                    f"the data's {name!r} has type {array.dtype}; it must be {_described(tensor)}: "
                    f"convert it with .astype({tensor.dtype!r})"
                )
        array = array.astype(dtype, copy=False)
        check_values(graph, name, array)
        batch[name] = aligned_copy(array)
    return batch


def _bce_targets(graph: Graph) -> tuple[str, ...]:
    """Return the input that is the target of bce: how true each output is, 0 to 1."""
    return graph.added_inputs if isinstance(graph, TrainingGraph) and graph.loss_kind == "bce" else ()


def as_array(name: str, value: object) -> Array:
    """Return data of an input as an array. Raise `ModelError` where it is none."""
    try:
        array: Array = np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:
        raise ModelError(f"the data's {name!r} is no array: {error}") from error
    return array


def _form(data: Mapping[str, object], name: str) -> str:
    """Return type and shape of an array without reading it; "" where it is none."""
    header = data.header(name) if isinstance(data, Archive) else data[name]
    return f" ({header.dtype}, shape {list(header.shape)})" if isinstance(header, Header | np.ndarray) else ""


def _described(tensor: Tensor) -> str:
    return f"{tensor.name!r} ({tensor.dtype}, shape {list(tensor.shape)})"


def check_values(graph: Graph, name: str, array: Array) -> None:
    """Raise `ModelError` where labels, indices, lengths or the target of bce are out of their range."""
    input_limits = limits(graph, name)
    if input_limits is None or not array.size:
        return
    if input_limits.what == TRUTH:
        _check_bce_target(name, array)
    if input_limits.what == TRUTH or array.dtype.kind not in "iu":
        return
    if input_limits.least <= int(array.min()) and int(array.max()) <= input_limits.most:
        return
    if input_limits.what == LENGTH:
        raise ModelError(f"the data's {name!r} holds lengths of sequences, which must lie in 0..{input_limits.most}")
    values = np.unique(array)
    out_of_range = [
        v for v in values.tolist() if not input_limits.least <= v <= input_limits.most and v not in input_limits.ignored
    ]
    if out_of_range:
        raise ModelError(
            f"the data's {name!r} holds the {input_limits.what} {out_of_range[0]}; with {input_limits.most + 1} to "
            f"choose from it must lie in {input_limits.least}..{input_limits.most}"
            f"{_remedy(graph, input_limits, values)}"
        )


def _remedy(graph: Graph, input_limits: InputLimits, values: Array) -> str:
    """Return a remedy where a label may mean "ignore", or labels count from 1."""
    is_cross_entropy = (
        input_limits.what == LABEL and isinstance(graph, TrainingGraph) and graph.loss_kind == "cross-entropy"
    )
    if is_cross_entropy and values[0] < 0 and not input_limits.ignored:
        return f"; if it marks rows to ignore, solve with --ignore-index {values[0]}"
    if input_limits.what == LABEL and values[0] > 0 and values[-1] == input_limits.most + 1:
        return "; classes count from 0: subtract 1, if these count from 1"
    return ""


LABEL, INDEX, LENGTH, TRUTH = "label", "index", "length", "truth"


@dataclass(frozen=True)
class InputLimits:
    """Range of the values of an input, both ends included.

    Attributes
    ----------
    what
        `label` (of a class), `index`, `length` (of a sequence), or `truth` (0 to 1).
    ignored
        Labels outside the range that mark ignored rows.
    """

    what: str
    least: int
    most: int
    ignored: frozenset[int] = frozenset()


def limits(graph: Graph, name: str) -> InputLimits | None:
    """Return the limits of an input; None where any value is valid."""
    if name in _bce_targets(graph):
        return InputLimits(TRUTH, 0, 1)
    if isinstance(graph, TrainingGraph) and graph.loss_kind == "cross-entropy" and name in graph.added_inputs:
        rule = graph.label_rule
        ignored_labels = frozenset(() if rule.ignore_index is None else (rule.ignore_index,))
        return InputLimits(LABEL, 0, graph.tensors[graph.compared[0]].shape[1] - 1, ignored_labels)
    readers, steps = _choosing_uses(graph, name), _max_length(graph, name)
    if not readers:
        return None if steps is None else InputLimits(LENGTH, 0, steps)
    count = min(count for _, count, _ in readers)
    labels = [node for node in readers if op_of(node[0]).chooses is Choice.LABELS]
    ignored = frozenset(value for _, _, value in labels if isinstance(value, int))
    return InputLimits(LABEL if labels else INDEX, 0 if labels else -count, count - 1, ignored)


def _check_bce_target(name: str, array: Array) -> None:
    values = np.asarray(array, np.float64)
    out_of_range = values[~((values >= 0) & (values <= 1))]
    if out_of_range.size:
        raise ModelError(
            f"the data's {name!r} holds {out_of_range[0]:g}; with the loss bce it must lie in 0..1, how true each "
            "output is; for other values solve with --loss mse"
        )


def _max_length(graph: Graph, name: str) -> int | None:
    """Return the most steps of a sequence where an input has lengths; None where it has none."""
    lengths = (
        graph.tensors[node.inputs[0]].shape[0]
        for node, places, _ in _uses(graph, name)
        if op_of(node.op_type).lengths in places
    )
    return min(lengths, default=None)


def _choosing_uses(graph: Graph, name: str) -> list[tuple[str, int, object]]:
    """Return op, number of choices and ignored label of each node that reads `name` as labels or indices."""
    uses: list[tuple[str, int, object]] = []
    for node, places, backward in _uses(graph, name):
        if 1 not in places:
            continue
        table = graph.rows.get(node.inputs[0])
        shape = graph.tensors[node.inputs[0]].shape if table is None else table.values.shape
        chooses = op_of(node.op_type).chooses
        if chooses is Choice.LABELS:
            uses.append((node.op_type, shape[1], node.attributes.get("ignore_index")))
        elif chooses is Choice.INDICES and not backward:
            axis = node.attributes.get("axis", 0)
            uses.append((node.op_type, shape[axis if isinstance(axis, int) else 0], None))
    return uses


def _uses(graph: Graph, name: str) -> tuple[tuple[Node, frozenset[int], bool], ...]:
    """Return the nodes that read `name`, directly, cast or transposed: as which operands, and whether in backward."""
    cache: dict[str, tuple[tuple[Node, frozenset[int], bool], ...]] = graph.memo.setdefault(_uses, {})
    if name not in cache:  # every batch needs it
        cache[name] = tuple(_find_uses(graph, name))
    return cache[name]


def _find_uses(graph: Graph, name: str) -> Iterator[tuple[Node, frozenset[int], bool]]:
    names = {name}
    for operator in graph.operators:
        for node in operator.nodes:
            places = frozenset(place for place, read in enumerate(node.inputs) if read in names)
            if node.domain or not places:
                continue
            if 0 in places and (node.op_type in VIEW_OPS or node.op_type in {"Cast", "Transpose"}):
                names.add(node.outputs[0])
            yield node, places, operator.backward


class Batches:
    """Batches one after another from a data set, in its order and round again.

    Parameters
    ----------
    data
        Arrays by input name, looked up anew for each batch. An array of exactly an input's shape is fed in every step.
        An array that is longer along the first axis is a data set, of which each step takes the next rows. All data
        sets have as many rows, and where there is one, no array has only the rows of one batch.

    Raises
    ------
    ModelError
        Arrays fit no input, or data sets have different lengths.
    """

    def __init__(self, graph: TrainingGraph, data: Mapping[str, object]) -> None:
        self.graph = graph
        self._data = data
        self._fixed: dict[str, tuple[int, ...]] = {}
        self._sets: dict[str, int] = {}
        for name in graph.inputs:
            if name not in data:
                continue
            array_shape, shape = np.asarray(data[name]).shape, graph.tensors[name].shape
            if len(array_shape) == len(shape) > 0 and array_shape[1:] == shape[1:] and array_shape[0] > shape[0]:
                self._sets[name] = array_shape[0]
            else:
                self._fixed[name] = array_shape
        self.rows = min(self._sets.values(), default=0)
        if uneven_names := [name for name, rows in self._sets.items() if rows != self.rows]:
            lengths = ", ".join(f"{name!r} {rows}" for name, rows in self._sets.items())
            raise ModelError(f"the data sets have different numbers of rows ({lengths}); cut {uneven_names[0]!r}")
        for name in self._sets:
            self._check_partners(name)
        self.get(0)

    def _check_partners(self, name: str) -> None:
        """Raise `ModelError` where an array with the rows of one batch would be paired with all rows of `name`."""
        count = self.graph.tensors[name].shape[0]
        for other, shape in self._fixed.items():
            # with batches of one row any constant looks like a batch
            if shape[:1] == (count,) and (count > 1 or other in self.graph.added_inputs):
                raise ModelError(
                    f"the data set {name!r} has {self.rows} rows, but {other!r} only the {count} of one batch, which "
                    f"would repeat with each batch of {name!r}; give {other!r} {self.rows} rows too"
                )

    def get(self, step: int) -> Batch:
        """Return the batch of a step, from 0. Raise `ModelError` for values that the model can't take."""
        arrays = {name: self._data[name] for name in self._fixed}
        for name in self._sets:
            array, count = np.asarray(self._data[name]), self.graph.tensors[name].shape[0]
            start = step * count % self.rows
            is_contiguous = start + count <= self.rows
            arrays[name] = (
                array[start : start + count] if is_contiguous else array[(start + np.arange(count)) % self.rows]
            )
        return check_batch(self.graph, arrays)


def batches_of(graph: TrainingGraph, data: Mapping[str, object] | str | os.PathLike[str] | None, seed: int) -> Batches:
    """Return the batches of `data` for each step; where it is None, the same random batch."""
    if data is None:
        return Batches(graph, random_batch(graph, seed))
    return Batches(graph, data if isinstance(data, Mapping) else load_batch(data, graph, sets=True))
