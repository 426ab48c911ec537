"""Executing a plan on onnxruntime, node by node, inside one arena, and checking it against ordinary training.

Public names: `execute`, `Execution`, `train`, `TrainingRun`, `ScheduledStep`, `load_batch`, `random_batch`,
`check_batch`, `save_results`. They load on first use, so that importing the package stays cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from poetopt.lazily import loading

if TYPE_CHECKING:
    from poetopt.backends.ort.batch import check_batch, load_batch, random_batch
    from poetopt.backends.ort.execution import Execution, save_results
    from poetopt.backends.ort.executor import execute
    from poetopt.backends.ort.stepping import ScheduledStep
    from poetopt.backends.ort.training import TrainingRun, train

__all__ = [
    "Execution",
    "ScheduledStep",
    "TrainingRun",
    "check_batch",
    "execute",
    "load_batch",
    "random_batch",
    "save_results",
    "train",
]

_HOMES = {
    "ScheduledStep": "poetopt.backends.ort.stepping",
    "TrainingRun": "poetopt.backends.ort.training",
    "train": "poetopt.backends.ort.training",
    "Execution": "poetopt.backends.ort.execution",
    "check_batch": "poetopt.backends.ort.batch",
    "execute": "poetopt.backends.ort.executor",
    "load_batch": "poetopt.backends.ort.batch",
    "random_batch": "poetopt.backends.ort.batch",
    "save_results": "poetopt.backends.ort.execution",
}

__getattr__ = loading(__name__, _HOMES)
