"""H-Revolve with two levels: checkpoints in RAM and on storage (Herrmann & Pallez 2020, after Aupy, Herrmann, Hovland,
Robert 2016, "Optimal multistage algorithm for adjoint computation").

On a chain of l steps with s slots in RAM and storage without limit, where writing and reading state k cost w(k) and
r(k):

    D(i, j) = min of   P(i, j, s)                                                         state i read once
                       f(i..k) + P(k, j, s) + r(i) + D(i, k)         over i < k < j       or again for a first part
    W(i, j) = min of   D(i, j)                                                            nothing more is written
                       f(i..k) + w(k) + W(k, j) + r(i) + D(i, k)     over i < k < j       state k is written as well

with P of `poetopt.comparison.baselines.revolve`: state i of D and W lies on storage. The first pass may stay in RAM
(P) or begin by writing the graph's input. It assumes a chain, states of one size, and transfers that
overlap nothing.

Steps are the segments of the forward graph between its articulation points, costs are joules, and w and r are those
of all tensors of a state. s is swept over 1..l, and the cheapest plan that fits is the answer; page-ins come
just before they are needed, or earlier where DMA can hide them. Each state that is read from storage is
written once, right after it is first made. On a graph that is no chain what is not of a state stays in RAM or is
recomputed with its segment.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from poetopt.comparison.baselines.acceptance import DEFAULTS, Settings, cheapest
from poetopt.comparison.baselines.chain import Chain, chain_of
from poetopt.comparison.baselines.prefetch import with_prefetch
from poetopt.comparison.baselines.revolve import Hold, Reversal, schedules
from poetopt.graph.problem import Problem
from poetopt.plan.instructions import Plan
from poetopt.plan.schedule import Schedule
from poetopt.util.errors import NoScheduleError

SLOTS = 24
"""At most this many numbers of slots are tried."""


def schedule(problem: Problem, ram_bytes: int, settings: Settings = DEFAULTS) -> Plan:
    """The cheapest over all numbers of slots. Raises NoScheduleError where none fits."""
    if not problem.paging:
        raise NoScheduleError(f"{problem.device} has no storage to page to: see revolve")
    return cheapest(problem, ram_bytes, _candidates(chain_of(problem), ram_bytes), settings)


def _candidates(chain: Chain, ram_bytes: int) -> Iterator[Schedule]:
    # RAM alone is one of its choices.
    yield from schedules(chain, ram_bytes)
    count = len(chain)
    seen: set[Schedule] = set()
    for slots in sorted({round(s) for s in np.linspace(1, count, min(count, SLOTS))}):
        levels = TwoLevels(chain, slots)
        for hold in Hold:
            for candidate in with_prefetch(chain.problem, levels.schedule(hold)):
                if candidate not in seen:
                    seen.add(candidate)
                    yield candidate


class TwoLevels:
    """D and W for one number of slots, and the schedule that they lead to."""

    def __init__(self, chain: Chain, slots: int) -> None:
        self.chain, self.slots = chain, slots
        problem = chain.problem
        lengths = chain.cost(operator.energy_j for operator in problem.operators)
        self.ram = Reversal(lengths)
        self.sums = np.concatenate([[0.0], np.cumsum(lengths)])
        tensors = problem.tensors
        self.write = [sum(tensors[i].page_out_j for i in state) for state in chain.boundary]
        self.read = [sum(tensors[i].page_in_j for i in state) for state in chain.boundary]
        self.D = lru_cache(maxsize=None)(self._read_last)
        self.W = lru_cache(maxsize=None)(self._write_more)
        # Short intervals first, so that nothing recurses deeply.
        for span in range(1, len(chain) + 1):
            for i in range(len(chain) - span + 1):
                self.D(i, i + span)
                self.W(i, i + span)

    def _in_ram(self, i: int, j: int) -> float:
        return float(self.ram.steps[self.slots - 1, i, j])

    def _read_last(self, i: int, j: int) -> tuple[float, int]:
        best = (self._in_ram(i, j), 0)
        for k in range(i + 1, j):
            cost = float(self.sums[k] - self.sums[i]) + self._in_ram(k, j) + self.read[i] + self.D(i, k)[0]
            best = min(best, (cost, k))
        return best

    def _write_more(self, i: int, j: int) -> tuple[float, int]:
        best = (self.D(i, j)[0], 0)
        for k in range(i + 1, j):
            cost = float(self.sums[k] - self.sums[i]) + self.write[k] + self.W(k, j)[0] + self.read[i] + self.D(i, k)[0]
            best = min(best, (cost, k))
        return best

    def schedule(self, hold: Hold) -> Schedule:
        """The recomputes and page-ins of W(0, l)."""
        runs: set[tuple[int, int]] = set()
        page_ins: set[tuple[int, int]] = set()
        count = len(self.chain)

        def again(i: int, j: int) -> None:
            runs.update(self.chain.again(i, j, hold_last=hold is Hold.ALWAYS or (hold is Hold.SINGLE and j - i == 1)))

        def in_ram(i: int, j: int, fresh: bool) -> None:
            for first, end in self.ram.restarts(self.slots, (i, j)):
                again(first, end)
            if not fresh:
                again(i, j)

        def from_storage(i: int, j: int, fresh: bool) -> None:
            """Reverse [i, j), state i on storage; `fresh` where the first pass is on its way through it."""
            while True:
                if not fresh:
                    self._page_in(page_ins, i, j)
                k = self.D(i, j)[1]
                if not k:
                    in_ram(i, j, fresh)
                    return
                in_ram(k, j, fresh)
                if not fresh:
                    runs.update(self.chain.again(i, k, stage=self.chain.backward_start[j - 1]))
                j, fresh = k, False

        waiting: list[tuple[int, int]] = []
        i = 0
        while k := self.W(i, count)[1]:
            waiting.append((i, k))
            i = k
        from_storage(i, count, True)
        for first, end in reversed(waiting):
            from_storage(first, end, False)
        return Schedule(frozenset(runs), frozenset(page_ins))

    def _page_in(self, page_ins: set[tuple[int, int]], i: int, j: int) -> None:
        """State i comes back for the reversal of [i, j); graph inputs that are needed only then are paged as well."""
        stage = self.chain.backward_start[j - 1]
        for tensor in self.chain.boundary[i]:
            if self.chain.problem.tensors[tensor].producer + 1 < stage:
                page_ins.add((stage, tensor))
