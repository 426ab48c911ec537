"""Restriction refinement: how much tighter the model is made where layout or clock refuse what it finds."""

from __future__ import annotations

from dataclasses import dataclass, replace

from poetopt.search.incumbent import Incumbent
from poetopt.search.proof import Ending
from poetopt.search.solution import Options
from poetopt.search.tuning import CLOSE, SHRINK


@dataclass(frozen=True)
class Restriction:
    """What a model lacks of what was asked: bytes of the budget, seconds of the deadline; and what may hide."""

    shrink: int = 0
    slower: float = 0.0
    hidden_share: float = 1.0

    @property
    def exact(self) -> bool:
        """Whether the model is what was asked, so that its bounds prove something."""
        return self == Restriction()

    def of(self, options: Options) -> Options:
        """What was asked, less what the model lacks of it."""
        deadline_s = None if options.deadline_s is None else options.deadline_s - self.slower
        return replace(options, ram_bytes=options.ram_bytes - self.shrink, deadline_s=deadline_s)


class Refinement:
    """The steps: `next` after a refusal, told by `ended` how the model before ended.

    With DMA a plan is late because the model hides more of its transfers than the planner could. What may hide is then
    bisected: at the share that the plan reached, further down while plans are late, and up again where that is too
    tight. At 0 the model is the device's without DMA, whose plans are in time whatever their order. Else the deadline
    itself is put forward by what the plan was late.
    """

    def __init__(self, ram_bytes: int, *, overlaps: bool) -> None:
        self._overlaps = overlaps
        self._step = max(1, ram_bytes // SHRINK)
        self._least = ram_bytes // (8 * SHRINK)
        self._now = Restriction()
        self._impossible, self._late = 0.0, 1.0
        self._last = False

    def next(self, found: Incumbent) -> Restriction | None:
        """What to try now, by what was refused of the model before; None where that leaves nothing to try."""
        if self._last:
            return None
        if found.arena_excess is not None:
            self._now = replace(self._now, shrink=self._step)
            self._step *= 2
        elif found.makespan_excess_s is None:
            return None
        elif not self._overlaps:
            self._now = replace(self._now, slower=self._now.slower + found.makespan_excess_s)
        else:
            self._late = self._now.hidden_share
            reached = found.hidden_share
            between = self._impossible + CLOSE < reached < self._late - CLOSE
            return self._share(reached if between else (self._impossible + self._late) / 2)
        return self._now

    def ended(self, ending: Ending) -> Restriction | None:
        """What to try at once where the last step was too tight: between what was refused and what is impossible."""
        now = self._now
        if ending is not Ending.INFEASIBLE or self._last:
            return None
        if now.hidden_share < 1 and not now.shrink:
            self._impossible = now.hidden_share
            return self._share((self._impossible + self._late) / 2)
        self._last = True
        self._now = replace(now, shrink=now.shrink // 2, slower=now.slower / 2)
        if self._now.shrink < self._least and not self._now.slower:
            return None
        return self._now

    def _share(self, share: float) -> Restriction | None:
        if self._late - self._impossible < CLOSE:
            return None
        self._now = replace(self._now, hidden_share=share)
        return self._now
