"""Plans the training of a neural network on a device with too little RAM for it.

    import poetopt as po
    problem = po.load("model.onnx").differentiate(loss="cross-entropy").cost(po.device("a72"))
    report = po.solve(problem, ram="40%", deadline="1.2x")
    po.execute(report)

`poetopt.api` documents each call. Everything is imported when it is first named.
"""

from __future__ import annotations

import importlib
import os
from types import ModuleType
from typing import TYPE_CHECKING

from poetopt.util import __version__
from poetopt.util.systems import check_system

if TYPE_CHECKING:
    from poetopt import autodiff, backends, devices, formulations, frontends, plan, report, testing, torch, zoo
    from poetopt.api.comparing import compare, pareto
    from poetopt.api.inspection import inspect
    from poetopt.api.models import Model, device, load
    from poetopt.api.on_device import emit, execute_on, fit_on, restore, train_on
    from poetopt.api.plans import execute, load_plan, simulate, train
    from poetopt.api.problems import store_all_peak_bytes
    from poetopt.api.solving import solve
    from poetopt.api.sweeps import sweep
    from poetopt.api.trainer import Trainer
    from poetopt.api.training import Training, TrainingFile
    from poetopt.api.verification import verify
    from poetopt.comparison import baselines
    from poetopt.devices import Device
    from poetopt.frontends.lora import lora, merge_lora
    from poetopt.frontends.quantizing import quantize
    from poetopt.graph import Graph, Operator, Tensor, TrainingGraph
    from poetopt.graph.problem import Problem
    from poetopt.plan.instructions import Plan
    from poetopt.report.report import Report
    from poetopt.report.show import show
    from poetopt.search.solved import add_late_rows, plan_of
    from poetopt.torch.fitting import fit
    from poetopt.util.errors import PoetError

# onnxruntime reads it when it is imported; without, it leaves a file of its own in the temporary folder.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

__all__ = [
    "Device",
    "Graph",
    "Model",
    "Operator",
    "Plan",
    "PoetError",
    "Problem",
    "Report",
    "Tensor",
    "Trainer",
    "Training",
    "TrainingFile",
    "TrainingGraph",
    "__version__",
    "add_late_rows",
    "autodiff",
    "backends",
    "baselines",
    "compare",
    "device",
    "devices",
    "emit",
    "execute",
    "execute_on",
    "fit",
    "fit_on",
    "formulations",
    "frontends",
    "inspect",
    "load",
    "load_plan",
    "lora",
    "merge_lora",
    "pareto",
    "plan",
    "plan_of",
    "quantize",
    "report",
    "restore",
    "show",
    "simulate",
    "solve",
    "store_all_peak_bytes",
    "sweep",
    "testing",
    "torch",
    "train",
    "train_on",
    "verify",
    "zoo",
]

_FOLDERS = (
    "autodiff",
    "backends",
    "devices",
    "formulations",
    "frontends",
    "plan",
    "report",
    "testing",
    "torch",
    "zoo",
)
_MODULES = {name: f"poetopt.{name}" for name in _FOLDERS} | {"baselines": "poetopt.comparison.baselines"}
_HOMES = {
    "Device": "poetopt.devices",
    "Graph": "poetopt.graph",
    "Operator": "poetopt.graph",
    "Model": "poetopt.api.models",
    "Plan": "poetopt.plan.instructions",
    "PoetError": "poetopt.util.errors",
    "Problem": "poetopt.graph.problem",
    "Report": "poetopt.report.report",
    "Tensor": "poetopt.graph",
    "Trainer": "poetopt.api.trainer",
    "Training": "poetopt.api.training",
    "TrainingFile": "poetopt.api.training",
    "TrainingGraph": "poetopt.graph",
    "add_late_rows": "poetopt.search.solved",
    "compare": "poetopt.api.comparing",
    "lora": "poetopt.frontends.lora",
    "merge_lora": "poetopt.frontends.lora",
    "quantize": "poetopt.frontends.quantizing",
    "train": "poetopt.api.plans",
    "store_all_peak_bytes": "poetopt.api.problems",
    "solve": "poetopt.api.solving",
    "simulate": "poetopt.api.plans",
    "load_plan": "poetopt.api.plans",
    "load": "poetopt.api.models",
    "execute": "poetopt.api.plans",
    "emit": "poetopt.api.on_device",
    "execute_on": "poetopt.api.on_device",
    "fit": "poetopt.torch.fitting",
    "fit_on": "poetopt.api.on_device",
    "restore": "poetopt.api.on_device",
    "train_on": "poetopt.api.on_device",
    "device": "poetopt.api.models",
    "inspect": "poetopt.api.inspection",
    "verify": "poetopt.api.verification",
    "pareto": "poetopt.api.comparing",
    "plan_of": "poetopt.search.solved",
    "show": "poetopt.report.show",
    "sweep": "poetopt.api.sweeps",
}


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return _imported(_MODULES[name])
    if name in _HOMES:
        return getattr(_imported(_HOMES[name]), name)
    raise AttributeError(f"module 'poetopt' has no attribute {name!r}")


def _imported(module: str) -> ModuleType:
    """Raises BackendUnavailableError where what solving needs isn't installed, or the system isn't supported."""
    check_system()
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        from poetopt.util import imports

        lacks = imports.told(error)
        if lacks is None:
            raise
        from poetopt.util.errors import BackendUnavailableError

        raise BackendUnavailableError(lacks) from error


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
