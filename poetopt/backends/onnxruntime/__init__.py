"""Executing a plan on onnxruntime, node by node, inside one arena, and checking it against ordinary training.

Public names: `execute`, `Execution`, `train`, `TrainingRun`, `ScheduledStep`, `Prepared`, `load_batch`,
`random_batch`, `check_batch`, `save_results`. They load on first use, so that importing the package stays cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from poetopt.util.imports import loading

if TYPE_CHECKING:
    from poetopt.backends.onnxruntime.batch import check_batch, load_batch, random_batch
    from poetopt.backends.onnxruntime.execution import Execution, save_results
    from poetopt.backends.onnxruntime.executor import execute
    from poetopt.backends.onnxruntime.prepared import Prepared
    from poetopt.backends.onnxruntime.stepping import ScheduledStep
    from poetopt.backends.onnxruntime.training import TrainingRun, train

__all__ = [
    "Execution",
    "Prepared",
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
    "Prepared": "poetopt.backends.onnxruntime.prepared",
    "ScheduledStep": "poetopt.backends.onnxruntime.stepping",
    "TrainingRun": "poetopt.backends.onnxruntime.training",
    "train": "poetopt.backends.onnxruntime.training",
    "Execution": "poetopt.backends.onnxruntime.execution",
    "check_batch": "poetopt.backends.onnxruntime.batch",
    "execute": "poetopt.backends.onnxruntime.executor",
    "load_batch": "poetopt.backends.onnxruntime.batch",
    "random_batch": "poetopt.backends.onnxruntime.batch",
    "save_results": "poetopt.backends.onnxruntime.execution",
}

__getattr__ = loading(__name__, _HOMES)
