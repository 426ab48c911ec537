r"""Block `paging`: page-ins of tensors by stage, and one page-out of each tensor that comes back.

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
| $C$              | -         | -    | capacity of the storage in blocks, if it is known   |

A tensor's copy stays on storage to the end of the step, so the row on $C$ is exact. A tensor larger than the storage is
never written.

If runs may stream (`streaming`), a tensor that is streamed out is thereby written, and a tensor that is streamed in
must be on storage: $p_{i,q} \le o_i + Y^{out}_i$ and $Y^{in}_{i,j,t} \le o_i + Y^{out}_i$. A tensor that comes back in
the stage right after its first run was streamed out: $p_{i,g(i)+1} \le Y^{out}_i$. A tensor that the previous stage
reads could stay in RAM, so it is paged in only if that stage streamed it: $p_{i,t+1} \le Y^{in}_{i,t,t}$.

A tensor whose home is storage has its copy there when the step begins, and no o. If it is updated, it has an o: if it
is paged in at all, its new value is written back once, after the update; otherwise it stays in RAM from step to step.

`o` has no stage. If no block depends on the stages of transfers (`Block.transfer_times`), a write right after the first
compute is never worse than a later one. The bytes are in RAM then, no row of the model and no figure of a plan counts
more, and the copy stays valid. If a block may depend on them, the block `page_out_times` decides the stage.

`o` would be integral by itself, as the largest p. It is binary so that a search branches on it first: whether a tensor
goes to storage at all decides more than when it comes back.

Source: constraints 1d-1f of the paper, with M_out moved to the earliest moment.
"""

from __future__ import annotations

import numpy as np
import pyomo.core as pyo

from poetopt.formulations.block import Block, PyomoBlock, PyomoRow, Space, equation
from poetopt.formulations.decisions import Decisions
from poetopt.formulations.figures import figures
from poetopt.formulations.retention.symbols import Symbols
from poetopt.formulations.rows import total
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
    s = Symbols(model)
    p, o, y_in, y_out = s.p, s.o, s.y_in, s.y_out

    def written_first(i: int, t: int) -> PyomoRow:
        if i not in o:
            return pyo.Constraint.Skip  # it is always on storage
        at_once = i in y_out and tensors[i].producer + 1 == t and not space.stored[i]
        return p[i, t] <= (y_out[i] if at_once else o[i] + y_out[i])

    block.add_component(
        "written_first",
        equation(model.page_ins, written_first, "(1d, 1e) a tensor that is paged in was written to storage"),
    )
    points = list(space.point_of)
    gated = [points[e] for e in space.gated]
    if gated:
        block.streamed_before = equation(
            gated,
            lambda i, t: p[i, t] <= y_in[i, t - 1, t - 1],
            "a tensor that isn't streamed stays for the next stage",
        )
    # a run uses one variant, so the variants that stream a tensor in add up
    reads = {
        run: reads_only
        for run, numbers in space.streamed_in.items()
        if run[0] in o and (reads_only := [n for n in numbers if n not in space.streamed_out.get(run[0], ())])
    }
    if reads:
        block.streamed_first = equation(
            list(reads),
            lambda i, j, t: sum(s.y[n] for n in reads[i, j, t]) <= o[i] + y_out[i],
            "a tensor that is streamed in is on storage",
        )
    # each variant that streams out takes the blocks
    streamed_writes = [(i, s.y[n]) for i, runs in space.streamed_out.items() for n in runs]
    block.storage = pyo.Constraint(
        rule=lambda _: fits_storage(
            model,
            [*candidates.tolist(), *(i for i, _ in streamed_writes)],
            [*o.values(), *(variable for _, variable in streamed_writes)],
        ),
        doc="the written tensors fit the storage",
    )
    back = list(zip(paged.tolist(), block.p.values(), strict=True))
    out = list(zip(candidates.tolist(), block.o.values(), strict=True))
    in_j, in_s, out_j, out_s = (figures(model, f"page_{name}") for name in ("in_j", "in_s", "out_j", "out_s"))
    block.energy_j = total(((in_j[i], p) for i, p in back), ((out_j[i], o) for i, o in out))
    block.transfer_s = total(((in_s[i], p) for i, p in back), ((out_s[i], o) for i, o in out))
    block.page_ins = Decisions(block.p, np.arange(len(paged)), space.point_stage[space.page_point], paged)
    block.written_bytes = total((float(space.problem.parts * tensors[i].nbytes), o) for i, o in out)


def _has_paging(space: Space) -> bool:
    return space.paging


paging = Block("paging", _build, when=_has_paging)
