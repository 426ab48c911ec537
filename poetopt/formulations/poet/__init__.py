"""`poet`: Algorithm 1 of the paper, generalised to operators with several outputs.

Stages x tensors matrices of R, S_ram, S_aux, M_in and M_out. It keeps the paper's rules, which are a
little stricter than what a plan may do: a tensor that a stage doesn't read stays until the stage ends,
and a tensor can be written out only when a stage begins, a parameter also right after its update. Exact, and slow: it
is here to compare with, and to be changed.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from poetopt.formulations.callbacks import Points, Priced, Values
from poetopt.formulations.deadline import deadline
from poetopt.formulations.language import Formulation
from poetopt.formulations.poet.labels import labels
from poetopt.formulations.poet.memory import memory
from poetopt.formulations.poet.paging import paging, paging_source
from poetopt.formulations.poet.rematerialization import rematerialization
from poetopt.formulations.poet.space import SETS, PoetSpace, poet_space
from poetopt.formulations.poet.thrift import thrift
from poetopt.formulations.rows import Ints, PointLike, Row
from poetopt.formulations.storage_activation import storage_activation
from poetopt.plan.schedule import FractionalSchedule, Schedule


def _schedule(model: Any, point: PointLike) -> Schedule:
    space: PoetSpace = model.space
    R = point[model.rematerialization.R] > 0.5
    recomputes = {space.computes[x] for x in np.flatnonzero(R) if space.computes[x][0] != space.computes[x][1]}
    page_ins: set[tuple[int, int]] = set()
    if space.paging:
        resident = point[model.rematerialization.S_ram] > 0.5
        for x in np.flatnonzero(point[model.paging.M_in] > 0.5):
            t, i = space.residences[x]
            after, stage = space.residence_index.get((t + 1, i)), space.arrives(t, i)
            if stage is not None and after is not None and resident[after] and not resident[x]:
                page_ins.add((stage, i))  # else one that costs nothing, for nothing
    return Schedule.written(space.problem, recomputes, page_ins, _first_page_outs(model, point, page_ins))


def _first_page_outs(model: Any, point: PointLike, page_ins: set[tuple[int, int]]) -> list[tuple[int, int]]:
    """(stage, tensor) of the first page-out of each tensor that comes back: its copy stays valid."""
    space: PoetSpace = model.space
    back = {i for _, i in page_ins if not space.problem.tensors[i].stored}  # those are written after their update
    first: dict[int, int] = {}
    for x in np.flatnonzero(point[model.paging.M_out] > 0.5).tolist() if space.paging else ():
        t, i = space.residences[x]
        if i in back:
            first.setdefault(i, t)
    return [(t, i) for i, t in first.items()]


def _values(model: Any, schedule: Schedule) -> Values | None:
    """R and M_in are enough of a start, with M_out where a schedule says when: the solver completes it, or drops it."""
    space: PoetSpace = model.space
    R = np.zeros(len(space.computes))
    for x, (t, j) in enumerate(space.computes):
        R[x] = float(t == j or (t, j) in schedule.recomputes)
    values = [(model.rematerialization.R, R)]
    if space.paging:
        M_in = np.zeros(len(space.residences))
        for stage, tensor in schedule.page_ins:
            pair = space.paged_in(stage, tensor)
            if pair is None:
                return None
            M_in[space.residence_index[pair]] = 1.0
        values.append((model.paging.M_in, M_in))
        if schedule.page_outs:
            M_out = np.zeros(len(space.residences))
            for stage, tensor in _page_outs(space, schedule):
                place = space.residence_index.get((stage, tensor))
                if place is None:
                    return None
                M_out[place] = 1.0
            values.append((model.paging.M_out, M_out))
    return values


def _page_outs(space: PoetSpace, schedule: Schedule) -> list[tuple[int, int]]:
    """(stage, tensor) of the first page-out of each tensor that comes back, those that go without saying included."""
    first = {i: space.problem.written_in(i) for _, i in schedule.page_ins if not space.problem.tensors[i].stored}
    for stage, i in sorted(schedule.page_outs, reverse=True):
        if i in first:
            first[i] = stage
    return [(stage, i) for i, stage in sorted(first.items())]


def _stages(model: Any) -> list[tuple[Any, Ints]]:
    space: PoetSpace = model.space
    computes = np.array([t for t, _ in space.computes], dtype=np.int64)
    end = len(space.problem.operators) - 1
    residences = np.array([min(t, end) for t, _ in space.residences], dtype=np.int64)
    stages = [(model.rematerialization.R, computes), (model.rematerialization.S_ram, residences)]
    if space.paging:
        stages += [(variable, residences) for variable in (model.paging.S_aux, model.paging.M_in, model.paging.M_out)]
    return stages


def _fractional(model: Any, point: PointLike) -> FractionalSchedule:
    space: PoetSpace = model.space
    kept = np.zeros((len(space.problem.tensors), len(space.problem.operators) + 1))
    for (t, i), share in zip(space.residences, point[model.rematerialization.S_ram], strict=True):
        kept[i, max(t - 1, 0)] = share
    recomputes = zip(space.computes, point[model.rematerialization.R].tolist(), strict=True)
    page_ins: dict[tuple[int, int], float] = {}
    if space.paging:
        paged = zip(space.residences, point[model.paging.M_in].tolist(), strict=True)
        page_ins = {(space.arrives(t, i) or 0, i): share for (t, i), share in paged if share > 0}
    return FractionalSchedule(kept, {(t, j): share for (t, j), share in recomputes if t != j and share > 0}, page_ins)


def _decisions(model: Any) -> Priced:
    space: PoetSpace = model.space
    again = zip(model.rematerialization.R.values(), space.computes, strict=True)
    tensors = [i for _, i in space.residences]
    return Priced(
        computes=[(entry, j) for entry, (t, j) in again if t != j],
        page_ins=list(zip(model.paging.M_in.values(), tensors, strict=True)) if space.paging else (),
        page_outs=list(zip(model.paging.M_out.values(), tensors, strict=True)) if space.paging else (),
        blocks=frozenset({"rematerialization", "paging"}),
        budget=model.memory.within,
    )


def _no_good(model: Any, schedule: Schedule, values: Values, *, late: bool) -> Row:
    """Leaves out the values of R and M_in with these first page-outs: nothing that was refused comes back."""
    space: PoetSpace = model.space
    variables: list[Any] = []
    signs: list[float] = []
    for variable, array in values:
        if not space.paging or variable is not model.paging.M_out:
            for one, value in zip(variable.values(), array.tolist(), strict=True):
                if not one.fixed:  # it is no column of the model then
                    variables.append(one)
                    signs.append(-1.0 if value > 0.5 else 1.0)
    M_out = list(model.paging.M_out.values()) if space.paging else []
    for stage, i in _page_outs(space, schedule) if space.paging else ():
        for t in range(space.problem.tensors[i].first_stage, stage + 1):
            place = space.residence_index.get((t, i))
            if place is not None:
                variables.append(M_out[place])
                signs.append(-1.0 if t == stage else 1.0)
    return Row(variables, signs, 1.0 + sum(min(sign, 0.0) for sign in signs), math.inf, 1.0, "no_good", core=True)


poet = Formulation(
    name="poet",
    doc=__doc__,
    blocks=(paging, rematerialization, paging_source, memory, storage_activation, deadline),
    space=poet_space,
    points=Points(schedule=_schedule, values=_values, stages=_stages, fractional=_fractional, labels=labels),
    sets=SETS,
    priced=_decisions,
    numbers=("storage_activation",),
    no_good=_no_good,
    thrift=thrift,
    strict=True,
    simulated=("paging", "rematerialization", "paging_source", "memory", "storage_activation", "deadline"),
)
build = poet.build
from_data = poet.from_data
with_block = poet.with_block
