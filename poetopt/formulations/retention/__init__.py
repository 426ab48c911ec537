"""`retention`: the compact formulation, and the default.

A tensor's life is a list of points. Between two points it is kept or not; at a point it is kept, recomputed or paged
in. The paper's stages x tensors matrices shrink to the points at which something can happen. The space has the freedom
of a plan: a tensor may be freed at any moment, and written out right after the operator that wrote or read it. So it is
a little larger than that of Algorithm 1. The stage of a page-out is a decision only if a block may depend on it
(`Block.transfer_times`). Otherwise a page-out right after the first compute is never worse.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from poetopt.formulations.block import Kind, Limits
from poetopt.formulations.deadline import deadline
from poetopt.formulations.language import Formulation
from poetopt.formulations.retention import outer
from poetopt.formulations.retention.chain_cuts import chain_cuts
from poetopt.formulations.retention.closing import closing, staying
from poetopt.formulations.retention.enumeration import count_recomputes, retention_space
from poetopt.formulations.retention.memory import memory
from poetopt.formulations.retention.page_out_times import page_out_times, there_anyway
from poetopt.formulations.retention.paging import paging
from poetopt.formulations.retention.recompute import recompute
from poetopt.formulations.retention.residency import next_point, residency
from poetopt.formulations.retention.rounding import rounding
from poetopt.formulations.retention.scope_difference import no_good, scope_difference, streaming_difference, thrift
from poetopt.formulations.retention.space import SETS, RetentionSpace
from poetopt.formulations.retention.streaming import streaming
from poetopt.formulations.rows import Floats, Ints, PointLike
from poetopt.formulations.search_adapter import SearchAdapter
from poetopt.formulations.storage_activation import storage_activation
from poetopt.graph.problem import Problem
from poetopt.graph.problem.problem import closing_with, ways_within
from poetopt.plan.schedule import FractionalSchedule, Schedule

DEPTHS = (4, 8, 12, 16, 24, 32)
"""Depths that `auto` searches, in order."""
DEPTHS_BEFORE_FORWARD = 3
"""Number of depths before `forward`, if `forward` follows."""
MAX_FORWARD_RECOMPUTES = 19_000
"""`forward` follows if it has at most this many recomputes. A larger model takes minutes to build and cut."""
MIN_SHARE = 1e-3
"""Shares of decisions below this count as 0."""


def _schedule(model: Any, point: PointLike) -> Schedule:
    space: RetentionSpace = model.space
    chosen = np.flatnonzero(point[model.recompute.r] > 0.5)
    recomputes = zip(space.recompute_stage[chosen].tolist(), space.recompute_operator[chosen].tolist(), strict=True)
    page_ins: set[tuple[int, int]] = set()
    if space.paging:
        paged = space.page_point[np.flatnonzero(point[model.paging.p] > 0.5)]
        page_ins.update(zip(space.point_stage[paged].tolist(), space.point_tensor[paged].tolist(), strict=True))
    if space.streams:
        chosen_runs = np.flatnonzero(point[model.streaming.y] > 0.5)
        runs = (
            space.streams.stage[chosen_runs],
            space.streams.operator[chosen_runs],
            space.streams.variant[chosen_runs],
        )
        variants = zip(*(part.tolist() for part in runs), strict=True)
        return Schedule(frozenset(recomputes), frozenset(page_ins), variants=frozenset(variants))
    if not space.transfer_times:
        return Schedule(frozenset(recomputes), frozenset(page_ins))
    outs = model.page_out_times.page_outs
    chosen = np.flatnonzero(point[outs.variable] > 0.5)
    page_outs = zip(outs.stages[chosen].tolist(), outs.targets[chosen].tolist(), strict=True)
    paged_in = {i for _, i in page_ins}  # a page-out without cost may have no use
    return Schedule.written(space.problem, recomputes, page_ins, [out for out in page_outs if out[1] in paged_in])


def _values(model: Any, schedule: Schedule) -> list[tuple[Any, Floats]] | None:
    """Return values of all variables for `schedule`, or None if it has a decision that the space lacks."""
    space: RetentionSpace = model.space
    y = _streaming_values(space, schedule)
    settled = None if y is None else _move_page_ins(space, schedule)
    if y is None or settled is None:
        return None
    schedule = settled
    r = np.zeros(len(space.recompute_operator))
    for stage, operator in schedule.recomputes:
        x = space.recompute_of.get((operator, stage))
        if x is None:
            return None
        r[x] = 1.0
    p = np.zeros(len(space.page_point))
    for stage, tensor in schedule.page_ins:
        p[space.page_index[space.point_of[tensor, stage]]] = 1.0
    page_outs = _page_outs(space, schedule)
    kept = _keep_values(space, schedule, page_outs)
    if kept is None:
        return None
    values = [(model.recompute.r, r), (model.residency.k, kept)]
    if space.paging:
        written = np.zeros(len(model.paging.o_tensor))
        for _, tensor in schedule.page_ins:
            if tensor in model.paging.o_index:  # any other tensor is always on storage
                written[model.paging.o_index[tensor]] = 1.0
        streamed_away = {i for i, runs in space.streamed_out.items() if y[runs].any()}
        for n in np.flatnonzero(y).tolist():
            for i in space.stream_ways[n].streamed_in:
                if i in model.paging.o_index:
                    written[model.paging.o_index[i]] = 1.0
        for i in streamed_away:
            if i in model.paging.o_index:
                written[model.paging.o_index[i]] = 0.0
        values += [(model.paging.p, p), (model.paging.o, written)]
        if space.problem.closing is not None:
            values += [
                (model.component("closing").always, np.ones(1)),
                *_update_phase_values(model, space, schedule, kept),
            ]
    if space.streams:
        values += [(model.streaming.y, y), (model.memory.held, _held_values(space, kept, y))]
    if space.transfer_times:
        moments = np.zeros(len(model.page_out_times.index))
        for stage, tensor in page_outs:
            if (tensor, stage) not in model.page_out_times.index:
                return None
            moments[model.page_out_times.index[tensor, stage]] = 1.0
        values.append((model.page_out_times.x, moments))
    return values


def _update_phase_values(model: Any, space: RetentionSpace, schedule: Schedule, k: Floats) -> list[tuple[Any, Floats]]:
    """Return values of the update phase for a schedule with these k: its runs, and writes of tensors that stay."""
    stays = staying(space)
    kept = [int(space.point_tensor[e]) for e in stays.values() if k[e]]
    after, fixed_bytes = closing_with(space.problem, kept)
    variant_of = ways_within(after, int(space.room_bytes) - fixed_bytes)
    read = {i for _, i in schedule.page_ins}
    for _, operator, variant in schedule.variants:
        read.update(space.problem.operators[operator].variant(variant).streamed_in)
    block = model.component("closing")
    return [
        (block.y, np.array([float(variant_of[u] == v) for u, v in block.variants])),
        (block.a, np.array([1.0 - k[stays[name]] for name in block.moved])),
        (block.w, np.array([float(i in read and i in kept) for i in block.written])),
    ]


def _streaming_values(space: RetentionSpace, schedule: Schedule) -> Floats | None:
    """Return the values of y of a schedule, or None if it has a run that the space lacks."""
    y = np.zeros(len(space.streams.operator))
    for stage, operator, variant in schedule.variants:
        runs = space.streams_of.get((operator, stage), ())
        chosen = [n for n in runs if space.streams.variant[n] == variant]
        if not chosen:
            return None
        y[chosen] = 1.0
    return y


def _held_values(space: RetentionSpace, k: Floats, y: Floats) -> Floats:
    """Return the values of `held` for these k and y: tensors in RAM that the stage's own operator may stream."""
    return np.array(
        [
            max(1.0 - y[space.streamed_in[i, t, t]].sum(), k[space.point_after[space.point_of[i, t]]])
            for i, t in space.held
        ]
    )


