"""Metrics of a validation, beside its loss and accuracy: each counts batch by batch what its figure is made of.

| metric | of the loss | figure |
|---|---|---|
| top5 | cross-entropy | share of labels among the five highest scores |
| f1 | cross-entropy, bce | mean over classes of 2 tp / (2 tp + fp + fn) |
| iou | cross-entropy, bce | mean over classes of tp / (tp + fp + fn) |
| perplexity | cross-entropy | exp of the mean -log softmax at the label |
| mae | mse | mean of abs(output - target) |

tp, fp and fn are of all rows together. Classes that neither labels nor scores name don't count. Of bce, a class is an
output along axis 1, true from a probability of one half on. Labels that the loss leaves out are left out here too.
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

Own = Callable[[Any, Any], object]
"""A metric of one's own: of the scores and labels (or output and target) of some rows, a number, or one for each row.
What is told is the mean over all rows."""
Asked = Iterable[str | Own] | str


class Metric(ABC):
    """Counts one figure.

    name
        What summaries and JSON call it.
    """

    name: str

    @abstractmethod
    def add(self, scores: Any, wanted: Any) -> None:
        """Count rows: scores [rows, classes, ...] and labels [rows, ...], or output and target."""

    @property
    @abstractmethod
    def value(self) -> float:
        """The figure so far."""


class _Mean(Metric):
    """The mean of something over labels, elements or rows."""

    def __init__(self, name: str, each: Own, after: Callable[[float], float] = float) -> None:
        self.name, self._each, self._after = name, each, after
        self._sum, self._count = 0.0, 0

    def add(self, scores: Any, wanted: Any) -> None:
        found = np.asarray(self._each(scores, wanted), np.float64)
        count = found.size if found.ndim else len(scores)
        self._sum += float(found.sum()) if found.ndim else float(found) * count
        self._count += count

    @property
    def value(self) -> float:
        return self._after(self._sum / self._count) if self._count else 0.0


class _Overlap(Metric):
    """The mean over classes of a share of true positives, false positives and false negatives."""

    def __init__(
        self, name: str, share: Callable[[Any, Any], Any], predict: Callable[[Any, Any], tuple[Any, Any]]
    ) -> None:
        self.name, self._share, self._predict = name, share, predict
        self._both: Any = 0
        self._one: Any = 0

    def add(self, scores: Any, wanted: Any) -> None:
        found, true = self._predict(scores, wanted)
        axes = tuple(k for k in range(found.ndim) if k != 1)
        self._both = self._both + (found & true).sum(axes)
        self._one = self._one + (found ^ true).sum(axes)

    @property
    def value(self) -> float:
        there = np.asarray(self._both + self._one) > 0
        both, one = np.asarray(self._both)[there], np.asarray(self._one)[there]
        return float(self._share(both, one).mean()) if both.size else 0.0


def _among_five(scores: Any, labels: Any) -> Any:
    at = np.take_along_axis(scores, np.expand_dims(labels, 1), 1)
    return (scores > at).sum(axis=1) < 5


def log_probabilities(scores: Any) -> Any:
    """Logarithms of the softmax over classes, of scores [rows, classes, ...]."""
    shifted = scores - scores.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def _likelihood(scores: Any, labels: Any) -> Any:
    return -np.take_along_axis(log_probabilities(scores), np.expand_dims(labels, 1), 1)


def _classes(scores: Any, labels: Any) -> tuple[Any, Any]:
    every = np.arange(scores.shape[1]).reshape(1, -1, *[1] * (labels.ndim - 1))
    return np.expand_dims(scores.argmax(axis=1), 1) == every, np.expand_dims(labels, 1) == every


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
"""By name, and by the loss that each is for."""


def metrics_of(asked: Asked, graph: TrainingGraph) -> Sequence[Callable[[], Metric]]:
    """Gives what makes the metrics that are asked for, by name or as functions. Raises OptionError."""
    found: list[Callable[[], Metric]] = []
    for one in asked.split(",") if isinstance(asked, str) else asked:
        if not graph.compared:
            raise OptionError("--with metrics: the loss is the model's own, which says nothing of labels; leave it out")
        if callable(one):
            found.append(lambda one=one: _Mean(getattr(one, "__name__", type(one).__name__), one))  # type: ignore[misc]
            continue
        name = one.strip()
        made = METRICS.get(name, {}).get(graph.loss_kind)
        if made is None:
            fits = [known for known, of in METRICS.items() if graph.loss_kind in of]
            what = (
                "always told"
                if name in ("loss", "accuracy")
                else "of another loss"
                if name in METRICS
                else f"unknown{closest(name, METRICS)}"
            )
            raise OptionError(
                f"--with metrics={name}: {what}; of the loss {graph.loss_kind} there are {', '.join(fits)}"
            )
        found.append(made)
    return found
