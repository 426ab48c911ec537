"""From what was asked to a Pyomo model: which bound of time the deadline is."""

from __future__ import annotations

from typing import Any

from poetopt.engine.solution import DeadlineModel, Options
from poetopt.formulations.language import Formulation
from poetopt.problem import Problem


def model_of(chosen: Formulation, problem: Problem, options: Options, scope: str) -> Any:
    """The model of `problem` in `scope`, with the budget and the deadline of `options`."""
    paper = options.deadline_model is DeadlineModel.PAPER
    return chosen.build(
        problem,
        ram_bytes=options.ram_bytes,
        compute_s=options.deadline_s if paper else None,
        makespan_s=None if paper else options.deadline_s,
        scope=scope,
        paging=options.paging,
        remat=options.remat,
    )
