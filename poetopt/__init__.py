"""Plans the training of a neural network on a device with too little RAM for it.

    import poetopt as po
    problem = po.load("model.onnx").differentiate(loss="cross-entropy").cost(po.device("a72"))
    report = po.solve(problem, ram="40%", deadline="1.2x")
    po.execute(report)

`poetopt.api` documents each call. Everything is imported when it is first named.
"""

# ruff: noqa: I001
from __future__ import annotations

import importlib
import os
from types import ModuleType
from typing import TYPE_CHECKING

from poetopt.util import __version__ as __version__
from poetopt.util.systems import check_system

if TYPE_CHECKING:
    from poetopt import autodiff as autodiff, backends as backends, devices as devices, formulations as formulations
    from poetopt import frontends as frontends, plan as plan, report as report, testing as testing
    from poetopt import torch as torch, zoo as zoo
    from poetopt.api.comparing import compare as compare, pareto as pareto
    from poetopt.api.inspection import inspect as inspect
    from poetopt.api.models import Model as Model, device as device, load as load
    from poetopt.api.on_device import emit as emit, execute_on as execute_on, fit_on as fit_on
    from poetopt.api.on_device import restore as restore, train_on as train_on
    from poetopt.api.plans import execute as execute, load_plan as load_plan, simulate as simulate, train as train
    from poetopt.api.problems import store_all_peak_bytes as store_all_peak_bytes
    from poetopt.api.solving import solve as solve
    from poetopt.api.sweeps import sweep as sweep
    from poetopt.api.trainer import Trainer as Trainer
    from poetopt.api.training import Training as Training, TrainingFile as TrainingFile
    from poetopt.api.verification import verify as verify
    from poetopt.comparison import baselines as baselines
    from poetopt.devices import Device as Device
    from poetopt.frontends.lora import lora as lora, merge_lora as merge_lora
    from poetopt.frontends.quantizing import quantize as quantize
    from poetopt.graph import Graph as Graph, Operator as Operator, Tensor as Tensor, TrainingGraph as TrainingGraph
    from poetopt.graph.problem import Problem as Problem
    from poetopt.plan.instructions import Plan as Plan
    from poetopt.report.report import Report as Report
    from poetopt.report.show import show as show
    from poetopt.search.solved import add_late_rows as add_late_rows, plan_of as plan_of
    from poetopt.torch.fitting import fit as fit
    from poetopt.util.errors import PoetError as PoetError

# onnxruntime reads it when it is imported; without, it leaves a file of its own in the temporary folder.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

_NAMES = {
    "poetopt": "autodiff backends devices formulations frontends plan report testing torch zoo",
    "poetopt.comparison": "baselines",
    "poetopt.api.comparing": "compare pareto",
    "poetopt.api.inspection": "inspect",
    "poetopt.api.models": "Model device load",
    "poetopt.api.on_device": "emit execute_on fit_on restore train_on",
    "poetopt.api.plans": "execute load_plan simulate train",
    "poetopt.api.problems": "store_all_peak_bytes",
    "poetopt.api.solving": "solve",
    "poetopt.api.sweeps": "sweep",
    "poetopt.api.trainer": "Trainer",
    "poetopt.api.training": "Training TrainingFile",
    "poetopt.api.verification": "verify",
    "poetopt.devices": "Device",
    "poetopt.frontends.lora": "lora merge_lora",
    "poetopt.frontends.quantizing": "quantize",
    "poetopt.graph": "Graph Operator Tensor TrainingGraph",
    "poetopt.graph.problem": "Problem",
    "poetopt.plan.instructions": "Plan",
    "poetopt.report.report": "Report",
    "poetopt.report.show": "show",
    "poetopt.search.solved": "add_late_rows plan_of",
    "poetopt.torch.fitting": "fit",
    "poetopt.util.errors": "PoetError",
}
"""The public names by the module, or the folder, that they are in."""
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}
__all__ = sorted(["__version__", *_HOMES])


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'poetopt' has no attribute {name!r}")
    if _HOMES[name] in ("poetopt", "poetopt.comparison"):
        return _imported(f"{_HOMES[name]}.{name}")
    from poetopt.util.hints import make_readable

    found: object = getattr(_imported(_HOMES[name]), name)
    make_readable(found)
    return found


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
