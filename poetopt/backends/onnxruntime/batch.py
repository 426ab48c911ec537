"""The batch that a step is executed on: random, or the user's own, checked against the graph's inputs."""

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
"""Arrays by the names of the graph's inputs."""


def random_batch(graph: Graph, seed: int = 0) -> Batch:
    """A batch drawn with `seed`: floats are standard normal, labels and indices within what they choose from.

    Lengths of sequences are drawn from one step to all, booleans and the target of bce evenly; integers that nothing
    bounds are 1 (a mask that hides nothing).
    Raises `ModelError` for an input of a type that has no sensible random value, `OptionError` for a seed that is none.
    """
    seed = parse_whole(seed, option="--seed", least=0)
    batch: dict[str, Array] = {}
    for name in graph.inputs:
        tensor = graph.tensors[name]
        rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
        dtype = numpy_dtype(tensor.dtype)
        if tensor.dtype == "bool" or name in _truths(graph):
            drawn: Array = rng.integers(0, 2, tensor.shape).astype(dtype)
        elif dtype.kind in "iu":
            found = limits(graph, name)
            least, most = (1, 1) if found is None else (int(found.what == LENGTH), found.most)
            drawn = rng.integers(least, most + 1, tensor.shape).astype(dtype)
        elif "float" in tensor.dtype:
            drawn = rng.standard_normal(tensor.shape).astype(dtype)
        else:
            raise ModelError(f"input {name!r} has type {tensor.dtype}, of which no random batch can be; give --data")
        batch[name] = aligned_copy(drawn)
    return batch


def load_batch(path: str | os.PathLike[str], graph: Graph | None = None, *, sets: bool = False) -> Batch:
    """The arrays of an `.npz` file, by name.

    graph
        Its inputs are all that is read, once their shapes are known to fit.
    sets
        Whether an array may be longer than an input along the first axis.

    Raises `ModelError` where it can't be read, lacks an input, or has one of another shape.
    """
    with opened(path) as archive:
        if graph is None:
            return dict(archive)
        check_names(graph, archive)
        for name in graph.inputs:
            shape, tensor = archive.header(name).shape, graph.tensors[name]
            longer = sets and len(shape) == len(tensor.shape) > 0 and shape[1:] == tensor.shape[1:]
            if shape != tensor.shape and not (longer and shape[0] > tensor.shape[0]):
                raise misfit(tensor, shape)
        return {name: archive[name] for name in graph.inputs}


def batch_of(graph: Graph, data: Mapping[str, object] | str | os.PathLike[str] | None = None, seed: int = 0) -> Batch:
    """The batch in `data`, checked, or the random one of `seed`. Raises as the functions here that it takes."""
    if data is None:
        return random_batch(graph, seed)
    return check_batch(graph, data if isinstance(data, Mapping) else load_batch(data, graph))


def check_names(graph: Graph, data: Mapping[str, object]) -> None:
    """Raise `ModelError` where `data` lacks an input of `graph`."""
    if missing := [name for name in graph.inputs if name not in data]:
        wanted = ", ".join(_described(graph.tensors[name]) for name in missing)
        given = ", ".join(f"{name!r}{_form(data, name)}" for name in sorted(data)[:8]) or "nothing"
        renamed = ", ".join(f"{name}=..." for name in graph.inputs)
        raise ModelError(f"the data lacks {wanted}; it has {given}. Name the arrays so: numpy.savez(path, {renamed})")


def misfit(tensor: Tensor, shape: tuple[int, ...]) -> ModelError:
    """Gives what to raise for data of a shape that an input can't have."""
    text = f"the data's {tensor.name!r} has shape {list(shape)}; it must be {_described(tensor)}"
    if tensor.name == "labels" and len(shape) == len(tensor.shape) + 1:
        text += (
            ". Give .reshape(-1) of a column"
            if shape[-1] == 1
            else (
                ". Of one-hot rows give .argmax(); for probabilities of classes have the module compute the loss, as "
                "-(target * scores.log_softmax(1)).sum(1).mean(), and plan it with --loss none"
            )
        )
    return ModelError(text)


