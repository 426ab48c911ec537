"""Learning rates by step: a function of the step's number alone.

constant          lr
cosine            lr (1 + cos(pi step / steps)) / 2
step:EPOCHS:BY    lr BY^(epoch // EPOCHS), so `step:10:0.1` takes a tenth every ten epochs
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from poetopt.errors import OptionError

EXAMPLES = "constant, cosine, or step:EPOCHS:FACTOR as in step:10:0.1"


@dataclass(frozen=True)
class Schedule:
    """What becomes of a learning rate.

    kind
        `constant`, `cosine` or `step`.
    every, by
        Of `step`: after how many epochs, and by what.
    """

    kind: str
    every: int = 1
    by: float = 1.0

    @property
    def needs_length(self) -> bool:
        """Whether it depends on how many steps there will be."""
        return self.kind == "cosine"

    def rate(self, lr: float, step: int, epoch: int, steps: int) -> float:
        """The rate of a step (from 0) in an epoch (from 0) of a training of `steps`."""
        if self.kind == "cosine":
            return lr * (1 + math.cos(math.pi * step / max(1, steps))) / 2
        try:
            return float(lr * self.by ** (epoch // self.every))
        except OverflowError:
            return math.inf


def parse_schedule(text: str) -> Schedule:
    """A `--lr-schedule`. Raises OptionError."""
    kind, *rest = text.split(":")
    if kind in ("constant", "cosine") and not rest:
        return Schedule(kind)
    try:
        if kind == "step" and len(rest) == 2:
            every, by = int(rest[0]), float(rest[1])
            if every >= 1 and 0 < by < math.inf:
                return Schedule(kind, every, by)
    except ValueError:
        pass
    raise OptionError(f"--lr-schedule {text}: must be {EXAMPLES}")