def _page_outs(space: RetentionSpace, schedule: Schedule) -> set[tuple[int, int]]:
    """Return (stage, tensor) of the page-outs of a settled schedule, default page-outs included."""
    if not space.transfer_times:
        return set()
    returning = {i for _, i in schedule.page_ins if not space.stored[i]}
    explicit = {(stage, i) for stage, i in schedule.page_outs if i in returning}
    return explicit | {(space.problem.written_in(i), i) for i in returning - {i for _, i in explicit}}


def _move_page_ins(space: RetentionSpace, schedule: Schedule) -> Schedule | None:
    """Return `schedule` with its page-ins moved to points of the space (see `retention_space`).

    The result is None if that is impossible.
    """
    page_ins = {(stage, i) for stage, i in schedule.page_ins if space.tensor_bytes[i]}
    if any((i, stage) not in space.point_of for stage, i in page_ins):
        return None
    settled: set[tuple[int, int]] = set()
    for stage, i in sorted(page_ins):
        producer = space.problem.tensors[i].producer
        first_point, last_point = space.tensor_range[i]
        point = first_point + int(np.searchsorted(space.point_stage[first_point:last_point], stage))
        first = producer + 2 - (producer >= 0 and _streams_out(space, schedule, i))
        if not space.paging or (stage < first and not space.stored[i]):
            return None
        if point == last_point:
            continue  # no later operator reads it
        if space.transfer_times:
            if space.page_index[point] < 0:
                return None  # the stage of the page-in may matter
            settled.add((stage, i))
            continue
        real_before = not space.point_first[point] and space.point_real[point - 1]
        stays = (
            space.page_index[point] < 0 and real_before and space.point_stage[point - 1] == space.point_stage[point] - 1
        )
        stays |= point in space.gated and not _streams_in(space, schedule, i, int(space.point_stage[point]) - 1)
        while point < last_point and not stays and space.page_index[point] < 0:
            point += 1  # nothing reads the tensor at this point
            if (
                point < last_point
                and producer >= 0
                and (int(space.point_stage[point]), producer) in schedule.recomputes
            ):
                point = last_point
        if point < last_point and not stays:
            settled.add((int(space.point_stage[point]), i))
    return Schedule(schedule.recomputes, frozenset(settled), schedule.page_outs, schedule.variants)


