r"""Block `deadline`: the step ends in time.

With C the compute seconds above one pass, X the seconds on the transfer channel and $\Psi$ one pass:

$$ \begin{aligned}
   \Psi + C &\le \mu        && \text{(1h) the paper's model (eq. 3)} \\
   \Psi + C + X &\le \mu    && \text{the makespan of a device without DMA, exact} \\
   \Psi + C \le \mu,\quad X &\le \mu && \text{necessary for the makespan of a device with DMA} \\
   \Psi + C + (1 - h) X &\le \mu && \text{if at most the share h of the transfers counts as hidden}
   \end{aligned} $$

The last row isn't part of the deadline: the solve loop tightens the model with it. With $h = 0$ every order of the
transfers is in time. The simulator decides how much of the transfers DMA can hide.

Source: eq. 3 of the paper; the makespan is that of the simulator.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyomo.core as pyo

from poetopt.formulations.block import Block, PyomoBlock, Space, at_most, contributions, equation
from poetopt.formulations.figures import figures
from poetopt.formulations.rows import Terms


def _needed(space: Space) -> bool:
    return space.limits.compute_s is not None or space.limits.makespan_s is not None


def _build(block: PyomoBlock) -> None:
    model = block.model()
    limits, problem = model.space.limits, model.space.problem
    one_pass, scale, deadline_s = problem.baseline_time_s, problem.baseline_time_s or 1.0, limits.makespan_s
    if limits.open:
        from poetopt.formulations.parameters import S

        one_pass = sum(figures(model, "compute_s"))
        if problem.closing is not None:
            one_pass += problem.closing.baseline_time_s * S
        scale, deadline_s = scale * S, model.deadline_s
    compute = contributions(model, "compute_s")
    transfer = contributions(model, "transfer_s")
    rows: list[tuple[Sequence[Terms], Any]] = []
    if limits.compute_s is not None:
        rows.append((compute, (deadline_s if limits.open else limits.compute_s) - one_pass))
    if limits.makespan_s is not None:
        if problem.dma:
            rows += [(compute, deadline_s - one_pass), (transfer, deadline_s)]
            if limits.hidden_share < 1:
                unhidden = [
                    Terms(part.variables, [(1 - limits.hidden_share) * c for c in part.coefficients])
                    for part in transfer
                ]
                rows.append(([*compute, *unhidden], deadline_s - one_pass))
        else:
            rows.append(([*compute, *transfer], deadline_s - one_pass))

    # relative to one pass, so that a tolerance means the same on every device
    block.within = equation(
        pyo.RangeSet(0, len(rows) - 1), lambda index: at_most(*rows[index], scale), "(1h) the step ends in time"
    )


deadline = Block("deadline", _build, when=_needed, collects=True)
