"""Effort that is counted instead of timed, so that what is found within it is the same in each call."""

from __future__ import annotations

import math
from dataclasses import dataclass


class OutOfWorkError(Exception):
    """All units are spent."""


@dataclass
class Work:
    """Units of work: one is a price that a replay asks for, some microseconds.

    limit
        How many there are.
    done
        How many are spent.
    """

    limit: float = math.inf
    done: int = 0

    @property
    def over(self) -> bool:
        """Whether more was asked for than there is."""
        return self.done > self.limit

    def spend(self, units: int) -> None:
        """Count `units`. Raises OutOfWorkError where there aren't as many left."""
        self.done += units
        if self.done > self.limit:
            raise OutOfWorkError
