"""The blocks of Algorithm 1, one rule an equation, indexed as in the paper: stage t, operators j and k, tensor i."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyomo.core as pyo

from poetopt.formulations.block import Block, OrZero, PyomoBlock, PyomoRow, Space, equation
from poetopt.formulations.decisions import Decisions
from poetopt.formulations.poet.space import PoetSpace
from poetopt.formulations.rows import Terms
from poetopt.formulations.storage import fits_storage

SKIP = pyo.Constraint.Skip


def _decisions(variable: Any, stages: dict[tuple[int, int], int]) -> Decisions:
    """The entries at some (t, what) as decisions in the stage that is given for each."""
    rows = [(x, stages[at], at[1]) for x, at in enumerate(variable) if at in stages]
    return Decisions(variable, *np.array(rows, dtype=np.int64).reshape(-1, 3).T)


def _paging(block: PyomoBlock) -> None:
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
    | $W_i$            | `W`       | -    | tensor i is ever written out (where the storage's $C$ blocks may not do) |

    $b_i$ is how many blocks of the storage tensor i takes, from its page-out to the end of the step.

    Source: the paper, Algorithm 1, constraints 1d-1f (1f here is the block's second half, `out_of_ram`);
    the storage's capacity, and parameters, are ours.
    """
    model = block.model()
    space: PoetSpace = model.space
    problem, tensors, residences = space.problem, space.problem.tensors, model.residences
    block.S_aux = pyo.Var(residences, domain=pyo.Binary)
    block.M_in = pyo.Var(residences, domain=pyo.Binary)
    block.M_out = pyo.Var(residences, domain=pyo.Binary)
    S_aux, M_in, M_out = OrZero(block.S_aux.items()), OrZero(block.M_in.items()), OrZero(block.M_out.items())
    for t, i in residences:
        if space.frozen(i):
            S_aux[t, i].fix(1)
        elif (t - 1, i) not in residences and i not in space.lasting:
            S_aux[t, i].fix(0)
        if space.arrives(t, i) is None:
            M_in[t, i].fix(0)
        if space.unwritten(t, i):
            M_out[t, i].fix(0)

    def on_storage(t: int, i: int) -> PyomoRow:
        if (t - 1, i) not in residences or space.frozen(i):
            return SKIP
        if tensors[i].updated and t == tensors[i].updated_by + 1:
            return S_aux[t, i] <= M_out[t - 1, i]
        return S_aux[t, i] <= S_aux[t - 1, i] + M_out[t - 1, i]

    block.on_storage = equation(residences, on_storage, "(1d) what is on storage was there or was written out")
    block.from_storage = equation(
        residences, lambda t, i: M_in[t, i] <= S_aux[t, i], "(1e) what is paged in is on storage"
    )
    candidates = sorted({i for _, i in residences})
    if problem.storage_blocks is not None and sum(map(problem.blocks, candidates)) > problem.storage_blocks:
        block.W = pyo.Var(candidates, domain=pyo.Binary)
        block.ever_written = equation(
            residences,
            lambda t, i: (S_aux if i in space.lasting else M_out)[t, i] <= block.W[i],
            "what is written out is ever written out",
        )
        block.storage = pyo.Constraint(
            rule=lambda _: fits_storage(problem, candidates, list(block.W.values())), doc="what the storage holds"
        )
    moved = [tensors[i] for _, i in residences]
    variables = [*block.M_in.values(), *block.M_out.values()]
    block.energy_j = Terms(variables, [one.page_in_j for one in moved] + [one.page_out_j for one in moved])
    block.transfer_s = Terms(variables, [one.page_in_s for one in moved] + [one.page_out_s for one in moved])
    block.written_bytes = Terms(variables[len(moved) :], [float(problem.parts * one.nbytes) for one in moved])
    back = {(t, i): stage for t, i in residences if (stage := space.arrives(t, i)) is not None}
    out = {  # right after the update: as the next stage begins
        (t, i): t + (tensors[i].stored and t == tensors[i].updated_by)
        for t, i in residences
        if not space.unwritten(t, i)
    }
    block.page_ins, block.page_outs = _decisions(block.M_in, back), _decisions(block.M_out, out)


def _rematerialization(block: PyomoBlock) -> None:
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
    model = block.model()
    space: PoetSpace = model.space
    operators, T = space.problem.operators, len(space.problem.operators)
    block.R = pyo.Var(model.computes, domain=pyo.Binary)
    block.S_ram = pyo.Var(model.residences, domain=pyo.Binary)
    R, S_ram, M_in = (
        OrZero(block.R.items()),
        OrZero(block.S_ram.items()),
        OrZero(model.paging.M_in.items() if space.paging else ()),
    )
    producer = [tensor.producer for tensor in space.problem.tensors]
    for t in model.stages:
        R[t, t].fix(1)
    for t, i in model.residences:
        if t == 0 and i not in space.lasting:
            S_ram[t, i].fix(1)
    block.reads = pyo.Set(
        initialize=[(t, j, i) for t, j in model.computes for i in operators[j].inputs],
        dimen=3,
        doc="(t, j, i): operator j, which reads tensor i, may run in stage t",
    )
    block.dependence = equation(
        block.reads,
        lambda t, j, i: R[t, j] <= R[t, producer[i]] + S_ram[t, i],
        "(1b) what an operator reads is made in its stage or resident",
    )
    block.continuity = equation(
        model.residences,
        lambda t, i: S_ram[t, i] <= R[t - 1, producer[i]] + S_ram[t - 1, i] + M_in[t - 1, i] if t else SKIP,
        "(1c) what is resident was made, kept or paged in",
    )
    block.repeat = equation(
        space.lasting,
        lambda i: S_ram[0, i] == S_ram[T, i],
        "a parameter is in RAM as a step begins where the last left it",
    )
    again = [(t, j) for t, j in model.computes if t != j]
    block.recomputes = _decisions(block.R, {(t, j): t for t, j in again})
    block.energy_j = Terms([R[at] for at in again], [operators[j].energy_j for _, j in again])
    block.compute_s = Terms([R[at] for at in again], [operators[j].time_s for _, j in again])


