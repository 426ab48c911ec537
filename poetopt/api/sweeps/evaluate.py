"""One point, solved in the process of a worker."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import lru_cache

from poetopt.api import Training, TrainingFile, store_all_peak_bytes
from poetopt.api.models import read
from poetopt.api.sweeps.points import ModelSpec, Point
from poetopt.comparison.compare import compare
from poetopt.comparison.rows import in_bytes
from poetopt.graph.problem import Problem
from poetopt.util.errors import PoetError
from poetopt.util.units import Factor

Value = str | int | float | None
"""What a cell of a row may hold."""
ERROR = "error"
"""The status of a point whose model or device could not be used at all."""
WHOLE_LIMIT = 0.95
"""A solve that took this share of its time limit was ended by it: another run may come further, or less far."""


def evaluate(point: Point) -> dict[str, Value]:
    """The row of a point, without its place in the sweep. What poetopt refuses is a row too, with the reason."""
    begin = time.monotonic()
    try:
        row = _row(point)
    except PoetError as error:
        row = {"status": ERROR, "reason": str(error), "solve_s": 0.0}
    solve_s = row["solve_s"]
    assert isinstance(solve_s, float)
    row["limited"] = int(solve_s >= WHOLE_LIMIT * point.settings.time_limit_s)
    return {**row, "total_s": time.monotonic() - begin}


def _row(point: Point) -> dict[str, Value]:
    problem = _problem(point.model, point.device.device)
    peak = store_all_peak_bytes(problem)
    (ram_bytes,) = in_bytes((point.ram,), peak)
    deadline = point.deadline
    deadline_s = deadline.times * problem.baseline_time_s if isinstance(deadline, Factor) else deadline
    settings = replace(point.settings, deadline_s=deadline_s)
    (found,) = compare(problem, (ram_bytes,), [point.method], settings).rows
    cells = {key: getattr(found, key) for key in found.to_dict() if key not in ("method", "beyond_scope")}
    return {
        **cells,
        "deadline_s": deadline_s,
        "operators": len(problem.operators),
        "tensors": len(problem.tensors),
        "store_all_peak_bytes": peak,
        "baseline_energy_j": problem.baseline_energy_j,
        "baseline_time_s": problem.baseline_time_s,
    }


@lru_cache(maxsize=2)
def _training(model: ModelSpec) -> Training | TrainingFile:
    loaded = read(model.model, model.options)
    return loaded.differentiate(loss=model.loss, output=model.output, straight_through=model.straight_through)


@lru_cache(maxsize=4)
def _problem(model: ModelSpec, device: str) -> Problem:
    return _training(model).cost(device)
