r"""Block `transfer_overlap`: how much of the transfers the CPU can hide at all, on a device with DMA. Only a separator.

The CPU stands still only while the channel is busy, so the makespan is $\Psi + C + X - H$: one pass, the recomputes,
the transfers, less the seconds H in which both are busy. With z a transfer that takes d seconds and moves m bytes,
$h_{z,t}$ the seconds of it during stage t's own operator, and $h'_{z,t}$ during stage t's recomputes,

$$ \begin{aligned}
   \sum_z h_{z,t} &\le \Psi_t                              && (\alpha_t) \quad \text{one channel} \\
   \sum_z h'_{z,t} &\le C_t                                && (\gamma_t) \\
   \sum_z m_z \tfrac{h_{z,t}}{\min(d_z, \Psi_t)} &\le B - U_t  && (\beta_t) \quad \text{its buffer is in RAM} \\
   \sum_t h_{z,t} + h'_{z,t} \le d_z z, \quad h_{z,t} &\le \min(d_z, \Psi_t)\, z
   \end{aligned} $$

where h is 0 where the buffer and what stage t's operator touches exceed the budget by themselves, U_t is what the stage
row of block `memory` counts, and t runs over the transfer's window: for a page-in at q of
tensor i, after the last real use of i before q (it was in RAM then, in a buffer that is gone) and before q; for a
page-out, after the operator that writes i and before its first page-in, or anywhere where i is written back. A page-out
of what is kept through stage t anyway takes no further room there.

For any multipliers $0 \le \alpha, \gamma \le 1$, $\beta \ge 0$, with $u_z$ the most that transfer z alone can make of
them (a fractional knapsack), every plan within the makespan $\mu$ satisfies

$$ \Psi + C + \sum_z (d_z - u_z)\, z
   - \sum_t ( \alpha_t \Psi_t + \gamma_t C_t + \beta_t (B - U_t) ) \le \mu. $$

*Proof.* The rows above hold of every plan: what overlaps a compute was queued before it and is freed after it, so its
whole buffer counts there, and $h / \min(d, \Psi_t) \le 1$. Weigh them with the multipliers; what is left of H is at
most $\sum_z u_z z$. The separator takes the multipliers from the linear program itself, so that no stronger row of this
form exists at the point.

Page-ins are taken at the stage where they are first read. What the row doesn't know (the order on the channel, whole
transfers) is left to the planner and to the solve loop.
"""

from __future__ import annotations

from poetopt.formulations.block import Block, PyomoBlock, Space
from poetopt.formulations.retention.overlap_program import Overlap, Windows
from poetopt.formulations.retention.space import RetentionSpace
from poetopt.formulations.rows import PointLike, Row

VIOLATION = 1e-7
"""A row that a schedule exceeds by more than this share of one pass proves it late."""
CUT = 1e-4
"""The same for what is only a cut of the relaxation: less is not worth a row."""


def _build(block: PyomoBlock) -> None:
    """No variables; the index sets that every separation needs."""
    block.windows = Windows.of(block.model().space)


def _separate(block: PyomoBlock, point: PointLike) -> list[Row]:
    """The strongest row at `point`, where it is violated."""
    model = block.model()
    space: RetentionSpace = model.space
    problem, limit = space.problem, space.limits.makespan_s
    one_pass = problem.baseline_time_s
    if limit is None or not one_pass:
        return []
    row = Overlap(model, space, block.windows, point)
    need = one_pass + float(row.again_s.sum()) + row.transfer_s - limit
    if need <= VIOLATION * one_pass or row.transfer_s <= 0:
        return []  # nothing needs to be hidden
    prices = row.prices()
    if prices is None:
        return []
    found = row.row(prices, limit, one_pass, point.integral)
    return [found] if found.violation > (VIOLATION if point.integral else CUT) else []


def _needed(space: Space) -> bool:
    # what streams takes other room than the rows count, and the channel for itself
    streams = isinstance(space, RetentionSpace) and bool(space.streams)
    return space.paging and space.problem.dma and space.limits.makespan_s is not None and not streams


transfer_overlap = Block(
    "transfer_overlap",
    _build,
    requires=("recompute", "paging", "residency", "memory"),
    separator=_separate,
    when=_needed,
)
