"""The Python interface: load, differentiate, cost, solve, simulate, execute.

    import poetopt as po
    problem = po.load("model.onnx").differentiate(loss="cross-entropy").cost(po.device("a72"))
    report = po.solve(problem, ram="40%", deadline="1.2x")
    po.execute(report)

The command line stands on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from poetopt.util.imports import loading

if TYPE_CHECKING:
    from poetopt.api.models import Model, device, load
    from poetopt.api.plans import execute, load_plan, simulate, train
    from poetopt.api.problems import store_all_peak_bytes
    from poetopt.api.solving import solve
    from poetopt.api.training import SAME_BYTES, Training, TrainingFile
    from poetopt.search.solved import add_late_rows, plan_of

__all__ = [
    "SAME_BYTES",
    "Model",
    "Training",
    "TrainingFile",
    "add_late_rows",
    "device",
    "execute",
    "load",
    "load_plan",
    "plan_of",
    "simulate",
    "solve",
    "store_all_peak_bytes",
    "train",
]

_HOMES = {
    "Model": "poetopt.api.models",
    "SAME_BYTES": "poetopt.api.training",
    "Training": "poetopt.api.training",
    "TrainingFile": "poetopt.api.training",
    "add_late_rows": "poetopt.search.solved",
    "device": "poetopt.api.models",
    "execute": "poetopt.api.plans",
    "load": "poetopt.api.models",
    "load_plan": "poetopt.api.plans",
    "plan_of": "poetopt.search.solved",
    "simulate": "poetopt.api.plans",
    "solve": "poetopt.api.solving",
    "store_all_peak_bytes": "poetopt.api.problems",
    "train": "poetopt.api.plans",
}

__getattr__ = loading(__name__, _HOMES)
