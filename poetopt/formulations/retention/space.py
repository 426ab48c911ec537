"""Index sets of `retention` as parallel arrays: recomputations, and the points of each tensor's life."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from poetopt.formulations.block import IndexSet, Kind, Limits
from poetopt.formulations.retention.streams import Streams
from poetopt.formulations.rows import Floats, Ints
from poetopt.graph.problem import Problem, Variant
from poetopt.graph.problem.problem import extra_slots, run_bytes, slots

Flags = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, eq=False)
class RetentionSpace:
    """Points, recomputations and page-ins as parallel arrays.

    A tensor's *points* are the stages where it may be read: its real uses, and the stages where an operator that reads
    it, or that writes it, may be recomputed. A tensor without bytes has none. Points are sorted by tensor, then stage;
    entry e is one point. The life of a parameter whose home is storage is a circle: its first point follows its last
    point of the step before.

    Attributes
    ----------
    point_tensor, point_stage
        (n_points,) tensor and stage of each point.
    point_previous
        (n_points,) stage of the tensor's previous point. For its first point it is the stage of the producer (-1: an
        input), or in a circle that of its last point.
    point_first, point_last
        (n_points,) bool: whether the point is the tensor's first or last.
    point_real
        (n_points,) bool: whether the stage's own operator reads the tensor.
    point_recompute
        (n_points,) index of the recomputation that makes the tensor in that stage, or -1.
    recompute_operator, recompute_stage
        (n_recomputes,) sorted by stage, then operator.
    page_point
        (n_pages,) points at which the tensor may be paged in.
    page_index
        (n_points,) index into `page_point`, or -1.
    kind
        Decisions that the space leaves out. A timed space has a point of each tensor at every stage up to its last
        read, so that it may be moved in any of them, except for tensors whose home is storage.
    ends
        (n_stages,) ascending: the stage that decides for each stage. It is the stage itself, or the last one of a group
        that is decided together. The decisions of the group count at its last stage, and a tensor that is made in one
        stage of the group isn't made again in another.
    streams
        Runs that may stream operands.
    """

    problem: Problem
    limits: Limits
    name: str
    paging: bool
    point_tensor: Ints
    point_stage: Ints
    point_previous: Ints
    point_first: Flags
    point_last: Flags
    point_real: Flags
    point_recompute: Ints
    recompute_operator: Ints
    recompute_stage: Ints
    page_point: Ints
    page_index: Ints
    kind: Kind
    ends: Ints
    streams: Streams = field(default_factory=Streams)

    def __deepcopy__(self, memo: object) -> RetentionSpace:
        """Return the object itself: Pyomo copies what is on a model, and this never changes."""
        return self

    @property
    def transfer_times(self) -> bool:
        """Return whether each transfer has its stage."""
        return self.kind is Kind.TIMED and self.paging

    @cached_property
    def stored(self) -> Flags:
        """(n_tensors,) bool: the tensor's home is storage, so it can be paged in without a page-out."""
        return np.array([tensor.stored for tensor in self.problem.tensors], dtype=bool)

    @cached_property
    def cyclic(self) -> Flags:
        """(n_tensors,) bool: the tensor may stay in RAM from one step to the next."""
        return np.array([tensor.may_stay for tensor in self.problem.tensors], dtype=bool)

    @cached_property
    def wrapped(self) -> Flags:
        """(n_points,) bool: the interval up to the point begins in the step before."""
        return self.point_previous >= self.point_stage

    @cached_property
    def point_before(self) -> Ints:
        """(n_points,) previous point in the tensor's life; -1 if there is none."""
        before = np.arange(len(self.point_tensor)) - 1
        last = np.array([end - 1 for _, end in self.tensor_range], dtype=np.int64)[self.point_tensor]
        return np.where(self.point_first, np.where(self.wrapped, last, -1), before)

    @cached_property
    def point_after(self) -> Ints:
        """(n_points,) next point in the tensor's life; -1 if there is none."""
        after = np.full(len(self.point_tensor), -1, dtype=np.int64)
        follows = np.flatnonzero(self.point_before >= 0)
        after[self.point_before[follows]] = follows
        return after

    def crosses(self, e: int, s: int) -> bool:
        """Return whether the interval up to point e contains the moment between stages s and s + 1."""
        after, until = self.point_previous[e] <= s, s < self.point_stage[e]
        return bool(after or until if self.wrapped[e] else after and until)

    def spanned(self, e: int) -> list[int]:
        """Return the stages inside of the interval up to point e, without its ends: the tensor is there in all of them.

        For stages that are decided together, the group of the point is left out, as the tensor may leave during it. A
        tensor that is there when the group of the previous point ends was already there in the last stage of that
        group, unless that stage made it.
        """
        before, end = int(self.point_previous[e]), self._begins[self.point_stage[e]]
        if self.wrapped[e]:
            return [*range(end), *range(before + 1, len(self.problem.operators))]
        earlier = before >= 0 and self.point_first[e] and not self._touches(before, int(self.point_tensor[e]))
        return list(range(before + (not earlier), end))

    def kept_beyond(self, t: int) -> list[int]:
        """Return the points after t up to which tensors are kept that have a point at t but that t doesn't touch."""
        untouched = [e for e in self.points_at.get(t, ()) if not self._touches(t, int(self.point_tensor[e]))]
        return [after for e in untouched if (after := int(self.point_after[e])) >= 0]

    def _touches(self, t: int, i: int) -> bool:
        operator = self.problem.operators[t]
        return i in operator.inputs or i in operator.outputs

    @cached_property
    def _begins(self) -> list[int]:
        """(n_stages,) first stage of the group that is decided together with each."""
        first_of_group: list[int] = np.searchsorted(self.ends, self.ends).tolist()
        return first_of_group

    @cached_property
    def has_groups(self) -> bool:
        """Return whether any stages are decided together."""
        return bool((self.ends != np.arange(len(self.ends))).any())

    @cached_property
    def decided(self) -> list[int]:
        """(n_stages,) last deciding stage up to each stage; -1 before the first one."""
        ends = np.unique(self.ends)
        position = np.searchsorted(ends, np.arange(len(self.ends)), side="right") - 1
        deciding: list[int] = np.append(ends, -1)[position].tolist()
        return deciding

    @cached_property
    def first_stages(self) -> list[int]:
        """Deciding stage from which on each tensor is there."""
        ends = self.ends.tolist()
        return [ends[max(tensor.producer, 0)] for tensor in self.problem.tensors]

    @cached_property
    def uses(self) -> list[dict[int, int]]:
        """For each tensor, the deciding stages of its readers, ascending, each mapped to its last reader."""
        ends = self.ends.tolist()
        pairs = zip(self.problem.readers, self.first_stages, self.problem.tensors, strict=True)
        return [
            {ends[t]: t for t in readers if ends[t] > first or not tensor.computed} for readers, first, tensor in pairs
        ]

    @cached_property
    def room_bytes(self) -> int:
        """Bytes of the arena: the budget without what kernels allocate outside of it.

        Buffers start at multiples of the alignment, so each has a whole number of slots of its own. The rest at the end
        of the arena is less than a slot. Only a buffer whose last slot is no fuller than that rest can use it. Bytes
        beyond a multiple of the memory unit are useless too.
        """
        slot, room = self.problem.alignment, self.limits.ram_bytes - self.problem.reserve_bytes
        sizes = [tensor.nbytes for tensor in self.problem.tensors]
        sizes += [operator.workspace_bytes for operator in self.problem.operators]
        sizes += [variant.workspace_bytes for variant in self.stream_ways]
        fits = any(0 < nbytes % slot <= room % slot for nbytes in sizes)
        room = self._slots(room) if fits else room // slot * slot
        unit = int(self.memory_unit)
        return room // unit * unit

    @cached_property
    def tensor_bytes(self) -> Floats:
        """(n_tensors,) bytes of each tensor in the arena."""
        return np.array([self._slots(tensor.nbytes) for tensor in self.problem.tensors], dtype=float)

    @cached_property
    def workspace_bytes(self) -> Floats:
        """(n_operators,) bytes of each workspace in the arena, less an input that the operator overwrites."""
        return np.array([extra_slots(self.problem, k) for k in range(len(self.problem.operators))], dtype=float)

    @cached_property
    def working_set_bytes(self) -> Floats:
        """(n_operators,) bytes of inputs, outputs and workspace in the arena."""
        sums = [
            float(self.tensor_bytes[[*operator.inputs, *operator.outputs]].sum()) for operator in self.problem.operators
        ]
        return np.array(sums) + self.workspace_bytes

    def _slots(self, nbytes: int) -> int:
        return slots(self.problem, nbytes)

    @cached_property
    def recomputations(self) -> list[tuple[int, int]]:
        """(n_recomputes,) operator and stage of each: the index of r."""
        return list(zip(self.recompute_operator.tolist(), self.recompute_stage.tolist(), strict=True))

    @cached_property
    def points(self) -> list[tuple[int, int]]:
        """(n_points,) tensor and stage of each: the index of k."""
        return list(zip(self.point_tensor.tolist(), self.point_stage.tolist(), strict=True))

    @cached_property
    def page_ins(self) -> list[tuple[int, int]]:
        """(n_pages,) tensor and stage of each: the index of p."""
        return [self.points[e] for e in self.page_point.tolist()]

    @cached_property
    def written(self) -> Ints:
        """Tensors that must be written out if they are paged in or streamed in, ascending."""
        paged = self.point_tensor[self.page_point]
        if self.streams:
            paged = np.concatenate(
                [paged, np.array([i for variant in self.stream_ways for i in variant.streamed_in], dtype=int)]
            )
        # a tensor that is never updated, or whose new value nothing reads, is always valid on storage
        rewritten = [tensor.updated and tensor.carried for tensor in self.problem.tensors]
        unwritten = self.stored & ~np.array(rewritten, dtype=bool)
        return np.unique(paged[~unwritten[paged]])

    @cached_property
    def point_of(self) -> dict[tuple[int, int], int]:
        """Map from (tensor, stage) to the point."""
        return {point: e for e, point in enumerate(self.points)}

    @cached_property
    def tensor_range(self) -> list[tuple[int, int]]:
        """Points of each tensor, as a range (first, last exclusive)."""
        edges = np.searchsorted(self.point_tensor, np.arange(len(self.problem.tensors) + 1)).tolist()
        return list(itertools.pairwise(edges))

    @cached_property
    def recompute_of(self) -> dict[tuple[int, int], int]:
        """Map from (operator, stage) to the recomputation."""
        return {run: x for x, run in enumerate(self.recomputations)}

    @cached_property
    def recomputes_at(self) -> dict[int, list[int]]:
        """Map from a stage to the operators that may be recomputed in it, ascending."""
        operators_at: dict[int, list[int]] = {}
        for j, t in zip(self.recompute_operator.tolist(), self.recompute_stage.tolist(), strict=True):
            operators_at.setdefault(t, []).append(j)
        return operators_at

    @cached_property
    def points_at(self) -> dict[int, list[int]]:
        """Map from a stage to its points, by tensor."""
        points: dict[int, list[int]] = {}
        for e, t in enumerate(self.point_stage.tolist()):
            points.setdefault(t, []).append(e)
        return points

    # Streamed runs.

    @cached_property
    def stream_ways(self) -> list[Variant]:
        """(n_streams,) variant of each streamed run."""
        operators, runs = self.problem.operators, self.streams
        pairs = zip(runs.operator.tolist(), runs.variant.tolist(), strict=True)
        return [operators[k].variants[v - 1] for k, v in pairs]

    @cached_property
    def stream_workspace_bytes(self) -> list[float]:
        """(n_streams,) bytes of each streamed run's workspace in the arena."""
        return [float(self._slots(variant.workspace_bytes)) for variant in self.stream_ways]

    @cached_property
    def stream_less_bytes(self) -> Floats:
        """(n_streams,) bytes of each streamed run in the arena less those of the plain one; mostly negative."""
        runs = zip(self.streams.operator.tolist(), self.streams.variant.tolist(), strict=True)
        return np.array([run_bytes(self.problem, k, v) - float(self.working_set_bytes[k]) for k, v in runs])

    @cached_property
    def streams_of(self) -> dict[tuple[int, int], list[int]]:
        """Map from (operator, stage) to the streamed runs of it."""
        runs_of: dict[tuple[int, int], list[int]] = {}
        for y, run in enumerate(zip(self.streams.operator.tolist(), self.streams.stage.tolist(), strict=True)):
            runs_of.setdefault(run, []).append(y)
        return runs_of

    @cached_property
    def streamed_in(self) -> dict[tuple[int, int, int], list[int]]:
        """Map from (tensor, operator, stage) to the streamed runs that read the tensor from storage."""
        runs_of: dict[tuple[int, int, int], list[int]] = {}
        for run, streamed_runs in self.streams_of.items():
            for y in streamed_runs:
                for i in self.stream_ways[y].streamed_in:
                    runs_of.setdefault((i, *run), []).append(y)
        return runs_of

    @cached_property
    def streamed_out(self) -> dict[int, list[int]]:
        """Map from a tensor to the streamed runs that leave it only on storage: first runs, and updates."""
        runs_of: dict[int, list[int]] = {}
        for y, variant in enumerate(self.stream_ways):
            for i in variant.streamed_out:
                runs_of.setdefault(i, []).append(y)
        return runs_of

    @cached_property
    def gated(self) -> dict[int, list[int]]:
        """Map from a point to the runs of the stage before that stream the tensor in; without them it stays in RAM.

        These are the points that would have no page-in without streaming (see `retention_space`).
        """
        runs_of: dict[int, list[int]] = {}
        if self.limits.open:
            return runs_of
        for e in self.page_point.tolist():
            i, t = int(self.point_tensor[e]), int(self.point_stage[e])
            adjacent = not self.point_first[e] and self.point_real[e - 1] and self.point_stage[e - 1] == t - 1
            streamed = self.streamed_in.get((i, t - 1, t - 1)) if adjacent and not self.stored[i] else None
            if streamed:
                runs_of[e] = streamed
        return runs_of

    @cached_property
    def held(self) -> list[tuple[int, int]]:
        """Pairs (tensor, stage): the stage's own operator may stream the tensor, which may also be kept in RAM."""
        return [
            (i, t)
            for i, operator, t in self.streamed_in
            if operator == t and self.problem.tensors[i].updated_by != t and self.point_after[self.point_of[i, t]] >= 0
        ]

    def crossing(self, k: Floats) -> Floats:
        """Return (n_tensors, n_stages): for k by point, the share of each tensor kept from a stage to the next.

        A tensor without bytes stays from the stage that makes it.
        """
        steps = np.zeros((len(self.problem.tensors), len(self.problem.operators) + 1))
        np.add.at(steps, (self.point_tensor, np.maximum(self.point_previous, 0)), k)
        np.add.at(steps, (self.point_tensor, self.point_stage), -k)
        np.add.at(steps[:, 0], self.point_tensor[self.wrapped], k[self.wrapped])
        for i, tensor in enumerate(self.problem.tensors):
            if not tensor.nbytes:
                steps[i, tensor.first_stage] = 1.0
        return np.asarray(np.cumsum(steps, axis=1)[:, :-1])

    @cached_property
    def memory_unit(self) -> float:
        """Bytes of one unit in a memory row: the greatest common divisor of all sizes in the arena."""
        sizes = [*self.tensor_bytes.tolist(), *self.workspace_bytes.tolist()]
        sizes += [self._slots(variant.workspace_bytes) for variant in self.stream_ways]
        return float(math.gcd(*map(int, sizes)) or 1)


