r"""Block `residency`: tensors in RAM at each point of their lives.

The availability is $a_{i,q} = k_{i,q} + r_{g(i),q} + p_{i,q}$, where g(i) writes i and q^- is the previous point of i
(a = 1 at the producer's own stage):

$$ \begin{aligned}
   a_{i,q} &\ge 1              && \text{(1b) stage q's own operator reads i} \\
   k_{i,q} &\le a_{i,q^-}      && \text{(1c) only a tensor that was there can be kept} \\
   r_{j,q} &\le a_{i,q}        && \text{(1b) for each input i of j} \\
   a_{i,q} &\le 1              && \text{making a tensor that is there is wasteful} \\
   p_{i,q} &\le k_{i,q^+} + \sum_{j \text{ reads } i} r_{j,q} && \text{stage q's own operator doesn't read i}
   \end{aligned} $$

The life of a parameter whose home is storage is a circle: $q^-$ of its first point is its last point, in the step
before, so that a schedule can be repeated. It has no r, as no operator makes it, and no reader of it runs again after
its update.

The row $a_{i,q} \le 1$ holds for an operator with one output. An operator with several outputs may be recomputed for
one output while another is resident (and overwritten in place), so there the row is $k_{i,q} + p_{i,q} \le 1$. The rows
on p exist only if a page-in costs nothing in the objective: otherwise no optimum has a page-in without use, and no row
on memory sees one.

| symbol      | attribute | unit | meaning                                                   |
|-------------|-----------|------|-----------------------------------------------------------|
| $k_{i,q}$   | `k`       | -    | tensor i stays in RAM from its previous point through q   |

Source: the paper's 1b and 1c, with S_ram aggregated over the stages between two points.
"""

from __future__ import annotations

import pyomo.core as pyo

from poetopt.formulations.block import Block, Kind, PyomoBlock, PyomoRow, equation
from poetopt.formulations.goal import ENERGY
from poetopt.formulations.retention.space import RetentionSpace
from poetopt.formulations.retention.symbols import Symbols


def _build(block: PyomoBlock) -> None:
    model = block.model()
    space: RetentionSpace = model.space
    exclusive = space.kind is not Kind.SHADOW  # a plan may recompute a tensor that is in RAM
    problem, points = space.problem, space.point_of
    block.k = pyo.Var(model.points, domain=pyo.Binary)
    s = Symbols(model)
    k, r, p, y_in, y_out, a, before, after = s.k, s.r, s.p, s.y_in, s.y_out, s.a, s.before, s.after
    real = {point for point, is_real in zip(points, space.point_real.tolist(), strict=True) if is_real}
    missing = (space.point_first & space.stored[space.point_tensor] & ~space.wrapped).tolist()
    single = [not tensor.computed or len(problem.operators[tensor.producer].outputs) == 1 for tensor in problem.tensors]
    names = list(points)
    streamed_away = {names[e]: i for i in space.streamed_out if (e := next_point(space, i)) >= 0}
    """(i, q) before which the first run of i's operator, or its update, may have left it only on storage."""

    def occupancy(i: int, q: int) -> PyomoRow:
        several = exclusive and (s.producer[i], q) in r and not single[i]
        if (i, q) in real and (i, q, q) not in y_in:
            return a(i, q) == 1 if exclusive and not several else a(i, q) >= 1
        if not exclusive or ((s.producer[i], q) not in r and (i, q) not in p) or (several and (i, q) not in p):
            return pyo.Constraint.Skip
        return k[i, q] + p[i, q] <= 1 if several else a(i, q) <= 1

    def continuity(i: int, q: int) -> PyomoRow:
        if (i, q) in before:
            return k[i, q] <= a(*before[i, q])
        if (i, q) in streamed_away:
            return k[i, q] + y_out[i] <= 1
        # a tensor that is only on storage isn't in RAM when the step begins
        return k[i, q] <= 0 if missing[points[i, q]] else pyo.Constraint.Skip

    block.occupancy = equation(
        model.points, occupancy, "(1b) inputs of a stage's own operator are there; nothing is made twice"
    )
    block.continuity = equation(model.points, continuity, "(1c) only a tensor that was there can be kept")
    if space.streams:
        streamable = [point for point in points if (*point, point[1]) in y_in]
        block.there_or_streamed = equation(
            streamable,
            lambda i, q: a(i, q) + y_in[i, q, q] >= 1,
            "inputs of a stage's own operator are in RAM, or streamed in",
        )
        lost = [at for at in streamed_away if at in before]
        block.not_kept = equation(
            lost,
            lambda i, q: k[i, q] + y_out[i] <= 1,
            "a tensor that was streamed out isn't in RAM",
        )
    reads = [(j, t, i) for j, t in space.recompute_of for i in problem.operators[j].inputs if problem.tensors[i].nbytes]
    block.reads = pyo.Set(
        initialize=reads, dimen=3, doc="(j, t, i): operator j, which may run again in stage t, reads tensor i"
    )
    block.dependence = equation(
        block.reads,
        lambda j, t, i: r[j, t] - y_in[i, j, t] <= a(i, t),
        "(1b) inputs of a recomputed operator are there",
    )
    free = model.goal is not ENERGY or space.limits.open  # page-ins may cost nothing in the objective
    idle = [
        (i, q)
        for i, q in p
        if exclusive and ((i, q) not in real or (i, q, q) in y_in) and (free or problem.tensors[i].page_in_j <= 0)
    ]

    def purpose(i: int, q: int) -> PyomoRow:
        reading = sum(r[h, q] - y_in[i, h, q] for h in problem.readers[i] if (h, q) in r)
        read_by_stage = 1 - y_in[i, q, q] if (i, q) in real else 0
        return p[i, q] <= k[after.get((i, q))] + reading + read_by_stage

    block.idle = pyo.Set(initialize=idle, dimen=2, doc="(i, q): tensor i may be paged in at stage q at no cost")
    block.purpose = equation(block.idle, purpose, "a tensor that is paged in is kept or read")


def next_point(space: RetentionSpace, i: int) -> int:
    """Return the point up to which tensor i isn't kept if its first run or its update streams it out; -1 if none."""
    first, last = space.tensor_range[i]
    update = space.problem.tensors[i].updated_by
    if update < 0:
        return first if first < last else -1
    return int(space.point_after[space.point_of[i, update]])


residency = Block("residency", _build, requires=("recompute",))
