"""What a search may use: seconds and a gap, handed down from the whole to its parts."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Budget:
    """The time and the gap of one part of a search.

    until
        The moment (of `time.monotonic`) at which the part ends.
    gap
        A plan that is proven to within this share of its value is enough.
    nearly_until
        The moment at which the part ends already where a plan is proven to within `NEARLY`.
    in_reach
        Whether the part ends as soon as, at the pace so far, the proof won't be there in time.
    """

    until: float
    gap: float
    nearly_until: float = math.inf
    in_reach: bool = False

    @property
    def remaining_s(self) -> float:
        """Seconds left; negative once they are over."""
        return self.until - time.monotonic()

    def part(self, share: float) -> Budget:
        """The same gap in a share of the seconds that are left."""
        return replace(self, until=time.monotonic() + share * max(self.remaining_s, 0.0))

    def nearly_after(self, share: float) -> Budget:
        """The same, which ends after a share of its seconds where a plan is nearly proven."""
        return replace(self, nearly_until=time.monotonic() + share * max(self.remaining_s, 0.0))
