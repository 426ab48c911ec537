"""`poet`: Algorithm 1 of the paper, generalised to operators with several outputs.

R, S_ram, S_aux, M_in and M_out are matrices of stages x operators or tensors. The formulation keeps the paper's rules,
which are a little stricter than those of a plan. A tensor that a stage doesn't read stays until the stage ends. A
tensor is written out only when a stage begins, and a parameter also right after its update. The formulation is exact
and slow. It exists for comparisons and for experiments.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from poetopt.formulations.deadline import deadline
from poetopt.formulations.language import Formulation
from poetopt.formulations.poet.algorithm import (
    capacity,
    decisions,
    energy,
    memory,
    paging,
    parameters,
    rematerialization,
)
from poetopt.formulations.poet.space import SETS, PoetSpace, poet_space
from poetopt.formulations.poet.thrift import thrift
from poetopt.formulations.rows import Floats, Ints, PointLike, Row
from poetopt.formulations.search_adapter import SearchAdapter, Values
from poetopt.formulations.storage_activation import storage_activation
from poetopt.plan.schedule import FractionalSchedule, Schedule

Pairs = list[tuple[int, int]]


def _indices_of_ones(point: PointLike, variable: Any) -> Pairs:
    """Return the indices at which a binary variable is 1."""
    return [at for at, value in zip(variable, point[variable].tolist(), strict=True) if value > 0.5]


def _indicator(variable: Any, ones: set[tuple[int, int]]) -> tuple[Any, Floats]:
    return variable, np.array([float(at in ones) for at in variable])


def _schedule(model: Any, point: PointLike) -> Schedule:
    space: PoetSpace = model.space
    recomputes = {(t, j) for t, j in _indices_of_ones(point, model.decisions.R) if t != j}
    page_ins: set[tuple[int, int]] = set()
    page_outs: dict[int, int] = {}
    if space.paging:
        resident = set(_indices_of_ones(point, model.decisions.S_ram))
        for t, i in _indices_of_ones(point, model.decisions.M_in):
            stage = space.arrives(t, i)
            if stage is not None and (t + 1, i) in resident and (t, i) not in resident:
                page_ins.add((stage, i))  # any other page-in has no use and no cost
        returning = {
            i for _, i in page_ins if not space.problem.tensors[i].stored
        }  # stored tensors are written after their update
        for t, i in _indices_of_ones(point, model.decisions.M_out):
            if i in returning:
                page_outs.setdefault(i, t)  # its copy stays valid
    return Schedule.written(space.problem, recomputes, page_ins, [(t, i) for i, t in page_outs.items()])


def _values(model: Any, schedule: Schedule) -> Values | None:
    """Return R and M_in of a start, and M_out if the schedule has page-out stages; the solver completes the rest."""
    space: PoetSpace = model.space
    values = [_indicator(model.decisions.R, {(t, t) for t in model.stages} | set(schedule.recomputes))]
    if space.paging:
        residences = [space.paged_in(stage, tensor) for stage, tensor in schedule.page_ins]
        page_outs = _page_outs(space, schedule) if schedule.page_outs else []
        if None in residences or any(at not in model.residences for at in page_outs):
            return None
        values.append(_indicator(model.decisions.M_in, {at for at in residences if at is not None}))
        if page_outs:
            values.append(_indicator(model.decisions.M_out, set(page_outs)))
    return values


def _page_outs(space: PoetSpace, schedule: Schedule) -> Pairs:
    """Return (stage, tensor) of the first page-out of each tensor that comes back, default page-outs included."""
    first = {i: space.problem.written_in(i) for _, i in schedule.page_ins if not space.problem.tensors[i].stored}
    for stage, i in sorted(schedule.page_outs, reverse=True):
        if i in first:
            first[i] = stage
    return [(stage, i) for i, stage in sorted(first.items())]


def _residence_variables(model: Any) -> list[tuple[str, Any]]:
    """Return the binary variables over the residences by the paper's symbol: all but R."""
    variables = [("S_ram", model.decisions.S_ram)]
    if model.space.paging:
        variables += [(symbol, model.decisions.component(symbol)) for symbol in ("S_aux", "M_in", "M_out")]
    return variables


def _stages(model: Any) -> list[tuple[Any, Ints]]:
    end = len(model.space.problem.operators) - 1
    residences = np.array([min(t, end) for t, _ in model.residences], dtype=np.int64)
    computes = np.array([t for t, _ in model.computes], dtype=np.int64)
    return [(model.decisions.R, computes), *((variable, residences) for _, variable in _residence_variables(model))]


def _fractional(model: Any, point: PointLike) -> FractionalSchedule:
    space: PoetSpace = model.space
    kept = np.zeros((len(space.problem.tensors), len(space.problem.operators) + 1))
    for (t, i), share in zip(model.residences, point[model.decisions.S_ram], strict=True):
        kept[i, max(t - 1, 0)] = share
    recomputes = zip(model.computes, point[model.decisions.R].tolist(), strict=True)
    page_ins: dict[tuple[int, int], float] = {}
    if space.paging:
        paged = zip(model.residences, point[model.decisions.M_in].tolist(), strict=True)
        page_ins = {(space.arrives(t, i) or 0, i): share for (t, i), share in paged if share > 0}
    return FractionalSchedule(kept, {(t, j): share for (t, j), share in recomputes if t != j and share > 0}, page_ins)


def _no_good(model: Any, schedule: Schedule, values: Values, *, late: bool) -> Row:
    """Return the row that excludes these values of R and M_in together with these first page-outs."""
    space: PoetSpace = model.space
    signs: list[tuple[Any, float]] = []
    for variable, array in values:
        if not space.paging or variable is not model.decisions.M_out:
            pairs = zip(variable.values(), array.tolist(), strict=True)
            # a fixed variable is no column of the model
            signs += [(one, -1.0 if value > 0.5 else 1.0) for one, value in pairs if not one.fixed]
    for stage, i in _page_outs(space, schedule) if space.paging else ():
        for t in range(space.problem.tensors[i].first_stage, stage + 1):
            if (t, i) in model.residences:
                signs.append((model.decisions.M_out[t, i], -1.0 if t == stage else 1.0))
    lower = 1.0 + sum(min(sign, 0.0) for _, sign in signs)
    return Row([one for one, _ in signs], [sign for _, sign in signs], lower, math.inf, 1.0, "no_good", core=True)


BLOCKS = (
    decisions,
    rematerialization,
    paging,
    parameters,
    capacity,
    memory,
    energy,
    storage_activation,
    deadline,
)

poet = Formulation(
    name="poet",
    doc=__doc__,
    blocks=BLOCKS,
    space=poet_space,
    search=SearchAdapter(
        schedule=_schedule, values=_values, stages=_stages, fractional=_fractional, no_good=_no_good, thrift=thrift
    ),
    sets=SETS,
    fixed_costs=("storage_activation",),
    strict=True,
    simulated=tuple(block.name for block in BLOCKS),
)
build = poet.build
from_data = poet.from_data
with_block = poet.with_block
