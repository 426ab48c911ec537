"""Validation metrics beside loss and accuracy; each is counted batch by batch.

| metric | of the loss | figure |
|---|---|---|
| top5 | cross-entropy | share of labels among the five highest scores |
| f1 | cross-entropy, bce | mean over classes of 2 tp / (2 tp + fp + fn) |
| iou | cross-entropy, bce | mean over classes of tp / (tp + fp + fn) |
| perplexity | cross-entropy | exp of the mean -log softmax at the label |
| mae | mse | mean of abs(output - target) |

tp, fp and fn are counted over all rows together. Classes without a label and without a prediction don't count. For bce,
a class is an output along axis 1, true from a probability of one half on. Labels that the loss ignores are ignored.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from poetopt.graph import TrainingGraph
from poetopt.util.errors import OptionError
from poetopt.util.text import closest

MetricFunction = Callable[[Any, Any], object]
"""A custom metric: a function of the scores and labels (or output and target) of some rows, that returns one number,
or one for each row. The metric is the mean over all rows."""
Asked = Iterable[str | MetricFunction] | str


class Metric(ABC):
    """Counter of one metric.

    Attributes
    ----------
    name
        Name in summaries and JSON.
    """

    name: str

    @abstractmethod
    def add(self, scores: Any, targets: Any) -> None:
        """Add rows: scores [rows, classes, ...] and labels [rows, ...], or output and target."""

    @property
    @abstractmethod
    def value(self) -> float:
        """Metric of all rows so far."""


class _Mean(Metric):
    """Mean of a figure over labels, elements or rows."""

    def __init__(self, name: str, each: MetricFunction, after: Callable[[float], float] = float) -> None:
        self.name, self._each, self._after = name, each, after
        self._sum, self._count = 0.0, 0

    def add(self, scores: Any, targets: Any) -> None:
        values = np.asarray(self._each(scores, targets), np.float64)
        count = values.size if values.ndim else len(scores)
        self._sum += float(values.sum()) if values.ndim else float(values) * count
        self._count += count

    @property
    def value(self) -> float:
        return self._after(self._sum / self._count) if self._count else 0.0


class _Overlap(Metric):
    """Mean over classes of a ratio of true positives, false positives and false negatives."""

    def __init__(
        self, name: str, share: Callable[[Any, Any], Any], predict: Callable[[Any, Any], tuple[Any, Any]]
    ) -> None:
        self.name, self._share, self._predict = name, share, predict
        self._both: Any = 0
        self._one: Any = 0

    def add(self, scores: Any, targets: Any) -> None:
        predicted, true = self._predict(scores, targets)
        axes = tuple(k for k in range(predicted.ndim) if k != 1)
        self._both = self._both + (predicted & true).sum(axes)
        self._one = self._one + (predicted ^ true).sum(axes)

    @property
    def value(self) -> float:
        present = np.asarray(self._both + self._one) > 0
        intersection, difference = np.asarray(self._both)[present], np.asarray(self._one)[present]
        return float(self._share(intersection, difference).mean()) if intersection.size else 0.0


def _among_five(scores: Any, labels: Any) -> Any:
    label_scores = np.take_along_axis(scores, np.expand_dims(labels, 1), 1)
    return (scores > label_scores).sum(axis=1) < 5


def log_probabilities(scores: Any) -> Any:
    """Return the logarithm of the softmax over classes, of scores [rows, classes, ...]."""
    shifted = scores - scores.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def _likelihood(scores: Any, labels: Any) -> Any:
    return -np.take_along_axis(log_probabilities(scores), np.expand_dims(labels, 1), 1)


def _classes(scores: Any, labels: Any) -> tuple[Any, Any]:
    class_ids = np.arange(scores.shape[1]).reshape(1, -1, *[1] * (labels.ndim - 1))
    return np.expand_dims(scores.argmax(axis=1), 1) == class_ids, np.expand_dims(labels, 1) == class_ids


def _sides(logits: Any, target: Any) -> tuple[Any, Any]:
    shape = logits.shape if logits.ndim > 1 else (*logits.shape, 1)
    return (logits > 0).reshape(shape), (np.asarray(target) > 0.5).reshape(shape)


def _overlap(name: str, share: Callable[[Any, Any], Any]) -> dict[str, Callable[[], Metric]]:
    return {
        "cross-entropy": lambda: _Overlap(name, share, _classes),
        "bce": lambda: _Overlap(name, share, _sides),
    }


METRICS: dict[str, dict[str, Callable[[], Metric]]] = {
    "top5": {"cross-entropy": lambda: _Mean("top5", _among_five)},
    "f1": _overlap("f1", lambda both, one: 2 * both / (2 * both + one)),
    "iou": _overlap("iou", lambda both, one: both / (both + one)),
    "perplexity": {"cross-entropy": lambda: _Mean("perplexity", _likelihood, lambda mean: math.exp(min(mean, 700.0)))},
    "mae": {"mse": lambda: _Mean("mae", lambda output, target: np.abs(output - target))},
}
"""Constructors by metric and by the loss that they fit."""


def metrics_of(metrics: Asked, graph: TrainingGraph) -> Sequence[Callable[[], Metric]]:
    """Return a constructor for each requested metric, given by name or as a function. Raises OptionError."""
    factories: list[Callable[[], Metric]] = []
    for metric in metrics.split(",") if isinstance(metrics, str) else metrics:
        if not graph.compared:
            raise OptionError("--metrics: the model computes its own loss, so labels are unknown. Leave it out.")
        if callable(metric):
            factories.append(lambda metric=metric: _Mean(getattr(metric, "__name__", type(metric).__name__), metric))  # type: ignore[misc]
            continue
        name = metric.strip()
        factory = METRICS.get(name, {}).get(graph.loss_kind)
        if factory is None:
            alternatives = [other for other, losses in METRICS.items() if graph.loss_kind in losses]
            fault = (
                "it is always reported"
                if name in ("loss", "accuracy")
                else "it needs another loss"
                if name in METRICS
                else f"unknown{closest(name, METRICS)}"
            )
            raise OptionError(
                f"--metrics {name}: {fault}. Metrics of the loss {graph.loss_kind}: {', '.join(alternatives)}."
            )
        factories.append(factory)
    return factories