def ordinary_bytes(problem: Problem) -> Floats:
    """Return (n_stages,) the bytes of the live tensors in each stage of ordinary training."""
    steps = np.zeros(len(problem.operators) + 1)
    for tensor, readers in zip(problem.tensors, problem.readers, strict=True):
        first, nbytes = tensor.first_stage, slots(problem, tensor.nbytes)
        steps[first] += nbytes
        steps[max((first, *readers)) + 1] -= nbytes
    return np.asarray(np.cumsum(steps)[:-1])


def _recomputations(space: RetentionSpace) -> list[tuple[int, int]]:
    return space.recomputations


def _points(space: RetentionSpace) -> list[tuple[int, int]]:
    return space.points


def _page_ins(space: RetentionSpace) -> list[tuple[int, int]]:
    return space.page_ins


def _page_outs(space: RetentionSpace) -> list[int]:
    outs: list[int] = space.written.tolist()
    return outs


SETS = {
    "recomputations": IndexSet(_recomputations, 2, "(j, t): operator j may run again in stage t"),
    "points": IndexSet(_points, 2, "(i, t): tensor i may be read or made in stage t"),
    "page_ins": IndexSet(_page_ins, 2, "(i, t): tensor i may be paged in at the beginning of stage t"),
    "page_outs": IndexSet(_page_outs, 1, "tensors that may be written to storage"),
}
