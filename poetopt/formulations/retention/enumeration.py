"""Decisions of a scope: the recomputations of a problem, and the points of its tensors' lives."""

from __future__ import annotations

import math

import numpy as np

from poetopt.formulations.block import Kind, Limits
from poetopt.formulations.retention.space import Flags, RetentionSpace
from poetopt.formulations.retention.streams import Streams, streamed_runs
from poetopt.formulations.rows import Ints
from poetopt.formulations.scope import scope_depth, scope_name
from poetopt.graph.problem import COMPUTES, PLAINLY, Feature, Problem, check_supported

SUPPORTS = frozenset({Feature.STORED, Feature.UPDATED, *COMPUTES, *PLAINLY})
"""Features of problems that the formulation supports."""


def recomputable_stages(problem: Problem, scope: str, remat: bool) -> tuple[Flags, str]:
    """Return which operators may be recomputed in each stage, and the scope's name in results.

    `depth:D` allows, in a backward stage, forward operators on chains of at most D operators that end in an input of
    the stage's own operator. `forward` allows chains of any length. `full` allows any operator in any later stage.
    No scope allows an operator after an update of one of its inputs.

    Returns
    -------
    (n_stages, n_operators) bool, and the name.

    Raises
    ------
    FormulationError
        The scope has another form.
    """
    n = len(problem.operators)
    is_recomputable = np.array([operator.recomputable for operator in problem.operators], dtype=bool)
    if not remat:
        return np.zeros((n, n), dtype=bool), scope_name(scope)
    # no reader of a tensor runs after its update
    is_recomputable = is_recomputable & (np.arange(n)[:, None] <= np.array(problem.last_run, dtype=np.int64)[None, :])
    if scope == "full":
        return np.tri(n, k=-1, dtype=bool) & is_recomputable, "full"
    forward = np.array([o.recomputable and not o.backward for o in problem.operators], dtype=bool)
    return _within(problem, forward, scope_depth(scope)) & is_recomputable, scope_name(scope)


def _within(problem: Problem, forward: Flags, depth: float) -> Flags:
    """Return for each backward stage the `forward` operators on chains of at most `depth` that end in an input.

    A fused operator counts as the number of operators of the network in it.
    """
    n = len(problem.operators)
    forward_inputs = [
        np.array(sorted({g for i in operator.inputs if (g := problem.tensors[i].producer) >= 0 and forward[g]}), int)
        for operator in problem.operators
    ]
    # row j: for each operator, the length of the shortest chain from it to j, both counted
    chains = np.full((n, n), math.inf)
    for j in np.flatnonzero(forward).tolist():
        chains[j] = chains[forward_inputs[j]].min(axis=0, initial=math.inf)
        chains[j, j] = 0
        chains[j] += problem.operators[j].count
    reached = np.isfinite(chains) if math.isinf(depth) else chains <= depth
    allowed = np.zeros((n, n), dtype=bool)
    for t in range(problem.last_forward + 1, n):
        allowed[t] = reached[forward_inputs[t]].any(axis=0)
    return allowed


def count_recomputes(problem: Problem, scope: str) -> int:
    """Return the number of recomputes of a space of `scope`, without enumerating anything else."""
    return int(recomputable_stages(problem, scope, True)[0].sum())


