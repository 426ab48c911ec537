r"""Block `memory`: the memory in use after each operator of each stage, with what it frees.

With $A_{t,i}$ the buffer that a (re)compute of g(i) newly allocates for output i (one already in RAM is
overwritten in place):

$$ \begin{aligned}
   U_{t,0} &= \textstyle\sum_i m_i S^{ram}_{t,i} + \sum_{i \in out(0)} m_i A_{t,i} \\
   U_{t,k} &= U_{t,k-1} - \textstyle\sum_{i} m_i FREE_{t,i,k-1} + \sum_{i \in out(k)} m_i A_{t,i} \\
   U_{t,k} &+ w_k R_{t,k} \le B \qquad \text{(1g)} \\
   FREE_{t,i,k} &\le R_{t,k}, \quad \le 1 - S^{ram}_{t+1,i}, \quad \le 1 - R_{t,j}\ (j > k \text{ reads } i) \\
   A_{t,i} &\ge R_{t,g(i)} - S^{ram}_{t,i}
   \end{aligned} $$

FREE exists for the inputs and outputs of k, and is 1 where k is the last in the stage to need i. It is
continuous: freeing never hurts, so it takes the least of its bounds, which is 0 or 1. A tensor that is in
RAM and that nothing in the stage reads stays until the stage ends.

| symbol           | attribute | unit          | meaning                                         |
|------------------|-----------|---------------|-------------------------------------------------|
| $U_{t,k}$        | `U`       | `memory_unit` | memory in use at operator k's turn in stage t   |
| $FREE_{t,i,k}$   | `FREE`    | -             | tensor i is freed after operator k in stage t   |
| $A_{t,i}$        | `A`       | -             | output i takes a new buffer in stage t          |

Source: Checkmate (Jain et al. 2020), equations 2 and 3, with the product of FREE linearised factor by factor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyomo.environ as pyo
from pyomo.core.expr.numeric_expr import LinearExpression

from poetopt.formulations.block import Block, PyomoBlock, PyomoRow, in_order
from poetopt.formulations.poet.space import PoetSpace
from poetopt.util import work


def _build(block: PyomoBlock) -> None:
    allocation_index = _allocate(block)
    frees = _free(block)
    _use(block, allocation_index, frees)


def _allocate(block: PyomoBlock) -> dict[tuple[int, int], int]:
    """A and its rows; the index in A of (stage, tensor)."""
    model = block.model()
    space: PoetSpace = model.space
    problem = space.problem
    R, S = list(model.rematerialization.R.values()), list(model.rematerialization.S_ram.values())
    allocations = [(t, i) for t, j in space.computes for i in problem.operators[j].outputs]
    block.allocations = pyo.Set(initialize=allocations, dimen=2, doc="(t, i): stage t may make tensor i")
    block.A = pyo.Var(block.allocations, bounds=(0, 1))
    A = list(block.A.values())

    def allocates(_: PyomoBlock, x: int) -> PyomoRow:
        work.check()
        t, i = allocations[x]
        made = R[space.compute_index[t, problem.tensors[i].producer]]
        resident = space.residence_index.get((t, i))
        if resident is None:
            return 0, LinearExpression(linear_coefs=[1, -1], linear_vars=[A[x], made]), None
        return 0, LinearExpression(linear_coefs=[1, -1, 1], linear_vars=[A[x], made, S[resident]]), None

    block.allocates = pyo.Constraint(
        block.allocations, rule=in_order(allocates), doc="an output that isn't resident takes a new buffer"
    )
    return {pair: x for x, pair in enumerate(allocations)}


def _free(block: PyomoBlock) -> list[tuple[int, int, int]]:
    """FREE and its rows; (stage, tensor, operator) of each entry. Tensors of no bytes need none."""
    model = block.model()
    space: PoetSpace = model.space
    problem = space.problem
    R, S = list(model.rematerialization.R.values()), list(model.rematerialization.S_ram.values())
    frees = [
        (t, i, k)
        for t, k in space.computes
        for i in sorted({*problem.operators[k].inputs, *problem.operators[k].outputs})
        if problem.tensors[i].nbytes
    ]
    block.frees = pyo.Set(initialize=frees, dimen=3, doc="(t, i, k): operator k reads or writes tensor i in stage t")
    block.FREE = pyo.Var(block.frees, bounds=(0, 1))
    FREE = list(block.FREE.values())
    rows: list[tuple[int, object, int]] = []
    for x, (t, i, k) in enumerate(frees):
        rows.append((x, R[space.compute_index[t, k]], 0))
        kept = space.residence_index.get((t + 1, i))
        if kept is not None:
            rows.append((x, S[kept], 1))
        for j in problem.readers[i]:
            reader = space.compute_index.get((t, j))
            if j > k and reader is not None:
                rows.append((x, R[reader], 1))

    def freed(_: PyomoBlock, index: int) -> PyomoRow:
        work.check()
        x, other, complement = rows[index]
        sign = 1 if complement else -1
        return None, LinearExpression(linear_coefs=[1, sign], linear_vars=[FREE[x], other]), complement

    block.freed = pyo.Constraint(
        pyo.RangeSet(0, len(rows) - 1), rule=freed, doc="what is freed isn't read later in the stage, nor kept"
    )
    return frees


def _use(
    block: PyomoBlock, allocation_index: Mapping[tuple[int, int], int], frees: Sequence[tuple[int, int, int]]
) -> None:
    """U and its rows: what each operator's turn changes, and the budget."""
    model = block.model()
    space: PoetSpace = model.space
    operators, unit, extra = space.problem.operators, space.memory_unit, space.problem.extra_bytes
    m = [tensor.nbytes / unit for tensor in space.problem.tensors]
    R, S = list(model.rematerialization.R.values()), list(model.rematerialization.S_ram.values())
    A, FREE = list(block.A.values()), list(block.FREE.values())
    frees_after: dict[tuple[int, int], list[int]] = {}
    for x, (t, _, k) in enumerate(frees):
        frees_after.setdefault((t, k), []).append(x)
    block.U = pyo.Var(model.computes, domain=pyo.NonNegativeReals)
    U = list(block.U.values())
    resident_in: dict[int, list[int]] = {}
    for x, (t, i) in enumerate(space.residences):
        if m[i]:
            resident_in.setdefault(t, []).append(x)

    def usage(_: PyomoBlock, x: int) -> PyomoRow:
        work.check()
        t, k = space.computes[x]
        variables, coefficients = [U[x]], [1.0]
        first = x == 0 or space.computes[x - 1][0] != t
        if first:
            for s in resident_in.get(t, ()):
                variables.append(S[s])
                coefficients.append(-m[space.residences[s][1]])
        else:
            variables.append(U[x - 1])
            coefficients.append(-1.0)
            for y in frees_after.get((t, space.computes[x - 1][1]), ()):
                variables.append(FREE[y])
                coefficients.append(m[frees[y][1]])
        for i in operators[k].outputs:
            variables.append(A[allocation_index[t, i]])
            coefficients.append(-m[i])
        return LinearExpression(linear_coefs=coefficients, linear_vars=variables), 0

    def within(_: PyomoBlock, x: int) -> PyomoRow:
        _, k = space.computes[x]
        expression = LinearExpression(linear_coefs=[1, extra[k] / unit], linear_vars=[U[x], R[x]])
        return None, expression, space.room_bytes / unit

    block.usage = pyo.Constraint(
        model.computes, rule=in_order(usage), doc="what an operator's turn adds to memory, and what was freed before"
    )
    block.within = pyo.Constraint(
        model.computes, rule=in_order(within), doc="(1g) memory keeps the budget [memory_unit]"
    )


memory = Block("memory", _build, requires=("rematerialization",))
