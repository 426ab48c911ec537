"""Loss and accuracy of the current network on rows that it isn't trained on.

The forward operators of the step run one after another, and each tensor is freed after its last read. Nothing is kept
for a backward pass, so that evaluation takes less memory than a step. BatchNormalization uses its running statistics,
and Dropout passes its input on. The loss is summed in float64 over the rows, from the tensor that the step's loss
reads; rows that pad the last batch don't count.
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
    """Result of an evaluation.

    Attributes
    ----------
    rows
        Rows that counted.
    loss
        Mean over the rows.
    accuracy
        Share of correct labels (cross-entropy) or of outputs on the correct side (bce); None for other losses.
    metrics
        The requested metrics, by name.
    """

    rows: int
    loss: float
    accuracy: float | None
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Forward:
    """Forward pass of a step, in inference mode.

    Attributes
    ----------
    graph
        Graph with one operator for each node.
    kept
        Tensors that the pass is run for.
    """

    graph: TrainingGraph
    kept: tuple[str, ...]

    @classmethod
    def of(cls, graph: TrainingGraph) -> Forward:
        """Return the forward pass of a step."""
        nodes = inference(graph)
        kept = tuple(dict.fromkeys(graph.compared or (graph.loss,)))
        operators = tuple(
            Operator(n.name or n.outputs[0], n.op_type, (n,), tuple(filter(None, n.inputs)), n.outputs)
            for n in needed(nodes, kept)
        )
        return cls(replace(graph, operators=operators), kept)

    def models(self) -> Mapping[tuple[str, ...], bytes]:
        """Return the ONNX models of its sessions."""
        return Sessions(self.graph).written()


class Evaluator:
    """Forward pass of a step with the current values.

    Parameters
    ----------
    sessions
        Sessions of the step; those of equal nodes are used again.
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
        """Return the batch as the graph reads it. Raises ModelError if it doesn't fit."""
        return check_batch(self.graph, batch)

    def begin(self, metrics: Asked = ()) -> _LossSums:
        """Return empty sums. Raises OptionError for metrics that the loss doesn't have."""
        return _LossSums([make() for make in metrics_of(metrics, self.graph)])

    def add(self, sums: _LossSums, batch: Mapping[str, Array], rows: int) -> None:
        """Add the first `rows` rows of a batch to the sums. Raises ExecutionError if a kernel fails."""
        outputs = self._run.run(batch)
        if not self._read:
            sums.add(rows, float(outputs[self.graph.loss].reshape(-1)[0]) * rows, rows)
            return
        scores, targets = (np.asarray(outputs[name]) for name in self._read)
        part = scores.shape[0] * rows // self.batch
        sums.compare(self.graph, rows, scores[:part], targets[:part])


class _LossSums:
    """Running sums of an evaluation: losses with their weights, and correct among judged outputs."""

    def __init__(self, metrics: Sequence[Metric] = ()) -> None:
        self.metrics = metrics
        self.rows, self.loss, self.weight, self.n_correct, self.n_judged = 0, 0.0, 0.0, 0, 0

    def add(self, rows: int, loss: float, weight: float, right: int = 0, judged: int = 0) -> None:
        self.rows += rows
        self.loss += loss
        self.weight += weight
        self.n_correct += right
        self.n_judged += judged

    def measure(self, scores: Any, targets: Any) -> None:
        """Add rows to each metric."""
        for metric in self.metrics:
            metric.add(scores, targets)

    def compare(
        self, graph: TrainingGraph, rows: int, scores: Any, targets: Any, *, is_activated: bool = False
    ) -> None:
        """Add rows, compared as the loss compares them.

        With `is_activated`, the scores are those behind a Softmax or a Sigmoid, where the loss can't be computed.
        """
        kind, rule = graph.loss_kind, graph.label_rule
        if kind in ("mse", "bce"):
            scores = scores.astype(np.float64)
            self.measure(scores, targets)
            each = (scores - targets) ** 2 if kind == "mse" else _binary(scores, targets)
            judged = (
                (_right_sides(scores, targets, 0.5 if is_activated else 0.0), each.size) if kind == "bce" else (0, 0)
            )
            self.add(rows, np.nan if is_activated and kind == "bce" else float(each.sum()), each.size, *judged)
            return
        each, weight = (np.array(np.nan), np.ones(1)) if is_activated else cross_entropy(scores, targets, rule)
        self.add(rows, float(each.sum()), float(weight.sum()), *right_classes(scores, targets, rule))
        if self.metrics:
            is_counted = _counted_labels(targets, rule)
            all_counted = is_counted.all()
            scores = scores if all_counted else np.moveaxis(scores, 1, -1)[is_counted]
            self.measure(scores.astype(np.float64), targets if all_counted else targets[is_counted])

    def result(self) -> Evaluation:
        accuracy = self.n_correct / self.n_judged if self.n_judged else None
        metrics = {metric.name: metric.value for metric in self.metrics}
        return Evaluation(self.rows, self.loss / self.weight if self.weight else 0.0, accuracy, metrics)


