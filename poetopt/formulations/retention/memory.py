r"""Block `memory`: live bytes at each instant fit the budget.

*Stage row*, while stage t's own operator runs ($W_t$ its inputs, outputs and workspace, $B$ the budget):

$$ W_t + \sum_{i:\, q^- < t < q} m_i k_{i,q} + \sum_{i \text{ has a point at } t, \text{ unread}} m_i k_{i,t^+} \le B
   \quad \text{(1g)} $$

If the stage's own operator may stream (`streaming`), its inputs count by $h_{i,t} \ge 1 - Y^{in}_{i,t,t}$,
$h_{i,t} \ge k_{i,t^+}$, its outputs by $1 - Y^{out}_i$, and the workspace of its variant replaces its own. The first
operator may stream tensors that begin in RAM. So those have to fit too, together with the tensors that stay in RAM from
the step before.

*Intra-stage row*, while operator j is recomputed in stage t. It is exact. The separator adds it if a point violates it:

$$ w_j r_{j,t} + \sum_{i:\, q^- < t < q} m_i k_{i,q}
   + \sum_{i \in out(j)} m_i \max(r_{j,t}, k_{i,t} + p_{i,t})
   + \sum_{g(i) > j} m_i k_{i,t}
   + \sum_{g(i) < j} m_i \max(k_{i,t^+}, \max_{h \ge j,\ h \text{ reads } i} r_{h,t}) \le B $$

where the maximum is 1 for an input of the stage's own operator. A tensor that is paged in for the stage comes in among
the recomputes, at the place where its operator g(i) would run again. A plan pages it in no sooner, as nothing before
that reads it.

A tensor whose home is storage comes in right before its first reader of the stage and leaves after its last one. With
$a = \max_{h < j} r_{h,t}$ and $z = \max(k_{i,t^+}, \max_{h > j} r_{h,t})$ over its readers, it takes $m_i r_{j,t}$ if j
reads it, $m_i \max(k_{i,t}, a)$ if the stage's own operator does, and otherwise $m_i \max(0, z - p_{i,t}, a + z - 1)$.

If runs may stream, the same terms hold for any other i with g(i) < j: its reader may be a later run, because the
earlier runs stream it. In these rows a streamed run doesn't read. So $r_{h,t} - Y^{in}_{i,h,t}$ replaces $r_{h,t}$ if h
reads i. For an input of the stage's own operator that may be streamed, $1 - Y^{in}_{i,t,t}$ replaces the 1, among the
other terms. Each maximum is linearised by the term that attains it at the violating point: any choice is a valid row.

If page-outs have stages (`page_out_times`), a tensor may be there up to t only to be written when t begins. A tensor
that comes in at t may have no reader there, and then comes in while the stage's own operator runs. So consider an i
that stage t's own operator doesn't read. In the sum over $g(i) > j$, $k_{i,t}$ is replaced by
$\max(0, k_{i,t^+} - c, \max_h r_{h,t} - c)$ with $c = p_{i,t} + r_{g(i),t}$. In the sum over $g(i) < j$ the maximum is
over 0, over $k_{i,t^+} - p_{i,t}$, over $r_{h,t}$ for $h \ge j$, and over $k_{i,t^+} + r_{h,t} - 1$ for $h < j$.

| symbol | attribute | unit  | meaning                                      |
|--------|-----------|-------|----------------------------------------------|
| $m_i$  | -         | bytes | size of a tensor in the arena (rows are in `memory_unit`s) |
| $w_j$  | -         | bytes | workspace of an operator                     |
| $h_{i,t}$ | `held` | -     | tensor i, which stage t's operator may stream, is in RAM during it |

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
"""Smallest value of a recomputation for which its intra-stage row is checked."""
VIOLATION = 1e-6
"""Least violation of a row, as a share of the budget."""


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
    variant_terms = _add_variant_terms(block, space)
    param_difference = more_room(model)

    def stage_row(t: int) -> PyomoRow:
        saved, streamed = variant_terms.get(t, (0.0, []))
        live = [*((m[e], k[e]) for e in (*spanning[t], *space.kept_beyond(t))), *streamed]
        room = (B - W[t]) / unit + saved
        if space.limits.open and not live and k:
            live = [(0.0, k[0])]  # the row must exist, because a lower budget may violate it
        if sum(c for c, _ in live if c > 0) <= room and not (space.limits.open and live):
            return pyo.Constraint.Skip
        return linear([total(live)]) <= room + param_difference if live else pyo.Constraint.Infeasible

    block.spanning = spanning
    block.found = []
    block.sized = {}
    block.stage = equation(
        model.stages, stage_row, "(1g) live bytes while the stage's own operator runs fit the budget [memory_unit]"
    )
    if space.streams:
        block.start = pyo.Constraint(
            rule=lambda _: _start_row(space, k), doc="tensors in RAM when the step begins fit the budget"
        )


def _start_row(space: RetentionSpace, k: list[Any]) -> PyomoRow:
    """Return the row on tensors that begin or stay in RAM, which the first operator's row may not count."""
    kept = np.flatnonzero(space.wrapped).tolist()
    m = space.tensor_bytes[space.point_tensor].tolist()
    room = space.room_bytes - float(space.tensor_bytes[list(space.problem.at_start)].sum())
    if not kept or sum(m[e] for e in kept) <= room:
        return pyo.Constraint.Skip
    return linear([total((m[e], k[e]) for e in kept)], space.memory_unit) <= room / space.memory_unit


