"""What a search asks of a formulation: schedules and points for each other, scopes, and what one result says of others.

The search knows no formulation; each fills these once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from poetopt.formulations.block import Limits
from poetopt.formulations.rows import Floats, Ints, PointLike, Row
from poetopt.graph.problem import Problem
from poetopt.plan.schedule import FractionalSchedule, Schedule

if TYPE_CHECKING:
    from poetopt.formulations.language import Formulation

Values = list[tuple[Any, Floats]]
"""Variables, and the values of their entries."""


class NoGood(Protocol):
    """See `SearchAdapter.no_good`."""

    def __call__(self, model: Any, schedule: Schedule, values: Values, *, late: bool) -> Row: ...


def _full_alone(problem: Problem, limits: Limits, paging: bool, remat: bool) -> tuple[str, ...]:
    return ("full",)


@dataclass(frozen=True, kw_only=True)
class SearchAdapter:
    """How a search goes through the models of a formulation.

    schedule
        (model, integral point) -> the schedule that the point stands for.
    values
        (model, schedule) -> a point of the model for the schedule, as a warm start; None where the schedule has a
        decision that the space lacks.
    stages
        model -> for each integer variable, the stage of each of its entries.
    fractional
        (model, point of the relaxation) -> the share of each decision.
    scopes
        (problem, limits, paging, remat) -> the scopes that `auto` goes through, each within the next; the last one is
        where it ends. One alone where there are no others.
    scope_difference
        Optional: (model, an inner scope, the blocks whose lazy constraints the inner proof may rest on) -> a row that
        only schedules with a decision that the inner scope lacks satisfy: what was proven inside isn't searched again.
        A row without variables says that there is no such decision, so that the inner proof is all. None says that
        there is no such row: all of the scope is searched.
    streaming_difference
        Optional: (model, an inner scope, the blocks whose lazy constraints the inner proof may rest on) -> likewise,
        where what is proven of the inner scope is of plain runs alone, of all operators that fit the budget plain.
    no_good
        Optional: (model, a schedule, its values, late) -> a row that the schedule breaks and every other one
        satisfies. Where the schedule has no plan in time (`late`), only those that have one must satisfy the row.
    thrift
        Optional, with `no_good`: model -> the rows of points that waste nothing. They are added before the first
        schedule is left out, so that no other point stands for it.
    outer
        Optional: a relaxation with a point for each plan at all, those that are no points of this one's included. Where
        it has none, no plan exists.
    """

    schedule: Callable[[Any, PointLike], Schedule]
    values: Callable[[Any, Schedule], Values | None]
    stages: Callable[[Any], list[tuple[Any, Ints]]]
    fractional: Callable[[Any, PointLike], FractionalSchedule]
    scopes: Callable[[Problem, Limits, bool, bool], tuple[str, ...]] = _full_alone
    scope_difference: Callable[[Any, str, frozenset[str]], Row | None] | None = None
    streaming_difference: Callable[[Any, str, frozenset[str]], Row | None] | None = None
    no_good: NoGood | None = None
    thrift: Callable[[Any], list[Row]] | None = None
    outer: Formulation | None = None
