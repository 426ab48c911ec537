r"""Outer approximation of all plans: a relaxation of `retention` with a point for each plan.

If it is infeasible, no plan exists. Plans may do more than `retention` has decisions for: run an operator twice in a
stage, write a tensor and read it back between two recomputes, page in a tensor that the stage before has read. The
*shadow* of a plan has

- $r_{j,t} = 1$ if j runs again in stage t, however often; $o_i = 1$ if i is written out;
- $p_{i,q} = 1$ if i is paged in after stage $q^-$ and by the end of stage q;
- $k_{i,q} = 1$ if i is in RAM from the end of stage $q^-$ until stage q begins, without a break.

The shadow satisfies the rows of `retention` on continuity, on reads, on writes before page-ins, and on memory while a
stage's own operator runs. The rows against waste don't apply: a plan may make a tensor twice. While j is recomputed in
stage t, a tensor is live if it is in RAM when the stage begins and when it ends, and is neither made nor paged in
meanwhile:

$$ (w_j + \sum_{i \in in(j) \cup out(j)} m_i)\, r_{j,t} + \sum_{i:\, q^- < t < q} m_i k_{i,q}
   + \sum_{i:\, t \in P_i} m_i \max(0,\ k_{i,t} + e_{i,t} - 1 - r_{g(i),t} - p_{i,t}) \le B $$

over tensors that j neither reads nor writes, with $e_{i,t} = 1$ if stage t's own operator reads i, else $k_{i,t^+}$.
Sums count each decision once, so they never exceed those of the plan.

*The relaxation contains the shadow of each plan without waste.* A plan may drop its waste as long as only sums are
bounded, so `composition.outer_of` leaves out blocks that bound anything else.

*If stages are decided together* (`RetentionSpace.ends`), consider a group of stages whose last one is b. The shadow has

- $r_{j,b} = 1$ if j runs again in any of them, unless its first run is in one of them; $p_{i,b}$ likewise;
- $k_{i,q} = 1$ if i is in RAM from the end of the last stage of $q^-$'s group until the first of q's group begins,
  without a break.

It satisfies the same rows: a tensor that any of them reads was there when the group began, or was made or paged in in
the group. Memory counts only where it is certain. That is a tensor that is kept across all stages of the group, and at
the last stage a tensor that is kept beyond it: it was there while the operator of the last stage ran, unless that wrote
it. Rows on recomputes are left out. A network of a thousand operators has half a million recomputes; with its stages in
20 groups it has ten thousand, and mostly the same bound.

*If runs may stream*, an operator takes only the bytes of its smallest variant. Its streamed tensors are paged in or
written in the same stage, for their share of the variant's cost above the plain run. With $\Phi_v$ the variant's joules
the price of a page-in is

$$ \Phi^{in}_i \min \left( 1, \min_v \frac{\Phi_v - \Phi_j}
   {\sum_{i' \in in(v)} \Phi^{in}_{i'} + \sum_{i' \in out(v)} \Phi^{out}_{i'}} \right) $$

over all variants that stream i, and likewise for $\Phi^{out}_i$. Their seconds are 0.
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
    """Return the space with all recomputes and a page-in at each point, but without stages of transfers.

    With the scope `full:N` it decides stages together until about N recomputes are left.
    """
    room = limits.ram_bytes - problem.reserve_bytes
    least_bytes = [
        min((n for n in _variant_bytes(problem, k, paging) if n <= room), default=0) for k in _operator_range(problem)
    ]
    max_recomputes = int(scope.partition(":")[2] or 0)
    ends = _group_ends(problem, limits, max_recomputes) if remat and max_recomputes else None
    relaxed = _with_cheapest_transfers(problem) if paging else _without_variants(problem)
    space = retention_space(relaxed, limits, "full", paging, remat, kind, ends)
    pages = np.arange(len(space.point_tensor) if paging else 0)
    index = np.arange(len(space.point_tensor)) if paging else np.full(len(space.point_tensor), -1, dtype=np.int64)
    values = {field.name: getattr(space, field.name) for field in fields(RetentionSpace)}
    streams = paging and any(operator.variants for operator in problem.operators)
    values |= {"name": ALL, "page_point": pages, "page_index": index, "least": tuple(least_bytes) if streams else ()}
    return OuterSpace(**values)


def _group_ends(problem: Problem, limits: Limits, max_recomputes: int) -> Ints | None:
    """Return (n_stages,) the stage that decides for each (see `RetentionSpace.ends`); None if each decides for itself.

    Memory counts only at the last stage of a group. So the stages at which ordinary training exceeds the budget are
    split into as many groups as leave about `most` recomputes, and each group ends at its fullest stage.
    """
    recomputes = count_recomputes(problem, "full")
    if recomputes <= max_recomputes:
        return None
    n, room = len(problem.operators), limits.ram_bytes - problem.reserve_bytes
    live_bytes = ordinary_bytes(problem)
    full_stages = np.flatnonzero(live_bytes > room)
    count = max(1, min(len(full_stages), n * max_recomputes // recomputes))
    last_stages = {
        int(part[np.argmax(live_bytes[part])]) for part in np.array_split(full_stages, count) if len(part)
    } | {n - 1}
    ends = np.array(sorted(last_stages))
    return ends[np.searchsorted(ends, np.arange(n))]


@dataclass(frozen=True, kw_only=True, eq=False)
class OuterSpace(RetentionSpace):
    """`RetentionSpace` in which each operator takes only the bytes of its smallest variant.

    Attributes
    ----------
    least
        (n_operators,) bytes of the smallest variant in the arena; empty if nothing streams.
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


