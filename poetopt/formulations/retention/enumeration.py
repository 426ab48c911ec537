"""The decisions of a scope: the recomputations of a problem, and the points of its tensors' lives."""

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
"""Features of problems that the formulation has decisions for."""


def recomputable_stages(problem: Problem, scope: str, remat: bool) -> tuple[Flags, str]:
    """(n_stages, n_operators) bool: which operators may be recomputed in which stage; and the scope's name in results.

    `depth:D`: in a backward stage, forward operators on chains of at most D that end in an input of the stage's own
    operator. `forward`: on chains of any length. `full`: any operator
    in any later stage.

    No operator after an update of what it reads.

    Raises FormulationError for a scope of another form.
    """
    n = len(problem.operators)
    able = np.array([operator.recomputable for operator in problem.operators], dtype=bool)
    if not remat:
        return np.zeros((n, n), dtype=bool), scope_name(scope)
    # nothing that reads a tensor runs after its update
    able = able & (np.arange(n)[:, None] <= np.array(problem.last_run, dtype=np.int64)[None, :])
    if scope == "full":
        return np.tri(n, k=-1, dtype=bool) & able, "full"
    forward = np.array([o.recomputable and not o.backward for o in problem.operators], dtype=bool)
    return _within(problem, forward, scope_depth(scope)) & able, scope_name(scope)


def _within(problem: Problem, forward: Flags, depth: float) -> Flags:
    """For each backward stage, the `forward` operators on chains of at most `depth` that end in an input of its own.

    An operator that is several of the network's counts as so many.
    """
    n = len(problem.operators)
    before = [
        np.array(sorted({g for i in operator.inputs if (g := problem.tensors[i].producer) >= 0 and forward[g]}), int)
        for operator in problem.operators
    ]
    # row j: of each operator, how many the shortest chain from it to j has, both counted
    chains = np.full((n, n), math.inf)
    for j in np.flatnonzero(forward).tolist():
        chains[j] = chains[before[j]].min(axis=0, initial=math.inf)
        chains[j, j] = 0
        chains[j] += problem.operators[j].count
    reached = np.isfinite(chains) if math.isinf(depth) else chains <= depth
    allowed = np.zeros((n, n), dtype=bool)
    for t in range(problem.last_forward + 1, n):
        allowed[t] = reached[before[t]].any(axis=0)
    return allowed


def count_recomputes(problem: Problem, scope: str) -> int:
    """The number of recomputes of a space of `scope`, without enumerating anything else."""
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

    What takes no room is always there: it has no points. Left out besides is what some optimal schedule does without:

    - A recompute of which no output can be read any more.
    - A page-in at a point where nothing can read the tensor (only its writer may be recomputed there). It can wait
      for the first point where the tensor is read, where the room that it takes is needed anyway; if the tensor is
      made before that, it isn't needed at all. Neither costs more, and every instant in between has more room.
    - A page-in right after a real use, in the next stage, unless the tensor's home is storage: the tensor is an input
      of the stage before, so that it can stay. (Plans that let recomputes have its room in between lie outside of the
      space.)

    Which runs may stream operands, and which of them a lean space lacks, `retention.streams` says.

    ends
        See `RetentionSpace`.

    In a timed one it may matter when a tensor is moved: page-ins at points where nothing can read it are there,
    and points at every stage from which it can be written.
    """
    check_supported(problem, "formulation 'retention'", SUPPORTS)
    allowed, name = recomputable_stages(problem, scope, remat)
    operators, n = problem.operators, len(problem.operators)
    producers = np.array([tensor.producer for tensor in problem.tensors], dtype=np.int64)
    made = np.flatnonzero(producers >= 0)
    if ends is None:
        ends = np.arange(n)
    else:
        allowed = _together(allowed, ends)
    born = np.full(len(problem.tensors), -1, dtype=np.int64)
    born[made] = ends[producers[made]]
    real = np.zeros((len(problem.tensors), n), dtype=bool)
    read = np.zeros_like(real)
    for i, readers in enumerate(problem.readers):
        if problem.tensors[i].nbytes:
            real[i, [t for t in ends[list(readers)].tolist() if t > born[i]]] = True
            read[i] = allowed[:, list(readers)].any(axis=1)
    read |= real
    alive = np.logical_or.accumulate(read[:, ::-1], axis=1)[:, ::-1]  # read in this stage or later
    point = read.copy()
    point[made] |= allowed[:, producers[made]].T & alive[made]
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
    again = zip(recompute_operator.tolist(), recompute_stage.tolist(), strict=True)
    # where it matters when tensors are moved, nothing is streamed
    streams = streamed_runs(problem, limits, again, paging and problem.paging and not timed, lean=kind is Kind.LEAN)
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
    circle = point_first & carried[point_tensor]
    point_previous = np.where(circle, latest[point_tensor], point_previous)
    stays = ~point_first & np.roll(point_real, 1) & (point_previous == point_stage - 1)
    stays &= ~stored[point_tensor]
    stays &= not limits.open
    missing, early = _streamed_away(problem, streams)
    stays &= ~missing[point_tensor, np.maximum(point_previous, 0)]
    pageable = ((point_stage >= producer + 2 - early[point_tensor]) | stored[point_tensor]) & ~stays
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


def _together(allowed: Flags, ends: Ints) -> Flags:
    """(n_stages, n_operators) what all stages that are decided together allow, at the last of them."""
    found = np.zeros_like(allowed)
    np.logical_or.at(found, ends, allowed)
    return found & (np.arange(len(ends))[:, None] > ends[None, :])


def _streamed_away(problem: Problem, streams: Streams) -> tuple[Flags, Flags]:
    """(n_tensors, n_stages) whether the stage's own operator may stream the tensor in, so that it needn't be there.

    And (n_tensors,) whether its first run may stream it out, so that it may come back in the very next stage.
    """
    missing = np.zeros((len(problem.tensors), max(len(problem.operators), 1)), dtype=bool)
    early = np.zeros(len(problem.tensors), dtype=bool)
    for k, t, v in zip(streams.operator.tolist(), streams.stage.tolist(), streams.variant.tolist(), strict=True):
        if k == t:
            way = problem.operators[k].variants[v - 1]
            missing[list(way.streamed_in), t] = True
            early[[i for i in way.streamed_out if problem.tensors[i].producer == k]] = True
    return missing, early