def _streams_in(space: RetentionSpace, schedule: Schedule, i: int, stage: int) -> bool:
    """Return whether the first run of the stage's operator reads tensor i from storage."""
    return i in space.problem.operators[stage].variant(schedule.variant_of.get((stage, stage), 0)).streamed_in


def _streams_out(space: RetentionSpace, schedule: Schedule, i: int) -> bool:
    """Return whether the first run of tensor i's operator, or its update, leaves it on storage and not in RAM."""
    return any(
        i in space.problem.operators[operator].variant(variant).streamed_out
        for stage, operator, variant in schedule.variants
        if stage == operator and operator in (space.problem.tensors[i].producer, space.problem.tensors[i].updated_by)
    )


def _keep_values(space: RetentionSpace, schedule: Schedule, page_outs: set[tuple[int, int]]) -> Floats | None:
    """Return the values of k of a schedule: 1 if a tensor is needed at or after a point before it is made again.

    The result is None if a tensor would have to be in RAM when a stage begins that makes it again, or after a run that
    streams it out.
    """
    k = np.zeros(len(space.point_tensor))
    problem = space.problem

    def streamed(stage: int, operator: int) -> tuple[int, ...]:
        variant = schedule.variant_of.get((stage, operator), 0)
        return problem.operators[operator].variant(variant).streamed_in if variant else ()

    reading = {
        (i, stage)
        for stage, operator in schedule.recomputes
        for i in problem.operators[operator].inputs
        if i not in streamed(stage, operator)
    }
    streamed_now = {
        (i, stage) for stage, operator, _ in schedule.variants if stage == operator for i in streamed(stage, stage)
    }
    making = {(i, stage) for stage, operator in schedule.recomputes for i in problem.operators[operator].outputs} | {
        (i, stage) for stage, i in schedule.page_ins
    }
    for first, last in space.tensor_range:
        needed_later = False
        for _ in range(
            2 if last > first and space.wrapped[first] else 1
        ):  # a circular life needs a second round to settle
            for e in range(last - 1, first - 1, -1):
                at = (int(space.point_tensor[e]), int(space.point_stage[e]))
                needed = needed_later or (bool(space.point_real[e]) and at not in streamed_now) or at in reading
                is_made = at in making
                is_kept = needed and not is_made
                if at[::-1] in page_outs and not there_anyway(space, *at):
                    if is_made:
                        return None
                    is_kept = True
                k[e] = float(is_kept)
                needed_later = is_kept
    streamed_out = (i for i in space.streamed_out if _streams_out(space, schedule, i))
    return None if any((e := next_point(space, i)) >= 0 and k[e] for i in streamed_out) else k


