r"""Rows of points that waste nothing: each recompute and each page-in is read in its stage, or kept beyond it.

$$ \begin{aligned}
   r_{j,t} &\le \sum_{i \in out(j)} \left( k_{i,t^+} + \sum_{h > j \text{ reads } i} r_{h,t} \right)
      && \text{t's own operator reads none of } out(j) \\
   p_{i,q} &\le k_{i,q^+} + \sum_{h \text{ reads } i} r_{h,q} && \text{q's own operator doesn't read i}
   \end{aligned} $$

*No optimum is lost*: what nothing reads may be left out. These rows matter where schedules are left out one by one: a
refused one would come back with each recompute that is of no use.
"""

from __future__ import annotations

import math
from typing import Any

from poetopt.formulations.retention.space import RetentionSpace
from poetopt.formulations.rows import Row


def thrift(model: Any) -> list[Row]:
    """All of them, for the decisions that a model has."""
    space: RetentionSpace = model.space
    problem = space.problem
    r, k = list(model.recompute.r.values()), list(model.residency.k.values())
    p = list(model.paging.p.values()) if space.paging else []

    def uses(i: int, t: int, above: int) -> list[Any] | None:
        """What may need tensor i once it is there in stage t; None where its own operator does."""
        e = space.point_of.get((i, t))
        if e is None:
            return []
        if space.point_real[e]:
            return None
        after = int(space.point_after[e])
        readers = [space.recompute_of.get((h, t)) for h in problem.readers[i] if h > above]
        return ([k[after]] if after >= 0 else []) + [r[x] for x in readers if x is not None]

    rows: list[Row] = []
    for (j, t), x in space.recompute_of.items():
        found = [uses(i, t, j) for i in problem.operators[j].outputs]
        if None not in found:
            rows.append(_row(r[x], [one for some in found if some is not None for one in some]))
    for y, e in enumerate(space.page_point.tolist() if p else ()):
        some = uses(int(space.point_tensor[e]), int(space.point_stage[e]), -1)
        if some is not None:
            rows.append(_row(p[y], some))
    return rows


def _row(what: Any, uses: list[Any]) -> Row:
    return Row([what, *uses], [-1.0, *[1.0] * len(uses)], 0.0, math.inf, 1.0, "thrift", core=True)
