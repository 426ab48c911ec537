"""The index sets of `retention`: which recomputations exist, and the points of each tensor's life."""

from __future__ import annotations

import itertools
import math
from collections import deque
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from poetopt.errors import FormulationError
from poetopt.formulations.language import Floats, Ints, Limits
from poetopt.problem import Problem


@dataclass(frozen=True, kw_only=True, eq=False)
class RetentionSpace:
    """Points, recomputations and page-ins as parallel arrays.

    A tensor's *points* are the stages where it may be read: its real uses, and the stages where an
    operator that reads it, or that writes it, may be recomputed. Points are sorted by tensor, then
    stage; entry e is one point.

    point_tensor, point_stage
        (n_points,) the tensor and the stage of each point.
    point_previous
        (n_points,) the stage of the tensor's previous point; for its first, the producer's (-1: an input).
    point_first, point_last
        (n_points,) bool: whether the point is the tensor's first or last.
    point_real
        (n_points,) bool: whether the stage's own operator reads the tensor.
    point_recompute
        (n_points,) index of the recomputation that makes the tensor in that stage, or -1.
    recompute_operator, recompute_stage
        (n_recomputes,) sorted by stage, then operator.
    page_point
        (n_pages,) the points at which the tensor may be paged in.
    page_index
        (n_points,) index into `page_point`, or -1.
    """

    problem: Problem
    limits: Limits
    name: str
    paging: bool
    point_tensor: Ints
    point_stage: Ints
    point_previous: Ints
    point_first: np.ndarray
    point_last: np.ndarray
    point_real: np.ndarray
    point_recompute: Ints
    recompute_operator: Ints
    recompute_stage: Ints
    page_point: Ints
    page_index: Ints

    @property
    def room_bytes(self) -> int:
        """The budget without what kernels allocate beside the arena."""
        return self.limits.ram_bytes - self.problem.reserve_bytes

    @cached_property
    def tensor_bytes(self) -> Floats:
        """(n_tensors,) sizes in bytes."""
        return np.array([tensor.nbytes for tensor in self.problem.tensors], dtype=float)

    @cached_property
    def point_of(self) -> dict[tuple[int, int], int]:
        """(tensor, stage) -> point."""
        return {
            (i, t): e
            for e, (i, t) in enumerate(zip(self.point_tensor.tolist(), self.point_stage.tolist(), strict=True))
        }

    @cached_property
    def tensor_range(self) -> list[tuple[int, int]]:
        """For each tensor, its points as a range first..last (exclusive)."""
        edges = np.searchsorted(self.point_tensor, np.arange(len(self.problem.tensors) + 1)).tolist()
        return list(itertools.pairwise(edges))

    @cached_property
    def recompute_of(self) -> dict[tuple[int, int], int]:
        """(operator, stage) -> recomputation."""
        pairs = zip(self.recompute_operator.tolist(), self.recompute_stage.tolist(), strict=True)
        return {(j, t): x for x, (j, t) in enumerate(pairs)}

    @cached_property
    def recomputes_at(self) -> dict[int, list[int]]:
        """Stage -> operators that may be recomputed in it, ascending."""
        found: dict[int, list[int]] = {}
        for j, t in zip(self.recompute_operator.tolist(), self.recompute_stage.tolist(), strict=True):
            found.setdefault(t, []).append(j)
        return found

    @cached_property
    def points_at(self) -> dict[int, list[int]]:
        """Stage -> points in it, by tensor."""
        found: dict[int, list[int]] = {}
        for e, t in enumerate(self.point_stage.tolist()):
            found.setdefault(t, []).append(e)
        return found

    @cached_property
    def memory_unit(self) -> float:
        """Bytes that one unit in a memory row stands for: the sizes' greatest common divisor."""
        sizes = [tensor.nbytes for tensor in self.problem.tensors]
        sizes += [operator.workspace_bytes for operator in self.problem.operators]
        return float(math.gcd(*sizes) or 1)


