"""Loss and accuracy of the network as it is, on rows that nothing is learned from.

The forward operators of the step run one node after another, and each tensor goes when nothing reads it any more:
nothing is kept for a backward pass, so that this takes less than a step does. BatchNormalization takes its running
statistics, Dropout passes on what it reads. The loss is a sum in float64 over the rows, of the tensor that the step's
loss reads; so rows that fill up the last batch don't count.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from poetopt.autodiff.inference import inference, needed
from poetopt.backends.onnxruntime.batch import check_batch
from poetopt.backends.onnxruntime.reference import NodeByNode
from poetopt.backends.onnxruntime.sessions import (
    Sessions,
    first_line,
    onnxruntime,
    runtime_errors,
    session_options,
)
from poetopt.backends.step.parted import cut
from poetopt.graph import LabelRule, Operator, TrainingGraph
from poetopt.training.data import DataSet, open_data
from poetopt.training.data.arrays import fault
from poetopt.training.metrics import Asked, Metric, log_probabilities, metrics_of
from poetopt.training.source import Data, Source, batch_size, source_of
from poetopt.util.errors import ExecutionError, ModelError
from poetopt.util.figures import Figures
from poetopt.util.progress import Told, silent

if TYPE_CHECKING:
    from poetopt.graph import Array


@dataclass(frozen=True)
class Evaluation(Figures):
    """Holds what rows showed.

    rows
        How many counted.
    loss
        The mean over them.
    accuracy
        The share of labels (cross-entropy), or of outputs on the right side (bce), that are right; None for other
        losses.
    metrics
        Those that were asked for, by name.
    """

    rows: int
    loss: float
    accuracy: float | None
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Forward:
    """The forward pass of a step, in the way of inference.

    graph
        With an operator for each node.
    kept
        What it is run for.
    """

    graph: TrainingGraph
    kept: tuple[str, ...]

    @classmethod
    def of(cls, graph: TrainingGraph) -> Forward:
        """That of a step."""
        nodes = inference(graph)
        kept = tuple(dict.fromkeys(graph.compared or (graph.loss,)))
        operators = tuple(
            Operator(n.name or n.outputs[0], n.op_type, (n,), tuple(filter(None, n.inputs)), n.outputs)
            for n in needed(nodes, kept)
        )
        return cls(replace(graph, operators=operators), kept)

    def models(self) -> Mapping[tuple[str, ...], bytes]:
        """Gives what its sessions are made of."""
        return Sessions(self.graph).written()


class Evaluator:
    """The forward pass of a step, with values as they are.

    sessions
        Of the step: those of nodes that are alike are used again.
    given
        Parameters, statistics and constants by name, fetched when a node reads them.
    """

    def __init__(self, graph: TrainingGraph, sessions: Sessions, given: Mapping[str, Array]) -> None:
        self.graph = graph = graph.of_data
        shapes = (graph.tensors[name].shape for name in graph.inputs)
        self.batch = min((shape[0] for shape in shapes if shape), default=1)
        forward = Forward.of(graph)
        self._read = graph.compared
        self._run = NodeByNode(forward.graph, sessions.of(forward.graph), given, forward.kept)
        first = graph.tensors[self._read[0]].shape[:1] if self._read else ()
        self.pads = bool(first) and first[0] % self.batch == 0

    def checked(self, batch: Mapping[str, Array]) -> Mapping[str, Array]:
        """A batch as the graph reads it. Raises ModelError where it doesn't fit."""
        return check_batch(self.graph, batch)

    def begin(self, metrics: Asked = ()) -> _LossSums:
        """Sums of nothing so far. Raises OptionError for metrics that the loss has not."""
        return _LossSums([make() for make in metrics_of(metrics, self.graph)])

    def add(self, sums: _LossSums, batch: Mapping[str, Array], rows: int) -> None:
        """Count the first `rows` rows of a batch. Raises ExecutionError where a kernel fails."""
        found = self._run.run(batch)
        if not self._read:
            sums.add(rows, float(found[self.graph.loss].reshape(-1)[0]) * rows, rows)
            return
        scores, wanted = (np.asarray(found[name]) for name in self._read)
        part = scores.shape[0] * rows // self.batch
        sums.compare(self.graph, rows, scores[:part], wanted[:part])