def retention_space(
    problem: Problem,
    limits: Limits,
    scope: str,
    paging: bool,
    remat: bool,
    kind: Kind = Kind.WHOLE,
    ends: Ints | None = None,
) -> RetentionSpace:
    """Enumerate the decisions of a scope.

    A tensor without bytes is always there and has no points. The space also leaves out decisions that some optimal
    schedule doesn't need:

    - A recompute whose outputs can't be read any more.
    - A page-in at a point where nothing can read the tensor (only its writer may be recomputed there). It can wait for
      the first point where the tensor is read, which needs its bytes anyway. If the tensor is made before that, the
      page-in isn't needed at all. Neither costs more, and every instant in between has more free RAM.
    - A page-in right after a real use, in the next stage, unless the tensor's home is storage: the tensor is an input
      of the stage before, so it can stay. (Plans that give its bytes to recomputes in between lie outside of the
      space.)

    `retention.streams` describes the runs that may stream operands, and those that a lean space lacks.

    In a timed space the stage of a transfer may matter. It has page-ins at points where nothing can read the tensor,
    and points at every stage from which the tensor can be written.

    Parameters
    ----------
    ends
        (n_stages,) stages that decide for others (see `RetentionSpace`).
    """
    check_supported(problem, "formulation 'retention'", SUPPORTS)
    allowed, name = recomputable_stages(problem, scope, remat)
    operators, n = problem.operators, len(problem.operators)
    producers = np.array([tensor.producer for tensor in problem.tensors], dtype=np.int64)
    computed = np.flatnonzero(producers >= 0)
    if ends is None:
        ends = np.arange(n)
    else:
        allowed = _merge_stages(allowed, ends)
    born = np.full(len(problem.tensors), -1, dtype=np.int64)
    born[computed] = ends[producers[computed]]
    real = np.zeros((len(problem.tensors), n), dtype=bool)
    read = np.zeros_like(real)
    for i, readers in enumerate(problem.readers):
        if problem.tensors[i].nbytes:
            real[i, [t for t in ends[list(readers)].tolist() if t > born[i]]] = True
            read[i] = allowed[:, list(readers)].any(axis=1)
    read |= real
    alive = np.logical_or.accumulate(read[:, ::-1], axis=1)[:, ::-1]  # read in this stage or later
    point = read.copy()
    point[computed] |= allowed[:, producers[computed]].T & alive[computed]
    for j, operator in enumerate(operators):
        if operator.outputs:
            allowed[:, j] &= point[list(operator.outputs)].any(axis=0)
        else:
            allowed[:, j] = False
    timed = kind is Kind.TIMED and paging
    if timed:
        lasting = np.array([tensor.stored for tensor in problem.tensors], dtype=bool)
        point |= alive & (np.arange(n) > producers[:, None]) & ~lasting[:, None]
    recompute_stage, recompute_operator = np.nonzero(allowed)
    recomputes = zip(recompute_operator.tolist(), recompute_stage.tolist(), strict=True)
    # a timed space has no streamed runs
    streams = streamed_runs(
        problem, limits, recomputes, paging and problem.paging and not timed, lean=kind is Kind.LEAN
    )
    index_of = np.full((n, n), -1, dtype=np.int64)
    index_of[recompute_stage, recompute_operator] = np.arange(len(recompute_stage))
    point_tensor, point_stage = np.nonzero(point)
    point_first = np.diff(point_tensor, prepend=-1) != 0
    point_real = real[point_tensor, point_stage]
    producer = producers[point_tensor]
    point_last = np.diff(point_tensor, append=-1) != 0
    point_previous = np.where(point_first, born[point_tensor], np.roll(point_stage, 1))
    stored = np.array([tensor.stored for tensor in problem.tensors], dtype=bool)
    carried = np.array([tensor.may_stay for tensor in problem.tensors], dtype=bool)
    latest = np.zeros(len(problem.tensors), dtype=np.int64)
    latest[point_tensor[point_last]] = point_stage[point_last]
    is_circular = point_first & carried[point_tensor]
    point_previous = np.where(is_circular, latest[point_tensor], point_previous)
    stays_in_ram = ~point_first & np.roll(point_real, 1) & (point_previous == point_stage - 1)
    stays_in_ram &= ~stored[point_tensor]
    stays_in_ram &= not limits.open
    missing, early = _streamed_away(problem, streams)
    stays_in_ram &= ~missing[point_tensor, np.maximum(point_previous, 0)]
    pageable = ((point_stage >= producer + 2 - early[point_tensor]) | stored[point_tensor]) & ~stays_in_ram
    if not timed:
        pageable &= read[point_tensor, point_stage]
    page_point = np.flatnonzero(pageable & paging)
    page_index = np.full(len(point_tensor), -1, dtype=np.int64)
    page_index[page_point] = np.arange(len(page_point))
    return RetentionSpace(
        problem=problem,
        limits=limits,
        name=name,
        paging=paging,
        point_tensor=point_tensor,
        point_stage=point_stage,
        point_previous=point_previous,
        point_first=point_first,
        point_last=point_last,
        point_real=point_real,
        point_recompute=np.where(producer >= 0, index_of[point_stage, producer], -1),
        recompute_operator=recompute_operator,
        recompute_stage=recompute_stage,
        page_point=page_point,
        page_index=page_index,
        kind=kind,
        ends=ends,
        streams=streams,
    )


def _merge_stages(allowed: Flags, ends: Ints) -> Flags:
    """Return (n_stages, n_operators): the union over stages that are decided together, at the last of them."""
    merged = np.zeros_like(allowed)
    np.logical_or.at(merged, ends, allowed)
    return merged & (np.arange(len(ends))[:, None] > ends[None, :])


def _streamed_away(problem: Problem, streams: Streams) -> tuple[Flags, Flags]:
    """Return where streamed runs make a tensor absent.

    Returns
    -------
    (n_tensors, n_stages) bool: whether the stage's own operator may stream the tensor in, so that it needn't be in RAM.
    And (n_tensors,) bool: whether its first run may stream it out, so that it may come back in the next stage.
    """
    missing = np.zeros((len(problem.tensors), max(len(problem.operators), 1)), dtype=bool)
    early = np.zeros(len(problem.tensors), dtype=bool)
    for k, t, v in zip(streams.operator.tolist(), streams.stage.tolist(), streams.variant.tolist(), strict=True):
        if k == t:
            variant = problem.operators[k].variants[v - 1]
            missing[list(variant.streamed_in), t] = True
            early[[i for i in variant.streamed_out if problem.tensors[i].producer == k]] = True
    return missing, early