def recomputable_sets(problem: Problem, scope: str, remat: bool) -> tuple[dict[int, set[int]], str]:
    """For each stage, the operators that may be recomputed in it; and the scope's name in results.

    `depth:D`: chains of at most D operators, forward operators in backward stages. `forward`: any
    forward operator in a backward stage. `full`: any operator in any later stage.

    Raises FormulationError for a scope of another form.
    """
    last = problem.last_forward
    stages = range(len(problem.operators))
    if not remat:
        return {}, scope_name(scope)
    if scope == "full":
        able = [j for j in stages if problem.operators[j].recomputable]
        return {t: {j for j in able if j < t} for t in stages}, "full"
    depth = scope_depth(scope)
    return {t: _within(problem, t, depth) for t in stages if t > last}, scope_name(scope)


def scope_depth(scope: str) -> float:
    """D of `depth:D`, infinity of `forward` and `full`."""
    if scope in ("forward", "full"):
        return math.inf
    prefix, _, digits = scope.partition(":")
    if prefix != "depth" or not digits.isdecimal() or int(digits) < 1:
        raise FormulationError(f"unknown scope '{scope}': say auto, depth:D (D >= 1), forward or full")
    return int(digits)


def scope_name(scope: str) -> str:
    """How results call a scope: `depth:8` is `depth<=8`."""
    return scope.replace("depth:", "depth<=")


def _within(problem: Problem, stage: int, depth: float) -> set[int]:
    """Forward operators on chains of at most `depth` operators that end in an input of the stage's operator."""
    found: set[int] = set()
    queue = deque((i, 1) for i in problem.operators[stage].inputs)
    while queue:
        tensor, distance = queue.popleft()
        producer = problem.tensors[tensor].producer
        if producer < 0 or producer in found or distance > depth:
            continue
        operator = problem.operators[producer]
        if operator.backward or not operator.recomputable:
            continue
        found.add(producer)
        queue.extend((i, distance + 1) for i in operator.inputs)
    return found


def retention_space(problem: Problem, limits: Limits, scope: str, paging: bool, remat: bool) -> RetentionSpace:
    """Enumerate the decisions of a scope."""
    sets, name = recomputable_sets(problem, scope, remat)
    operators = problem.operators
    stages_of: list[set[int]] = [set(readers) for readers in problem.readers]
    for stage, allowed in sets.items():
        for j in allowed:
            for i in operators[j].inputs:
                stages_of[i].add(stage)
    for stage, allowed in sets.items():
        for j in allowed:
            for i in operators[j].outputs:
                if stages_of[i] and max(stages_of[i]) >= stage:
                    stages_of[i].add(stage)
    # a recompute of which no output can be read any more is no decision
    recomputes = sorted(
        (stage, j)
        for stage, allowed in sets.items()
        for j in allowed
        if any(stage in stages_of[i] for i in operators[j].outputs)
    )
    index_of = {pair: x for x, pair in enumerate(recomputes)}
    columns: list[tuple[int, int, int, bool, bool, bool, int]] = []
    for i, tensor in enumerate(problem.tensors):
        real = set(problem.readers[i])
        ordered = sorted(stages_of[i])
        previous = tensor.producer
        for k, stage in enumerate(ordered):
            made = index_of.get((stage, tensor.producer), -1)
            columns.append((i, stage, previous, k == 0, k == len(ordered) - 1, stage in real, made))
            previous = stage
    table = np.array(columns, dtype=np.int64).reshape(-1, 7)
    producers = np.array([tensor.producer for tensor in problem.tensors], dtype=np.int64)
    pageable = table[:, 1] >= producers[table[:, 0]] + 2 if paging else np.zeros(len(table), dtype=bool)
    page_point = np.flatnonzero(pageable)
    page_index = np.full(len(table), -1, dtype=np.int64)
    page_index[page_point] = np.arange(len(page_point))
    pairs = np.array(recomputes, dtype=np.int64).reshape(-1, 2)
    return RetentionSpace(
        problem=problem,
        limits=limits,
        name=name,
        paging=paging,
        point_tensor=table[:, 0].copy(),
        point_stage=table[:, 1].copy(),
        point_previous=table[:, 2].copy(),
        point_first=table[:, 3].astype(bool),
        point_last=table[:, 4].astype(bool),
        point_real=table[:, 5].astype(bool),
        point_recompute=table[:, 6].copy(),
        recompute_operator=pairs[:, 1].copy(),
        recompute_stage=pairs[:, 0].copy(),
        page_point=page_point,
        page_index=page_index,
    )
