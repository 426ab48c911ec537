r"""No-good cuts: what a refused schedule says of others.

Let R, P and K be the recomputes, page-ins (with the stages of page-outs, where the model decides them) and kept
intervals of a schedule of which no plan is over in time, and N the
recomputes that write a tensor of P again before its first page-in (R has none of them). Every schedule in time that
wastes nothing satisfies

$$ \sum_{x \in R \cup P \cup K} (1 - x) + \sum_{x \in N} x \ge 1. $$

*Proof.* Say that a plan in time does all of R, P and K, and none of N. Leave out whatever else it does. What is left is
a plan of the schedule: K has all that this one keeps, and a tensor that it pages in was written out while it was there
for the first time, which it still is. Computes and transfers that are left out delay nothing (each event begins at the
latest end of those it waits for), and nothing takes more room. So it is in time as well, which none is.

Where runs may stream (`streaming`), those that do are among the R, and all others that could among the N: a run
another way may take less time.

N matters because a page-out may belong to any stay of its tensor, and a recompute makes one more.

A schedule that only the layout refuses says nothing of others, as less or more may well fit: the row is then over all
recomputes, page-ins and stages of page-outs, and leaves out that one alone. So is the row of one that a block
refuses.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from poetopt.formulations.retention.space import RetentionSpace
from poetopt.formulations.rows import Floats, Row
from poetopt.plan.schedule import Schedule


def no_good(model: Any, schedule: Schedule, values: list[tuple[Any, Floats]], *, late: bool) -> Row:
    """The cut that leaves `schedule` out, which has these values.

    late
        Whether it has no plan in time; else it has no layout, or a block refuses it.
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
        if space.streams and variable is model.memory.held:  # follows from what is streamed
            continue
        if space.paging and space.problem.closing is not None and variable.parent_block() is model.closing:
            continue  # follows from what stays
        entries = list(variable.values())
        variables += [entries[n] for n in np.flatnonzero(array > 0.5).tolist()]
    active = len(variables)
    first = schedule.first_page_ins
    made = zip(space.recompute_operator.tolist(), space.recompute_stage.tolist(), strict=True)
    again = list(model.recompute.r.values())
    for x, (operator, stage) in enumerate(made):
        if any(stage <= first.get(i, -1) for i in space.problem.operators[operator].outputs):
            variables.append(again[x])
    for variable, array in values:  # another way to run may take less time
        if space.streams and variable is model.streaming.y:
            variables += [entry for entry, value in zip(variable.values(), array, strict=True) if value < 0.5]
    signs = [-1.0] * active + [1.0] * (len(variables) - active)
    return Row(variables, signs, 1.0 - active, math.inf, 1.0, "late", core=True, block="transfer_overlap")