def _stages(model: Any) -> list[tuple[Any, Ints]]:
    space: RetentionSpace = model.space
    stages = [(model.recompute.r, space.recompute_stage), (model.residency.k, space.point_stage)]
    if space.streams:
        stages.append((model.streaming.y, space.streams.stage))
    if space.paging:
        stages.append((model.paging.p, space.point_stage[space.page_point]))
    if space.transfer_times:
        stages.append((model.page_out_times.x, model.page_out_times.page_outs.stages))
    return stages


def _fractional(model: Any, point: PointLike) -> FractionalSchedule:
    space: RetentionSpace = model.space
    recomputes = zip(space.recompute_stage, space.recompute_operator, point[model.recompute.r], strict=True)
    page_ins: dict[tuple[int, int], float] = {}
    if space.paging:
        pages = space.page_point
        paged = zip(space.point_stage[pages], space.point_tensor[pages], point[model.paging.p], strict=True)
        page_ins = {(int(t), int(i)): float(share) for t, i, share in paged if share > MIN_SHARE}
    variants: dict[tuple[int, int, int], float] = {}
    if space.streams:
        runs = zip(space.streams.stage, space.streams.operator, space.streams.variant, strict=True)
        shares = zip(runs, point[model.streaming.y], strict=True)
        variants = {(int(t), int(j), int(v)): float(share) for (t, j, v), share in shares if share > MIN_SHARE}
    return FractionalSchedule(
        space.crossing(point[model.residency.k]),
        {(int(t), int(j)): float(share) for t, j, share in recomputes if share > MIN_SHARE},
        page_ins,
        variants,
    )


def _scopes(problem: Problem, limits: Limits, paging: bool, remat: bool) -> tuple[str, ...]:
    """Return depths, then `forward` if it isn't too large, then `full` for problems without a schedule in these."""
    if not remat:
        return ("full",)
    depths = tuple(f"depth:{depth}" for depth in DEPTHS)
    if count_recomputes(problem, "forward") > MAX_FORWARD_RECOMPUTES:
        return (*depths, "full")
    return (*depths[:DEPTHS_BEFORE_FORWARD], "forward", "full")


BASIC_ADAPTER = SearchAdapter(schedule=_schedule, values=_values, stages=_stages, fractional=_fractional)

BLOCKS = (
    recompute,
    streaming,
    paging,
    residency,
    page_out_times,
    memory,
    closing,
    rounding,
    chain_cuts,
    storage_activation,
    deadline,
)

OUTER = Formulation(
    name="outer",
    doc=outer.__doc__ or "",
    blocks=outer.OUTER,
    space=outer.outer_space,
    search=BASIC_ADAPTER,
    sets=SETS,
    fixed_costs=tuple(block.name for block in outer.OUTER),
    simulated=tuple(block.name for block in outer.OUTER),
    kind=Kind.SHADOW,
)

retention = Formulation(
    name="retention",
    doc=__doc__,
    blocks=BLOCKS,
    space=retention_space,
    search=replace(
        BASIC_ADAPTER,
        scopes=_scopes,
        scope_difference=scope_difference,
        streaming_difference=streaming_difference,
        no_good=no_good,
        thrift=thrift,
        outer=OUTER,
    ),
    sets=SETS,
    fixed_costs=("storage_activation",),
    simulated=tuple(block.name for block in BLOCKS),
)
build = retention.build
from_data = retention.from_data
with_block = retention.with_block
