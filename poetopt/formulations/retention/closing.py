r"""Block `closing`: the update phase after the last part of a batch, as the schedule of the parts decides it.

Each operator u of the update phase reads a sum, and mostly a parameter and its states, which it overwrites. A tensor of
u that does not stay in RAM from one part to the next is paged in for u and written back, or streamed. With $k_i$ the
tensors that stay, $y_{u,v}$ the variants that stream, and $W_{u,v}$ the bytes of a run,

$$ \begin{aligned}
   \sum_v y_{u,v} &\le 1 \text{ (= 1 if the plain run doesn't fit)} \\
   k_i + \sum_{v \text{ streams } i} y_{u,v} &\le 1 \\
   \sum_{i \text{ not of } u} m_i k_i + W_{u,0} + \sum_v (W_{u,v} - W_{u,0})\, y_{u,v} &\le B \\
   k_i + (\text{each page-in or streaming of } i \text{ in a part}) &\le 1 + w_i
   \end{aligned} $$
$$ a_i \ge 1 - k_i, \qquad a_i \ge \sum_v y_{i,v} - k_{i^+} $$
$$ E = \sum_i (\Phi_i a_i + \Phi^{out}_i w_i)
   + \sum_{u,v} (\Phi_v - \Phi_u - \sum_{i \text{ streamed by } v} \Phi_i)\, y_{u,v} $$

where $\Phi_i$ is the cost of a page-in for each operator that reads i, and also of a write-back if the operator
overwrites i. The second row on $a_i$ excludes tensors that stay without use: its y are the runs that stream i at the
first point of its life, and $i^+$ is the next point. Optimizer states and rows of tables never stay. A tensor that
stays, and is also read from storage within a part, has to be written back ($w_i$).

| symbol       | attribute | unit | meaning                                             |
|--------------|-----------|------|-----------------------------------------------------|
| $y_{u,v}$    | `y`       | -    | update u runs by its variant v                      |
| $a_i$        | `a`       | -    | tensor i doesn't stay in RAM                        |
| $w_i$        | `w`       | -    | tensor i stays in RAM, and is also written back     |
| 1            | `always`  | -    | carries the transfers that every schedule has       |
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import pyomo.core as pyo
from pyomo.core.expr.numeric_expr import LinearExpression

from poetopt.formulations.block import Block, PyomoBlock, PyomoRow, Space, equation
from poetopt.formulations.retention.symbols import Symbols
from poetopt.formulations.rows import Terms
from poetopt.graph.problem.problem import run_bytes

if TYPE_CHECKING:
    from poetopt.formulations.retention.space import RetentionSpace
    from poetopt.graph.problem import Problem


@dataclass(frozen=True)
class TransferCost:
    """Cost of transfers: joules, seconds, bytes written."""

    energy_j: float = 0.0
    time_s: float = 0.0
    written_bytes: float = 0.0

    def __add__(self, other: TransferCost) -> TransferCost:
        return TransferCost(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(TransferCost)))

    def __sub__(self, other: TransferCost) -> TransferCost:
        return TransferCost(*(getattr(self, f.name) - getattr(other, f.name) for f in fields(TransferCost)))


NO_COST = TransferCost()


def _transfer_costs(problem: Problem, closing: Problem) -> tuple[dict[int, TransferCost], TransferCost]:
    """Return the cost of moving each tensor of the updates that may stay in RAM, and that of all other transfers."""
    indices = {tensor.name: i for i, tensor in enumerate(problem.tensors)}
    costs: dict[int, TransferCost] = {}
    fixed = NO_COST
    for i, tensor in enumerate(closing.tensors):
        if not tensor.stored:
            continue
        cost = sum((_transfer_cost(closing, i, u) for u in closing.readers[i]), NO_COST)
        if tensor.name in indices and problem.tensors[indices[tensor.name]].may_stay:
            costs[indices[tensor.name]] = cost
        else:
            fixed += cost
    return costs, fixed


def _transfer_cost(closing: Problem, tensor: int, operator: int) -> TransferCost:
    """Return the cost of paging a tensor in for an operator, and of writing it back if the operator updates it."""
    tensor_of = closing.tensors[tensor]
    write_back = (
        TransferCost(tensor_of.page_out_j, tensor_of.page_out_s, float(tensor_of.nbytes))
        if tensor_of.updated_by == operator
        else NO_COST
    )
    return TransferCost(tensor_of.page_in_j, tensor_of.page_in_s) + write_back


def staying(space: RetentionSpace) -> dict[str, int]:
    """Return, by the tensor's name, the point whose k decides whether the tensor stays from part to part."""
    tensors = space.problem.tensors
    return {tensors[space.point_tensor[e]].name: e for e in np.flatnonzero(space.wrapped).tolist()}


