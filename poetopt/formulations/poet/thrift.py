r"""Rows that only points without waste satisfy. They exclude decisions that no plan needs.

$$ \begin{aligned}
   M^{in}_{t,i} + S^{ram}_{t,i} &\le 1, \quad M^{in}_{t,i} + R_{t,g(i)} \le 1, \quad M^{in}_{t,i} \le S^{ram}_{t+1,i} \\
   R_{t,j} + S^{ram}_{t,i} &\le 1 && i \text{ is all that j writes} \\
   R_{t,j} &\le \sum_{i \in out(j)} \left( S^{ram}_{t+1,i} + \sum_{h > j \text{ reads } i} R_{t,h} \right)
   \end{aligned} $$

*No schedule is lost.* A tensor that is in RAM when stage t + 1 begins isn't freed in stage t once it is there. So three
kinds of decisions have no use: a page-in of a tensor that was there or was made in t, a page-in of a tensor that isn't
kept, and a compute that nothing reads. Without them a point has the same memory at each instant, or less.

Without these rows several points stand for one schedule. After the search excludes the first of them, the others would
come back one by one.
"""

from __future__ import annotations

import math
from typing import Any

from poetopt.formulations.poet.space import PoetSpace
from poetopt.formulations.rows import Row


def thrift(model: Any) -> list[Row]:
    """Return all such rows for the decisions of a model."""
    space: PoetSpace = model.space
    problem, R, S = space.problem, model.decisions.R, model.decisions.S_ram
    rows: list[Row] = []
    for t, j in model.computes:
        outputs = problem.operators[j].outputs
        if t == j:
            continue
        if len(outputs) == 1:
            rows.append(_one_of(R[t, j], S[t, outputs[0]]))
        readers = {h for i in outputs for h in problem.readers[i] if h > j}
        if t not in readers:
            kept = [S[t + 1, i] for i in outputs if (t + 1, i) in S]
            again = [R[t, h] for h in sorted(readers) if (t, h) in R]
            rows.append(_row([(1.0, one) for one in [*kept, *again]] + [(-1.0, R[t, j])], 0.0))
    for (t, i), back in model.decisions.M_in.items() if space.paging else ():
        if back.fixed:
            continue
        kept = [S[t + 1, i]] if (t + 1, i) in S else []
        rows += [_one_of(back, S[t, i]), _row([*((1.0, one) for one in kept), (-1.0, back)], 0.0)]
        recompute = (t, problem.tensors[i].producer)
        if recompute in R:
            rows.append(_one_of(back, R[recompute]))
    return rows


def _one_of(first: Any, second: Any) -> Row:
    return _row([(-1.0, first), (-1.0, second)], -1.0)


def _row(parts: list[tuple[float, Any]], lower: float) -> Row:
    """Return the row sum of parts >= lower without fixed variables, which are no columns of the model."""
    lower -= sum(sign * one.value for sign, one in parts if one.fixed)
    free = [(sign, one) for sign, one in parts if not one.fixed]
    return Row([one for _, one in free], [sign for sign, _ in free], lower, math.inf, 1.0, "dominance", core=True)
