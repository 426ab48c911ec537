r"""Block `residency`: what is in RAM at each point of each tensor's life.

With the availability $a_{i,q} = k_{i,q} + r_{g(i),q} + p_{i,q}$, where g(i) writes i and q^- is the
previous point of i (a = 1 at the producer's own stage):

$$ \begin{aligned}
   a_{i,q} &\ge 1              && \text{(1b) stage q's own operator reads i} \\
   k_{i,q} &\le a_{i,q^-}      && \text{(1c) only what was there can be kept} \\
   r_{j,q} &\le a_{i,q}        && \text{(1b) for each input i of j} \\
   a_{i,q} &\le 1              && \text{making what is there is wasteful} \\
   p_{i,q} &\le k_{i,q^+} + \sum_{j \text{ reads } i} r_{j,q} && \text{stage q's own operator doesn't read i}
   \end{aligned} $$

The life of a parameter whose home is storage is a circle: $q^-$ of its first point is its last one, in the step
before, so that a schedule can be repeated. It has no r, as no operator makes it, and no reader of it runs again after
its update.

The last row holds for an operator with one output; one with several may be recomputed for one output
while another is resident (and overwritten in place), so there it is $k_{i,q} + p_{i,q} \le 1$. The rows on p stand
where a page-in costs nothing in what is minimised: elsewhere none is for nothing, and no row on memory sees one.

| symbol      | attribute | unit | meaning                                                   |
|-------------|-----------|------|-----------------------------------------------------------|
| $k_{i,q}$   | `k`       | -    | tensor i stays in RAM from its previous point through q   |

Source: the paper's 1b and 1c, with S_ram aggregated over the stages between two points.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyomo.environ as pyo
from pyomo.core.expr.numeric_expr import LinearExpression, MonomialTermExpression

from poetopt.formulations.block import Block, PyomoBlock, PyomoRow, in_order
from poetopt.formulations.goal import ENERGY
from poetopt.formulations.retention.space import RetentionSpace
from poetopt.formulations.rows import Count

Terms = dict[int, list[MonomialTermExpression]]
"""By point."""


def build(block: PyomoBlock, *, exclusive: bool = True) -> None:
    """Fill the block. `exclusive`: whether nothing may be made that is there."""
    model = block.model()
    space: RetentionSpace = model.space
    n = len(space.point_tensor)
    block.k = pyo.Var(model.points, domain=pyo.Binary)
    k = list(block.k.values())
    r = list(model.recompute.r.values())
    p = list(model.paging.p.values()) if space.paging else []
    recompute_of_point = space.point_recompute.tolist()
    page_of_point = space.page_index.tolist()
    available = []
    for e in range(n):
        made = [k[e]]
        if recompute_of_point[e] >= 0:
            made.append(r[recompute_of_point[e]])
        if page_of_point[e] >= 0:
            made.append(p[page_of_point[e]])
        available.append(made)
    # terms are shared among rows: an expression is never changed
    ones = [[_times(1, variable) for variable in made] for made in available]
    taken = [[_times(-1, variable) for variable in made] for made in available]

    real = space.point_real.tolist()
    before, after = space.point_before.tolist(), space.point_after.tolist()
    missing = (space.point_first & space.stored[space.point_tensor] & ~space.wrapped).tolist()
    tensor = space.point_tensor.tolist()
    single = [
        not made.computed or len(space.problem.operators[made.producer].outputs) == 1 for made in space.problem.tensors
    ]

    y = list(model.streaming.y.values()) if space.streams else []
    # by point: what streams the tensor in for the stage's own operator, and what had left it on storage alone before
    streamed = {
        space.point_of[i, t]: [_times(1, y[n]) for n in own] for (i, j, t), own in space.streamed_in.items() if j == t
    }
    gone = {
        after_run: [_times(1, y[n]) for n in own]
        for i, own in space.streamed_out.items()
        if (after_run := next_point(space, i)) >= 0
    }

    def occupancy(_: PyomoBlock, e: int) -> PyomoRow:
        made = ones[e]
        lower: int | None = 1 if real[e] else None
        if e in streamed:  # or streamed in: a row below
            lower = None
        upper: int | None = 1 if exclusive else None
        if exclusive and recompute_of_point[e] >= 0 and not single[tensor[e]]:
            if lower is not None:
                upper = None
            else:
                made = [made[0], *made[2:]]  # all but r
        if lower is None:
            return LinearExpression(made) <= 1 if exclusive and len(made) > 1 else pyo.Constraint.Skip
        return lower, LinearExpression(made), upper

    def continuity(_: PyomoBlock, e: int) -> PyomoRow:
        if before[e] < 0 and e in gone:  # its first run may stream it out
            return LinearExpression([ones[e][0], *gone[e]]) <= 1
        if before[e] < 0:
            # what storage holds alone isn't there when the step begins
            return ones[e][0] <= 0 if missing[e] else pyo.Constraint.Skip
        return LinearExpression([ones[e][0], *taken[before[e]]]) <= 0

    block.occupancy = pyo.Constraint(
        model.points,
        rule=in_order(occupancy),
        doc="(1b) what a stage's own operator reads is there; nothing is made twice",
    )
    block.continuity = pyo.Constraint(
        model.points, rule=in_order(continuity), doc="(1c) only what was there can be kept"
    )

    if space.streams:
        _streamed(block, streamed, ones, gone)

    needs = [
        (x, space.point_of[i, t])
        for x, (j, t) in enumerate(zip(space.recompute_operator.tolist(), space.recompute_stage.tolist(), strict=True))
        for i in space.problem.operators[j].inputs
        if space.problem.tensors[i].nbytes
    ]

    again = [_times(1, variable) for variable in r]

    def dependence(_: PyomoBlock, index: int) -> PyomoRow:
        x, e = needs[index]
        run = (tensor[e], int(space.recompute_operator[x]), int(space.recompute_stage[x]))
        elsewhere = [_times(-1, y[n]) for n in space.streamed_in.get(run, ())]
        return LinearExpression([again[x], *taken[e], *elsewhere]) <= 0

    recomputations, names, at = space.recomputations, space.tensor_names, tensor
    block.reads = pyo.Set(
        initialize=[(*recomputations[x], names[at[e]]) for x, e in needs],
        dimen=3,
        doc="(operator, stage, tensor): the recomputed operator reads the tensor",
    )
    block.dependence = pyo.Constraint(
        block.reads, rule=in_order(dependence), doc="(1b) what a recomputed operator reads is there"
    )
    free = model.goal is not ENERGY or space.limits.open
    idle = _idle_page_ins(space, streamed, free=free) if exclusive else []

    def purpose(_: PyomoBlock, index: int) -> PyomoRow:
        e = idle[index]
        i, t = tensor[e], int(space.point_stage[e])
        used = [ones[after[e]][0]] if after[e] >= 0 else []
        for h in space.problem.readers[i]:
            x = space.recompute_of.get((h, t))
            if x is not None:
                used += [again[x], *(_times(-1, y[n]) for n in space.streamed_in.get((i, h, t), ()))]
        if e in streamed:  # the stage's own operator reads it, unless it streams it
            used += [_times(-1, y[n]) for n in space.streamed_in[i, t, t]]
        return LinearExpression([_times(-1, p[page_of_point[e]]), *used]) >= (-1 if e in streamed else 0)

    block.idle = pyo.Set(
        initialize=[space.points[e] for e in idle], dimen=2, doc="(tensor, stage): page-ins that may be for nothing"
    )
    block.purpose = pyo.Constraint(block.idle, rule=in_order(purpose), doc="what is paged in is kept or read")


def next_point(space: RetentionSpace, i: int) -> int:
    """The point up to which a tensor isn't kept where its first run, or its update, streams it out; -1: none."""
    first, last = space.tensor_range[i]
    update = space.problem.tensors[i].updated_by
    if update < 0:
        return first if first < last else -1
    return int(space.point_after[space.point_of[i, update]])


