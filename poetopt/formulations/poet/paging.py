r"""Block `paging`: what is on storage, and what moves between storage and RAM.

$$ \begin{aligned}
   S^{aux}_{t,i} &\le S^{aux}_{t-1,i} + M^{out}_{t-1,i}, \quad S^{aux}_{0,i} = 0  && \text{(1d)} \\
   M^{in}_{t,i} &\le S^{aux}_{t,i}                          && \text{(1e)} \\
   M^{out}_{t,i} &\le S^{ram}_{t,i}                         && \text{(1f)} \\
   M^{out}_{t,i} &\le W_i, \quad \textstyle\sum_i b_i W_i \le C
   \end{aligned} $$

A tensor written out in stage t is on storage from t+1 on; one paged in during stage t is in RAM when
t+1 begins.

A parameter w with its home on storage, which operator u updates if it is trained, is on storage as the step begins
where it is so as the step ends, and it is in one of the two places:

$$ \begin{aligned}
   S^{aux}_{0,w} &= S^{aux}_{T,w}, \quad S^{aux}_{T,w} + S^{ram}_{T,w} \ge 1 \\
   S^{aux}_{u+1,w} &\le M^{out}_{u,w}, \quad M^{in}_{u,w} = 0 && \text{w is trained} \\
   S^{aux}_{t,w} &= 1, \quad M^{out}_{t,w} = 0            && \text{w is frozen}
   \end{aligned} $$

So $M^{out}_{u,w}$ writes what u has just made, which u holds in RAM; a page-in during the last stage is for the
first one of the next step.

| symbol           | attribute | unit | meaning                                      |
|------------------|-----------|------|----------------------------------------------|
| $S^{aux}_{t,i}$  | `S_aux`   | -    | tensor i is on storage when stage t begins   |
| $M^{in}_{t,i}$   | `M_in`    | -    | tensor i is paged in during stage t          |
| $M^{out}_{t,i}$  | `M_out`   | -    | tensor i is paged out at the start of stage t |
| $W_i$            | `W`       | -    | tensor i is ever written out (only where the storage's $C$ blocks may not do) |

$b_i$ is how many blocks of the storage tensor i takes, from its page-out to the end of the step.

Source: the paper, Algorithm 1, constraints 1d-1f (1f here is the block's second half, `out_of_ram`);
the storage's capacity, and parameters, are ours.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyomo.environ as pyo
from pyomo.core.expr.numeric_expr import LinearExpression

from poetopt.formulations.block import Block, PyomoBlock, PyomoRow, Space, in_order
from poetopt.formulations.decisions import Decisions
from poetopt.formulations.poet.space import PoetSpace
from poetopt.formulations.rows import Terms
from poetopt.formulations.storage import fits_storage


def _moves(block: PyomoBlock) -> None:
    """The variables, and the rows among them: they stand before S_ram, whose row 1c reads M_in."""
    model = block.model()
    space: PoetSpace = model.space
    block.S_aux = pyo.Var(model.residences, domain=pyo.Binary)
    block.M_in = pyo.Var(model.residences, domain=pyo.Binary)
    block.M_out = pyo.Var(model.residences, domain=pyo.Binary)
    S_aux, M_in, M_out = (list(v.values()) for v in (block.S_aux, block.M_in, block.M_out))
    held = space.problem.tensors
    for x, (t, i) in enumerate(space.residences):
        if held[i].stored and not held[i].updated:
            S_aux[x].fix(1)
        elif (t - 1, i) not in space.residence_index and i not in space.lasting:
            S_aux[x].fix(0)
        if space.arrives(t, i) is None:
            M_in[x].fix(0)
        if space.unwritten(t, i):
            M_out[x].fix(0)

    def on_storage(_: PyomoBlock, x: int) -> PyomoRow:
        t, i = space.residences[x]
        earlier = space.residence_index.get((t - 1, i))
        if earlier is None or space.unwritten(0, i):
            return pyo.Constraint.Skip
        if held[i].updated and t == held[i].updated_by + 1:
            return None, LinearExpression(linear_coefs=[1, -1], linear_vars=[S_aux[x], M_out[earlier]]), 0
        variables = [S_aux[x], S_aux[earlier], M_out[earlier]]
        return None, LinearExpression(linear_coefs=[1, -1, -1], linear_vars=variables), 0

    def from_storage(_: PyomoBlock, x: int) -> PyomoRow:
        return None, LinearExpression(linear_coefs=[1, -1], linear_vars=[M_in[x], S_aux[x]]), 0

    block.on_storage = pyo.Constraint(
        model.residences, rule=in_order(on_storage), doc="(1d) what is on storage was there or was written out"
    )
    block.from_storage = pyo.Constraint(
        model.residences, rule=in_order(from_storage), doc="(1e) what is paged in is on storage"
    )
    _capacity(block, space, S_aux, M_out)
    tensors = [space.problem.tensors[i] for _, i in space.residences]
    variables = [*M_in, *M_out]
    block.energy_j = Terms(variables, [t.page_in_j for t in tensors] + [t.page_out_j for t in tensors])
    block.transfer_s = Terms(variables, [t.page_in_s for t in tensors] + [t.page_out_s for t in tensors])
    back = [(x, stage, i) for x, (t, i) in enumerate(space.residences) if (stage := space.arrives(t, i)) is not None]
    block.page_ins = Decisions(block.M_in, *np.array(back, dtype=np.int64).reshape(-1, 3).T)
    out = [
        (x, t + (held[i].stored and t == held[i].updated_by), i)  # right after the update: as the next stage begins
        for x, (t, i) in enumerate(space.residences)
        if not space.unwritten(t, i)
    ]
    block.page_outs = Decisions(block.M_out, *np.array(out, dtype=np.int64).reshape(-1, 3).T)
    block.written_bytes = Terms(M_out, [float(space.problem.parts * t.nbytes) for t in tensors])


def _capacity(block: PyomoBlock, space: PoetSpace, S_aux: list[Any], M_out: list[Any]) -> None:
    """The rows on what the storage holds, where it is known and not enough for everything."""
    problem = space.problem
    candidates = sorted({i for _, i in space.residences})
    if problem.storage_blocks is None or sum(map(problem.blocks, candidates)) <= problem.storage_blocks:
        return
    place = {i: x for x, i in enumerate(candidates)}
    block.W = pyo.Var(candidates, domain=pyo.Binary)
    W = list(block.W.values())

    def ever_written(_: PyomoBlock, x: int) -> PyomoRow:
        i = space.residences[x][1]
        there = S_aux[x] if i in space.lasting else M_out[x]
        return None, LinearExpression(linear_coefs=[1, -1], linear_vars=[there, W[place[i]]]), 0

    block.ever_written = pyo.Constraint(
        block.model().residences, rule=in_order(ever_written), doc="what is written out is ever written out"
    )
    block.storage = pyo.Constraint(rule=lambda _: fits_storage(problem, candidates, W), doc="what the storage holds")


def _write(block: PyomoBlock) -> None:
    """Row 1f, once S_ram exists."""
    model = block.model()
    space: PoetSpace = model.space
    M_out, S_ram = list(model.paging.M_out.values()), list(model.rematerialization.S_ram.values())
    S_aux = list(model.paging.S_aux.values())

    def out_of_ram(_: PyomoBlock, x: int) -> PyomoRow:
        return None, LinearExpression(linear_coefs=[1, -1], linear_vars=[M_out[x], S_ram[x]]), 0

    ends = [space.residence_index[len(space.problem.operators), i] for i in space.lasting]

    def somewhere(_: PyomoBlock, x: int) -> PyomoRow:
        return 1, LinearExpression(linear_coefs=[1, 1], linear_vars=[S_aux[ends[x]], S_ram[ends[x]]]), None

    def again(_: PyomoBlock, x: int) -> PyomoRow:
        begins = space.residence_index[0, space.lasting[x]]
        return LinearExpression(linear_coefs=[1, -1], linear_vars=[S_aux[begins], S_aux[ends[x]]]), 0

    block.somewhere = pyo.Constraint(
        pyo.RangeSet(0, len(ends) - 1), rule=somewhere, doc="a parameter is in RAM or on storage when the step ends"
    )
    block.again = pyo.Constraint(
        pyo.RangeSet(0, len(ends) - 1),
        rule=again,
        doc="a parameter is on storage as a step begins where the last left it",
    )
    block.out_of_ram = pyo.Constraint(
        model.residences, rule=in_order(out_of_ram), doc="(1f) what is written out is in RAM"
    )


def _needed(space: Space) -> bool:
    return space.paging


paging = Block("paging", _moves, when=_needed)
paging_source = Block("paging_source", _write, requires=("paging", "rematerialization"), when=_needed)
