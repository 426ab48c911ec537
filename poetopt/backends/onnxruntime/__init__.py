"""Execution of a plan on onnxruntime, node by node, inside one arena, with a check against ordinary training.

Its names load on first use, so that importing the package stays cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from poetopt.util.imports import loading

if TYPE_CHECKING:
    from poetopt.backends.onnxruntime.batch import check_batch as check_batch
    from poetopt.backends.onnxruntime.batch import load_batch as load_batch
    from poetopt.backends.onnxruntime.batch import random_batch as random_batch
    from poetopt.backends.onnxruntime.execution import Execution as Execution
    from poetopt.backends.onnxruntime.execution import save_results as save_results
    from poetopt.backends.onnxruntime.executor import execute as execute
    from poetopt.backends.onnxruntime.prepared import Prepared as Prepared
    from poetopt.backends.onnxruntime.stepping import ScheduledStep as ScheduledStep
    from poetopt.backends.onnxruntime.training import TrainingRun as TrainingRun
    from poetopt.backends.onnxruntime.training import train as train

__getattr__, __all__ = loading(__name__, {
    "batch": "check_batch load_batch random_batch",
    "execution": "Execution save_results",
    "executor": "execute",
    "prepared": "Prepared",
    "stepping": "ScheduledStep",
    "training": "TrainingRun train",
})  # fmt: skip
