r"""Scope-difference cuts: rows that require a decision which an inner scope lacks.

For a scope inside of the model's scope, with N the recomputes that only the model has,

$$ \sum_{(j,t) \in N} r_{j,t} \ge 1 $$

A schedule without any of them is no better than one of the inner scope. It has the same recomputes. If it pages a
tensor in at a point that the inner scope lacks, nothing reads the tensor there, so it may come in at the next point
that is read, and take less memory. That moves transfers, and leaves all sums of joules and seconds unchanged. So there
is no such row if the order of transfers counts (powering the storage on costs energy), or if the proof of the inner
scope rests on rows that exclude schedules as late.

If the proof of the inner scope covers only plain runs, with Y the streamed runs of operators that fit the budget
without streaming, the row is

$$ \sum_{(j,t) \in N} r_{j,t} + \sum_{(j,t,v) \in Y} y_{j,t,v} \ge 1 $$
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from poetopt.formulations.retention.enumeration import retention_space
from poetopt.formulations.retention.space import RetentionSpace
from poetopt.formulations.rows import Floats, Row
from poetopt.plan.schedule import Schedule

# Dominance rows: the result of each recompute and each page-in is read in its stage, or kept beyond it.
#
# $$ \begin{aligned}
# r_{j,t} &\le \sum_{i \in out(j)} \left( k_{i,t^+} + \sum_{h > j \text{ reads } i} r_{h,t} \right)
# && \text{t's own operator reads none of } out(j) \\
# p_{i,q} &\le k_{i,q^+} + \sum_{h \text{ reads } i} r_{h,q} && \text{q's own operator doesn't read i}
# \end{aligned} $$
#
# *No optimum is lost*: a decision whose result nothing reads isn't needed. These rows matter when the search excludes
# schedules one by one: a rejected schedule would come back with each recompute that has no use.


def thrift(model: Any) -> list[Row]:
    """Return all dominance rows for the decisions of a model."""
    space: RetentionSpace = model.space
    problem = space.problem
    r, k = list(model.recompute.r.values()), list(model.residency.k.values())
    p = list(model.paging.p.values()) if space.paging else []

    def uses(i: int, t: int, above: int) -> list[Any] | None:
        """Return the decisions that may need tensor i in stage t; None if the stage's own operator needs it."""
        e = space.point_of.get((i, t))
        if e is None:
            return []
        if space.point_real[e]:
            return None
        after = int(space.point_after[e])
        readers = [space.recompute_of.get((h, t)) for h in problem.readers[i] if h > above]
        return ([k[after]] if after >= 0 else []) + [r[x] for x in readers if x is not None]

    rows: list[Row] = []
    for (j, t), x in space.recompute_of.items():
        uses_of = [uses(i, t, j) for i in problem.operators[j].outputs]
        if None not in uses_of:
            rows.append(_row(r[x], [one for users in uses_of if users is not None for one in users]))
    for y, e in enumerate(space.page_point.tolist() if p else ()):
        users = uses(int(space.point_tensor[e]), int(space.point_stage[e]), -1)
        if users is not None:
            rows.append(_row(p[y], users))
    return rows


def _row(decision: Any, uses: list[Any]) -> Row:
    return Row([decision, *uses], [-1.0, *[1.0] * len(uses)], 0.0, math.inf, 1.0, "dominance", core=True)


LATE = "late"
"""Block name of no-good cuts of late schedules, on which a proof may rest."""

# No-good cuts: rows that a rejected schedule implies for others.
#
# Let R, P and K be the recomputes, page-ins (with the stages of page-outs, if the model decides them) and kept
# intervals of a schedule without a plan in time. Let N be the recomputes that write a tensor of P again before its
# first page-in (R has none of them). Every schedule in time and without waste satisfies
#
# $$ \sum_{x \in R \cup P \cup K} (1 - x) + \sum_{x \in N} x \ge 1. $$
#
# *Proof.* Suppose that a plan in time does all of R, P and K, and none of N. Remove everything else that it does. The
# rest is a plan of the schedule: K has all that the schedule keeps, and a tensor that it pages in was written out while
# it was there for the first time, which it still is. The removed computes and transfers delay nothing (each event
# begins at the latest end of those it waits for), and nothing takes more memory. So this plan is in time as well, which
# contradicts that the schedule has none.
#
# If runs may stream (`streaming`), the runs that do so are in R, and all other possible streamed runs are in N: a run
# by another variant may take less time.
#
# N matters because a page-out may belong to any stay of its tensor, and a recompute makes one more stay.
#
# A schedule that only has no layout implies nothing for others, as one with fewer or more decisions may fit. The row is
# then over all recomputes, page-ins and stages of page-outs, and excludes only that schedule. The row of a schedule
# that a block rejects is of the same kind.


