r"""Lateness of a step: the makespan above one pass, as a variable that blocks price or minimise.

With C the compute seconds above one pass, X the seconds on the transfer channel and $\Psi$ one pass:

$$ \begin{aligned}
   l &\ge C + X                  && \text{a device without DMA: exact at the least } l \\
   l &\ge C, \quad l \ge X - \Psi && \text{a device with DMA: at most the makespan above one pass}
   \end{aligned} $$
"""

from __future__ import annotations

import math
from typing import Any

import pyomo.core as pyo

from poetopt.formulations.block import PyomoBlock, PyomoRow, contributions
from poetopt.formulations.rows import Terms, linear, most


def lateness(block: PyomoBlock) -> Any:
    """Add the variable `late` (s, indexed by 0) and its rows to a block that collects, and return it."""
    model = block.model()
    problem = model.space.problem
    one_pass = problem.baseline_time_s
    compute = contributions(model, "compute_s")
    transfer = contributions(model, "transfer_s")
    max_late = most([*compute, *transfer])
    bounds = (0, max_late if math.isfinite(max_late) else None)
    block.late = pyo.Var(pyo.RangeSet(0, 0), bounds=bounds, doc="makespan above one pass [s]")
    late = block.late[0]
    sums = [(compute, 0.0), (transfer, one_pass)] if problem.dma else [([*compute, *transfer], 0.0)]
    scale = one_pass or 1.0  # relative to one pass, so that a tolerance means the same on every device

    def row(_: PyomoBlock, index: int) -> PyomoRow:
        parts, offset = sums[index]
        return None, linear([*parts, Terms([late], [-1.0])], scale), offset / scale

    block.not_earlier = pyo.Constraint(
        pyo.RangeSet(0, len(sums) - 1), rule=row, doc="the step ends no earlier than its computes and transfers"
    )
    return block.late