def check_batch(graph: Graph, data: Mapping[str, object]) -> Batch:
    """`data` as a batch for `graph`: an array for each of its inputs. Arrays of other names are ignored.

    Integers of another width are converted where every value survives, integers and booleans of a loss's target too,
    and all other types must match. The target of bce lies in 0..1.

    Raises `ModelError` naming what is missing, or the input whose shape, type or range of values is wrong.
    """
    check_names(graph, data)
    batch: dict[str, Array] = {}
    for name in graph.inputs:
        tensor, array = graph.tensors[name], as_array(name, data[name])
        if array.shape != tensor.shape:
            raise misfit(tensor, array.shape)
        dtype = numpy_dtype(tensor.dtype)
        if array.dtype != dtype:
            target = isinstance(graph, TrainingGraph) and name in graph.added_inputs and "float" in tensor.dtype
            whole = array.dtype.kind in "iub" if target else array.dtype.kind in "iu" and dtype.kind in "iu"
            if not whole or not np.array_equal(array.astype(dtype), array):
                raise ModelError(
                    f"the data's {name!r} has type {array.dtype}; it must be {_described(tensor)}: "
                    f"convert it with .astype({tensor.dtype!r})"
                )
        array = array.astype(dtype, copy=False)
        check_values(graph, name, array)
        batch[name] = aligned_copy(array)
    return batch


def _truths(graph: Graph) -> tuple[str, ...]:
    """The target of bce: how true each output is, 0 to 1."""
    return graph.added_inputs if isinstance(graph, TrainingGraph) and graph.loss_kind == "bce" else ()


def as_array(name: str, value: object) -> Array:
    """Data of an input as an array. Raises `ModelError` for what is none."""
    try:
        found: Array = np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:
        raise ModelError(f"the data's {name!r} is no array: {error}") from error
    return found


def _form(data: Mapping[str, object], name: str) -> str:
    """Type and shape of an array, which isn't read for it; nothing of what is none."""
    found = data.header(name) if isinstance(data, Archive) else data[name]
    return f" ({found.dtype}, shape {list(found.shape)})" if isinstance(found, Header | np.ndarray) else ""


def _described(tensor: Tensor) -> str:
    return f"{tensor.name!r} ({tensor.dtype}, shape {list(tensor.shape)})"


def check_values(graph: Graph, name: str, array: Array) -> None:
    """Labels, indices, lengths and the target of bce must be within what they choose from, however many they are.

    Raises `ModelError` for one that isn't.
    """
    found = limits(graph, name)
    if found is None or not array.size:
        return
    if found.what == TRUTH:
        _check_truths(name, array)
    if found.what == TRUTH or array.dtype.kind not in "iu":
        return
    if found.least <= int(array.min()) and int(array.max()) <= found.most:
        return
    if found.what == LENGTH:
        raise ModelError(f"the data's {name!r} holds lengths of sequences, which must lie in 0..{found.most}")
    values = np.unique(array)
    wrong = [v for v in values.tolist() if not found.least <= v <= found.most and v not in found.ignored]
    if wrong:
        raise ModelError(
            f"the data's {name!r} holds the {found.what} {wrong[0]}; with {found.most + 1} to choose from it must lie "
            f"in {found.least}..{found.most}{_remedy(graph, found, values)}"
        )


def _remedy(graph: Graph, found: InputLimits, values: Array) -> str:
    """The remedy where a label may stand for none, or labels count from 1."""
    ours = found.what == LABEL and isinstance(graph, TrainingGraph) and graph.loss_kind == "cross-entropy"
    if ours and values[0] < 0 and not found.ignored:
        return f"; if it stands for rows to leave out, solve with --ignore-index {values[0]}"
    if found.what == LABEL and values[0] > 0 and values[-1] == found.most + 1:
        return "; classes count from 0: subtract 1, if these count from 1"
    return ""


LABEL, INDEX, LENGTH, TRUTH = "label", "index", "length", "truth"


@dataclass(frozen=True)
class InputLimits:
    """The range that the values of an input must lie within, both ends included.

    what
        `label` (of a class), `index`, `length` (of a sequence), or `truth` (0 to 1).
    ignored
        Labels beyond that stand for none.
    """

    what: str
    least: int
    most: int
    ignored: frozenset[int] = frozenset()


def limits(graph: Graph, name: str) -> InputLimits | None:
    """Those of an input; None where any value will do."""
    if name in _truths(graph):
        return InputLimits(TRUTH, 0, 1)
    if isinstance(graph, TrainingGraph) and graph.loss_kind == "cross-entropy" and name in graph.added_inputs:
        rule = graph.label_rule
        left_out = frozenset(() if rule.ignore_index is None else (rule.ignore_index,))
        return InputLimits(LABEL, 0, graph.tensors[graph.compared[0]].shape[1] - 1, left_out)
    readers, steps = _readers(graph, name), _steps(graph, name)
    if not readers:
        return None if steps is None else InputLimits(LENGTH, 0, steps)
    count = min(count for _, count, _ in readers)
    labels = [node for node in readers if op_of(node[0]).chooses is Choice.LABELS]
    ignored = frozenset(value for _, _, value in labels if isinstance(value, int))
    return InputLimits(LABEL if labels else INDEX, 0 if labels else -count, count - 1, ignored)