def no_good(model: Any, schedule: Schedule, values: list[tuple[Any, Floats]], *, late: bool) -> Row:
    """Return the cut that excludes `schedule`, which has these values.

    Parameters
    ----------
    late
        Whether it has no plan in time. Otherwise it has no layout, or a block rejects it.
    """
    return _late(model, schedule, values) if late else _not_again(model, values)


def _not_again(model: Any, values: list[tuple[Any, Floats]]) -> Row:
    variables: list[Any] = []
    signs: list[float] = []
    for variable, array in values:
        if (
            variable is model.recompute.r
            or (model.space.paging and variable is model.paging.p)
            or (model.space.streams and variable is model.streaming.y)
        ):
            variables += variable.values()
            signs += np.where(array > 0.5, -1.0, 1.0).tolist()
        elif model.space.transfer_times and variable is model.page_out_times.x:  # one stage of each tensor
            entries = list(variable.values())
            chosen = np.flatnonzero(array > 0.5).tolist()
            variables += [entries[n] for n in chosen]
            signs += [-1.0] * len(chosen)
    return Row(variables, signs, 1.0 + sum(min(sign, 0.0) for sign in signs), math.inf, 1.0, "layout", core=True)


def _late(model: Any, schedule: Schedule, values: list[tuple[Any, Floats]]) -> Row:
    space: RetentionSpace = model.space
    variables: list[Any] = []
    for variable, array in values:
        if space.paging and variable is model.paging.o:  # follows from the page-ins
            continue
        if space.streams and variable is model.memory.held:  # follows from the streamed runs
            continue
        if space.paging and space.problem.closing is not None and variable.parent_block() is model.component("closing"):
            continue  # follows from the tensors that stay
        entries = list(variable.values())
        variables += [entries[n] for n in np.flatnonzero(array > 0.5).tolist()]
    active = len(variables)
    first = schedule.first_page_ins
    pairs = zip(space.recompute_operator.tolist(), space.recompute_stage.tolist(), strict=True)
    again = list(model.recompute.r.values())
    for x, (operator, stage) in enumerate(pairs):
        if any(stage <= first.get(i, -1) for i in space.problem.operators[operator].outputs):
            variables.append(again[x])
    for variable, array in values:  # another variant may take less time
        if space.streams and variable is model.streaming.y:
            variables += [entry for entry, value in zip(variable.values(), array, strict=True) if value < 0.5]
    signs = [-1.0] * active + [1.0] * (len(variables) - active)
    return Row(variables, signs, 1.0 - active, math.inf, 1.0, "late", core=True, block=LATE)


def scope_difference(model: Any, inner: str, sources: frozenset[str]) -> Row | None:
    """Return the row of `model` over the recomputes that the scope `inner` lacks.

    Parameters
    ----------
    inner
        A scope inside of the model's.
    sources
        Blocks whose lazy constraints the proof of the inner scope may rest on.
    """
    new = _new_recomputes(model, inner, sources)
    return None if new is None else _at_least_one(new)


def streaming_difference(model: Any, inner: str, sources: frozenset[str]) -> Row | None:
    """Return the row over streamed runs of operators that fit plain, and over recomputes that `inner` lacks.

    Parameters
    ----------
    inner
        A scope with a proof for the problem in which those operators run plain. It need not lie inside of the model's.
    """
    space: RetentionSpace = model.space
    new = _new_recomputes(model, inner, sources)
    if new is None:
        return None
    if space.streams:
        streamed = zip(model.streaming.y.values(), space.streams.operator.tolist(), strict=True)
        new += [y for y, k in streamed if space.problem.fits_plain(k, space.limits.ram_bytes)]
    return _at_least_one(new)


def _new_recomputes(model: Any, inner: str, sources: frozenset[str]) -> list[Any] | None:
    """Return r of the recomputes that `inner` lacks; None if a row on them may exclude an unproven schedule."""
    space: RetentionSpace = model.space
    if space.problem.wake_j or LATE in sources:
        return None
    known = retention_space(space.problem, space.limits, inner, space.paging, True, space.kind).recompute_of
    variables = list(model.recompute.r.values())
    new = [x for pair, x in space.recompute_of.items() if pair not in known]
    operators = [space.problem.operators[j] for j in set(space.recompute_operator[new].tolist())]
    if any(not operator.energy_j for operator in operators):
        return None  # a recompute without cost satisfies the row at no cost, and may be in no other row
    return [variables[x] for x in new]


def _at_least_one(variables: list[Any]) -> Row:
    return Row(variables, [1.0] * len(variables), 1.0, math.inf, 1.0, "scope_difference", core=True)