def _build(block: PyomoBlock) -> None:
    model = block.model()
    space: RetentionSpace = model.space
    closing = space.problem.closing
    assert closing is not None
    k = list(model.residency.k.values())
    stays = staying(space)
    size = {name: float(space.tensor_bytes[space.point_tensor[e]]) for name, e in stays.items()}
    block.always = pyo.Var(pyo.RangeSet(0, 0), bounds=(1, 1), doc="the update phase after the last part")
    block.variants = list(_useful_variants(space, closing, sum(size.values())))
    block.runs = pyo.Set(initialize=block.variants, dimen=2, doc="(u, v): update u may run by its variant v")
    block.y = pyo.Var(block.runs, domain=pyo.Binary)
    variables_of: dict[int, dict[int, Any]] = {}
    for (u, v), variable in zip(block.variants, block.y.values(), strict=True):
        variables_of.setdefault(u, {})[v] = variable

    def one_way(u: int) -> PyomoRow:
        forced = run_bytes(closing, u) > space.room_bytes and not space.limits.open
        return sum(variables_of[u].values()) == 1 if forced else sum(variables_of[u].values()) <= 1

    block.one_way = equation(list(variables_of), one_way, "an update uses one variant")
    streamed = {
        (u, i): streaming
        for u in variables_of
        for i in closing.operators[u].inputs
        if closing.tensors[i].name in stays
        and (streaming := [y for v, y in variables_of[u].items() if i in closing.operators[u].variant(v).streamed_in])
    }
    block.away = equation(
        list(streamed),
        lambda u, i: k[stays[closing.tensors[i].name]] + sum(streamed[u, i]) <= 1,
        "a tensor that stays in RAM is not streamed by its update",
    )

    def room(_: PyomoBlock, u: int) -> PyomoRow:
        read = {closing.tensors[i].name for i in closing.operators[u].inputs}
        unread = [name for name in stays if name not in read]
        plain = run_bytes(closing, u)
        variables = [*(k[stays[name]] for name in unread), *variables_of.get(u, {}).values()]
        coefficients = [size[name] for name in unread]
        coefficients += [float(run_bytes(closing, u, v) - plain) for v in variables_of.get(u, {})]
        free_bytes = space.room_bytes - plain
        if not variables or (sum(c for c in coefficients if c > 0) <= free_bytes and not space.limits.open):
            return pyo.Constraint.Skip if plain <= space.room_bytes or variables else pyo.Constraint.Infeasible
        unit = space.memory_unit
        return (
            LinearExpression(linear_coefs=[c / unit for c in coefficients], linear_vars=variables) <= free_bytes / unit
        )

    block.room = pyo.Constraint(
        pyo.RangeSet(0, len(closing.operators) - 1),
        rule=room,
        doc="tensors that stay in RAM from part to part leave room for the update phase",
    )
    costs, fixed = _transfer_costs(space.problem, closing)
    paged = _add_transfers(block, space, stays, costs)
    written = _add_write_backs(block, space, closing, stays)
    extra = [_streaming_cost(closing, u, v) for u, v in block.variants]
    variables = [block.always[0], *block.y.values(), *block.a.values(), *block.w.values()]
    for figure, name in (("energy_j", "energy_j"), ("transfer_s", "time_s"), ("written_bytes", "written_bytes")):
        setattr(block, figure, Terms(variables, [getattr(moved, name) for moved in (fixed, *extra, *paged, *written)]))


