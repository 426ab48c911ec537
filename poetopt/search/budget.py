"""What a search may use: counted seconds and a gap, handed down from the whole to its parts."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from poetopt.util.work import Elapsed, Work


@dataclass(frozen=True)
class Budget:
    """The work and the gap of one part of a search. Seconds are those of `Work.seconds`: the clock decides nothing.

    work
        Where the search counts what it does.
    effort_s
        What shares are of. Once it is spent, as much again is meant, and so on.
    gap
        A plan that is proven to within this share of its value is enough.
    until
        The count at which the part ends; inf: it ends with the search.
    nearly_until
        The count at which the part ends already where a plan is proven to within `NEARLY`.
    in_reach
        Whether the part ends as soon as, at the pace so far, the proof won't be there in time.
    """

    work: Work
    effort_s: float
    gap: float
    until: float = math.inf
    nearly_until: float = math.inf
    in_reach: bool = False

    @property
    def remaining_s(self) -> float:
        """Seconds left; negative once they are over, or the clock ended the search."""
        clock_s = self.work.clock_s
        return clock_s if clock_s < 0 else self.until - self.work.seconds

    @property
    def limit_s(self) -> float:
        """The time limit of one call of a solver: the clock's alone, unless the solver doesn't count its work."""
        return min(self.work.clock_s, self.remaining_s) if isinstance(self.work, Elapsed) else self.work.clock_s

    @classmethod
    def by_clock(cls, until: float) -> Budget:
        """All that fits until that moment (of `time.monotonic`)."""
        work = Elapsed(until=until)
        return cls(work, max(work.clock_s, 0.0), 0.0)

    @property
    def meant_s(self) -> float:
        """Seconds that the part is meant to take from now on, if it needs them."""
        done = self.work.seconds
        effort_s = max(self.effort_s, 1e-3)
        while effort_s <= done:
            effort_s *= 2
        return min(effort_s - done, max(self.remaining_s, 0.0))

    def part(self, share: float) -> Budget:
        """The same gap in a share of what is meant."""
        return self.for_s(share * self.meant_s)

    def for_s(self, seconds: float) -> Budget:
        """The same gap in so many seconds."""
        return replace(self, until=min(self.until, self.work.seconds + seconds))

    def nearly_after(self, share: float) -> Budget:
        """The same, which ends after a share of its seconds where a plan is nearly proven."""
        return replace(self, nearly_until=self.work.seconds + share * self.meant_s)