def _add_variant_terms(block: PyomoBlock, space: RetentionSpace) -> dict[int, tuple[float, list[tuple[float, Any]]]]:
    """Return for each stage the constant that its row has less than a plain run, and the terms of its variants.

    This also adds the variable `held`: whether a tensor that the run may stream is in RAM, because the run reads it
    there or it is kept beyond.
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
        "a tensor that is not streamed is in RAM",
    )
    block.held_on = equation(
        block.held_pairs,
        lambda i, t: held[i, t] >= s.k[s.after[i, t]],
        "a tensor that is kept beyond is in RAM",
    )
    terms_of: dict[int, tuple[float, list[tuple[float, Any]]]] = {}
    for t in range(len(space.problem.operators)):
        runs = space.streams_of.get((t, t), [])
        if not runs:
            continue
        weight = dict.fromkeys(runs, 0.0)
        kept: list[tuple[float, Any]] = []
        saved = 0.0
        for i in sorted({i for n in runs for i in space.stream_ways[n].streamed_in}):
            size = float(space.tensor_bytes[i])
            if (i, t) in held:
                saved += size
                kept.append((size / unit, held[i, t]))
                continue
            for n in space.streamed_in[i, t, t]:
                weight[n] -= size
        for n in runs:
            variant = space.stream_ways[n]
            weight[n] -= sum(float(space.tensor_bytes[i]) for i in variant.streamed_out if i not in variant.streamed_in)
            weight[n] += space.stream_workspace_bytes[n] - float(space.workspace_bytes[t])
        terms_of[t] = saved / unit, [*kept, *((nbytes / unit, y[n]) for n, nbytes in weight.items())]
    return terms_of


def _spanning(space: RetentionSpace) -> list[list[int]]:
    """Return for each stage the points whose keep-interval covers it without a point of the tensor there."""
    points_across: list[list[int]] = [[] for _ in space.problem.operators]
    sized = (space.tensor_bytes[space.point_tensor] > 0).tolist()
    for e in range(len(sized)):
        if sized[e]:
            for t in space.spanned(e):
                points_across[t].append(e)
    return points_across


def _separate(block: PyomoBlock, point: PointLike) -> list[Row]:
    """Return the intra-stage rows that `point` violates."""
    room = block.model().space.room_bytes
    live = ((instant, across + instant.nbytes) for instant, across in _candidate_rows(block, point))
    rows = [one.row((nbytes - room) / room) for one, nbytes in live if nbytes > room * (1 + VIOLATION)]
    block.found += rows
    return rows


def _candidate_rows(block: PyomoBlock, point: PointLike) -> Iterator[tuple[Instant, float]]:
    """Yield the recomputations that may violate a row, each with the bytes kept across its stage without a point there.

    No tensor has a larger share than its availability, because its readers and its keep-interval have none. So stages
    in which all of a point's tensors fit at once are skipped.
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
    upper_bound = across + np.bincount(
        space.point_stage,
        np.where(space.point_real, np.maximum(available, 1.0), available) * space.tensor_bytes[space.point_tensor],
        len(across),
    )
    recompute_bytes = np.zeros(len(across))
    np.maximum.at(recompute_bytes, space.recompute_stage, r * space.working_set_bytes[space.recompute_operator])
    may_exceed = (upper_bound + recompute_bytes)[space.recompute_stage] > space.room_bytes
    values = [share.tolist() for share in (r, k, p, y)]  # lists, because reading array entries one by one is slow
    for x in np.flatnonzero((r > ACTIVE) & may_exceed).tolist():
        j, t = int(space.recompute_operator[x]), int(space.recompute_stage[x])
        yield Instant(block, j, t, x, *values), float(across[t])


def _spanned_bytes(space: RetentionSpace, k: Floats) -> Floats:
    """Return (n_stages,) bytes kept across each stage without a point there."""
    steps = np.zeros(len(space.problem.operators) + 1)
    weight = k * space.tensor_bytes[space.point_tensor]
    np.add.at(steps, space.point_previous + 1, weight)
    np.add.at(steps, space.point_stage, -weight)
    steps[0] += weight[space.wrapped].sum()
    return np.asarray(np.cumsum(steps))


def stage_bytes(space: RetentionSpace, k: Floats, y: Floats | None = None) -> Floats:
    """Return (n_stages,) bytes live while each stage's own operator runs.

    Tensors that the operator streams and that are kept beyond aren't counted.

    Parameters
    ----------
    k
        (n_points,) shares of kept tensors.
    y
        (n_streams,) shares of streamed runs.
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
