r"""Block `closing`: what follows the last part of a batch, as the parts' schedule decides it.

Each operator u reads a sum, and mostly a parameter and its states, which it writes anew. Whatever of
that does not stay in RAM from one part to the next is paged in for it and written back, or streamed: with $k_i$ the
tensors that stay, $y_{u,v}$ the ways that stream, and $W_{u,v}$ what a run takes,

$$ \begin{aligned}
   \sum_v y_{u,v} &\le 1 \text{ (= 1 where the plain run doesn't fit)} \\
   k_i + \sum_{v \text{ streams } i} y_{u,v} &\le 1 \\
   \sum_{i \text{ not of } u} m_i k_i + W_{u,0} + \sum_v (W_{u,v} - W_{u,0})\, y_{u,v} &\le B \\
   k_i + (\text{each page-in or streaming of } i \text{ in a part}) &\le 1 + w_i
   \end{aligned} $$
$$ a_i \ge 1 - k_i, \qquad a_i \ge \sum_v y_{i,v} - k_{i^+} $$
$$ E = \sum_i (\Phi_i a_i + \Phi^{out}_i w_i)
   + \sum_{u,v} (\Phi_v - \Phi_u - \sum_{i \text{ streamed by } v} \Phi_i)\, y_{u,v} $$

where $\Phi_i$ is a page-in and, of what is written anew, a write-back, for each operator that reads i. The second row
on $a_i$, with what streams i at the first point of its life and its next one $i^+$: what is there for nothing doesn't
stay. Optimizer states and rows of tables never do. What stays, and is read from storage within a part as well, has
to be written back ($w_i$).

| symbol       | attribute | unit | meaning                                             |
|--------------|-----------|------|-----------------------------------------------------|
| $y_{u,v}$    | `y`       | -    | update u runs by its variant v                      |
| $a_i$        | `a`       | -    | tensor i doesn't stay in RAM                        |
| $w_i$        | `w`       | -    | tensor i stays in RAM, and is written back as well  |
| 1            | `always`  | -    | stands for what is moved whatever the schedule is   |

Source: this project's reference notes on the whole of training in the budget.
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
class Moved:
    """The cost of reading and writing back: joules, seconds, bytes written."""

    energy_j: float = 0.0
    time_s: float = 0.0
    written_bytes: float = 0.0

    def __add__(self, other: Moved) -> Moved:
        return Moved(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Moved)))

    def __sub__(self, other: Moved) -> Moved:
        return Moved(*(getattr(self, f.name) - getattr(other, f.name) for f in fields(Moved)))


NOTHING = Moved()


def _moved_if_away(problem: Problem, closing: Problem) -> tuple[dict[int, Moved], Moved]:
    """For each tensor that an update reads: what moving it takes, unless it stays in RAM. And what is moved anyway."""
    places = {held.name: i for i, held in enumerate(problem.tensors)}
    found: dict[int, Moved] = {}
    anyway = NOTHING
    for i, held in enumerate(closing.tensors):
        if not held.stored:
            continue
        moved = sum((_moved(closing, i, u) for u in closing.readers[i]), NOTHING)
        if held.name in places and problem.tensors[places[held.name]].may_stay:
            found[places[held.name]] = moved
        else:
            anyway += moved
    return found, anyway


def _moved(closing: Problem, tensor: int, operator: int) -> Moved:
    """The cost of paging a tensor in for an operator, and of writing it back where that updates it."""
    held = closing.tensors[tensor]
    back = Moved(held.page_out_j, held.page_out_s, float(held.nbytes)) if held.updated_by == operator else NOTHING
    return Moved(held.page_in_j, held.page_in_s) + back


def staying(space: RetentionSpace) -> dict[str, int]:
    """The point of each tensor that says whether it stays from part to part, by the tensor's name."""
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
    block.always = pyo.Var(pyo.RangeSet(0, 0), bounds=(1, 1), doc="the updates behind the last part")
    block.ways = list(_ways(space, closing, sum(size.values())))
    block.runs = pyo.Set(initialize=block.ways, dimen=2, doc="(u, v): update u may run by its variant v")
    block.y = pyo.Var(block.runs, domain=pyo.Binary)
    of: dict[int, dict[int, Any]] = {}
    for (u, v), variable in zip(block.ways, block.y.values(), strict=True):
        of.setdefault(u, {})[v] = variable

    def one_way(u: int) -> PyomoRow:
        forced = run_bytes(closing, u) > space.room_bytes and not space.limits.open
        return sum(of[u].values()) == 1 if forced else sum(of[u].values()) <= 1

    block.one_way = equation(list(of), one_way, "an update goes one way")
    streamed = {
        (u, i): own
        for u in of
        for i in closing.operators[u].inputs
        if closing.tensors[i].name in stays
        and (own := [y for v, y in of[u].items() if i in closing.operators[u].variant(v).streamed_in])
    }
    block.away = equation(
        list(streamed),
        lambda u, i: k[stays[closing.tensors[i].name]] + sum(streamed[u, i]) <= 1,
        "what stays in RAM is not streamed by its update",
    )

    def room(_: PyomoBlock, u: int) -> PyomoRow:
        read = {closing.tensors[i].name for i in closing.operators[u].inputs}
        beside = [name for name in stays if name not in read]
        plain = run_bytes(closing, u)
        variables = [*(k[stays[name]] for name in beside), *of.get(u, {}).values()]
        coefficients = [size[name] for name in beside]
        coefficients += [float(run_bytes(closing, u, v) - plain) for v in of.get(u, {})]
        left = space.room_bytes - plain
        if not variables or (sum(c for c in coefficients if c > 0) <= left and not space.limits.open):
            return pyo.Constraint.Skip if plain <= space.room_bytes or variables else pyo.Constraint.Infeasible
        unit = space.memory_unit
        return LinearExpression(linear_coefs=[c / unit for c in coefficients], linear_vars=variables) <= left / unit

    block.room = pyo.Constraint(
        pyo.RangeSet(0, len(closing.operators) - 1),
        rule=room,
        doc="what stays in RAM from part to part leaves room for the updates behind the last one",
    )
    moves, anyway = _moved_if_away(space.problem, closing)
    gone = _build_gone(block, space, stays, moves)
    back = _build_back(block, space, closing, stays)
    more = [_more(closing, u, v) for u, v in block.ways]
    variables = [block.always[0], *block.y.values(), *block.a.values(), *block.w.values()]
    for figure, name in (("energy_j", "energy_j"), ("transfer_s", "time_s"), ("written_bytes", "written_bytes")):
        setattr(block, figure, Terms(variables, [getattr(moved, name) for moved in (anyway, *more, *gone, *back)]))


