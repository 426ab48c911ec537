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
blocks that ask for anything else are left out of it (`Formulation.outer_of`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from poetopt.formulations.block import Limits, PyomoBlock
from poetopt.formulations.deadline import deadline
from poetopt.formulations.retention.chain_cuts import chain_cuts
from poetopt.formulations.retention.closing import closing
from poetopt.formulations.retention.enumeration import retention_space
from poetopt.formulations.retention.memory import ACTIVE, VIOLATION, memory
from poetopt.formulations.retention.paging import paging
from poetopt.formulations.retention.recompute import recompute
from poetopt.formulations.retention.residency import build, residency
from poetopt.formulations.retention.space import RetentionSpace
from poetopt.formulations.rows import PointLike, Row
from poetopt.problem import Problem


def outer_space(
    problem: Problem,
    limits: Limits,
    scope: str,
    paging: bool,
    remat: bool,
    lean: bool = False,
    transfer_times: bool = False,
) -> RetentionSpace:
    """All recomputes, and a page-in at each point; of the stages of transfers it knows nothing."""
    space = retention_space(problem, limits, "full", paging, remat)
    pages = np.arange(len(space.point_tensor) if paging else 0)
    index = np.arange(len(space.point_tensor)) if paging else np.full(len(space.point_tensor), -1, dtype=np.int64)
    return replace(space, page_point=pages, page_index=index)


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
    """What is in RAM throughout stage t at a point, as far as that is certain."""
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


OUTER = (
    recompute,
    paging,
    replace(residency, build=partial(build, exclusive=False)),
    replace(memory, separator=_separate),
    closing,
    chain_cuts,
    deadline,
)
"""Its blocks, in building order."""
