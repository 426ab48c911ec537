"""Capuchin: tensor-based memory management (Peng, Shi, Dai, Jin, Ma, Xiong, Yang, Qian, ASPLOS 2020), in two readings.

A measured pass gives each tensor's accesses in time. While memory is short, a tensor that is live at the peak and
accessed on both sides of it is evicted between these two accesses:

1. swapped, where that costs no time: with the free time FT = (next access - time to swap in) - (last access + time to
   swap out), in descending order while FT >= 0;
2. then, of the tensor with the most memory saved per second, by the cheaper of the two: swapping, which stalls for
   max(0, -FT), or recomputing, which takes the operators from the nearest tensors that are there. The source chain is
   worked out anew for each choice, with all choices made before.

`capuchin` is this. `capuchin-paging-first` is POET's reading of it (section 6.1): page in descending FT
until that is no longer possible, whatever it costs, and only then recompute.

It is defined for general graphs. Without DMA nothing overlaps: FT is minus the transfer times, and the stall is both.
Times are those of computing alone, as measured before anything is evicted. After each choice the simulator says where
the peak is now. Where memory has room for it a swapped tensor comes back early enough to be there in time. Operators
with several outputs are recomputed whole; workspace counts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from poetopt.comparison.baselines.acceptance import DEFAULTS, Settings, cheapest
from poetopt.comparison.baselines.keeping import irreplaceable, with_prefetch
from poetopt.graph.problem import Problem
from poetopt.plan.assemble import plan_of
from poetopt.plan.effects import effects
from poetopt.plan.instructions import Plan
from poetopt.plan.machine import Machine
from poetopt.plan.schedule import Schedule
from poetopt.plan.simulate import simulate
from poetopt.util.errors import NoScheduleError


@dataclass(frozen=True, slots=True)
class _Gap:
    """Two accesses in a row of one tensor; it may be away between them.

    last, following
        The stages of the accesses (-1: a graph input's beginning).
    free_s
        Free time.
    stall_s
        Seconds that swapping costs.
    """

    tensor: int
    last: int
    following: int
    free_s: float
    stall_s: float


def schedule(problem: Problem, ram_bytes: int, settings: Settings = DEFAULTS) -> Plan:
    """Capuchin's own rule. Raises NoScheduleError where no eviction is left and memory is still short."""
    return _run(problem, ram_bytes, settings, _by_cost)


def schedule_paging_first(problem: Problem, ram_bytes: int, settings: Settings = DEFAULTS) -> Plan:
    """POET's reading. Raises NoScheduleError where no eviction is left and memory is still short."""
    return _run(problem, ram_bytes, settings, _paging_first)


class _Evictions:
    """The gaps of a problem, and what has been decided about them."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        ends = np.concatenate([[0.0], np.cumsum([operator.time_s for operator in problem.operators])])
        self.gaps: list[_Gap] = []
        for i, tensor in enumerate(problem.tensors):
            accesses = [tensor.producer, *problem.readers[i]]
            for last, following in itertools.pairwise(accesses):
                if following - last < 2 or not tensor.nbytes:
                    continue
                transfers = tensor.page_in_s + tensor.page_out_s
                between = float(ends[following] - ends[last + 1])
                free = between - transfers if problem.dma else -transfers
                self.gaps.append(_Gap(i, last, following, free, max(0.0, -free)))
        self.swapped: list[_Gap] = []
        self.recomputed: list[_Gap] = []
        self.schedule = Schedule()

    def swappable(self, gap: _Gap) -> bool:
        """Tell whether there is a storage, and room on it for the gap's tensor."""
        if not self.problem.paging:
            return False
        capacity = self.problem.storage_blocks
        tensors = {gap.tensor, *(other.tensor for other in self.swapped)}
        return capacity is None or sum(map(self.problem.blocks, tensors)) <= capacity

    def swap(self, gap: _Gap) -> None:
        self.swapped.append(gap)
        self._settle(gap)

    def recompute(self, gap: _Gap) -> None:
        self.recomputed.append(gap)
        self._settle(gap)

    def _settle(self, gap: _Gap) -> None:
        """All decisions as a schedule: chains depend on one another, so they are worked out together."""
        self.gaps.remove(gap)
        away = [*self.swapped, *self.recomputed]
        runs: set[tuple[int, int]] = set()
        for chosen in self.recomputed:
            runs.update((chosen.following, operator) for operator in self.chain(chosen, away) or ())
        self.schedule = Schedule(
            frozenset(runs), frozenset((chosen.following, chosen.tensor) for chosen in self.swapped)
        )

    def chain(self, gap: _Gap, away: list[_Gap] | None = None) -> list[int] | None:
        """The operators that bring the gap's tensor back, from what is there then; None where nothing can."""
        stage = gap.following
        missing = {
            other.tensor for other in away or [*self.swapped, *self.recomputed] if other.last < stage <= other.following
        }
        missing -= {other.tensor for other in self.swapped if other.following == stage}
        missing.add(gap.tensor)
        runs: set[int] = set()
        queue = [gap.tensor]
        while queue:
            i = queue.pop()
            if irreplaceable(self.problem, i):
                return None
            producer = self.problem.tensors[i].producer
            if producer in runs or producer >= stage:
                continue
            runs.add(producer)
            for u in self.problem.operators[producer].inputs:
                readers = self.problem.readers[u]
                gone = (not readers or readers[-1] < stage) and not irreplaceable(self.problem, u)
                if u in missing or gone:
                    queue.append(u)
        return sorted(runs)

    def seconds(self, gap: _Gap) -> float:
        """Of recomputing; infinite where that is impossible."""
        chain = self.chain(gap)
        return math.inf if chain is None else sum(self.problem.operators[operator].time_s for operator in chain)


_Choose = Callable[[_Evictions, list[_Gap]], bool]
"""Takes one decision among the gaps at the peak; False where there is none to take."""


def _by_cost(evictions: _Evictions, able: list[_Gap]) -> bool:
    problem = evictions.problem
    hidden = [gap for gap in able if gap.free_s >= 0 and evictions.swappable(gap)]
    if hidden:
        evictions.swap(max(hidden, key=lambda gap: (gap.free_s, -gap.tensor)))
        return True
    best: tuple[float, int, _Gap, bool] | None = None
    for gap in able:
        seconds = evictions.seconds(gap)
        stall = gap.stall_s if evictions.swappable(gap) else math.inf
        cost = min(seconds, stall)
        if math.isinf(cost):
            continue
        saved = problem.tensors[gap.tensor].nbytes
        score = saved / cost if cost > 0 else math.inf
        if best is None or (score, -gap.tensor) > (best[0], -best[1]):
            best = (score, gap.tensor, gap, stall < seconds)
    if best is None:
        return False
    (evictions.swap if best[3] else evictions.recompute)(best[2])
    return True


def _paging_first(evictions: _Evictions, able: list[_Gap]) -> bool:
    to_storage = [gap for gap in able if evictions.swappable(gap)]
    if to_storage:
        evictions.swap(max(to_storage, key=lambda gap: (gap.free_s, -gap.tensor)))
        return True
    return _by_cost(evictions, able)


def _run(problem: Problem, ram_bytes: int, settings: Settings, choose: _Choose) -> Plan:
    found: list[Schedule] = []
    why = ""
    # of the budget, that the peak is brought under: less than all where the buffers can't be laid out otherwise
    for share in (1.0, 0.98, 0.95, 0.9):
        evictions = _Evictions(problem)
        reason = _evict(evictions, int(ram_bytes * share), choose)
        why = why or reason
        if not reason:
            found += with_prefetch(problem, evictions.schedule)
            try:
                return cheapest(problem, ram_bytes, found, settings)
            except NoScheduleError:
                continue
    if found:
        return cheapest(problem, ram_bytes, found, settings)
    raise NoScheduleError(why)


def _evict(evictions: _Evictions, ram_bytes: int, choose: _Choose) -> str:
    """Evict until the peak fits; empty, or why that is impossible."""
    problem = evictions.problem
    while True:
        plan = plan_of(problem, evictions.schedule)
        simulation = simulate(plan)
        if simulation.peak_bytes <= ram_bytes:
            return ""
        stage, at = _peak(plan, simulation.live_bytes)
        able = [gap for gap in evictions.gaps if gap.last < stage < gap.following]
        # What the plan has not there at the peak can't save anything.
        able = [gap for gap in able if gap.tensor in at]
        if not able or not choose(evictions, able):
            over = simulation.peak_bytes - ram_bytes
            name = problem.operators[stage].name if stage < len(problem.operators) else "the end"
            return f"at operator '{name}' nothing is left to evict, {over:,} bytes over the budget"


def _peak(plan: Plan, live_bytes: tuple[int, ...]) -> tuple[int, frozenset[int]]:
    """The stage of the highest instruction, and the tensors in RAM during it that it doesn't touch."""
    top = max(range(len(live_bytes)), key=lambda index: live_bytes[index])
    machine = Machine(plan.problem)
    *before, peak = effects(plan.problem).each(plan.instructions[: top + 1])
    for effect in before:
        machine.apply(effect)
    return machine.ahead, frozenset(machine.resident.difference(peak.reads, peak.makes, peak.frees))