def _build_gone(
    block: PyomoBlock, space: RetentionSpace, stays: dict[str, int], moves: dict[int, Moved]
) -> list[Moved]:
    """Build the rows on what doesn't stay in RAM; the cost of moving it for the updates, which `moves` has."""
    s = Symbols(block.model())
    names = [name for name, e in stays.items() if int(space.point_tensor[e]) in moves]
    block.moved = pyo.Set(initialize=names, doc="what may stay in RAM from part to part, and updates read")
    block.a = pyo.Var(block.moved, bounds=(0, 1))
    points = list(space.point_of)

    def idle(name: str) -> PyomoRow:
        i, t = points[stays[name]]
        if (i, t, t) not in s.y_in:
            return pyo.Constraint.Skip
        on = s.k[s.after[i, t]] if s.after.get((i, t), (i, t)) != (i, t) else 0
        return block.a[name] + on >= s.y_in[i, t, t]

    block.gone = equation(
        block.moved, lambda name: block.a[name] + s.k[points[stays[name]]] >= 1, "it stays or is moved"
    )
    block.idle = equation(block.moved, idle, "what is there for nothing doesn't stay")
    return [moves[int(space.point_tensor[stays[name]])] for name in names]


def _build_back(block: PyomoBlock, space: RetentionSpace, closing: Problem, stays: dict[str, int]) -> list[Moved]:
    """Build the rows on what stays in RAM and is read from storage as well; the cost of writing it back."""
    model = block.model()
    k, p = list(model.residency.k.values()), list(model.paging.p.values())
    y = list(model.streaming.y.values()) if space.streams else []
    reads: dict[int, list[Any]] = {}
    for e, variable in zip(space.page_point.tolist(), p, strict=True):
        if not space.point_first[e]:
            reads.setdefault(int(space.point_tensor[e]), []).append(variable)
    for (i, _, _), own in space.streamed_in.items():
        reads.setdefault(i, []).extend(y[n] for n in own)
    updated = {held.name: held for held in closing.tensors if held.updated}
    block.written = [
        space.point_tensor[e] for name, e in stays.items() if name in updated and reads.get(space.point_tensor[e])
    ]
    names = [space.problem.tensors[i].name for i in block.written]
    block.tensors = pyo.Set(initialize=names, doc="what may stay in RAM from part to part and be read from storage too")
    block.w = pyo.Var(block.tensors, bounds=(0, 1))
    rows = {(name, n): read for name, i in zip(names, block.written, strict=True) for n, read in enumerate(reads[i])}

    block.back = equation(
        list(rows),
        lambda name, n: k[stays[name]] + rows[name, n] - block.w[name] <= 1,
        "what stays in RAM and is read from storage is written there",
    )
    held = (updated[name] for name in names)
    return [Moved(one.page_out_j, one.page_out_s, float(one.nbytes)) for one in held]


def _ways(space: RetentionSpace, closing: Problem, staying_bytes: float) -> Iterator[tuple[int, int]]:
    """(update, variant) of those that may be better than the plain run for some set of what stays in RAM."""
    for u, operator in enumerate(closing.operators):
        beside = staying_bytes if not space.limits.open else np.inf
        more = {v: _more(closing, u, v).energy_j for v in closing.ways(u) if v}
        if run_bytes(closing, u) + beside <= space.room_bytes:
            more = {v: price for v, price in more.items() if price < 0}
        taken = {v: run_bytes(closing, u, v) for v in more}
        for v in more:
            if taken[v] > space.room_bytes and not space.limits.open:
                continue
            streamed = set(operator.variant(v).streamed_in)
            if not any(
                (taken[w], more[w], w) < (taken[v], more[v], v)
                and taken[w] <= taken[v]
                and more[w] <= more[v]
                and streamed.issuperset(operator.variant(w).streamed_in)
                for w in more
            ):
                yield u, v


def _more(closing: Problem, update: int, variant: int) -> Moved:
    """The cost of a streamed run above a plain one with all that it streams paged in and written back."""
    operator = closing.operators[update]
    way = operator.variant(variant)
    found = Moved(way.energy_j - operator.energy_j, way.time_s - operator.time_s, float(way.written_bytes))
    for i in way.streamed_in:
        found -= _moved(closing, i, update)
    return found


def _needed(space: Space) -> bool:
    return space.paging and space.problem.closing is not None


closing = Block("closing", _build, requires=("residency", "paging"), when=_needed)
