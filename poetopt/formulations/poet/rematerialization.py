r"""Block `rematerialization`: what runs in each stage, and what is in RAM when it begins.

$$ \begin{aligned}
   R_{t,t} &= 1, \qquad S^{ram}_{0,i} = 1 \text{ for a graph input} \\
   R_{t,j} &\le R_{t,g(i)} + S^{ram}_{t,i}     && i \text{ an input of } j \quad \text{(1b)} \\
   S^{ram}_{t,i} &\le R_{t-1,g(i)} + S^{ram}_{t-1,i} + M^{in}_{t-1,i}  && \text{(1c)}
   \end{aligned} $$

where g(i) is the operator that writes tensor i (none for a graph input, which can't be recomputed).

A parameter w whose home is storage is in RAM as the step begins where it is so as the step ends, after the last of
its T stages: $S^{ram}_{0,w} = S^{ram}_{T,w}$. No R of a reader exists after its update.

| symbol           | attribute | unit | meaning                                       |
|------------------|-----------|------|-----------------------------------------------|
| $R_{t,j}$        | `R`       | -    | operator j runs in stage t                    |
| $S^{ram}_{t,i}$  | `S_ram`   | -    | tensor i is in RAM when stage t begins        |

$M^{in}$ is 0 without the block `paging`, which adds its own term to row 1c.

Source: the paper, Algorithm 1 and section 5.1; several outputs an operator, and parameters, are ours.
"""

from __future__ import annotations

import numpy as np
import pyomo.environ as pyo
from pyomo.core.expr.numeric_expr import LinearExpression

from poetopt.formulations.block import Block, PyomoBlock, PyomoRow, in_order
from poetopt.formulations.decisions import Decisions
from poetopt.formulations.poet.space import PoetSpace
from poetopt.formulations.rows import Terms


def _build(block: PyomoBlock) -> None:
    model = block.model()
    space: PoetSpace = model.space
    problem = space.problem
    block.R = pyo.Var(model.computes, domain=pyo.Binary)
    block.S_ram = pyo.Var(model.residences, domain=pyo.Binary)
    R, S = list(block.R.values()), list(block.S_ram.values())
    for x, (t, j) in enumerate(space.computes):
        if t == j:
            R[x].fix(1)
    for x, (t, i) in enumerate(space.residences):
        if t == 0 and i not in space.lasting:
            S[x].fix(1)
    M_in = list(model.paging.M_in.values()) if space.paging else []

    def made(t: int, i: int) -> list[object]:
        x = space.compute_index.get((t, problem.tensors[i].producer))
        return [] if x is None else [R[x]]

    reads = [(x, t, i) for x, (t, j) in enumerate(space.computes) for i in problem.operators[j].inputs]

    def dependence(_: PyomoBlock, index: int) -> PyomoRow:
        x, t, i = reads[index]
        there = made(t, i)
        resident = space.residence_index.get((t, i))
        if resident is not None:
            there.append(S[resident])
        return None, LinearExpression(linear_coefs=[1, *[-1] * len(there)], linear_vars=[R[x], *there]), 0

    def continuity(_: PyomoBlock, x: int) -> PyomoRow:
        t, i = space.residences[x]
        if t == 0:
            return pyo.Constraint.Skip
        before = made(t - 1, i)
        earlier = space.residence_index.get((t - 1, i))
        if earlier is not None:
            before.append(S[earlier])
            if M_in:
                before.append(M_in[earlier])
        return None, LinearExpression(linear_coefs=[1, *[-1] * len(before)], linear_vars=[S[x], *before]), 0

    block.reads = pyo.Set(
        initialize=[(t, space.computes[x][1], i) for x, t, i in reads],
        dimen=3,
        doc="(t, j, i): operator j, which reads tensor i, may run in stage t",
    )
    block.dependence = pyo.Constraint(
        block.reads, rule=in_order(dependence), doc="(1b) what an operator reads is made in its stage or resident"
    )
    block.continuity = pyo.Constraint(
        model.residences, rule=in_order(continuity), doc="(1c) what is resident was made, kept or paged in"
    )
    ends = [
        (S[space.residence_index[0, i]], S[space.residence_index[len(problem.operators), i]]) for i in space.lasting
    ]

    def repeat(_: PyomoBlock, x: int) -> PyomoRow:
        begins, last = ends[x]
        return LinearExpression(linear_coefs=[1, -1], linear_vars=[begins, last]), 0

    block.repeat = pyo.Constraint(
        pyo.RangeSet(0, len(ends) - 1), rule=repeat, doc="a parameter is in RAM as a step begins where the last left it"
    )
    again = [x for x, (t, j) in enumerate(space.computes) if t != j]
    operators = problem.operators
    stages, runs = np.array([space.computes[x] for x in again], dtype=np.int64).reshape(-1, 2).T
    block.recomputes = Decisions(block.R, np.array(again, dtype=np.int64), stages, runs)
    block.energy_j = Terms([R[x] for x in again], [operators[space.computes[x][1]].energy_j for x in again])
    block.compute_s = Terms([R[x] for x in again], [operators[space.computes[x][1]].time_s for x in again])


rematerialization = Block("rematerialization", _build)