def _check_truths(name: str, array: Array) -> None:
    values = np.asarray(array, np.float64)
    wrong = values[~((values >= 0) & (values <= 1))]
    if wrong.size:
        raise ModelError(
            f"the data's {name!r} holds {wrong[0]:g}; with the loss bce it must lie in 0..1, how true each output is; "
            "for other values solve with --loss mse"
        )


def _steps(graph: Graph, name: str) -> int | None:
    """The most steps that a sequence may have, where an input has their lengths. None where it is something else."""
    lengths = (
        graph.tensors[node.inputs[0]].shape[0]
        for node, places, _ in _uses(graph, name)
        if op_of(node.op_type).lengths in places
    )
    return min(lengths, default=None)


def _readers(graph: Graph, name: str) -> list[tuple[str, int, object]]:
    """Gives what uses `name` as labels or indices, cast or in another order: op, number of choices, ignored label."""
    found: list[tuple[str, int, object]] = []
    for node, places, backward in _uses(graph, name):
        if 1 not in places:
            continue
        table = graph.rows.get(node.inputs[0])
        shape = graph.tensors[node.inputs[0]].shape if table is None else table.values.shape
        chooses = op_of(node.op_type).chooses
        if chooses is Choice.LABELS:
            found.append((node.op_type, shape[1], node.attributes.get("ignore_index")))
        elif chooses is Choice.INDICES and not backward:
            axis = node.attributes.get("axis", 0)
            found.append((node.op_type, shape[axis if isinstance(axis, int) else 0], None))
    return found


def _uses(graph: Graph, name: str) -> tuple[tuple[Node, frozenset[int], bool], ...]:
    """The nodes that read `name`, or it cast or in another order: as which operands, and whether in backward."""
    known: dict[str, tuple[tuple[Node, frozenset[int], bool], ...]] = vars(graph).setdefault("_uses", {})
    if name not in known:  # every batch asks for it
        known[name] = tuple(_found_uses(graph, name))
    return known[name]


def _found_uses(graph: Graph, name: str) -> Iterator[tuple[Node, frozenset[int], bool]]:
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

    data
        Arrays by input name, taken anew for each batch. One of exactly an input's shape is fed in every step; one that
        is longer along the first axis is a data set, of which each step takes the next so many rows. All data sets
        have as many rows, and where there is one, no array has the rows of one batch alone.

    Raises ModelError for arrays that fit no input, or data sets of different lengths.
    """

    def __init__(self, graph: TrainingGraph, data: Mapping[str, object]) -> None:
        self.graph = graph
        self._data = data
        self._fixed: dict[str, tuple[int, ...]] = {}
        self._sets: dict[str, int] = {}
        for name in graph.inputs:
            if name not in data:
                continue
            found, shape = np.asarray(data[name]).shape, graph.tensors[name].shape
            if len(found) == len(shape) > 0 and found[1:] == shape[1:] and found[0] > shape[0]:
                self._sets[name] = found[0]
            else:
                self._fixed[name] = found
        self.rows = min(self._sets.values(), default=0)
        if uneven := [name for name, rows in self._sets.items() if rows != self.rows]:
            lengths = ", ".join(f"{name!r} {rows}" for name, rows in self._sets.items())
            raise ModelError(f"the data sets have different numbers of rows ({lengths}); cut {uneven[0]!r}")
        for name in self._sets:
            self._check_partners(name)
        self.get(0)

    def _check_partners(self, name: str) -> None:
        """Raise ModelError where an array has the rows of one batch, and would be paired with all rows of `name`."""
        count = self.graph.tensors[name].shape[0]
        for other, shape in self._fixed.items():
            # with batches of one row any constant looks like a batch
            if shape[:1] == (count,) and (count > 1 or other in self.graph.added_inputs):
                raise ModelError(
                    f"the data set {name!r} has {self.rows} rows, and {other!r} only the {count} of one batch, which "
                    f"would be paired with each batch of the other; give {other!r} {self.rows} rows too"
                )

    def get(self, step: int) -> Batch:
        """The batch of a step, from 0. Raises ModelError for values that the model can't take."""
        found = {name: self._data[name] for name in self._fixed}
        for name in self._sets:
            array, count = np.asarray(self._data[name]), self.graph.tensors[name].shape[0]
            start = step * count % self.rows
            whole = start + count <= self.rows
            found[name] = array[start : start + count] if whole else array[(start + np.arange(count)) % self.rows]
        return check_batch(self.graph, found)


def batches_of(graph: TrainingGraph, data: Mapping[str, object] | str | os.PathLike[str] | None, seed: int) -> Batches:
    """Gives what `data` gives for each step; where it is None, the same random batch."""
    if data is None:
        return Batches(graph, random_batch(graph, seed))
    return Batches(graph, data if isinstance(data, Mapping) else load_batch(data, graph, sets=True))
