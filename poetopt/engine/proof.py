"""What the search of one scope ended with."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

NEARLY = 0.005
"""Where no more than this is open, a deeper scope is worth more than the rest of the proof."""


BEYOND = 1e-6
"""A plan is better than anything in a scope where it is below its bound by this share of it."""


def outdone(value: float, bound: float) -> bool:
    """Whether no schedule of a scope with this bound is as good as a plan of this value."""
    return value < bound * (1 - BEYOND)


class Ending(Enum):
    """How the search of one model ended."""

    FINISHED = "solved within the gap"
    STOPPED = "out of time"
    REFUSED = "solved, and its best schedule was refused by the layout or the clock"
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
        Whether that is within the gap of the bound.
    finished
        Whether the model was solved to the end: what is open then is the layout's or the clock's doing.
    note
        What a deeper scope left open, if any.
    sources
        The blocks whose late rows the bound may rest on.
    """

    asked: str
    scope: str
    bound: float
    infeasible: bool
    value: float | None
    closed: bool
    finished: bool = False
    note: str = ""
    sources: frozenset[str] = frozenset()

    @property
    def outdone(self) -> bool:
        """Whether the plan is better than anything in the scope, so that it lies outside."""
        return self.value is not None and outdone(self.value, self.bound)

    @property
    def gap(self) -> float:
        """Of the best plan against this scope's bound."""
        return max(0.0, (self.value - self.bound) / self.value) if self.value else 0.0

    def within(self, share: float) -> bool:
        """Whether there is a plan, of which no more than that `share` is open."""
        return self.value is not None and self.gap <= share

    @property
    def settled(self) -> bool:
        """Whether a deeper scope need not search this one again."""
        return self.closed or self.infeasible

    def pays(self, before: float | None, gap: float) -> bool:
        """Whether a scope that began with a plan of `before` has found enough for a deeper one to be worth it."""
        if before is None or self.value is None:
            return False
        return self.outdone or before - self.value > gap * max(self.value, 1e-300)
