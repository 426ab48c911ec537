r"""Block `closing`: what follows the last part of a batch, as the parts' schedule decides it.

Each operator u reads a sum, and mostly a parameter and its states, which it writes anew. Whatever of
that does not stay in RAM from one part to the next is paged in for it and written back, or streamed: with $k_i$ the
tensors that stay, $y_{u,v}$ the ways that stream, and $W_{u,v}$ what a run takes,

$$ \begin{aligned}
   \sum_v y_{u,v} &\le 1 \text{ (= 1 where the plain run doesn't fit)} \\
   k_i + \sum_{v \text{ streams } i} y_{u,v} &\le 1 \\
   \sum_{i \text{ not of } u} m_i k_i + W_{u,0} + \sum_v (W_{u,v} - W_{u,0})\, y_{u,v} &\le B
   \end{aligned} $$
$$ E = \sum_i \Phi_i (1 - k_i)
   + \sum_{u,v} (\Phi_v - \Phi_u - \sum_{i \text{ streamed by } v} \Phi_i)\, y_{u,v} $$

where $\Phi_i$ is a page-in and, of what is written anew, a write-back. A tensor doesn't stay exactly where it is paged
in, or streamed, at the first point of its life: these decisions bear $\Phi_i$ (`paging`, `streaming`). Optimizer
states, which no part reads, never stay. What stays and is let go within a part has to be written as well; the model
leaves that out, and bounds plans.

| symbol       | attribute | unit | meaning                                             |
|--------------|-----------|------|-----------------------------------------------------|
| $y_{u,v}$    | `y`       | -    | update u runs by its variant v                      |
| 1            | `always`  | -    | stands for what is moved whatever the schedule is   |

Source: this project's reference notes on the whole of training in the budget.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import pyomo.environ as pyo
from pyomo.core.expr.numeric_expr import LinearExpression

from poetopt.formulations.block import Block, PyomoBlock, PyomoRow, Space
from poetopt.formulations.rows import Terms
from poetopt.formulations.sets import in_order
from poetopt.problem.arena import run_bytes

if TYPE_CHECKING:
    from poetopt.formulations.retention.space import RetentionSpace
    from poetopt.formulations.rows import Floats
    from poetopt.problem import Problem


@dataclass(frozen=True)
class Moved:
    """What reading and writing back takes: joules, seconds, bytes written."""

    energy_j: float = 0.0
    time_s: float = 0.0
    written_bytes: float = 0.0

    def __add__(self, other: Moved) -> Moved:
        return Moved(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Moved)))

    def __sub__(self, other: Moved) -> Moved:
        return Moved(*(getattr(self, f.name) - getattr(other, f.name) for f in fields(Moved)))


NOTHING = Moved()


def moved_if_away(problem: Problem) -> tuple[dict[int, Moved], Moved]:
    """For each tensor that an update reads: what moving it takes, unless it stays in RAM. And what is moved anyway."""
    if problem.closing is None:
        return {}, NOTHING
    places = {held.name: i for i, held in enumerate(problem.tensors)}
    found: dict[int, Moved] = {}
    anyway = NOTHING
    for i, held in enumerate(problem.closing.tensors):
        if not held.stored:
            continue
        moved = sum((_moved(problem.closing, i, u) for u in problem.closing.readers[i]), NOTHING)
        if held.name in places:
            found[places[held.name]] = moved
        else:
            anyway += moved
    return found, anyway


def _moved(closing: Problem, tensor: int, operator: int) -> Moved:
    """What paging a tensor in for an operator takes, and writing it back where that updates it."""
    held = closing.tensors[tensor]
    back = Moved(held.page_out_j, held.page_out_s, float(held.nbytes)) if held.updated_by == operator else NOTHING
    return Moved(held.page_in_j, held.page_in_s) + back


def of_page_ins(space: RetentionSpace, figure: str) -> Floats:
    """(n_pages,) a figure of `Moved` for each page-in: of those at the first point of what an update reads."""
    away, _ = moved_if_away(space.problem)
    first = (space.point_first & space.wrapped)[space.page_point].tolist()
    tensors = space.point_tensor[space.page_point].tolist()
    return np.array(
        [getattr(away.get(i, NOTHING), figure) if begins else 0.0 for i, begins in zip(tensors, first, strict=True)]
    )


def of_ways(space: RetentionSpace, figure: str) -> Floats:
    """(n_ways,) the same for each streamed run."""
    away, _ = moved_if_away(space.problem)
    found = np.zeros(len(space.stream_ways))
    for (i, j, t), own in space.streamed_in.items():
        e = space.point_of.get((i, t))
        if j == t and e is not None and space.point_first[e] and space.wrapped[e]:
            found[list(own)] += getattr(away.get(i, NOTHING), figure)
    return found


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
    names = [operator.name for operator in closing.operators]
    block.runs = pyo.Set(
        initialize=[(names[u], v) for u, v in block.ways], dimen=2, doc="(update, variant): it may run by the variant"
    )
    block.y = pyo.Var(block.runs, domain=pyo.Binary)
    of: dict[int, list[tuple[int, Any]]] = {}
    for (u, v), variable in zip(block.ways, block.y.values(), strict=True):
        of.setdefault(u, []).append((v, variable))

    def one_way(_: PyomoBlock, n: int) -> PyomoRow:
        u, own = list(of.items())[n]
        ways = LinearExpression(linear_coefs=[1] * len(own), linear_vars=[variable for _, variable in own])
        forced = run_bytes(closing, u) > space.room_bytes and not space.limits.open
        return (1, ways, 1) if forced else ways <= 1

    block.one_way = pyo.Constraint([names[u] for u in of], rule=in_order(one_way), doc="an update goes one way")
    pairs = [(u, i) for u in of for i in closing.operators[u].inputs if closing.tensors[i].name in stays]
    pairs = [(u, i) for u, i in pairs if any(i in closing.operators[u].variant(v).streamed_in for v, _ in of[u])]

    def away(_: PyomoBlock, n: int) -> PyomoRow:
        u, i = pairs[n]
        streamed = [variable for v, variable in of[u] if i in closing.operators[u].variant(v).streamed_in]
        variables = [k[stays[closing.tensors[i].name]], *streamed]
        return LinearExpression(linear_coefs=[1] * len(variables), linear_vars=variables) <= 1

    block.away = pyo.Constraint(
        pyo.RangeSet(0, len(pairs) - 1), rule=away, doc="what stays in RAM is not streamed by its update"
    )

    def room(_: PyomoBlock, u: int) -> PyomoRow:
        read = {closing.tensors[i].name for i in closing.operators[u].inputs}
        beside = [name for name in stays if name not in read]
        plain = run_bytes(closing, u)
        variables = [*(k[stays[name]] for name in beside), *(variable for _, variable in of.get(u, ()))]
        coefficients = [size[name] for name in beside]
        coefficients += [float(run_bytes(closing, u, v) - plain) for v, _ in of.get(u, ())]
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
    more = [_more(closing, u, v) for u, v in block.ways]
    anyway = moved_if_away(space.problem)[1]
    variables = [block.always[0], *block.y.values()]
    for figure, name in (("energy_j", "energy_j"), ("transfer_s", "time_s"), ("written_bytes", "written_bytes")):
        setattr(block, figure, Terms(variables, [getattr(moved, name) for moved in (anyway, *more)]))


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
    """What a streamed run takes above a plain one with all that it streams paged in and written back."""
    operator = closing.operators[update]
    way = operator.variant(variant)
    found = Moved(way.energy_j - operator.energy_j, way.time_s - operator.time_s, float(way.written_bytes))
    for i in way.streamed_in:
        found -= _moved(closing, i, update)
    return found


def _needed(space: Space) -> bool:
    return space.paging and space.problem.closing is not None


closing = Block("closing", _build, requires=("residency", "paging"), when=_needed)
