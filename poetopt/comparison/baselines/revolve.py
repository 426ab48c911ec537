"""Revolve: binomial checkpointing of a chain (Griewank & Walther 2000, algorithm 799).

Reversing l steps from a state that holds one of s slots takes p(l, s) further steps:

    p(1, s) = 0,    p(l, 1) = l (l - 1) / 2,    p(l, s) = min over 1 <= k < l of  k + p(l - k, s - 1) + p(k, s)

That is: advance k steps, keep the state there, reverse the steps behind it with one slot less, return, and reverse the
k steps with all slots again. The recurrence assumes a chain of equal steps and equal states. Here a step is a segment
of the forward graph between two articulation points (`comparison.baselines.chain`), and its length is its joules. The
recurrence is solved for intervals instead of lengths (as by Walther & Griewank 2004 for steps of unequal cost), which
is the same for equal steps. s runs over 1..l. If states differ in size, slots have to be weighted: the same recurrence
is also solved with bytes in place of slots (`comparison.baselines.reversal`, keeping states only). The cheapest plan
that fits is the result.

The state behind an interval is in RAM when the interval's turn comes, because the last reversed step has read it. It
can be dropped and computed again, as in the original, or held: always, or only if the interval has a single step (which
takes no more room). All three are tried. Graph inputs and tensors that can't be recomputed stay in RAM to their last
read.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from poetopt.comparison.baselines.acceptance import DEFAULTS, Settings, cheapest
from poetopt.comparison.baselines.chain import ForwardChain, chain_of
from poetopt.comparison.baselines.reversal import Reversals, room_of
from poetopt.graph.problem import Problem
from poetopt.plan.instructions import Plan
from poetopt.plan.schedule import Schedule

MARGIN = 0.25
"""Budgets within this share of the given one are tried."""


class Hold(IntEnum):
    """Cases in which the state behind an interval is held instead of recomputed."""

    NEVER = 0
    SINGLE = 1
    ALWAYS = 2


def schedule(problem: Problem, ram_bytes: int, settings: Settings = DEFAULTS) -> Plan:
    """Return the cheapest plan over all numbers of slots. Raises NoScheduleError if none fits."""
    return cheapest(problem, ram_bytes, schedules(chain_of(problem), ram_bytes), settings)


def schedules(chain: ForwardChain, ram_bytes: int) -> Iterator[Schedule]:
    """Yield the schedules of all numbers of slots, and those of the budget in bytes."""
    yield from by_slots(chain)
    yield from by_bytes(chain, room_of(chain, ram_bytes), tapes=False)


def by_bytes(chain: ForwardChain, room_bytes: int, *, tapes: bool) -> Iterator[Schedule]:
    """Yield the schedules of `room_bytes`, and of some more and less, because segments' bytes are estimates."""
    if room_bytes <= 0:
        return
    tables = Reversals(chain, int(room_bytes * (1 + MARGIN)), tapes=tapes)
    seen: set[frozenset[tuple[int, int]]] = set()
    for level in range(tables.level(int(room_bytes * (1 - MARGIN))), tables.top + 1):
        recomputes = tables.whole(level)
        if recomputes is not None and recomputes not in seen:
            seen.add(recomputes)
            yield Schedule(recomputes=recomputes)


def by_slots(chain: ForwardChain) -> Iterator[Schedule]:
    """Yield the schedules of all numbers of slots."""
    lengths = chain.cost(operator.energy_j for operator in chain.problem.operators)
    table = Reversal(lengths)
    seen: set[Schedule] = set()
    for slots in range(1, len(chain) + 1):
        for hold in Hold:
            recomputes = frozenset(_recomputes(chain, table.restarts(slots), hold))
            candidate = Schedule(recomputes=recomputes)
            if candidate not in seen:
                seen.add(candidate)
                yield candidate


def _recomputes(chain: ForwardChain, restarts: list[tuple[int, int]], hold: Hold) -> Iterator[tuple[int, int]]:
    for first, end in restarts:
        yield from chain.again(first, end, hold_last=hold is Hold.ALWAYS or (hold is Hold.SINGLE and end - first == 1))


class Reversal:
    """Recurrence, solved for every interval and number of slots.

    Parameters
    ----------
    lengths
        Length of each step.
    """

    def __init__(self, lengths: list[float]) -> None:
        count = len(lengths)
        sums = np.concatenate([[0.0], np.cumsum(lengths)])
        # (slots - 1, first, end): least sum of lengths of the further steps, and the k that attains it.
        self.steps: NDArray[np.float64] = np.zeros((max(count, 1), count + 1, count + 1))
        self.split: NDArray[np.int64] = np.zeros((max(count, 1), count + 1, count + 1), dtype=np.int64)
        for span in range(2, count + 1):
            for first in range(count - span + 1):
                end = first + span
                inner = np.arange(first + 1, end)
                # With one slot, each step restarts from the beginning.
                self.steps[0, first, end] = float(np.sum(sums[inner] - sums[first]))
                ahead = sums[inner] - sums[first]
                total = ahead + self.steps[:-1, inner, end] + self.steps[1:, first, inner]
                if total.size:
                    best = np.argmin(total, axis=1)
                    self.steps[1:, first, end] = total[np.arange(len(best)), best]
                    self.split[1:, first, end] = inner[best]
        self.count = count

    def further(self, slots: int) -> float:
        """Return the sum of lengths of the steps that a reversal runs again."""
        return float(self.steps[slots - 1, 0, self.count])

    def restarts(self, slots: int) -> list[tuple[int, int]]:
        """Return the intervals (first, end) that run again, in order.

        Each runs from state `first` to the reversal of step end - 1. The run that reaches its end for the first time is
        not included.
        """
        if not self.count:
            return []
        intervals: list[tuple[int, int]] = []
        stack = [(0, self.count, slots, False)]
        while stack:
            first, end, slots_left, is_rerun = stack.pop()
            if is_rerun:
                intervals.append((first, end))
            waiting: list[tuple[int, int, int, bool]] = []
            while end - first > 1:
                if slots_left == 1:
                    waiting.append((first, end - 1, 1, True))
                    break
                middle = int(self.split[slots_left - 1, first, end])
                waiting.append((first, middle, slots_left, True))
                first, slots_left = middle, slots_left - 1
            stack += waiting
        return intervals