def _streamed(block: PyomoBlock, streamed: Terms, ones: list[list[Any]], gone: Terms) -> None:
    """The rows of `streaming` on what is in RAM."""
    space: RetentionSpace = block.model().space
    reads, lost = list(streamed), [e for e in gone if space.point_before[e] >= 0]

    def there_or_streamed(_: PyomoBlock, n: int) -> PyomoRow:
        return 1, LinearExpression([*ones[reads[n]], *streamed[reads[n]]]), None

    def not_kept(_: PyomoBlock, n: int) -> PyomoRow:
        return LinearExpression([ones[lost[n]][0], *gone[lost[n]]]) <= 1

    block.there_or_streamed = pyo.Constraint(
        [space.points[e] for e in reads],
        rule=in_order(there_or_streamed),
        doc="what a stage's own operator reads is in RAM, or streamed in",
    )
    block.not_kept = pyo.Constraint(
        [space.points[e] for e in lost], rule=in_order(not_kept), doc="what was streamed out isn't in RAM"
    )


def _idle_page_ins(space: RetentionSpace, streamed: Terms, *, free: bool) -> list[int]:
    """The points at which a page-in costs nothing and may be for nothing.

    free
        Whether all cost nothing, as something other than energy is minimised.
    """
    return [
        e
        for e in space.page_point.tolist()
        if (not space.point_real[e] or e in streamed)
        and (free or space.problem.tensors[int(space.point_tensor[e])].page_in_j <= 0)
    ]


def _times(coefficient: int, variable: object) -> MonomialTermExpression:
    return MonomialTermExpression((coefficient, variable))


def _counts(block: PyomoBlock) -> list[Count]:
    """How many tensors of one size are kept in each stage: which of them seldom matters as much."""
    space = block.model().space
    size = space.tensor_bytes[space.point_tensor]
    found = []
    for nbytes in np.unique(size):
        entries = np.flatnonzero(size == nbytes)
        begin, end, wrapped = space.point_previous[entries], space.point_stage[entries], space.wrapped[entries]
        for stage in range(len(space.problem.operators)):
            after, until = begin < stage, stage <= end
            kept = entries[np.where(wrapped, after | until, after & until)]
            if len(kept) > 1:
                found.append(Count(block.k, kept, float(nbytes)))
    return found


residency = Block("residency", build, requires=("recompute",), counts=_counts)