class _LossSums:
    """Holds what evaluating has counted so far: losses and their weights, and what is right of what was judged."""

    def __init__(self, metrics: Sequence[Metric] = ()) -> None:
        self.metrics = metrics
        self.rows, self.loss, self.weight, self.right, self.judged = 0, 0.0, 0.0, 0, 0

    def add(self, rows: int, loss: float, weight: float, right: int = 0, judged: int = 0) -> None:
        self.rows += rows
        self.loss += loss
        self.weight += weight
        self.right += right
        self.judged += judged

    def measure(self, scores: Any, wanted: Any) -> None:
        """Count rows in each metric."""
        for metric in self.metrics:
            metric.add(scores, wanted)

    def compare(self, graph: TrainingGraph, rows: int, scores: Any, wanted: Any, *, behind: bool = False) -> None:
        """Count rows by what the loss compares, or what is `behind` a Softmax or a Sigmoid: there the loss is none."""
        kind, rule = graph.loss_kind, graph.label_rule
        if kind in ("mse", "bce"):
            scores = scores.astype(np.float64)
            self.measure(scores, wanted)
            each = (scores - wanted) ** 2 if kind == "mse" else _binary(scores, wanted)
            judged = (_right_sides(scores, wanted, 0.5 if behind else 0.0), each.size) if kind == "bce" else (0, 0)
            self.add(rows, np.nan if behind and kind == "bce" else float(each.sum()), each.size, *judged)
            return
        each, weight = (np.array(np.nan), np.ones(1)) if behind else cross_entropy(scores, wanted, rule)
        self.add(rows, float(each.sum()), float(weight.sum()), *right_classes(scores, wanted, rule))
        if self.metrics:
            kept = _kept(wanted, rule)
            whole = kept.all()
            scores = scores if whole else np.moveaxis(scores, 1, -1)[kept]
            self.measure(scores.astype(np.float64), wanted if whole else wanted[kept])

    def result(self) -> Evaluation:
        accuracy = self.right / self.judged if self.judged else None
        metrics = {metric.name: metric.value for metric in self.metrics}
        return Evaluation(self.rows, self.loss / self.weight if self.weight else 0.0, accuracy, metrics)


def cross_entropy(scores: Any, labels: Any, rule: LabelRule) -> tuple[Any, Any]:
    """Of scores [rows, classes, ...] at labels [rows, ...]: of each label the loss times its weight, and the weight."""
    scores, classes = scores.astype(np.float64), scores.shape[1]
    weights = np.array(rule.class_weights or np.ones(classes))
    log_prob = log_probabilities(scores)
    kept = _kept(labels, rule)
    safe = np.where(kept, labels, 0).astype(np.int64)
    weight: Any = rule.weights_of(labels)
    each = -weight * np.take_along_axis(log_prob, np.expand_dims(safe, 1), 1).squeeze(1)
    if rule.smoothing:
        every = np.where(kept, -np.tensordot(log_prob, weights, (1, 0)), 0.0)
        each = (1 - rule.smoothing) * each + rule.smoothing / classes * every
    return each, weight


def _kept(labels: Any, rule: LabelRule) -> Any:
    return np.ones(labels.shape, bool) if rule.ignore_index is None else np.asarray(labels) != rule.ignore_index


def _binary(logits: Any, target: Any) -> Any:
    return np.logaddexp(0.0, logits) - logits * target


def right_classes(scores: Any, labels: Any, rule: LabelRule) -> tuple[int, int]:
    """Number of labels that are those of the highest score, and of those that count."""
    kept = _kept(labels, rule)
    return int(((scores.argmax(axis=1) == labels) & kept).sum()), int(kept.sum())


def _right_sides(outputs: Any, target: Any, middle: float) -> int:
    return int(((outputs > middle) == (np.asarray(target) > 0.5)).sum())


def validation_of(data: Data, graph: TrainingGraph, workdir: Path | None = None) -> DataSet | Source:
    """Gives what is evaluated, opened. Raises ModelError."""
    if isinstance(data, (str, os.PathLike, Mapping)):
        return open_data(data, graph.of_data, workdir)
    return source_of(data, graph.whole, "sequential", 0, workdir)


