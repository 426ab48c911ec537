"""Functions that a search needs from a formulation: conversions between schedules and points, scopes, and cuts.

The search knows no formulation. Each formulation fills one `SearchAdapter`.
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
"""Variables with the values of their entries."""


class NoGood(Protocol):
    """Function that makes the row of `SearchAdapter.no_good`."""

    def __call__(self, model: Any, schedule: Schedule, values: Values, *, late: bool) -> Row: ...


def _full_alone(problem: Problem, limits: Limits, paging: bool, remat: bool) -> tuple[str, ...]:
    return ("full",)


@dataclass(frozen=True, kw_only=True)
class SearchAdapter:
    """Functions with which a search works on the models of a formulation.

    Attributes
    ----------
    schedule
        (model, integral point) -> the schedule that the point stands for.
    values
        (model, schedule) -> a point of the model for the schedule, as a warm start. None if the schedule has a
        decision that the space lacks.
    stages
        model -> for each integer variable, the stage of each of its entries.
    fractional
        (model, point of the relaxation) -> the share of each decision.
    scopes
        (problem, limits, paging, remat) -> the scopes that `auto` searches, each within the next, the widest last. A
        formulation without scopes returns a single one.
    scope_difference
        Optional: (model, an inner scope, the blocks whose lazy constraints the inner proof may rest on) -> a row that
        only schedules with a decision outside the inner scope satisfy, so that the search skips what is proven inside.
        A row without variables means that no such decision exists: the inner proof covers everything. None means that
        no such row exists: the search covers the whole scope.
    streaming_difference
        Optional: the arguments and result of `scope_difference`, for an inner proof in which all operators that fit the
        budget without streaming run without streaming.
    no_good
        Optional: (model, a schedule, its values, late) -> a row that the schedule breaks and every other one
        satisfies. If the schedule has no plan in time (`late`), only schedules with such a plan must satisfy the row.
    thrift
        Optional, with `no_good`: model -> the rows that only points without waste satisfy. The search adds them before
        it excludes the first schedule, so that no second point stands for that schedule.
    outer
        Optional: a relaxation with a point for every plan, also for plans that are no points of this formulation. If it
        is infeasible, no plan exists.
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
