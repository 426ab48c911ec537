"""Capuchin: tensor-based memory management (Peng, Shi, Dai, Jin, Ma, Xiong, Yang, Qian, ASPLOS 2020), in two readings.

A measured pass records each tensor's accesses in time. While memory is short, a tensor that is live at the peak and
accessed on both sides of it is evicted between these two accesses:

1. By swapping, if that costs no time: with the free time FT = (next access - time to swap in) - (last access + time to
swap out), in descending order while FT >= 0.
2. Then the tensor with the most memory saved per second, by the cheaper of two ways. Swapping stalls for max(0, -FT).
Recomputing runs the operators from the nearest available tensors. The source chain is computed again for each choice,
with all earlier choices in effect.

`capuchin` is this method. `capuchin-paging-first` is POET's reading of it (section 6.1): page in descending FT until
that is no longer possible, at any cost, and only then recompute.

It is defined for general graphs. Without DMA nothing overlaps: FT is minus the transfer times, and the stall is both.
Times are those of computing alone, measured before anything is evicted. After each choice the simulator locates the new
peak. If memory has room, a swapped tensor returns early enough to be there in time. Operators with several outputs are
recomputed as a whole; workspace counts.
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
    """Two successive accesses of a tensor; it may be evicted between them.

    Attributes
    ----------
    last, following
        Stages of the accesses (-1: the initial presence of a graph input).
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
    """Return the plan by Capuchin's own rule. Raises NoScheduleError if no eviction is left and memory is short."""
    return _schedule_by(problem, ram_bytes, settings, _choose_by_cost)


def schedule_paging_first(problem: Problem, ram_bytes: int, settings: Settings = DEFAULTS) -> Plan:
    """Return the plan by POET's reading. Raises NoScheduleError if no eviction is left and memory is short."""
    return _schedule_by(problem, ram_bytes, settings, _choose_paging_first)


class _Evictions:
    """Gaps of a problem, with the decisions about them."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        end_times = np.concatenate([[0.0], np.cumsum([operator.time_s for operator in problem.operators])])
        self.gaps: list[_Gap] = []
        for i, tensor in enumerate(problem.tensors):
            accesses = [tensor.producer, *problem.readers[i]]
            for last, following in itertools.pairwise(accesses):
                if following - last < 2 or not tensor.nbytes:
                    continue
                transfers = tensor.page_in_s + tensor.page_out_s
                between_s = float(end_times[following] - end_times[last + 1])
                free_s = between_s - transfers if problem.dma else -transfers
                self.gaps.append(_Gap(i, last, following, free_s, max(0.0, -free_s)))
        self.swapped: list[_Gap] = []
        self.recomputed: list[_Gap] = []
        self.schedule = Schedule()

    def swappable(self, gap: _Gap) -> bool:
        """Return whether there is a storage with room for the gap's tensor."""
        if not self.problem.paging:
            return False
        capacity = self.problem.storage_blocks
        tensors = {gap.tensor, *(other.tensor for other in self.swapped)}
        return capacity is None or sum(map(self.problem.blocks, tensors)) <= capacity

    def swap(self, gap: _Gap) -> None:
        self.swapped.append(gap)
        self._update_schedule(gap)

    def recompute(self, gap: _Gap) -> None:
        self.recomputed.append(gap)
        self._update_schedule(gap)

    def _update_schedule(self, gap: _Gap) -> None:
        """Turn all decisions into a schedule; chains depend on one another, so they are computed together."""
        self.gaps.remove(gap)
        evicted = [*self.swapped, *self.recomputed]
        runs: set[tuple[int, int]] = set()
        for chosen in self.recomputed:
            runs.update((chosen.following, operator) for operator in self.chain(chosen, evicted) or ())
        self.schedule = Schedule(
            frozenset(runs), frozenset((chosen.following, chosen.tensor) for chosen in self.swapped)
        )

    def chain(self, gap: _Gap, evicted: list[_Gap] | None = None) -> list[int] | None:
        """Return the operators that restore the gap's tensor from the tensors available then, or None."""
        stage = gap.following
        missing = {
            other.tensor
            for other in evicted or [*self.swapped, *self.recomputed]
            if other.last < stage <= other.following
        }
        missing -= {other.tensor for other in self.swapped if other.following == stage}
        missing.add(gap.tensor)
        runs: set[int] = set()
        queue = [gap.tensor]
        while queue:
            tensor = queue.pop()
            if irreplaceable(self.problem, tensor):
                return None
            producer = self.problem.tensors[tensor].producer
            if producer in runs or producer >= stage:
                continue
            runs.add(producer)
            for source in self.problem.operators[producer].inputs:
                readers = self.problem.readers[source]
                is_gone = (not readers or readers[-1] < stage) and not irreplaceable(self.problem, source)
                if source in missing or is_gone:
                    queue.append(source)
        return sorted(runs)

    def seconds(self, gap: _Gap) -> float:
        """Return the seconds of recomputing, or infinity if that is impossible."""
        chain = self.chain(gap)
        return math.inf if chain is None else sum(self.problem.operators[operator].time_s for operator in chain)