def _operator_range(problem: Problem) -> range:
    return range(len(problem.operators))


def _variant_bytes(problem: Problem, k: int, paging: bool) -> list[int]:
    """Return the bytes of operator k in the arena, for the plain run and for each of its variants."""
    variants = problem.operators[k].variants if paging else ()
    return [int(run_bytes(problem, k, v)) for v in range(len(variants) + 1)]


def _without_variants(problem: Problem) -> Problem:
    return replace(problem, operators=tuple(replace(operator, variants=()) for operator in problem.operators))


def _with_cheapest_transfers(problem: Problem) -> Problem:
    """Return the problem without variants, with transfers no more expensive than in any variant that streams them."""
    tensors = problem.tensors
    share: dict[int, float] = {}
    for operator in problem.operators:
        for variant in operator.variants:
            paging_j = sum(tensors[i].page_in_j for i in variant.streamed_in)
            paging_j += sum(tensors[i].page_out_j for i in variant.streamed_out)
            extra_j = max(0.0, variant.energy_j - operator.energy_j)
            for i in {*variant.streamed_in, *variant.streamed_out}:
                share[i] = min(share.get(i, 1.0), extra_j / paging_j if paging_j else 1.0)
    if not share:
        return _without_variants(problem)
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
    return replace(_without_variants(problem), tensors=moved)


@dataclass(frozen=True)
class _Stay:
    """A tensor that is in RAM throughout a stage: at least the share `value`, a linear expression of decisions."""

    tensor: int
    nbytes: float
    value: float
    variables: list[Any]
    signs: list[float]
    constant: float = 0.0


def _separate(block: PyomoBlock, point: PointLike) -> list[Row]:
    """Return the rows of recomputes during which every plan would exceed the budget."""
    model = block.model()
    space: RetentionSpace = model.space
    if space.has_groups:  # memory inside of a group of stages is unknown
        return []
    r, k = point[model.recompute.r], point[model.residency.k].tolist()
    p = point[model.paging.p].tolist() if space.paging else []
    room, unit = space.room_bytes, space.memory_unit
    active = np.flatnonzero(r > ACTIVE).tolist()
    stays = {t: _stays(block, t, r.tolist(), k, p) for t in {int(space.recompute_stage[x]) for x in active}}
    rows = []
    for x in active:
        operator = space.problem.operators[space.recompute_operator[x]]
        operands = {*operator.inputs, *operator.outputs}
        others = [stay for stay in stays[int(space.recompute_stage[x])] if stay.tensor not in operands]
        needed = float(space.working_set_bytes[space.recompute_operator[x]])
        live = needed * float(r[x]) + sum(stay.nbytes * stay.value for stay in others)
        if live > room * (1 + VIOLATION):
            variables, coefficients = [block.again[x]], [needed / unit]
            for stay in others:
                variables += stay.variables
                coefficients += [stay.nbytes * sign / unit for sign in stay.signs]
            upper = (room - sum(stay.nbytes * stay.constant for stay in others)) / unit
            rows.append(Row(variables, coefficients, -math.inf, upper, live / room - 1, "outer", core=True))
    return rows


def _stays(block: PyomoBlock, t: int, r: list[float], k: list[float], p: list[float]) -> list[_Stay]:
    """Return the tensors that are certainly in RAM throughout stage t at a point."""
    space: RetentionSpace = block.model().space
    keep, again, back = block.keep, block.again, block.back
    size = space.tensor_bytes[space.point_tensor].tolist()
    tensor = space.point_tensor.tolist()
    stays = [_Stay(tensor[e], size[e], k[e], [keep[e]], [1.0]) for e in block.spanning[t] if k[e] > 0]
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
            stays.append(_Stay(tensor[e], size[e], value, variables, signs, constant))
    return stays


def _needs_activation_rows(space: Space) -> bool:
    """Return whether the rows of `storage_activation` hold for shadows: not with DMA, and not if runs stream.

    With DMA the rows count how long the channel is busy, and a plan may move a tensor more often than its shadow.
    Streamed runs transfer without page-ins and page-outs.
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
    replace(storage_activation, when=_needs_activation_rows),
    deadline,
)
"""Blocks of the relaxation, in building order. `rounding` needs only the memory rows of the stages' own operators."""