def _paging_source(block: PyomoBlock) -> None:
    """Block `paging_source`: row 1f of `paging`, which reads S_ram, and where a parameter is from step to step."""
    model = block.model()
    S_ram, S_aux, M_out = model.rematerialization.S_ram, model.paging.S_aux, model.paging.M_out
    lasting, T = model.space.lasting, len(model.space.problem.operators)
    block.somewhere = equation(
        lasting,
        lambda i: S_aux[T, i] + S_ram[T, i] >= 1,
        "a parameter is in RAM or on storage when the step ends",
    )
    block.again = equation(
        lasting,
        lambda i: S_aux[0, i] == S_aux[T, i],
        "a parameter is on storage as a step begins where the last left it",
    )
    block.out_of_ram = equation(
        model.residences, lambda t, i: M_out[t, i] <= S_ram[t, i], "(1f) what is written out is in RAM"
    )


def _memory(block: PyomoBlock) -> None:
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
    | $m_i$            | `m`       | `memory_unit` | size of tensor i                                |
    | $w_k$            | `w`       | `memory_unit` | what operator k takes beside its tensors        |

    Source: Checkmate (Jain et al. 2020), equations 2 and 3, with the product of FREE linearised factor by factor.
    """
    model = block.model()
    space: PoetSpace = model.space
    problem, operators, unit = space.problem, space.problem.operators, space.memory_unit
    producer, B = [tensor.producer for tensor in problem.tensors], space.room_bytes / unit
    R, S_ram = OrZero(model.rematerialization.R.items()), OrZero(model.rematerialization.S_ram.items())
    block.m = pyo.Param(range(len(problem.tensors)), initialize=[tensor.nbytes / unit for tensor in problem.tensors])
    block.w = pyo.Param(range(len(operators)), initialize=[extra / unit for extra in problem.extra_bytes])
    m, w = dict(block.m.items()), dict(block.w.items())
    touched = [  # tensors of no bytes needn't be freed
        [i for i in sorted({*operator.inputs, *operator.outputs}) if m[i]] for operator in operators
    ]
    resident: dict[int, list[int]] = {t: [] for t in model.stages}
    for t, i in model.residences:
        if t in resident and m[i]:
            resident[t].append(i)
    before = {}  # the operator that may run before k in stage t
    for (s, h), (t, k) in zip(space.computes, space.computes[1:], strict=False):
        if s == t:
            before[t, k] = h

    block.allocations = pyo.Set(
        initialize=[(t, i) for t, j in model.computes for i in operators[j].outputs],
        dimen=2,
        doc="(t, i): stage t may make tensor i",
    )
    block.frees = pyo.Set(
        initialize=[(t, i, k) for t, k in model.computes for i in touched[k]],
        dimen=3,
        doc="(t, i, k): operator k reads or writes tensor i in stage t",
    )
    block.hazards = pyo.Set(
        initialize=[
            (t, i, k, j) for t, i, k in block.frees for j in problem.readers[i] if j > k and (t, j) in model.computes
        ],
        dimen=4,
        doc="(t, i, k, j): operator j may read tensor i after operator k",
    )
    block.U = pyo.Var(model.computes, domain=pyo.NonNegativeReals)
    block.A = pyo.Var(block.allocations, bounds=(0, 1))
    block.FREE = pyo.Var(block.frees, bounds=(0, 1))
    U, A, FREE = OrZero(block.U.items()), OrZero(block.A.items()), OrZero(block.FREE.items())

    block.allocates = equation(
        block.allocations,
        lambda t, i: A[t, i] >= R[t, producer[i]] - S_ram[t, i],
        "an output that isn't resident takes a new buffer",
    )
    block.freed = equation(block.frees, lambda t, i, k: FREE[t, i, k] <= R[t, k], "what is freed was in use")
    block.not_kept = equation(
        block.frees,
        lambda t, i, k: FREE[t, i, k] <= 1 - S_ram[t + 1, i] if (t + 1, i) in model.residences else SKIP,
        "what is freed isn't kept",
    )
    block.not_read = equation(
        block.hazards, lambda t, i, k, j: FREE[t, i, k] <= 1 - R[t, j], "what is freed isn't read later in the stage"
    )

    def usage(t: int, k: int) -> PyomoRow:
        made = sum(m[i] * A[t, i] for i in operators[k].outputs)
        if (t, k) not in before:
            return U[t, k] == sum(m[i] * S_ram[t, i] for i in resident[t]) + made
        h = before[t, k]
        return U[t, k] == U[t, h] - sum(m[i] * FREE[t, i, h] for i in touched[h]) + made

    block.usage = equation(model.computes, usage, "what an operator's turn adds to memory, and what was freed before")
    block.within = equation(
        model.computes, lambda t, k: U[t, k] + w[k] * R[t, k] <= B, "(1g) memory keeps the budget [memory_unit]"
    )


def _needed(space: Space) -> bool:
    return space.paging


paging = Block("paging", _paging, when=_needed)
rematerialization = Block("rematerialization", _rematerialization)
paging_source = Block("paging_source", _paging_source, requires=("paging", "rematerialization"), when=_needed)
memory = Block("memory", _memory, requires=("rematerialization",))
