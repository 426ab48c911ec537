"""Budget, deadline and costs as mutable Params: a changed figure needs no new build.

| component                                  | unit | meaning                                              |
|--------------------------------------------|------|------------------------------------------------------|
| `ram_bytes`                                | byte | the budget (Param)                                   |
| `deadline_s`                               | s    | the bound on time; where one was asked for (Param)   |
| `compute_j`, `compute_s`                   | J, s | one compute of each operator (Params)                |
| `page_in_j`, `page_out_j`                  | J    | moving each tensor (Params)                          |
| `page_in_s`, `page_out_s`                  | s    | the same                                             |
| `energy_j`                                 | J    | of the step: one pass and the overhead (Expression)  |
| `compute_time_s`, `transfer_time_s`        | s    | of the step (Expressions)                            |
| `bytes_used`                               | byte | what each row on the budget counts (Expression)      |

The objective, the rows on the deadline and those on the budget are written in them, with Pyomo's units. Whatever rests
on figures is left out of the space then (`Limits.open`), so that models of different figures have the same indices.
Rows and prices of other blocks keep the numbers that they were built with.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyomo.environ as pyo

from poetopt.formulations.block import contributions
from poetopt.formulations.callbacks import Priced
from poetopt.formulations.rows import Row
from poetopt.graph.problem import Problem

J, S, BYTE = pyo.units.J, pyo.units.s, pyo.units.byte
PARAM: Mapping[str, Any] = {"within": pyo.NonNegativeReals, "mutable": True}
"""Of every Param: no figure is negative, or no number."""


def attach(model: Any, decisions: Priced, reserved_bytes: int) -> None:
    """Put the Params on a built model, and write objective, deadline and budget in them.

    reserved_bytes
        What blocks take of the budget.
    """
    space = model.space
    _declare(model, space.problem, space.limits.ram_bytes + reserved_bytes)
    blocks = decisions.blocks
    moved = decisions.page_ins, decisions.page_outs
    energy = _priced(decisions.computes, model.compute_j) + _others(model, "energy_j", blocks, J)
    energy += _priced(moved[0], model.page_in_j) + _priced(moved[1], model.page_out_j)
    compute = _priced(decisions.computes, model.compute_s) + _others(model, "compute_s", blocks, S)
    transfer = _priced(moved[0], model.page_in_s) + _priced(moved[1], model.page_out_s)
    transfer += _others(model, "transfer_s", blocks, S)
    one_pass_s = sum(model.compute_s.values())
    model.overhead_j.set_value(energy)
    model.energy_j = pyo.Expression(expr=sum(model.compute_j.values()) + energy, doc="joules of the step")
    model.compute_time_s = pyo.Expression(expr=one_pass_s + compute, doc="seconds of all computes")
    model.transfer_time_s = pyo.Expression(expr=transfer, doc="seconds on the transfer channel")
    _limit_time(model, compute, transfer, one_pass_s)
    _limit_memory(model, decisions.budget, _base(model, reserved_bytes))


def current(model: Any, reserved_bytes: int) -> Any:
    """The space of `model` with the figures that its Params have now; the same one where none has changed."""
    space = model.space
    if model.component("ram_bytes") is None:
        return space
    problem = space.problem
    operators = tuple(
        replace(operator, energy_j=pyo.value(model.compute_j[name]), time_s=pyo.value(model.compute_s[name]))
        for operator, name in zip(problem.operators, model.operators, strict=True)
    )
    tensors = tuple(
        tensor.moved_for(**{key: pyo.value(model.component(key)[name]) for key in TRANSFERS})
        for tensor, name in zip(problem.tensors, model.tensors, strict=True)
    )
    limits = replace(space.limits, ram_bytes=int(pyo.value(model.ram_bytes)) - reserved_bytes)
    if model.component("deadline_s") is not None:
        key = "compute_s" if limits.compute_s is not None else "makespan_s"
        limits = replace(limits, **{key: float(pyo.value(model.deadline_s))})
    if (operators, tensors, limits) == (problem.operators, problem.tensors, space.limits):
        return space
    return replace(space, problem=replace(problem, operators=operators, tensors=tensors), limits=limits)


def upper_bound(model: Any, row: Row, reserved_bytes: int) -> Any:
    """The upper bound of a separator's row on the budget, in the Param."""
    unit = model.space.memory_unit
    return row.upper + (model.ram_bytes - _base(model, reserved_bytes) * BYTE) / (unit * BYTE)


