r"""Block `page_out_times`: in which stage a tensor is written out, where a block may care (`Block.transfer_times`).

With $x_{i,t}$ for each stage t after i's first compute g(i), up to its last page-in:

$$ \begin{aligned}
   \sum_t x_{i,t} &= o_i \\
   p_{i,q} &\le \sum_{t < q} x_{i,t} \\
   x_{i,t} &\le k_{i,t} && \text{unless } t - 1 \text{ is } g(i) \text{ or a real use of i}
   \end{aligned} $$

A page-out stands where its stage begins, right after operator t-1. What that operator wrote or read is in RAM then, and
goes at once if nothing keeps it; what it didn't touch has to stay through its compute, and so up to point t.

| symbol      | attribute | unit | meaning                                  |
|-------------|-----------|------|------------------------------------------|
| $x_{i,t}$   | `x`       | -    | tensor i is written out as stage t begins |

Once is enough: a copy stays valid. What storage holds from the start is written back right after its update, as ever.
Where no block cares when tensors are moved, t is g(i) + 1 in some optimum, and the block is left out (see `paging`).

Source: M_out and the rows 1d, 1e and 1f of the paper, for a plan: what is written needn't stay for the stage.
"""

from __future__ import annotations

import numpy as np
import pyomo.environ as pyo
from pyomo.core.expr.numeric_expr import LinearExpression

from poetopt.formulations.block import Block, PyomoBlock, PyomoRow, Space, in_order
from poetopt.formulations.decisions import Decisions
from poetopt.formulations.retention.space import RetentionSpace


def page_out_stages(space: RetentionSpace) -> list[tuple[int, int]]:
    """(tensor, stage) of the page-outs whose stage a space decides, ascending: each before a page-in of its tensor."""
    last: dict[int, int] = {}
    for e in space.page_point.tolist():
        if not space.stored[space.point_tensor[e]]:
            last[int(space.point_tensor[e])] = int(space.point_stage[e])
    tensors = space.problem.tensors
    return [(i, t) for i, end in sorted(last.items()) for t in range(tensors[i].producer + 1, end)]


def there_anyway(space: RetentionSpace, i: int, t: int) -> bool:
    """Whether tensor i is in RAM as stage t begins whatever is kept: the operator before it wrote or read it."""
    return t - 1 == space.problem.tensors[i].producer or t - 1 in space.problem.readers[i]


def _build(block: PyomoBlock) -> None:
    model = block.model()
    space: RetentionSpace = model.space
    pairs = page_out_stages(space)
    block.index = {pair: n for n, pair in enumerate(pairs)}
    names = space.tensor_names
    block.moments = pyo.Set(
        initialize=[(names[i], t) for i, t in pairs],
        dimen=2,
        doc="(tensor, stage): the tensor may be written out there",
    )
    block.x = pyo.Var(block.moments, domain=pyo.Binary)
    x, o = list(block.x.values()), list(model.paging.o.values())
    k, p = list(model.residency.k.values()), list(model.paging.p.values())
    of_tensor: dict[int, list[int]] = {}
    for n, (i, _) in enumerate(pairs):
        of_tensor.setdefault(i, []).append(n)
    written = [(i, o[n]) for n, i in enumerate(model.paging.o_tensor.tolist()) if i in of_tensor]
    pages = [e for e in space.page_point.tolist() if int(space.point_tensor[e]) in of_tensor]
    paged = [p[space.page_index[e]] for e in pages]
    held = [n for n, (i, t) in enumerate(pairs) if not there_anyway(space, i, t)]

    def once(_: PyomoBlock, n: int) -> PyomoRow:
        i, ever = written[n]
        own = of_tensor[i]
        return LinearExpression(linear_coefs=[*[1] * len(own), -1], linear_vars=[*(x[m] for m in own), ever]), 0

    def before(_: PyomoBlock, y: int) -> PyomoRow:
        i, q = int(space.point_tensor[pages[y]]), int(space.point_stage[pages[y]])
        own = [m for m in of_tensor[i] if pairs[m][1] < q]
        return LinearExpression(linear_coefs=[1, *[-1] * len(own)], linear_vars=[paged[y], *(x[m] for m in own)]) <= 0

    def resident(_: PyomoBlock, index: int) -> PyomoRow:
        i, t = pairs[held[index]]
        return LinearExpression(linear_coefs=[1, -1], linear_vars=[x[held[index]], k[space.point_of[i, t]]]) <= 0

    block.once = pyo.Constraint(
        [names[i] for i, _ in written], rule=in_order(once), doc="what is written out is so in one stage"
    )
    block.before = pyo.Constraint(
        [space.points[e] for e in pages], rule=in_order(before), doc="(1d, 1e) what is paged in was written before"
    )
    block.resident = pyo.Constraint(
        [(names[pairs[n][0]], pairs[n][1]) for n in held],
        rule=in_order(resident),
        doc="(1f) what is written out is in RAM",
    )
    tensors, stages = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    block.page_outs = Decisions(block.x, np.arange(len(pairs)), stages, tensors)


def _needed(space: Space) -> bool:
    return isinstance(space, RetentionSpace) and space.transfer_times


page_out_times = Block("page_out_times", _build, requires=("paging", "residency"), when=_needed)
