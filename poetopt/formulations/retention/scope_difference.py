r"""Scope-difference cuts: what one scope holds beyond another, as a row.

For a scope inside of the model's, with N the recomputes that only the model's has

$$ \sum_{(j,t) \in N} r_{j,t} \ge 1 $$

A schedule that takes none of them is no better than one of the inner scope: it has the same recomputes, and where it
pages a tensor in at a point that the inner scope lacks, nothing reads it there, so that it may as well come in at the
next point that is read, and take less memory. That moves transfers, and leaves all sums of joules and seconds as they
are: so there is no such row where the order of transfers counts (a storage that is woken), nor where the proof of the
inner scope rests on rows about when transfers run (`transfer_overlap`).

Where what is proven of the inner scope is of plain runs alone, with Y the streamed runs of operators that fit the
budget plain, the row is

$$ \sum_{(j,t) \in N} r_{j,t} + \sum_{(j,t,v) \in Y} y_{j,t,v} \ge 1 $$
"""

from __future__ import annotations

import math
from typing import Any

from poetopt.formulations.retention.enumeration import retention_space
from poetopt.formulations.retention.space import RetentionSpace
from poetopt.formulations.rows import Row


def scope_difference(model: Any, inner: str, sources: frozenset[str]) -> Row | None:
    """The row of `model` over the recomputes that the scope `inner` lacks, which must lie inside of the model's.

    sources
        The blocks whose lazy constraints the proof of the inner scope may rest on.
    """
    new = _new_recomputes(model, inner, sources)
    return None if new is None else _at_least_one(new)


def streaming_difference(model: Any, inner: str, sources: frozenset[str]) -> Row | None:
    """The row over streamed runs of operators that fit plain, and over recomputes that the scope `inner` lacks.

    inner
        A scope that is proven of the problem where those operators run plain; it need not lie inside of the model's.
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
    """r of the recomputes that the scope `inner` lacks; None where a row on them may leave out what isn't proven."""
    space: RetentionSpace = model.space
    if space.problem.wake_j or "transfer_overlap" in sources:
        return None
    known = retention_space(space.problem, space.limits, inner, space.paging, True, space.lean).recompute_of
    variables = list(model.recompute.r.values())
    new = [x for pair, x in space.recompute_of.items() if pair not in known]
    operators = [space.problem.operators[j] for j in set(space.recompute_operator[new].tolist())]
    if any(not operator.energy_j for operator in operators):
        return None  # what costs nothing may satisfy the row for nothing, and may be in no other row of the model
    return [variables[x] for x in new]


def _at_least_one(variables: list[Any]) -> Row:
    return Row(variables, [1.0] * len(variables), 1.0, math.inf, 1.0, "scope_difference", core=True)