def _add_transfers(
    block: PyomoBlock, space: RetentionSpace, stays: dict[str, int], moves: dict[int, TransferCost]
) -> list[TransferCost]:
    """Add the rows on tensors that don't stay in RAM. Return the cost of moving each for the updates, from `moves`."""
    s = Symbols(block.model())
    names = [name for name, e in stays.items() if int(space.point_tensor[e]) in moves]
    block.moved = pyo.Set(initialize=names, doc="tensors of the updates that may stay in RAM from part to part")
    block.a = pyo.Var(block.moved, bounds=(0, 1))
    points = list(space.point_of)

    def idle(name: str) -> PyomoRow:
        i, t = points[stays[name]]
        if (i, t, t) not in s.y_in:
            return pyo.Constraint.Skip
        kept_on = s.k[s.after[i, t]] if s.after.get((i, t), (i, t)) != (i, t) else 0
        return block.a[name] + kept_on >= s.y_in[i, t, t]

    block.gone = equation(
        block.moved, lambda name: block.a[name] + s.k[points[stays[name]]] >= 1, "a tensor stays or is moved"
    )
    block.idle = equation(block.moved, idle, "a tensor without use doesn't stay")
    return [moves[int(space.point_tensor[stays[name]])] for name in names]


def _add_write_backs(
    block: PyomoBlock, space: RetentionSpace, closing: Problem, stays: dict[str, int]
) -> list[TransferCost]:
    """Add the rows on tensors that stay in RAM and are also read from storage. Return the cost of writing each back."""
    model = block.model()
    k, p = list(model.residency.k.values()), list(model.paging.p.values())
    y = list(model.streaming.y.values()) if space.streams else []
    reads: dict[int, list[Any]] = {}
    for e, variable in zip(space.page_point.tolist(), p, strict=True):
        if not space.point_first[e]:
            reads.setdefault(int(space.point_tensor[e]), []).append(variable)
    for (i, _, _), runs in space.streamed_in.items():
        reads.setdefault(i, []).extend(y[n] for n in runs)
    updated = {held.name: held for held in closing.tensors if held.updated}
    block.written = [
        space.point_tensor[e] for name, e in stays.items() if name in updated and reads.get(space.point_tensor[e])
    ]
    names = [space.problem.tensors[i].name for i in block.written]
    block.tensors = pyo.Set(
        initialize=names, doc="tensors that may stay in RAM from part to part and be read from storage too"
    )
    block.w = pyo.Var(block.tensors, bounds=(0, 1))
    rows = {(name, n): read for name, i in zip(names, block.written, strict=True) for n, read in enumerate(reads[i])}

    block.back = equation(
        list(rows),
        lambda name, n: k[stays[name]] + rows[name, n] - block.w[name] <= 1,
        "a tensor that stays in RAM and is read from storage is written there",
    )
    held = (updated[name] for name in names)
    return [TransferCost(one.page_out_j, one.page_out_s, float(one.nbytes)) for one in held]


def _useful_variants(space: RetentionSpace, closing: Problem, staying_bytes: float) -> Iterator[tuple[int, int]]:
    """Yield (update, variant) for variants that may beat the plain run for some set of tensors that stay in RAM."""
    for u, operator in enumerate(closing.operators):
        other_bytes = staying_bytes if not space.limits.open else np.inf
        extra_j = {v: _streaming_cost(closing, u, v).energy_j for v in closing.ways(u) if v}
        if run_bytes(closing, u) + other_bytes <= space.room_bytes:
            extra_j = {v: price for v, price in extra_j.items() if price < 0}
        run_sizes = {v: run_bytes(closing, u, v) for v in extra_j}
        for v in extra_j:
            if run_sizes[v] > space.room_bytes and not space.limits.open:
                continue
            streamed = set(operator.variant(v).streamed_in)
            if not any(
                (run_sizes[w], extra_j[w], w) < (run_sizes[v], extra_j[v], v)
                and run_sizes[w] <= run_sizes[v]
                and extra_j[w] <= extra_j[v]
                and streamed.issuperset(operator.variant(w).streamed_in)
                for w in extra_j
            ):
                yield u, v


def _streaming_cost(closing: Problem, update: int, variant: int) -> TransferCost:
    """Return the cost of a streamed run above a plain run with its streamed tensors paged in and written back."""
    operator = closing.operators[update]
    streamed_variant = operator.variant(variant)
    cost = TransferCost(
        streamed_variant.energy_j - operator.energy_j,
        streamed_variant.time_s - operator.time_s,
        float(streamed_variant.written_bytes),
    )
    for i in streamed_variant.streamed_in:
        cost -= _transfer_cost(closing, i, update)
    return cost


def _has_update_phase(space: Space) -> bool:
    return space.paging and space.problem.closing is not None


closing = Block("closing", _build, requires=("residency", "paging"), when=_has_update_phase)
