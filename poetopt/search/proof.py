"""What the search of one scope ended with."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum

BETTER = 1e-6
"""A plan is better than anything in a scope where it is below the scope's bound by this share of it."""


def outdone(value: float, bound: float) -> bool:
    """Whether no schedule of a scope with this bound is as good as a plan of this value."""
    return value < bound * (1 - BETTER)


class Ending(Enum):
    """How the search of one model ended."""

    FINISHED = "solved within the gap"
    STOPPED = "out of time"
    REFUSED = "solved, and its best schedule was refused by the layout or the clock"
    EXHAUSTED = "every schedule was refused by the layout, the clock or a block"
    INFEASIBLE = "proven to have no schedule"


@dataclass(frozen=True)
class Proof:
    """What one scope ended with.

    asked, scope
        The scope as options spell it, and as results call it.
    bound
        No schedule in the scope is better.
    value
        The best plan's, or None.
    closed
        Whether the value is within the gap of the bound.
    finished
        Whether the model was solved to the end: what is open then is open because of the layout or the clock.
    exhausted
        Whether each of its schedules was refused, one after the other.
    of_all
        Of an infeasible one: whether no plan exists at all, also none of those that no scope holds.
    note
        What a wider scope left open, if any.
    sources
        The blocks whose lazy constraints the bound may rest on.
    binding
        The cuts that were tight at the end, by block and key: a wider scope starts with them.
    """

    asked: str
    scope: str
    bound: float
    infeasible: bool
    value: float | None
    closed: bool
    finished: bool = False
    exhausted: bool = False
    of_all: bool = False
    note: str = ""
    sources: frozenset[str] = frozenset()
    binding: tuple[tuple[str, Hashable], ...] = ()

    @property
    def outdone(self) -> bool:
        """Whether the plan is better than anything in the scope, so that it lies outside."""
        return self.value is not None and outdone(self.value, self.bound)

    @property
    def gap(self) -> float:
        """Of the best plan against this scope's bound."""
        return max(0.0, (self.value - self.bound) / self.value) if self.value else 0.0

    def within(self, share: float) -> bool:
        """Whether there is a plan, and no more than that `share` of it is open."""
        return self.value is not None and self.gap <= share

    @property
    def settled(self) -> bool:
        """Whether a wider scope need not search this one again."""
        return self.closed or self.infeasible

    def pays(self, before: float | None, gap: float) -> bool:
        """Whether a scope that began with a plan of `before` has found enough for a wider one to be worth it."""
        if before is None or self.value is None:
            return False
        return self.outdone or before - self.value > gap * max(self.value, 1e-300)