def cross_entropy(scores: Any, labels: Any, rule: LabelRule) -> tuple[Any, Any]:
    """Return loss times weight, and the weight, of each label [rows, ...]; the scores are [rows, classes, ...]."""
    scores, classes = scores.astype(np.float64), scores.shape[1]
    weights = np.array(rule.class_weights or np.ones(classes))
    log_prob = log_probabilities(scores)
    is_counted = _counted_labels(labels, rule)
    safe = np.where(is_counted, labels, 0).astype(np.int64)
    weight: Any = rule.weights_of(labels)
    each = -weight * np.take_along_axis(log_prob, np.expand_dims(safe, 1), 1).squeeze(1)
    if rule.smoothing:
        every = np.where(is_counted, -np.tensordot(log_prob, weights, (1, 0)), 0.0)
        each = (1 - rule.smoothing) * each + rule.smoothing / classes * every
    return each, weight


def _counted_labels(labels: Any, rule: LabelRule) -> Any:
    return np.ones(labels.shape, bool) if rule.ignore_index is None else np.asarray(labels) != rule.ignore_index


def _binary(logits: Any, target: Any) -> Any:
    return np.logaddexp(0.0, logits) - logits * target


def right_classes(scores: Any, labels: Any, rule: LabelRule) -> tuple[int, int]:
    """Return the number of labels with the highest score, and the number of labels that count."""
    is_counted = _counted_labels(labels, rule)
    return int(((scores.argmax(axis=1) == labels) & is_counted).sum()), int(is_counted.sum())


def _right_sides(outputs: Any, target: Any, middle: float) -> int:
    return int(((outputs > middle) == (np.asarray(target) > 0.5)).sum())


def validation_of(data: Data, graph: TrainingGraph, workdir: Path | None = None) -> DataSet | Source:
    """Open the validation data. Raises ModelError."""
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
    """Return loss and accuracy on all of `data`, or on its full batches if the model computes its own loss.

    Parameters
    ----------
    between
        Called before each batch.
    metrics
        Names or functions (`poetopt.training.metrics`).

    Raises
    ------
    OptionError
        For metrics that the loss doesn't have.
    ModelError
        For values that can't be evaluated.
    ExecutionError
        If a kernel fails.
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
            if fault_text := fault(graph, name, array):
                raise ModelError(f"{data.where(start)} or a row of the same batch: {fault_text}")
        evaluator.add(sums, evaluator.checked(batch), count)
    if not sums.rows:
        raise ModelError(f"{data.shown}: it doesn't fill one batch of {size} rows. Give more rows.")
    return sums.result()


def evaluate_file(path: Path, graph: TrainingGraph, data: DataSet) -> Evaluation | None:
    """Evaluate a network's file alone in onnxruntime; return None if its outputs can't be judged.

    Optimizations are off: with them, onnxruntime multiplies quantized weights in eight bits.

    Parameters
    ----------
    graph
        Step that trained the network; it defines how rows are judged, and `data` is opened for it.

    Raises
    ------
    ExecutionError
        If onnxruntime can't run the file.
    """
    try:
        session = onnxruntime().InferenceSession(
            os.fspath(path), session_options(1), providers=["CPUExecutionProvider"]
        )
    except runtime_errors() as error:
        raise ExecutionError(f"{path}: onnxruntime can't run the file ({first_line(error)}).") from error
    name = told_by(graph, {entry.name: len(entry.shape) for entry in session.get_outputs()})
    fixed = {entry.shape[0] for entry in session.get_inputs() if entry.shape and isinstance(entry.shape[0], int)}
    size = fixed.pop() if len(fixed) == 1 else batch_size(graph)
    if not name or fixed or not {entry.name for entry in session.get_inputs()} <= {*graph.inputs}:
        return None

    def run(batch: Mapping[str, Array]) -> Array:
        try:
            return session.run([name], {entry.name: batch[entry.name] for entry in session.get_inputs()})[0]  # type: ignore[no-any-return]
        except runtime_errors() as error:
            raise ExecutionError(f"{path}: onnxruntime can't run the file ({first_line(error)}).") from error

    return judge(graph, name, data, size, run)


def told_by(graph: TrainingGraph, outputs: Mapping[str, int]) -> str:
    """Return the network's output that rows are judged by, or "" if none fits; `outputs` maps names to axes."""
    read = graph.compared
    if not read or read[1] not in graph.inputs:
        return ""
    candidates = [name for name, axes in outputs.items() if axes == len(graph.tensors[read[0]].shape)]
    return read[0] if read[0] in outputs else candidates[0] if len(candidates) == 1 else ""


def in_batches(data: DataSet, size: int) -> Iterator[tuple[int, Mapping[str, Array]]]:
    """Yield all rows in batches of `size`: how many count, and the rows; the last row pads the last batch."""
    for start in range(0, data.rows, size):
        yield min(size, data.rows - start), data.take(np.minimum(np.arange(start, start + size), data.rows - 1))


def judge(
    graph: TrainingGraph, name: str, data: DataSet, size: int, run: Callable[[Mapping[str, Array]], Array]
) -> Evaluation | None:
    """Evaluate rows by the output `name`, which `run` computes for a batch; return None if its shape differs."""
    read, sums = graph.compared, _LossSums()
    for count, batch in in_batches(data, size):
        outputs = run(batch)
        if outputs.shape[1:] != graph.tensors[read[0]].shape[1:] or outputs.shape[0] != size:
            return None
        sums.compare(graph, count, outputs[:count], batch[read[1]][:count], is_activated=name != read[0])
    return sums.result()
