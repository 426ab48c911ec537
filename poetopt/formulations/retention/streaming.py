r"""Block `streaming`: runs that stream operands from storage, or outputs to it, chunk by chunk, by variant.

A run (j, t) is the first one of its operator (t = j) or a recompute. For each of its variants v besides the plain run,

$$ y_{j,t,v} \in \{0, 1\}, \qquad \sum_v y_{t,t,v} \le 1 \text{ (= 1 if the plain run doesn't fit)}, \qquad
   \sum_v y_{j,t,v} \le r_{j,t} $$
$$ E = \sum_{j,t,v} (\Phi_v - \Phi_j)\, y_{j,t,v}, \qquad T = \sum_{j,t,v} (\Psi_v - \Psi_j)\, y_{j,t,v} $$

Let $Y^{in}_{i,j,t}$ be the sum over the variants that read tensor i from storage. Let $Y^{out}_i$ be the sum over those
that leave it there and not in RAM (first runs of its operator, or its update). The other blocks then have

$$ \begin{aligned}
   a_{i,t} + Y^{in}_{i,t,t} &\ge 1      && \text{inputs of a stage's own operator are in RAM, or streamed} \\
   r_{j,t} - Y^{in}_{i,j,t} &\le a_{i,t} && \text{likewise for a recompute} \\
   Y^{in}_{i,j,t},\ p_{i,q} &\le o_i + Y^{out}_i && \text{a tensor that is streamed in or paged in is on storage} \\
   k_{i,q} &\le 1 - Y^{out}_i          && \text{at the point after it, a tensor that was streamed out isn't in RAM}
   \end{aligned} $$

and in stage t's memory row (`memory`) a run by v takes the tensors that v doesn't stream, and the workspace of v.

| symbol        | attribute | unit | meaning                                                     |
|---------------|-----------|------|-------------------------------------------------------------|
| $y_{j,t,v}$   | `y`       | -    | the run of operator j in stage t uses its variant v         |
| $\Phi_v$      | -         | J    | energy of a run by variant v, its transfers included        |
| $\Psi_v$      | -         | s    | time of such a run                                          |

*Separation.* A tensor that is kept across a stage leaves room for only some of the stage's variants. With $W_v$ the
bytes that a run by v takes of the budget B, plain or not, the rows

$$ k_{i,q} \le \sum_{v:\ W_v + m_i \le B} y_{t,t,v}, \qquad y_{t,t,0} := 1 - \sum_v y_{t,t,v} $$

hold for each interval that spans t. The separator finds those that a point violates.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyomo.core as pyo

from poetopt.formulations.block import Block, PyomoBlock, PyomoRow, Space, equation
from poetopt.formulations.retention.space import RetentionSpace
from poetopt.formulations.retention.symbols import Symbols
from poetopt.formulations.rows import PointLike, Row, terms
from poetopt.graph.problem.problem import run_bytes


class Room(NamedTuple):
    """Key of a row on room: the stage, and the point whose interval spans it."""

    stage: int
    point: int


MIN_VIOLATION = 0.02
"""Smallest violation for which a row is added."""
ROWS_PER_ROUND = 500
"""Largest number of rows in a round, the most violated first."""


def _build(block: PyomoBlock) -> None:
    model = block.model()
    space: RetentionSpace = model.space
    operators, streams = space.problem.operators, space.streams
    runs = zip(streams.operator.tolist(), streams.stage.tolist(), streams.variant.tolist(), strict=True)
    block.runs = pyo.Set(initialize=list(runs), dimen=3, doc="(j, t, v): operator j may run by variant v in stage t")
    block.y = pyo.Var(block.runs, domain=pyo.Binary)
    y, r = list(block.y.values()), Symbols(model).r
    room = space.room_bytes
    # a memory row alone would let a relaxation take a small share of the plain run
    forced = {j for j, t in space.streams_of if j == t and space.working_set_bytes[j] > room and not space.limits.open}

    def one_way(j: int, t: int) -> PyomoRow:
        share = sum(y[n] for n in space.streams_of[j, t])
        if j != t:
            return share <= r[j, t]
        return share == 1 if t in forced else share <= 1

    block.one_way = equation(list(space.streams_of), one_way, "a run uses one variant")
    variants = space.stream_ways
    plain = [operators[j] for j in streams.operator.tolist()]
    more_j = np.array([variant.energy_j - operator.energy_j for variant, operator in zip(variants, plain, strict=True)])
    more_s = np.array([variant.time_s - operator.time_s for variant, operator in zip(variants, plain, strict=True)])
    parts = space.problem.parts
    written = np.array([float(parts * variant.written_bytes) for variant in variants])
    block.energy_j = terms(block.y, more_j)
    block.compute_s = terms(block.y, more_s)
    block.written_bytes = terms(block.y, written)
    block.tight = None


def _separate(block: PyomoBlock, point: PointLike) -> list[Row]:
    """Return rows on tensors kept across a stage by more than the share of variants that leave room for them."""
    if point.integral:
        return []
    model = block.model()
    if block.tight is None:
        block.tight = _stages_with_short_room(model)
    y, k = point[block.y], point[model.residency.k]
    violated = []
    for t, kept, room_of in block.tight:
        runs = model.space.streams_of[t, t]
        plain = max(0.0, 1.0 - float(y[runs].sum()))
        for e, fitting in zip(kept, room_of, strict=True):
            if k[e] > MIN_VIOLATION:
                with_room = float(y[[n for n in fitting if n >= 0]].sum()) + (plain if -1 in fitting else 0.0)
                if k[e] > with_room + MIN_VIOLATION:
                    violated.append((float(k[e] - with_room), t, e, fitting))
    violated.sort(key=lambda row: (-row[0], row[1:3]))
    return [_room_row(block, t, e, fitting, violation) for violation, t, e, fitting in violated[:ROWS_PER_ROUND]]


def _stages_with_short_room(model: PyomoBlock) -> list[tuple[int, list[int], list[tuple[int, ...]]]]:
    """Return (stage, intervals across it, for each the runs with room for it; -1: plain) if some run has no room."""
    space: RetentionSpace = model.space
    stages = []
    for t in range(len(space.problem.operators)):
        runs = space.streams_of.get((t, t))
        if not runs:
            continue
        run_sizes = [(-1, run_bytes(space.problem, t))]
        run_sizes += [(n, run_bytes(space.problem, t, int(space.streams.variant[n]))) for n in runs]
        kept, rooms = [], []
        for e in model.memory.spanning[t]:
            size = space.tensor_bytes[space.point_tensor[e]]
            fitting = tuple(n for n, nbytes in run_sizes if nbytes + size <= space.room_bytes)
            if len(fitting) < len(run_sizes):
                kept.append(e)
                rooms.append(fitting)
        if kept:
            stages.append((t, kept, rooms))
    return stages


def _room_row(block: PyomoBlock, t: int, e: int, fitting: tuple[int, ...], violation: float) -> Row:
    model = block.model()
    y = list(block.y.values())
    runs = model.space.streams_of[t, t]
    k = list(model.residency.k.values())[e]
    if -1 in fitting:  # the share of the plain run is 1 minus that of the others
        others = [n for n in runs if n not in fitting]
        ones = [1.0] * (len(others) + 1)
        return Row([k, *(y[n] for n in others)], ones, -np.inf, 1.0, violation, "room", key=Room(t, e))
    variables = [k, *(y[n] for n in fitting)]
    return Row(variables, [1.0, *[-1.0] * len(fitting)], -np.inf, 0.0, violation, "room", key=Room(t, e))


def _has_streams(space: Space) -> bool:
    return isinstance(space, RetentionSpace) and bool(space.streams)


streaming = Block("streaming", _build, requires=("recompute",), separator=_separate, when=_has_streams)