_Choose = Callable[[_Evictions, list[_Gap]], bool]
"""Makes one decision among the gaps at the peak; returns False if there is none to make."""


def _choose_by_cost(evictions: _Evictions, gaps: list[_Gap]) -> bool:
    problem = evictions.problem
    free_gaps = [gap for gap in gaps if gap.free_s >= 0 and evictions.swappable(gap)]
    if free_gaps:
        evictions.swap(max(free_gaps, key=lambda gap: (gap.free_s, -gap.tensor)))
        return True
    best_choice: tuple[float, int, _Gap, bool] | None = None
    for gap in gaps:
        seconds = evictions.seconds(gap)
        stall = gap.stall_s if evictions.swappable(gap) else math.inf
        cost = min(seconds, stall)
        if math.isinf(cost):
            continue
        saved = problem.tensors[gap.tensor].nbytes
        score = saved / cost if cost > 0 else math.inf
        if best_choice is None or (score, -gap.tensor) > (best_choice[0], -best_choice[1]):
            best_choice = (score, gap.tensor, gap, stall < seconds)
    if best_choice is None:
        return False
    (evictions.swap if best_choice[3] else evictions.recompute)(best_choice[2])
    return True


def _choose_paging_first(evictions: _Evictions, gaps: list[_Gap]) -> bool:
    swappable = [gap for gap in gaps if evictions.swappable(gap)]
    if swappable:
        evictions.swap(max(swappable, key=lambda gap: (gap.free_s, -gap.tensor)))
        return True
    return _choose_by_cost(evictions, gaps)


def _schedule_by(problem: Problem, ram_bytes: int, settings: Settings, choose: _Choose) -> Plan:
    candidates: list[Schedule] = []
    first_reason = ""
    # shares of the budget for the peak; smaller ones help if the buffers can't be laid out
    for share in (1.0, 0.98, 0.95, 0.9):
        evictions = _Evictions(problem)
        reason = _evict(evictions, int(ram_bytes * share), choose)
        first_reason = first_reason or reason
        if not reason:
            candidates += with_prefetch(problem, evictions.schedule)
            try:
                return cheapest(problem, ram_bytes, candidates, settings)
            except NoScheduleError:
                continue
    if candidates:
        return cheapest(problem, ram_bytes, candidates, settings)
    raise NoScheduleError(first_reason)


def _evict(evictions: _Evictions, ram_bytes: int, choose: _Choose) -> str:
    """Evict until the peak fits; return "", or the reason why that is impossible."""
    problem = evictions.problem
    while True:
        plan = plan_of(problem, evictions.schedule)
        simulation = simulate(plan)
        if simulation.peak_bytes <= ram_bytes:
            return ""
        stage, resident = _peak(plan, simulation.live_bytes)
        gaps = [gap for gap in evictions.gaps if gap.last < stage < gap.following]
        # Evicting a tensor that is absent at the peak saves nothing.
        gaps = [gap for gap in gaps if gap.tensor in resident]
        if not gaps or not choose(evictions, gaps):
            over = simulation.peak_bytes - ram_bytes
            name = problem.operators[stage].name if stage < len(problem.operators) else "the end"
            return f"nothing is left to evict at operator '{name}', {over:,} bytes over the budget"


def _peak(plan: Plan, live_bytes: tuple[int, ...]) -> tuple[int, frozenset[int]]:
    """Return the stage of the highest instruction, and the tensors in RAM that it doesn't touch."""
    top = max(range(len(live_bytes)), key=lambda index: live_bytes[index])
    machine = Machine(plan.problem)
    *before, peak = effects(plan.problem).each(plan.instructions[: top + 1])
    for effect in before:
        machine.apply(effect)
    return machine.ahead, frozenset(machine.resident.difference(peak.reads, peak.makes, peak.frees))