def evaluate(
    evaluator: Evaluator,
    data: DataSet | Source,
    told: Told = silent,
    between: Callable[[], object] | None = None,
    metrics: Asked = (),
) -> Evaluation:
    """Loss and accuracy on all of `data`; where the loss is the model's own, on its whole batches.

    between
        Called before each batch.
    metrics
        Names or functions (`poetopt.training.metrics`).

    Raises OptionError for metrics that the loss has not, ModelError for values that can't be evaluated, ExecutionError
    where a kernel fails.
    """
    graph = evaluator.graph
    sums, size = evaluator.begin(metrics), batch_size(graph)
    if hasattr(data, "epoch"):
        for k, batch in enumerate(data.epoch(0)):
            told(f"validating: batch {k + 1:,}")
            if between is not None:
                between()
            for part in cut(graph, batch):
                evaluator.add(sums, evaluator.checked(part), size)
        return sums.result()
    for start in range(0, data.rows, size):
        told(f"validating: row {start:,} of {data.rows:,}")
        if between is not None:
            between()
        count = min(size, data.rows - start)
        if count < size and not evaluator.pads:
            break
        rows = np.minimum(np.arange(start, start + size), data.rows - 1)
        batch = data.take(rows)
        for name, array in batch.items():
            if what := fault(graph, name, array):
                raise ModelError(f"{data.where(start)} and those behind it: {what}")
        evaluator.add(sums, evaluator.checked(batch), count)
    if not sums.rows:
        raise ModelError(f"{data.shown}: it fills no batch of {size} rows; give more")
    return sums.result()


def evaluate_file(path: Path, graph: TrainingGraph, data: DataSet) -> Evaluation | None:
    """The same of a network's file alone, in onnxruntime; None where its outputs don't tell.

    Without optimizations: by these, onnxruntime multiplies with quantized weights in eight bits.

    graph
        The step that it was trained by, which says how rows are judged; `data` is opened for it.

    Raises ExecutionError where onnxruntime can't run the file.
    """
    try:
        session = onnxruntime().InferenceSession(
            os.fspath(path), session_options(1), providers=["CPUExecutionProvider"]
        )
    except runtime_errors() as error:
        raise ExecutionError(f"{path}: onnxruntime can't run it ({first_line(error)})") from error
    name = told_by(graph, {one.name: len(one.shape) for one in session.get_outputs()})
    fixed = {one.shape[0] for one in session.get_inputs() if one.shape and isinstance(one.shape[0], int)}
    size = fixed.pop() if len(fixed) == 1 else batch_size(graph)
    if not name or fixed or not {one.name for one in session.get_inputs()} <= {*graph.inputs}:
        return None

    def run(batch: Mapping[str, Array]) -> Array:
        try:
            return session.run([name], {one.name: batch[one.name] for one in session.get_inputs()})[0]  # type: ignore[no-any-return]
        except runtime_errors() as error:
            raise ExecutionError(f"{path}: onnxruntime can't run it ({first_line(error)})") from error

    return judge(graph, name, data, size, run)


def told_by(graph: TrainingGraph, outputs: Mapping[str, int]) -> str:
    """The output of the network by which rows are judged, of those with these numbers of axes; "" where none tells."""
    read = graph.compared
    if not read or read[1] not in graph.inputs:
        return ""
    like = [name for name, axes in outputs.items() if axes == len(graph.tensors[read[0]].shape)]
    return read[0] if read[0] in outputs else like[0] if len(like) == 1 else ""


def in_batches(data: DataSet, size: int) -> Iterator[tuple[int, Mapping[str, Array]]]:
    """All rows, so many at a time: how many count, and the rows; the last one fills the last batch up."""
    for start in range(0, data.rows, size):
        yield min(size, data.rows - start), data.take(np.minimum(np.arange(start, start + size), data.rows - 1))


def judge(
    graph: TrainingGraph, name: str, data: DataSet, size: int, run: Callable[[Mapping[str, Array]], Array]
) -> Evaluation | None:
    """What rows show by the output `name` that `run` gives of each batch; None where it has another shape."""
    read, sums = graph.compared, _LossSums()
    for count, batch in in_batches(data, size):
        found = run(batch)
        if found.shape[1:] != graph.tensors[read[0]].shape[1:] or found.shape[0] != size:
            return None
        sums.compare(graph, count, found[:count], batch[read[1]][:count], behind=name != read[0])
    return sums.result()
