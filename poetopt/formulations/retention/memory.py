r"""Block `memory`: what is live at each instant fits the budget.

*Stage row*, while stage t's own operator runs ($W_t$ its inputs, outputs and workspace, $B$ the budget):

$$ W_t + \sum_{i:\, q^- < t < q} m_i k_{i,q} + \sum_{i \text{ has a point at } t, \text{ unread}} m_i k_{i,t^+} \le B
   \quad \text{(1g)} $$

Where the stage's own operator may stream (`streaming`), its inputs count by $h_{i,t} \ge 1 - Y^{in}_{i,t,t}$,
$h_{i,t} \ge k_{i,t^+}$, its outputs by $1 - Y^{out}_i$, and the workspace of its variant stands for its own. The first
one may stream what begins in RAM; so that has to fit, too, beside what stays there from the step before.

*Intra-stage row*, while operator j is recomputed in stage t; exact, and found by the separator where a
point violates it:

$$ w_j r_{j,t} + \sum_{i:\, q^- < t < q} m_i k_{i,q}
   + \sum_{i \in out(j)} m_i \max(r_{j,t}, k_{i,t} + p_{i,t})
   + \sum_{g(i) > j} m_i k_{i,t}
   + \sum_{g(i) < j} m_i \max(k_{i,t^+}, \max_{h \ge j,\ h \text{ reads } i} r_{h,t}) \le B $$

where the maximum is 1 for an input of the stage's own operator. What is paged in for the stage comes in where its
operator g(i) would run again, among the recomputes: a plan pages it in no sooner, as nothing before that reads it.
What has its home on storage comes in right before its first reader of the stage and leaves after its last one: with
$a = \max_{h < j} r_{h,t}$ and $z = \max(k_{i,t^+}, \max_{h > j} r_{h,t})$ over its readers, it takes
$m_i r_{j,t}$ where j reads it, $m_i \max(k_{i,t}, a)$ where the stage's own operator does, else
$m_i \max(0, z - p_{i,t}, a + z - 1)$.
Where runs may stream, so does any other i with g(i) < j: what reads it may be a later run, as those before stream it.
In these rows a streamed run doesn't read: $r_{h,t} - Y^{in}_{i,h,t}$ stands for $r_{h,t}$ where h reads i, and
$1 - Y^{in}_{i,t,t}$ for the 1 of an input of the stage's own operator that may be streamed, among the other terms.
Each maximum is linearised by the term that attains it at the point cut off: any choice is a valid row.

Where page-outs have their stages (`page_out_times`), a tensor may be there up to t only to be written as t begins, and
what comes in at t may be read by nothing there, so that it comes in as the stage's own operator runs. So for an i that
stage t's own operator doesn't read, $k_{i,t}$ in the sum over $g(i) > j$ is
$\max(0, k_{i,t^+} - c, \max_h r_{h,t} - c)$ with $c = p_{i,t} + r_{g(i),t}$, and in the sum over $g(i) < j$ the maximum
is over 0, over $k_{i,t^+} - p_{i,t}$, over $r_{h,t}$ for $h \ge j$, and over $k_{i,t^+} + r_{h,t} - 1$ for $h < j$.

| symbol | attribute | unit  | meaning                                      |
|--------|-----------|-------|----------------------------------------------|
| $m_i$  | -         | bytes | what a tensor takes of the arena (rows are in `memory_unit`s) |
| $w_j$  | -         | bytes | workspace of an operator                     |
| $h_{i,t}$ | `held` | -     | tensor i, which stage t's operator may stream, is in RAM meanwhile |

Source: Checkmate's U and FREE (Jain et al. 2020, eqs. 2-3) for a tensor that may be freed at any moment.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyomo.core as pyo

from poetopt.formulations.block import Block, PyomoBlock, PyomoRow, equation
from poetopt.formulations.figures import more_room
from poetopt.formulations.retention.instant import Instant
from poetopt.formulations.retention.space import RetentionSpace
from poetopt.formulations.retention.symbols import Symbols
from poetopt.formulations.rows import Floats, PointLike, Row, linear, total

ACTIVE = 1e-3
"""A recomputation below this value opens no intra-stage row."""
VIOLATION = 1e-6
"""A row is violated where it exceeds the budget by more than this share of it."""


def _build(block: PyomoBlock) -> None:
    model = block.model()
    space: RetentionSpace = model.space
    k = block.keep = list(model.residency.k.values())
    block.again = list(model.recompute.r.values())
    block.streamed = list(model.streaming.y.values()) if space.streams else []
    block.back = list(model.paging.p.values()) if space.paging else []
    unit, B, W = space.memory_unit, space.room_bytes, space.working_set_bytes.tolist()
    m = (space.tensor_bytes[space.point_tensor] / unit).tolist()
    spanning = _spanning(space)
    own_ways = _own_ways(block, space)
    more = more_room(model)

    def stage_row(t: int) -> PyomoRow:
        saved, ways = own_ways.get(t, (0.0, []))
        live = [*((m[e], k[e]) for e in (*spanning[t], *space.beyond(t))), *ways]
        room = (B - W[t]) / unit + saved
        if space.limits.open and not live and k:
            live = [(0.0, k[0])]  # a row all the same: a lower budget may break it
        if sum(c for c, _ in live if c > 0) <= room and not (space.limits.open and live):
            return pyo.Constraint.Skip
        return linear([total(live)]) <= room + more if live else pyo.Constraint.Infeasible

    block.spanning = spanning
    block.found = []
    block.sized = {}
    block.stage = equation(
        model.stages, stage_row, "(1g) what is live while the stage's own operator runs fits the budget [memory_unit]"
    )
    if space.streams:
        block.start = pyo.Constraint(
            rule=lambda _: _start_row(space, k), doc="what is there as the step begins fits it"
        )


def _start_row(space: RetentionSpace, k: list[Any]) -> PyomoRow:
    """The row on what begins in RAM, with what stays there from the step before: the first operator may stream it."""
    kept = np.flatnonzero(space.wrapped).tolist()
    m = space.tensor_bytes[space.point_tensor].tolist()
    room = space.room_bytes - float(space.tensor_bytes[list(space.problem.at_start)].sum())
    if not kept or sum(m[e] for e in kept) <= room:
        return pyo.Constraint.Skip
    return linear([total((m[e], k[e]) for e in kept)], space.memory_unit) <= room / space.memory_unit


def _own_ways(block: PyomoBlock, space: RetentionSpace) -> dict[int, tuple[float, list[tuple[float, Any]]]]:
    """Stage -> what its row has less than a plain run takes, as a constant; and terms for what its ways take.

    Also makes `held`: whether a tensor that the run may stream is in RAM meanwhile, as it is read there or kept on.
    """
    if not space.streams:
        return {}
    s = Symbols(block.model())
    y, pairs, unit = s.y, space.held, space.memory_unit
    block.held_pairs = pyo.Set(
        initialize=pairs, dimen=2, doc="(i, t): operator t may stream tensor i, which may be kept beyond"
    )
    block.held = pyo.Var(block.held_pairs, bounds=(0, 1))
    held = dict(zip(pairs, block.held.values(), strict=True))
    block.held_read = equation(
        block.held_pairs,
        lambda i, t: held[i, t] + s.y_in[i, t, t] >= 1,
        "what is not streamed is in RAM",
    )
    block.held_on = equation(
        block.held_pairs,
        lambda i, t: held[i, t] >= s.k[s.after[i, t]],
        "what is kept beyond is in RAM",
    )
    found: dict[int, tuple[float, list[tuple[float, Any]]]] = {}
    for t in range(len(space.problem.operators)):
        own = space.streams_of.get((t, t), [])
        if not own:
            continue
        weight = dict.fromkeys(own, 0.0)
        kept: list[tuple[float, Any]] = []
        saved = 0.0
        for i in sorted({i for n in own for i in space.stream_ways[n].streamed_in}):
            size = float(space.tensor_bytes[i])
            if (i, t) in held:
                saved += size
                kept.append((size / unit, held[i, t]))
                continue
            for n in space.streamed_in[i, t, t]:
                weight[n] -= size
        for n in own:
            way = space.stream_ways[n]
            weight[n] -= sum(float(space.tensor_bytes[i]) for i in way.streamed_out if i not in way.streamed_in)
            weight[n] += space.stream_workspace_bytes[n] - float(space.workspace_bytes[t])
        found[t] = saved / unit, [*kept, *((nbytes / unit, y[n]) for n, nbytes in weight.items())]
    return found


def _spanning(space: RetentionSpace) -> list[list[int]]:
    """For each stage, the points whose keep-interval covers it without a point of the tensor there."""
    found: list[list[int]] = [[] for _ in space.problem.operators]
    sized = (space.tensor_bytes[space.point_tensor] > 0).tolist()
    for e in range(len(sized)):
        if sized[e]:
            for t in space.spanned(e):
                found[t].append(e)
    return found


def _separate(block: PyomoBlock, point: PointLike) -> list[Row]:
    """The intra-stage rows that `point` violates."""
    room = block.model().space.room_bytes
    live = ((instant, across + instant.nbytes) for instant, across in _instants(block, point))
    rows = [one.row((nbytes - room) / room) for one, nbytes in live if nbytes > room * (1 + VIOLATION)]
    block.found += rows
    return rows


def _instants(block: PyomoBlock, point: PointLike) -> Iterator[tuple[Instant, float]]:
    """The recomputations that may break a row, each with the bytes kept across its stage without a point there.

    No tensor takes a larger share than its availability: what reads it or keeps it on takes no more. Stages in which
    all of a point's tensors fit at once are looked at no further.
    """
    model = block.model()
    space: RetentionSpace = model.space
    r, k = point[model.recompute.r], point[model.residency.k]
    p = np.zeros(len(space.point_tensor))
    if space.paging:
        p[space.page_point] = point[model.paging.p]
    y = point[model.streaming.y] if space.streams else np.zeros(0)
    across = _spanned_bytes(space, k)
    available = k + p + np.where(space.point_recompute >= 0, np.append(r, 0.0)[space.point_recompute], 0.0)
    most = across + np.bincount(
        space.point_stage,
        np.where(space.point_real, np.maximum(available, 1.0), available) * space.tensor_bytes[space.point_tensor],
        len(across),
    )
    own = np.zeros(len(across))
    np.maximum.at(own, space.recompute_stage, r * space.working_set_bytes[space.recompute_operator])
    full = (most + own)[space.recompute_stage] > space.room_bytes
    values = [share.tolist() for share in (r, k, p, y)]  # read one by one, which is slow of arrays
    for x in np.flatnonzero((r > ACTIVE) & full).tolist():
        j, t = int(space.recompute_operator[x]), int(space.recompute_stage[x])
        yield Instant(block, j, t, x, *values), float(across[t])


def _spanned_bytes(space: RetentionSpace, k: Floats) -> Floats:
    """(n_stages,) bytes kept across each stage without a point there."""
    steps = np.zeros(len(space.problem.operators) + 1)
    weight = k * space.tensor_bytes[space.point_tensor]
    np.add.at(steps, space.point_previous + 1, weight)
    np.add.at(steps, space.point_stage, -weight)
    steps[0] += weight[space.wrapped].sum()
    return np.asarray(np.cumsum(steps))


def stage_bytes(space: RetentionSpace, k: Floats, y: Floats | None = None) -> Floats:
    """(n_stages,) bytes live while each stage's own operator runs.

    k
        (n_points,) what is kept; of what its operator streams, what is kept beyond isn't counted.
    y
        (n_streams,) which runs stream.
    """
    live = _spanned_bytes(space, k)[:-1] + space.working_set_bytes
    if y is not None and space.streams:
        first = np.flatnonzero(space.streams.operator == space.streams.stage)
        np.add.at(live, space.streams.stage[first], y[first] * space.stream_less_bytes[first])
    unread = np.flatnonzero(~space.point_real & (space.point_after >= 0))
    on = space.point_after[unread]
    np.add.at(live, space.point_stage[unread], k[on] * space.tensor_bytes[space.point_tensor[unread]])
    return live


memory = Block("memory", _build, requires=("recompute", "residency"), separator=_separate)