TRANSFERS = {"page_in_j": J, "page_out_j": J, "page_in_s": S, "page_out_s": S}


def _declare(model: Any, problem: Problem, ram_bytes: int) -> None:
    limits = model.space.limits

    def figures(name: str, index: Any, things: Iterable[Any], key: str, unit: Any, doc: str) -> None:
        values = {place: getattr(thing, key) for place, thing in zip(index, things, strict=True)}
        model.add_component(name, pyo.Param(index, initialize=values, **PARAM, units=unit, doc=doc))

    model.ram_bytes = pyo.Param(initialize=ram_bytes, **PARAM, units=BYTE, doc="the budget")
    deadline = limits.compute_s if limits.compute_s is not None else limits.makespan_s
    if deadline is not None:
        model.deadline_s = pyo.Param(initialize=deadline, **PARAM, units=S, doc="the step ends by then")
    figures("compute_j", model.operators, problem.operators, "energy_j", J, "one compute of each operator")
    figures("compute_s", model.operators, problem.operators, "time_s", S, "one compute of each operator")
    for key, unit in TRANSFERS.items():
        way = "reading it from storage" if key.startswith("page_in") else "writing it to storage"
        figures(key, model.tensors, problem.tensors, key, unit, way)


def _priced(entries: Sequence[tuple[Any, int]], param: Any) -> Any:
    prices = list(param.values())
    return pyo.quicksum((prices[place] * entry for entry, place in entries), start=0.0 * param.get_units())


def _others(model: Any, attribute: str, own: frozenset[str], unit: Any) -> Any:
    """The contributions of other blocks, as numbers."""
    names = [name for name in model.block_names if name not in own]
    parts = contributions(model, attribute, names)
    return pyo.quicksum((c * unit * v for part in parts for v, c in zip(*part, strict=True)), start=0.0 * unit)


def _limit_time(model: Any, compute: Any, transfer: Any, one_pass_s: Any) -> None:
    """The rows of `deadline`, in its order."""
    block, limits, problem = model.component("deadline"), model.space.limits, model.space.problem
    if block is None:
        return
    scale = (problem.baseline_time_s or 1.0) * S
    rows = [(compute, model.deadline_s - one_pass_s)]
    if limits.makespan_s is not None:
        if not problem.dma:
            rows = [(compute + transfer, model.deadline_s - one_pass_s)]
        else:
            rows.append((transfer, model.deadline_s))
            if limits.hidden_share < 1:
                rows.append((compute + (1 - limits.hidden_share) * transfer, model.deadline_s - one_pass_s))
    for place, (body, room) in enumerate(rows):
        if place in block.within:
            block.within[place].set_value((None, body / scale, room / scale))


def _limit_memory(model: Any, rows: Any, base: int) -> None:
    unit = model.space.memory_unit * BYTE
    used = {}
    for index, row in rows.items():
        room = pyo.value(row.upper)
        used[index] = row.body * unit + (base * BYTE - room * unit)
        row.set_value((None, row.body, room + (model.ram_bytes - base * BYTE) / unit))
    model.bytes_used = pyo.Expression(
        list(used), initialize=used, doc=f"bytes in RAM, of all that the rows of {rows.name} count"
    )


def _base(model: Any, reserved_bytes: int) -> int:
    """The budget for which the rows on it have their numbers: what rounding to whole slots leaves of it."""
    return int(model.space.room_bytes) + int(model.space.problem.reserve_bytes) + reserved_bytes
