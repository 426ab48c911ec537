r"""Block `paging`: which tensors come back from storage, and when; each is written out once.

$$ p_{i,q} \le o_i \quad \text{(1d, 1e)}, \qquad
   \sum_i b_i o_i \le C, \qquad
   E = \sum_{i,q} \Phi^{in}_i p_{i,q} + \sum_i \Phi^{out}_i o_i $$

| symbol           | attribute | unit | meaning                                             |
|------------------|-----------|------|-----------------------------------------------------|
| $p_{i,q}$        | `p`       | -    | tensor i is paged in at the beginning of stage q    |
| $o_i$            | `o`       | -    | tensor i is written to storage, once                |
| $\Phi^{in}_i$    | -         | J    | energy of paging the whole tensor in                |
| $\Phi^{out}_i$   | -         | J    | energy of paging it out                             |
| $b_i$            | -         | -    | blocks that the whole tensor takes on storage       |
| $C$              | -         | -    | blocks that the storage holds, where that is known  |

A tensor's copy stays on storage to the end of the step, so that the row on $C$ is exact; a tensor larger than the
storage is never written.

Where runs may stream (`streaming`), what is streamed out is written by that, and what is streamed in has to be there:
$p_{i,q} \le o_i + Y^{out}_i$ and $Y^{in}_{i,j,t} \le o_i + Y^{out}_i$. What comes back in the very stage after its
first run was streamed out: $p_{i,g(i)+1} \le Y^{out}_i$. And what the stage before reads comes in only where it was
streamed there, as it could stay else: $p_{i,t+1} \le Y^{in}_{i,t,t}$.

A tensor whose home is storage has its copy there when the step begins, and no o. One that is updated has: where it is
paged in at all, its new value is written back once, after the update; else it stays in RAM from step to step.

`o` has no time. Where every block says that it doesn't care when tensors are moved (`Block.transfer_times`), writing
right after the first compute is never worse than later: the bytes are in RAM then, no row of the model and no figure
of a plan counts more, and the copy stays valid. Where one may care, the block `page_out_times` says when.

`o` would be integral by itself, as the largest p; said to be binary, it is what a search branches on first: whether a
tensor goes to storage at all decides more than when it comes back.

Source: constraints 1d-1f of the paper, with M_out moved to the earliest moment.
"""

from __future__ import annotations

import numpy as np
import pyomo.environ as pyo
from pyomo.core.expr.numeric_expr import LinearExpression

from poetopt.formulations.block import Block, PyomoBlock, PyomoRow, Space, in_order
from poetopt.formulations.decisions import Decisions
from poetopt.formulations.rows import Count, Terms, alike, terms
from poetopt.formulations.storage import fits_storage


def _build(block: PyomoBlock) -> None:
    model = block.model()
    space = model.space
    tensors = space.problem.tensors
    paged = space.point_tensor[space.page_point]
    candidates = space.written
    slot = {int(i): k for k, i in enumerate(candidates)}
    block.p = pyo.Var(model.page_ins, domain=pyo.Binary)
    block.o = pyo.Var(model.page_outs, domain=pyo.Binary)
    block.o_tensor = candidates
    block.o_index = slot
    p, o = list(block.p.values()), list(block.o.values())
    written = [o[slot[int(i)]] if int(i) in slot else None for i in paged]
    streamed = list(model.streaming.y.values()) if space.streams else []
    left = {i: [streamed[n] for n in own] for i, own in space.streamed_out.items()}
    at_once = [
        int(i) in left and tensors[int(i)].producer + 1 == t and not space.stored[i]
        for i, t in zip(paged, space.point_stage[space.page_point].tolist(), strict=True)
    ]

    def written_first(_: PyomoBlock, y: int) -> PyomoRow:
        if written[y] is None:
            return pyo.Constraint.Skip
        there = [] if at_once[y] else [written[y]]
        there += left.get(int(paged[y]), [])
        return LinearExpression(linear_coefs=[1, *[-1] * len(there)], linear_vars=[p[y], *there]) <= 0

    block.written_first = pyo.Constraint(
        model.page_ins, rule=in_order(written_first), doc="(1d, 1e) what is paged in was written to storage"
    )
    gates = [(p[int(space.page_index[e])], [streamed[n] for n in own]) for e, own in space.gated.items()]

    def streamed_before(_: PyomoBlock, index: int) -> PyomoRow:
        back, own = gates[index]
        return LinearExpression(linear_coefs=[1, *[-1] * len(own)], linear_vars=[back, *own]) <= 0

    if gates:
        block.streamed_before = pyo.Constraint(
            pyo.RangeSet(0, len(gates) - 1), rule=streamed_before, doc="what isn't streamed stays for the next stage"
        )
    # a run goes by one of its ways, so that those that stream a tensor in count together
    reads = [
        (i, own)
        for (i, _, _), ways in space.streamed_in.items()
        if i in slot and (own := [n for n in ways if n not in space.streamed_out.get(i, ())])
    ]

    def streamed_first(_: PyomoBlock, index: int) -> PyomoRow:
        i, own = reads[index]
        variables = [*(streamed[n] for n in own), o[slot[i]], *left.get(i, [])]
        coefficients = [*[1] * len(own), *[-1] * (len(variables) - len(own))]
        return LinearExpression(linear_coefs=coefficients, linear_vars=variables) <= 0

    if reads:
        block.streamed_first = pyo.Constraint(
            pyo.RangeSet(0, len(reads) - 1), rule=streamed_first, doc="what is streamed in is on storage"
        )
    # each way to storage takes the blocks
    ways = [(i, variable) for i, own in left.items() for variable in own]
    block.storage = pyo.Constraint(
        rule=lambda _: fits_storage(
            space.problem, [*candidates.tolist(), *(i for i, _ in ways)], [*o, *(variable for _, variable in ways)]
        ),
        doc="what the storage holds",
    )
    block.energy_j = _sum(
        terms(block.p, np.array([tensors[i].page_in_j for i in paged])),
        terms(block.o, np.array([tensors[i].page_out_j for i in candidates])),
    )
    block.transfer_s = _sum(
        terms(block.p, np.array([tensors[i].page_in_s for i in paged])),
        terms(block.o, np.array([tensors[i].page_out_s for i in candidates])),
    )
    block.page_ins = Decisions(block.p, np.arange(len(paged)), space.point_stage[space.page_point], paged)
    block.written_bytes = terms(block.o, np.array([float(space.problem.parts * tensors[i].nbytes) for i in candidates]))


def _sum(first: Terms, second: Terms) -> Terms:
    return Terms([*first.variables, *second.variables], [*first.coefficients, *second.coefficients])


def _counts(block: PyomoBlock) -> list[Count]:
    """How often each tensor comes back, and all of one size together; how many of one size are written."""
    space = block.model().space
    energy = np.array([tensor.page_in_j for tensor in space.problem.tensors])
    size = np.array([float(tensor.nbytes) for tensor in space.problem.tensors])
    paged = space.point_tensor[space.page_point]
    return (
        alike(block.p, paged, energy[paged])
        + alike(block.p, size[paged], energy[paged])
        + alike(block.o, size[block.o_tensor], energy[block.o_tensor])
    )


def _needed(space: Space) -> bool:
    return space.paging


paging = Block("paging", _build, when=_needed, counts=_counts)
