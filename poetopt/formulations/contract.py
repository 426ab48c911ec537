"""What the engine asks of a formulation, beside its blocks: points, no-good cuts, and a search without a model.

The engine knows no formulation; a formulation fills these, each of them once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from poetopt.formulations.rows import Floats, Ints, PointLike, Row
from poetopt.plan.schedule import FractionalSchedule, Schedule
from poetopt.util.work import Work

Values = list[tuple[Any, Floats]]
"""Variables, and the values of their entries."""


@dataclass(frozen=True, kw_only=True)
class Priced:
    """What has a price in a model, for costs that are Params: the entries of variables, and whose they are.

    computes, page_ins, page_outs
        (an entry, the place of its operator or tensor).
    blocks
        The blocks whose contributions these are.
    budget
        The Constraint on the budget, in the space's `memory_unit`; rows that separators find for its block are, too.
    """

    computes: Sequence[tuple[Any, int]]
    page_ins: Sequence[tuple[Any, int]]
    page_outs: Sequence[tuple[Any, int]]
    blocks: frozenset[str]
    budget: Any


class NoGood(Protocol):
    """See `Formulation.no_good`."""

    def __call__(self, model: Any, schedule: Schedule, values: Values, *, late: bool) -> Row: ...


class LabelSearch(Protocol):
    """An exact search of one scope by labels that are extended stage by stage: it needs no relaxation."""

    @property
    def least_j(self) -> float:
        """A bound on every schedule's overhead, without a search."""
        ...

    def begin(self, ceiling_j: float, seed: int | None = None) -> Labels:
        """A search below limits that grow, up to a ceiling.

        seed
            Decides between schedules that cost the same.
        """
        ...


class Labels(Protocol):
    """One search, and what it found so far."""

    def below(self, limit_j: float, work: Work) -> tuple[float, Schedule] | bool:
        """The cheapest schedule, if it costs less than `limit_j`; True: there is none; False: it was given up.

        limit_j
            No less than the one before, and no more than the ceiling.
        work
            Counts what it does; once that is over it is given up, for good.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Points:
    """How the points of a model and schedules stand for each other.

    schedule
        (model, integral point) -> the schedule that the point stands for.
    values
        (model, schedule) -> a point of the model for the schedule, as a warm start; None where the schedule has a
        decision that the space lacks.
    stages
        model -> for each integer variable, the stage of each of its entries.
    fractional
        (model, point of the relaxation) -> the share of each decision.
    labels
        model -> a readable name of each entry of its variables, for model files.
    """

    schedule: Callable[[Any, PointLike], Schedule]
    values: Callable[[Any, Schedule], Values | None]
    stages: Callable[[Any], list[tuple[Any, Ints]]]
    fractional: Callable[[Any, PointLike], FractionalSchedule]
    labels: Callable[[Any], list[tuple[Any, Sequence[str]]]]
