r"""Block `page_out_times`: stage of each page-out, if a block may depend on it (`Block.transfer_times`).

With $x_{i,t}$ for each stage t after i's first compute g(i), up to its last page-in:

$$ \begin{aligned}
   \sum_t x_{i,t} &= o_i \\
   p_{i,q} &\le \sum_{t < q} x_{i,t} \\
   x_{i,t} &\le k_{i,t} && \text{unless } t - 1 \text{ is } g(i) \text{ or a real use of i}
   \end{aligned} $$

A page-out is at the beginning of its stage, right after operator t-1. A tensor that operator t-1 wrote or read is in
RAM then, and is freed at once if nothing keeps it. Any other tensor has to stay through that compute, and so up to
point t.

| symbol      | attribute | unit | meaning                                  |
|-------------|-----------|------|------------------------------------------|
| $x_{i,t}$   | `x`       | -    | tensor i is written out as stage t begins |

One page-out is enough, as a copy stays valid. A tensor whose home is storage is written back right after its update. If
no block depends on the stages of transfers, t is g(i) + 1 in some optimum, and the block is left out (see `paging`).

Source: M_out and the rows 1d, 1e and 1f of the paper. In a plan a written tensor needn't stay for the stage.
"""

from __future__ import annotations

import numpy as np
import pyomo.core as pyo

from poetopt.formulations.block import Block, PyomoBlock, Space, equation
from poetopt.formulations.decisions import Decisions
from poetopt.formulations.retention.space import RetentionSpace
from poetopt.formulations.retention.symbols import Symbols


def page_out_stages(space: RetentionSpace) -> list[tuple[int, int]]:
    """Return (tensor, stage) of the page-outs that a space decides, ascending, each before a page-in of its tensor."""
    last: dict[int, int] = {}
    for e in space.page_point.tolist():
        if not space.stored[space.point_tensor[e]]:
            last[int(space.point_tensor[e])] = int(space.point_stage[e])
    tensors = space.problem.tensors
    return [(i, t) for i, end in sorted(last.items()) for t in range(tensors[i].producer + 1, end)]


def there_anyway(space: RetentionSpace, i: int, t: int) -> bool:
    """Return whether tensor i is in RAM when stage t begins because operator t-1 wrote or read it."""
    return t - 1 == space.problem.tensors[i].producer or t - 1 in space.problem.readers[i]


def _build(block: PyomoBlock) -> None:
    model = block.model()
    space: RetentionSpace = model.space
    pairs = page_out_stages(space)
    block.index = {pair: n for n, pair in enumerate(pairs)}
    block.moments = pyo.Set(initialize=pairs, dimen=2, doc="(i, t): tensor i may be written out as stage t begins")
    block.x = pyo.Var(block.moments, domain=pyo.Binary)
    s = Symbols(model)
    o, k, p, x = s.o, s.k, s.p, dict(zip(pairs, block.x.values(), strict=True))
    stages_of: dict[int, list[int]] = {}
    for i, t in pairs:
        stages_of.setdefault(i, []).append(t)
    written = [i for i in o if i in stages_of]
    paged = [(i, q) for i, q in p if i in stages_of]
    held = [(i, t) for i, t in pairs if not there_anyway(space, i, t)]
    block.once = equation(
        written,
        lambda i: sum(x[i, t] for t in stages_of[i]) == o[i],
        "a tensor that is written out is so in one stage",
    )
    block.before = equation(
        paged,
        lambda i, q: p[i, q] <= sum(x[i, t] for t in stages_of[i] if t < q),
        "(1d, 1e) a tensor that is paged in was written before",
    )
    block.resident = equation(
        held,
        lambda i, t: x[i, t] <= k[i, t],
        "(1f) a tensor that is written out is in RAM",
    )
    tensors, stages = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    block.page_outs = Decisions(block.x, np.arange(len(pairs)), stages, tensors)


def _needed(space: Space) -> bool:
    return isinstance(space, RetentionSpace) and space.transfer_times


page_out_times = Block("page_out_times", _build, requires=("paging", "residency"), when=_needed)
