"""Blocks of Algorithm 1, one rule for each equation, indexed as in the paper: stage t, operators j and k, tensor i."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyomo.core as pyo

from poetopt.formulations.block import Block, PyomoBlock, PyomoRow, Space, equation
from poetopt.formulations.decisions import Decisions
from poetopt.formulations.figures import figures, more_room
from poetopt.formulations.poet.space import PoetSpace
from poetopt.formulations.rows import total
from poetopt.formulations.storage import fits_storage

SKIP = pyo.Constraint.Skip


def _entries(*variables: Any) -> tuple[dict[Any, Any], ...]:
    """Return each variable's entries as a dict by index, because Pyomo's own lookups are slower."""
    return tuple(dict(variable.items()) for variable in variables)


def _staged(variable: Any, stages: dict[tuple[int, int], int]) -> Decisions:
    """Return the entries at the keys of `stages` as decisions in the stages that it maps them to."""
    rows = [(x, stages[at], at[1]) for x, at in enumerate(variable) if at in stages]
    return Decisions(variable, *np.array(rows, dtype=np.int64).reshape(-1, 3).T)


def _decisions(block: PyomoBlock) -> None:
    r"""Block `decisions`: computes, residences and transfers of each stage.

    | symbol           | attribute | unit | meaning                                       |
    |------------------|-----------|------|-----------------------------------------------|
    | $R_{t,j}$        | `R`       | -    | operator j runs in stage t                    |
    | $S^{ram}_{t,i}$  | `S_ram`   | -    | tensor i is in RAM when stage t begins        |
    | $S^{aux}_{t,i}$  | `S_aux`   | -    | tensor i is on storage when stage t begins    |
    | $M^{in}_{t,i}$   | `M_in`    | -    | tensor i is paged in during stage t           |
    | $M^{out}_{t,i}$  | `M_out`   | -    | tensor i is paged out at the start of stage t |

    Boundary values, with g(i) the operator that writes tensor i (-1: none, it is there when the step begins):

    $$ \begin{aligned}
       R_{t,t} &= 1 \\
       S^{ram}_{0,i} &= 1, \quad S^{aux}_{0,i} = 0 && g(i) = -1 \\
       S^{aux}_{g(i)+1,i} &= 0 && g(i) \ge 0 \\
       M^{in}_{T,i} &= M^{out}_{T,i} = 0 && \text{after the last of T stages}
       \end{aligned} $$

    The rows on S exclude the tensors of `parameters`. Without paging there is no $S^{aux}$, $M^{in}$ or $M^{out}$.

    Source: the paper, Algorithm 1 and section 5.1. Operators with several outputs are an extension of poetopt.
    """
    model = block.model()
    space: PoetSpace = model.space
    block.R = pyo.Var(model.computes, domain=pyo.Binary)
    block.S_ram = pyo.Var(model.residences, domain=pyo.Binary)
    moved = model.residences if space.paging else []
    block.S_aux = pyo.Var(moved, domain=pyo.Binary)
    block.M_in = pyo.Var(moved, domain=pyo.Binary)
    block.M_out = pyo.Var(moved, domain=pyo.Binary)
    for t in model.stages:
        block.R[t, t].fix(1)
    for t, i in model.beginnings:
        if i not in space.lasting:
            if t == 0:
                block.S_ram[t, i].fix(1)
            if space.paging:
                block.S_aux[t, i].fix(0)
    for t, i in model.endings if space.paging else ():
        block.M_in[t, i].fix(0)
        block.M_out[t, i].fix(0)
    block.recomputes = _staged(block.R, {(t, j): t for t, j in model.computes if t != j})


def _rematerialization(block: PyomoBlock) -> None:
    r"""Block `rematerialization`: an operator reads tensors that were made or kept, and a kept tensor was there before.

    $$ \begin{aligned}
       R_{t,j} &\le R_{t,g(i)} + S^{ram}_{t,i}     && i \text{ an input of } j \quad \text{(1b)} \\
       S^{ram}_{t,i} &\le R_{t-1,g(i)} + S^{ram}_{t-1,i} + M^{in}_{t-1,i}  && t > g(i) + 1 \quad \text{(1c)} \\
       S^{ram}_{t,i} &\le R_{t-1,g(i)}             && t = g(i) + 1
       \end{aligned} $$

    $R_{t,g(i)}$ is 0 if g(i) can't run in stage t or doesn't exist, as for a tensor that is there when the step begins.
    Without paging $M^{in}$ is 0.

    Source: the paper, Algorithm 1.
    """
    model = block.model()
    operators, tensors = model.space.problem.operators, model.space.problem.tensors
    R, S_ram, M_in = _entries(model.decisions.R, model.decisions.S_ram, model.decisions.M_in)
    g = [tensor.producer for tensor in tensors]

    def made(t: int, i: int) -> Any:
        return R.get((t, g[i]), 0.0)  # 0 if g(i) can't run in stage t

    def came(t: int, i: int) -> Any:
        return M_in[t, i] if model.space.paging else 0.0

    block.reads = pyo.Set(
        initialize=[(t, j, i) for t, j in model.computes for i in operators[j].inputs],
        dimen=3,
        doc="(t, j, i): operator j, which reads tensor i, may run in stage t",
    )
    block.dependence = equation(
        block.reads,
        lambda t, j, i: R[t, j] <= made(t, i) + S_ram[t, i],
        "(1b) an input of an operator is made in its stage or resident",
    )
    block.continuity = equation(
        model.continuations,
        lambda t, i: S_ram[t, i] <= made(t - 1, i) + S_ram[t - 1, i] + came(t - 1, i),
        "(1c) a resident tensor was made, kept or paged in",
    )
    block.beginning = equation(
        model.beginnings,
        lambda t, i: S_ram[t, i] <= R[t - 1, g[i]] if t else SKIP,
        "(1c) a tensor that is resident right after its first compute was made",
    )
    again = [(t, j) for t, j in model.computes if t != j]
    compute_s = figures(model, "compute_s")
    block.compute_s = total((compute_s[j], R[t, j]) for t, j in again)


def _paging(block: PyomoBlock) -> None:
    r"""Block `paging`: tensors on storage, and transfers between storage and RAM.

    $$ \begin{aligned}
       S^{aux}_{t,i} &\le S^{aux}_{t-1,i} + M^{out}_{t-1,i}      && t > g(i) + 1 \quad \text{(1d)} \\
       M^{in}_{t,i} &\le S^{aux}_{t,i}                          && \text{(1e)} \\
       M^{out}_{t,i} &\le S^{ram}_{t,i}                         && \text{(1f)}
       \end{aligned} $$

    A tensor written out in stage t is on storage from t+1 on. One paged in during stage t is in RAM when t+1 begins.

    Source: the paper, Algorithm 1.
    """
    model = block.model()
    space: PoetSpace = model.space
    tensors, residences = space.problem.tensors, model.residences
    decisions = model.decisions
    S_ram, S_aux, M_in, M_out = _entries(decisions.S_ram, decisions.S_aux, decisions.M_in, decisions.M_out)

    def on_storage(t: int, i: int) -> PyomoRow:
        if space.frozen(i) or (tensors[i].updated and t == tensors[i].updated_by + 1):
            return SKIP  # the rows of `parameters` hold instead
        return S_aux[t, i] <= S_aux[t - 1, i] + M_out[t - 1, i]

    block.on_storage = equation(
        model.continuations, on_storage, "(1d) a tensor on storage was there or was written out"
    )
    block.from_storage = equation(
        residences, lambda t, i: M_in[t, i] <= S_aux[t, i], "(1e) a tensor that is paged in is on storage"
    )
    block.out_of_ram = equation(
        residences, lambda t, i: M_out[t, i] <= S_ram[t, i], "(1f) a tensor that is written out is in RAM"
    )
    in_s, out_s = figures(model, "page_in_s"), figures(model, "page_out_s")
    block.transfer_s = total(
        ((in_s[i], M_in[t, i]) for t, i in residences),
        ((out_s[i], M_out[t, i]) for t, i in residences),
    )
    parts = space.problem.parts
    block.written_bytes = total((float(parts * tensors[i].nbytes), M_out[t, i]) for t, i in residences)
    back = {(t, i): stage for t, i in residences if (stage := space.arrives(t, i)) is not None}
    out = {  # a page-out right after the update counts when the next stage begins
        (t, i): t + (tensors[i].stored and t == tensors[i].updated_by)
        for t, i in residences
        if not space.unwritten(t, i)
    }
    block.page_ins, block.page_outs = _staged(decisions.M_in, back), _staged(decisions.M_out, out)


def _parameters(block: PyomoBlock) -> None:
    r"""Block `parameters`: RAM or storage, from one step to the next, for a parameter whose home is storage.

    Let operator u update parameter w, if w is trained. When the step begins, w is in the same places as when the step
    ends, after the last of its T stages. It is in at least one of the two places:

    $$ \begin{aligned}
       S^{ram}_{0,w} &= S^{ram}_{T,w}, \quad S^{aux}_{0,w} = S^{aux}_{T,w}, \quad S^{aux}_{T,w} + S^{ram}_{T,w} \ge 1 \\
       S^{aux}_{u+1,w} &\le M^{out}_{u,w}, \quad M^{in}_{u,w} = 0 && \text{w is trained} \\
       S^{aux}_{t,w} &= 1, \quad M^{out}_{t,w} = 0            && \text{w is frozen}
       \end{aligned} $$

    So $M^{out}_{u,w}$ writes the new value, which u holds in RAM. A page-in during the last stage serves the first
    stage of the next step. No R of a reader exists after its update.
    """
    model = block.model()
    space: PoetSpace = model.space
    tensors, T = space.problem.tensors, len(space.problem.operators)
    decisions = model.decisions
    S_ram, S_aux, M_in, M_out = decisions.S_ram, decisions.S_aux, decisions.M_in, decisions.M_out
    block.repeat = equation(
        space.lasting,
        lambda i: S_ram[0, i] == S_ram[T, i],
        "a parameter is in RAM when a step begins if it was when the last step ended",
    )
    if not space.paging:
        return
    for t, i in model.residences:
        if space.frozen(i):
            S_aux[t, i].fix(1)
            M_out[t, i].fix(0)
        elif t == tensors[i].updated_by:
            M_in[t, i].fix(0)
    block.somewhere = equation(
        space.lasting,
        lambda i: S_aux[T, i] + S_ram[T, i] >= 1,
        "a parameter is in RAM or on storage when the step ends",
    )
    block.again = equation(
        space.lasting,
        lambda i: S_aux[0, i] == S_aux[T, i],
        "a parameter is on storage when a step begins if it was when the last step ended",
    )
    block.written_back = equation(
        [i for i in space.lasting if tensors[i].updated],
        lambda i: S_aux[tensors[i].updated_by + 1, i] <= M_out[tensors[i].updated_by, i],
        "a trained parameter is on storage after its update if the update was written out",
    )


def _capacity(block: PyomoBlock) -> None:
    r"""Block `capacity`: all tensors that are ever written out fit the storage together.

    $$ M^{out}_{t,i} \le W_i, \quad \textstyle\sum_i b_i W_i \le C $$

    For a parameter whose home is storage the first row is $S^{aux}_{t,i} \le W_i$.

    | symbol | attribute | unit | meaning                                                                          |
    |--------|-----------|------|----------------------------------------------------------------------------------|
    | $W_i$  | `W`       | -    | tensor i is ever written out                                                     |
    | $b_i$  | -         | -    | blocks that tensor i takes, from its page-out to the end of the step             |
    | $C$    | -         | -    | blocks that the storage has                                                      |
    """
    model = block.model()
    space: PoetSpace = model.space
    S_aux, M_out = model.decisions.S_aux, model.decisions.M_out
    block.W = pyo.Var(space.residents, domain=pyo.Binary)
    block.ever_written = equation(
        model.residences,
        lambda t, i: (S_aux if i in space.lasting else M_out)[t, i] <= block.W[i],
        "W is 1 for a tensor that is written out in any stage",
    )
    block.storage = pyo.Constraint(
        rule=lambda _: fits_storage(model, space.residents, list(block.W.values())),
        doc="the written tensors fit the storage",
    )


def _memory(block: PyomoBlock) -> None:
    r"""Block `memory`: memory in use at each operator of each stage, and the tensors that it frees.

    With $A_{t,i}$ the buffer that a (re)compute of g(i) newly allocates for output i (an output that is already in RAM
    is overwritten in place):

    $$ \begin{aligned}
       U_{t,0} &= \textstyle\sum_i m_i S^{ram}_{t,i} + \sum_{i \in out(0)} m_i A_{t,i} \\
       U_{t,k} &= U_{t,k-1} - \textstyle\sum_{i} m_i FREE_{t,i,k-1} + \sum_{i \in out(k)} m_i A_{t,i} \\
       U_{t,k} &+ w_k R_{t,k} \le B \qquad \text{(1g)} \\
       FREE_{t,i,k} &\le R_{t,k}, \quad \le 1 - S^{ram}_{t+1,i}, \quad \le 1 - R_{t,j}\ (j > k \text{ reads } i) \\
       A_{t,i} &\ge R_{t,g(i)} - S^{ram}_{t,i}
       \end{aligned} $$

    FREE exists for the inputs and outputs of k, and is 1 if k is the last operator in the stage that needs i. It is
    continuous: freeing never hurts, so it takes the least of its bounds, which is 0 or 1. A tensor that is in RAM and
    that nothing in the stage reads stays until the stage ends.

    | symbol           | attribute | unit          | meaning                                         |
    |------------------|-----------|---------------|-------------------------------------------------|
    | $U_{t,k}$        | `U`       | `memory_unit` | memory in use at operator k's turn in stage t   |
    | $FREE_{t,i,k}$   | `FREE`    | -             | tensor i is freed after operator k in stage t   |
    | $A_{t,i}$        | `A`       | -             | output i takes a new buffer in stage t          |
    | $m_i$            | `m`       | `memory_unit` | size of tensor i                                |
    | $w_k$            | `w`       | `memory_unit` | memory of operator k besides its tensors        |

    Source: Checkmate (Jain et al. 2020), equations 2 and 3, with the product of FREE linearised factor by factor.
    """
    model = block.model()
    space: PoetSpace = model.space
    problem, operators, unit = space.problem, space.problem.operators, space.memory_unit
    g, B = [tensor.producer for tensor in problem.tensors], space.room_bytes / unit + more_room(model)
    R, S_ram = _entries(model.decisions.R, model.decisions.S_ram)
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
    U, A, FREE = _entries(block.U, block.A, block.FREE)

    block.allocates = equation(
        block.allocations,
        lambda t, i: A[t, i] >= (R[t, g[i]] - S_ram[t, i] if t > g[i] else R[t, t]),
        "an output that isn't resident takes a new buffer",
    )
    block.freed = equation(
        block.frees, lambda t, i, k: FREE[t, i, k] <= R[t, k], "a tensor is freed only where an operator used it"
    )
    block.not_kept = equation(
        block.frees,
        lambda t, i, k: FREE[t, i, k] <= 1 - S_ram[t + 1, i] if (t + 1, i) in model.residences else SKIP,
        "a freed tensor isn't kept",
    )
    block.not_read = equation(
        block.hazards, lambda t, i, k, j: FREE[t, i, k] <= 1 - R[t, j], "a freed tensor isn't read later in the stage"
    )

    def usage(t: int, k: int) -> PyomoRow:
        allocated = sum(m[i] * A[t, i] for i in operators[k].outputs)
        if (t, k) not in before:
            return U[t, k] == sum(m[i] * S_ram[t, i] for i in resident[t]) + allocated
        h = before[t, k]
        return U[t, k] == U[t, h] - sum(m[i] * FREE[t, i, h] for i in touched[h]) + allocated

    block.usage = equation(
        model.computes, usage, "memory at an operator's turn: outputs added, freed tensors subtracted"
    )
    block.within = equation(
        model.computes, lambda t, k: U[t, k] + w[k] * R[t, k] <= B, "(1g) memory fits the budget [memory_unit]"
    )


def _energy(block: PyomoBlock) -> None:
    r"""Block `energy`: joules of a step above one compute of each operator.

    $$ \min \sum_{t,\, j < t} \Phi_j R_{t,j}
       + \sum_{t,i} \left( \Phi^{in}_i M^{in}_{t,i} + \Phi^{out}_i M^{out}_{t,i} \right) $$

    | symbol                          | attribute | unit | meaning                            |
    |---------------------------------|-----------|------|------------------------------------|
    | $\Phi_j$                        | -         | J    | energy of one compute of operator j |
    | $\Phi^{in}_i$, $\Phi^{out}_i$   | -         | J    | energy of paging tensor i in, out  |

    Source: the paper, equation 4 (1a), less the constant energy of one pass.
    """
    model = block.model()
    R, M_in, M_out = _entries(model.decisions.R, model.decisions.M_in, model.decisions.M_out)
    compute_j, in_j, out_j = (figures(model, name) for name in ("compute_j", "page_in_j", "page_out_j"))
    block.energy_j = total(
        ((compute_j[j], R[t, j]) for t, j in model.computes if j < t),
        ((in_j[i], M_in[t, i]) for t, i in M_in),
        ((out_j[i], M_out[t, i]) for t, i in M_out),
    )


def _has_paging(space: Space) -> bool:
    return space.paging


def _has_parameters(space: Space) -> bool:
    return isinstance(space, PoetSpace) and bool(space.lasting)


def _may_overflow(space: Space) -> bool:
    blocks = space.problem.storage_blocks
    if blocks is None or not space.paging or not isinstance(space, PoetSpace):
        return False
    return space.limits.open or sum(map(space.problem.blocks, space.residents)) > blocks


decisions = Block("decisions", _decisions)
rematerialization = Block("rematerialization", _rematerialization, requires=("decisions",))
paging = Block("paging", _paging, requires=("decisions",), when=_has_paging)
parameters = Block("parameters", _parameters, requires=("decisions",), when=_has_parameters)
capacity = Block("capacity", _capacity, requires=("decisions",), when=_may_overflow)
memory = Block("memory", _memory, requires=("decisions",))
energy = Block("energy", _energy, requires=("decisions",))
