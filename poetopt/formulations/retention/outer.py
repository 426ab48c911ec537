r"""The outer approximation of all plans: a relaxation of `retention` with a point for each plan. Where it has none, no
plan exists.

Plans may do more than `retention` has decisions for: run an operator twice in a stage, write a tensor and read it back
between two recomputes, page in what the stage before has read. The *shadow* of a plan has

- $r_{j,t} = 1$ where j runs again in stage t, however often; $o_i = 1$ where i is written out;
- $p_{i,q} = 1$ where i is paged in after stage $q^-$ and by the end of stage q;
- $k_{i,q} = 1$ where i is in RAM from the end of stage $q^-$ until stage q begins, without a break.

The rows of `retention` hold of it on what was there before, what is read, what is written first, and what is live while
a stage's own operator runs; making twice what is there is no waste. While j is recomputed in stage t, what is in RAM as
the stage begins and as it ends, and is neither made nor paged in meanwhile, is there:

$$ (w_j + \sum_{i \in in(j) \cup out(j)} m_i)\, r_{j,t} + \sum_{i:\, q^- < t < q} m_i k_{i,q}
   + \sum_{i:\, t \in P_i} m_i \max(0,\ k_{i,t} + e_{i,t} - 1 - r_{g(i),t} - p_{i,t}) \le B $$

over tensors that j neither reads nor writes, with $e_{i,t} = 1$ where stage t's own operator reads i, else
$k_{i,t^+}$. Sums count each decision once, so never more than the plan's.

*Each plan that wastes nothing has its shadow in here.* What is wasted may be left out, as far as only sums are bounded:
blocks that ask for anything else are left out of it (`composition.outer_of`).

*Where stages are decided together* (`RetentionSpace.ends`) the shadow has, of those whose last one is b,

- $r_{j,b} = 1$ where j runs again in any of them, unless its first run is one of them; $p_{i,b}$ likewise;
- $k_{i,q} = 1$ where i is in RAM from the end of the last stage of $q^-$'s until the first of q's begins, without a
  break.

The same rows hold of it: what is read in any of them was there as they began, or was made or paged in in one. Memory is
counted where it is certain: what is kept across all of them, and at the last one what is kept beyond it, as that was
there while its operator ran, unless it wrote it. Rows on recomputes are left out. A network of a thousand operators has
half a million recomputes; with its stages in 20 runs it has ten thousand, and mostly the same bound.

*Where runs may stream*, an operator takes no more than in its leanest way, and what it streams is paged in or written
in the same stage, for its share of what the variant costs above the plain run: with $\Phi_v$ the variant's joules,

$$ \Phi^{in}_i \min \left( 1, \min_v \frac{\Phi_v - \Phi_j}
   {\sum_{i' \in in(v)} \Phi^{in}_{i'} + \sum_{i' \in out(v)} \Phi^{out}_{i'}} \right) $$

over all variants that stream i, and likewise of $\Phi^{out}_i$. Their seconds count for nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from poetopt.formulations.block import Kind, Limits, PyomoBlock, Space
from poetopt.formulations.deadline import deadline
from poetopt.formulations.retention.chain_cuts import chain_cuts
from poetopt.formulations.retention.closing import closing
from poetopt.formulations.retention.enumeration import count_recomputes, retention_space
from poetopt.formulations.retention.memory import ACTIVE, VIOLATION, memory
from poetopt.formulations.retention.paging import paging
from poetopt.formulations.retention.recompute import recompute
from poetopt.formulations.retention.residency import residency
from poetopt.formulations.retention.rounding import rounding
from poetopt.formulations.retention.space import RetentionSpace, ordinary_bytes
from poetopt.formulations.rows import Floats, Ints, PointLike, Row
from poetopt.formulations.scope import ALL
from poetopt.formulations.storage_activation import storage_activation
from poetopt.graph.problem import Problem
from poetopt.graph.problem.problem import run_bytes


def outer_space(
    problem: Problem, limits: Limits, scope: str, paging: bool, remat: bool, kind: Kind = Kind.SHADOW
) -> RetentionSpace:
    """All recomputes, and a page-in at each point; of the stages of transfers it knows nothing.

    With `full:N` as scope stages are decided together until some N recomputes are left.
    """
    room = limits.ram_bytes - problem.reserve_bytes
    least = [min((n for n in _ways_bytes(problem, k, paging) if n <= room), default=0) for k in _range(problem)]
    most = int(scope.partition(":")[2] or 0)
    ends = _ends(problem, limits, most) if remat and most else None
    plainly = _unstreamed(problem) if paging else _plain(problem)
    space = retention_space(plainly, limits, "full", paging, remat, kind, ends)
    pages = np.arange(len(space.point_tensor) if paging else 0)
    index = np.arange(len(space.point_tensor)) if paging else np.full(len(space.point_tensor), -1, dtype=np.int64)
    known = {field.name: getattr(space, field.name) for field in fields(RetentionSpace)}
    streams = paging and any(operator.variants for operator in problem.operators)
    known |= {"name": ALL, "page_point": pages, "page_index": index, "least": tuple(least) if streams else ()}
    return OuterSpace(**known)


def _ends(problem: Problem, limits: Limits, most: int) -> Ints | None:
    """(n_stages,) the stage that decides for each (see `RetentionSpace.ends`); None: itself.

    Memory counts at the last of those that are decided together. The stages at which ordinary training has not enough
    of it are parted into as many runs as leave some `most` recomputes; each run's fullest stage is one of the last.
    """
    recomputes = count_recomputes(problem, "full")
    if recomputes <= most:
        return None
    n, room = len(problem.operators), limits.ram_bytes - problem.reserve_bytes
    live = ordinary_bytes(problem)
    short = np.flatnonzero(live > room)
    count = max(1, min(len(short), n * most // recomputes))
    last = {int(part[np.argmax(live[part])]) for part in np.array_split(short, count) if len(part)} | {n - 1}
    ends = np.array(sorted(last))
    return ends[np.searchsorted(ends, np.arange(n))]


@dataclass(frozen=True, kw_only=True, eq=False)
class OuterSpace(RetentionSpace):
    """`RetentionSpace`, in which operators take no more than in their leanest ways.

    least
        (n_operators,) what each takes of the arena then; empty where nothing streams.
    """

    least: tuple[int, ...] = ()

    @cached_property
    def working_set_bytes(self) -> Floats:
        whole = RetentionSpace.working_set_bytes.func(self)  # type: ignore[attr-defined]
        return np.minimum(whole, np.array(self.least, dtype=float)) if self.least else np.asarray(whole)

    @cached_property
    def room_bytes(self) -> int:
        room: int = RetentionSpace.room_bytes.func(self)  # type: ignore[attr-defined]
        if not self.least:
            return room
        unit = int(self.memory_unit)
        return self._slots(self.limits.ram_bytes - self.problem.reserve_bytes) // unit * unit

    @cached_property
    def memory_unit(self) -> float:
        unit = RetentionSpace.memory_unit.func(self)  # type: ignore[attr-defined]
        return float(math.gcd(int(unit), *self.least) or 1)


def _range(problem: Problem) -> range:
    return range(len(problem.operators))


def _ways_bytes(problem: Problem, k: int, paging: bool) -> list[int]:
    """The bytes that operator k takes of the arena, run plain and by each of its variants."""
    variants = problem.operators[k].variants if paging else ()
    return [int(run_bytes(problem, k, v)) for v in range(len(variants) + 1)]


def _plain(problem: Problem) -> Problem:
    return replace(problem, operators=tuple(replace(operator, variants=()) for operator in problem.operators))


def _unstreamed(problem: Problem) -> Problem:
    """The problem without variants, in which what they stream is moved for no more than they take."""
    tensors = problem.tensors
    share: dict[int, float] = {}
    for operator in problem.operators:
        for way in operator.variants:
            whole = sum(tensors[i].page_in_j for i in way.streamed_in)
            whole += sum(tensors[i].page_out_j for i in way.streamed_out)
            more = max(0.0, way.energy_j - operator.energy_j)
            for i in {*way.streamed_in, *way.streamed_out}:
                share[i] = min(share.get(i, 1.0), more / whole if whole else 1.0)
    if not share:
        return _plain(problem)
    moved = tuple(
        tensor.moved_for(
            page_in_j=share[i] * tensor.page_in_j,
            page_out_j=share[i] * tensor.page_out_j,
            page_in_s=0.0,
            page_out_s=0.0,
        )
        if i in share
        else tensor
        for i, tensor in enumerate(tensors)
    )
    return replace(_plain(problem), tensors=moved)


@dataclass(frozen=True)
class _Stay:
    """A tensor that is in RAM throughout a stage: at least `value` of its bytes, a linear expression of decisions."""

    tensor: int
    nbytes: float
    value: float
    variables: list[Any]
    signs: list[float]
    constant: float = 0.0


def _separate(block: PyomoBlock, point: PointLike) -> list[Row]:
    """The rows of recomputes during which more than the budget is live, whatever the plan."""
    model = block.model()
    space: RetentionSpace = model.space
    if space.joined:  # nothing is said of a moment inside
        return []
    r, k = point[model.recompute.r], point[model.residency.k].tolist()
    p = point[model.paging.p].tolist() if space.paging else []
    room, unit = space.room_bytes, space.memory_unit
    active = np.flatnonzero(r > ACTIVE).tolist()
    stays = {t: _stays(block, t, r.tolist(), k, p) for t in {int(space.recompute_stage[x]) for x in active}}
    found = []
    for x in active:
        operator = space.problem.operators[space.recompute_operator[x]]
        own = {*operator.inputs, *operator.outputs}
        others = [stay for stay in stays[int(space.recompute_stage[x])] if stay.tensor not in own]
        needed = float(space.working_set_bytes[space.recompute_operator[x]])
        live = needed * float(r[x]) + sum(stay.nbytes * stay.value for stay in others)
        if live > room * (1 + VIOLATION):
            variables, coefficients = [block.again[x]], [needed / unit]
            for stay in others:
                variables += stay.variables
                coefficients += [stay.nbytes * sign / unit for sign in stay.signs]
            upper = (room - sum(stay.nbytes * stay.constant for stay in others)) / unit
            found.append(Row(variables, coefficients, -math.inf, upper, live / room - 1, "outer", core=True))
    return found


def _stays(block: PyomoBlock, t: int, r: list[float], k: list[float], p: list[float]) -> list[_Stay]:
    """The tensors in RAM throughout stage t at a point, as far as that is certain."""
    space: RetentionSpace = block.model().space
    keep, again, back = block.keep, block.again, block.back
    size = space.tensor_bytes[space.point_tensor].tolist()
    tensor = space.point_tensor.tolist()
    found = [_Stay(tensor[e], size[e], k[e], [keep[e]], [1.0]) for e in block.spanning[t] if k[e] > 0]
    for e in space.points_at.get(t, ()):
        variables, signs, value, constant = [keep[e]], [1.0], k[e], 0.0
        after = int(space.point_after[e])
        if not space.point_real[e]:
            if after < 0:
                continue
            variables, signs, value, constant = [*variables, keep[after]], [1.0, 1.0], value + k[after] - 1, -1.0
        for kind, values, index in ((again, r, space.point_recompute[e]), (back, p, space.page_index[e])):
            if index >= 0:
                variables.append(kind[index])
                signs.append(-1.0)
                value -= values[index]
        if value > 0:
            found.append(_Stay(tensor[e], size[e], value, variables, signs, constant))
    return found


def _wakes(space: Space) -> bool:
    """With DMA the rows ask how long the channel is busy, and a plan may move more often than its shadow; where runs
    stream they move by themselves.
    """
    assert storage_activation.when is not None
    streams = bool(getattr(space, "least", ()))
    return storage_activation.when(space) and not space.problem.dma and not streams


OUTER = (
    recompute,
    paging,
    residency,
    replace(memory, separator=_separate),
    closing,
    rounding,
    chain_cuts,
    replace(storage_activation, when=_wakes),
    deadline,
)
"""Its blocks, in building order. Rounding needs no more than the memory rows of the stages' own operators."""
