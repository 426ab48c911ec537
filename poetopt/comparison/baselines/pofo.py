"""POFO: rematerialization and offloading of a chain together.

Beaumont, Eyraud-Dubois, Shilova, NeurIPS 2021, "Efficient combination of rematerialization and offloading for training
DNNs".

Going forward, the blocks of the chain are processed one by one. F_all(i) keeps the tape of block i to its backward
pass. F_ck(i), F_none(i+1..j-1) keeps only state i, and runs [i, j) again in the backward pass by the optimal schedule
within RAM (`poetopt.comparison.baselines.reversal`, with tapes). In both cases state i may also be offloaded: it leaves
RAM when the channel has time, and returns before it is needed. The dynamic program has the states (i, A, df, db): the
next block, the bytes kept, the bytes that wait to leave, and the bytes that have to return; the backward pass mirrors
the forward pass. The cost of a move is the seconds that run again, plus the idle time of both passes,

    (eps_f + eps_b) / bandwidth,        eps: bytes by which the pass exceeds the RAM,

for which the CPU waits until the channel has moved as many bytes. Bytes are counted in LEVELS units of the budget.

It assumes a chain, one transfer channel beside the CPU, and page-outs only in the forward pass. A general graph becomes
the chain of its segments between articulation points. For such segments the bytes and idle times of the program are
estimates. So it is solved for several budgets around the given one, and so are the purely in-RAM schedules that it
contains (those of Revolve among them); the cheapest plan that fits is the result. Without DMA the bandwidth is the
same, and transfers are serial in the simulator.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from poetopt.comparison.baselines.acceptance import DEFAULTS, Settings, cheapest
from poetopt.comparison.baselines.chain import ForwardChain, chain_of
from poetopt.comparison.baselines.keeping import with_prefetch
from poetopt.comparison.baselines.reversal import Reversals, room_of
from poetopt.comparison.baselines.revolve import by_bytes
from poetopt.comparison.baselines.revolve import schedules as revolve
from poetopt.graph.problem import Problem
from poetopt.plan.instructions import Plan
from poetopt.plan.schedule import Schedule

LEVELS = 14
"""Units of RAM in the states of the dynamic program."""
BUDGETS = (1.0, 1.15, 0.9, 1.3, 0.8)
"""Shares of the budget that the dynamic program is solved for."""
BLOCKS = 40
"""Maximum number of segments in a checkpointed block."""


def schedule(problem: Problem, ram_bytes: int, settings: Settings = DEFAULTS) -> Plan:
    """Return the cheapest plan over all budgets of the program. Raises NoScheduleError if none fits."""
    return cheapest(problem, ram_bytes, _candidates(chain_of(problem), ram_bytes), settings)


def _candidates(chain: ForwardChain, ram_bytes: int) -> Iterator[Schedule]:
    room = room_of(chain, ram_bytes)
    yield from revolve(chain, ram_bytes)
    yield from by_bytes(chain, room, tapes=True)
    if not chain.problem.paging or room <= 0:
        return
    tables = Reversals(chain, int(room * max(BUDGETS)), tapes=True, levels=100)
    for share in BUDGETS:
        offloading = _DynamicProgram(chain, tables, int(room * share)).schedule()
        if offloading is not None:
            yield from with_prefetch(chain.problem, offloading)


@dataclass(frozen=True, slots=True)
class _Move:
    """Treatment of segments first..end-1: tape (`again` False) or checkpoint, with the state offloaded or not."""

    first: int
    end: int
    again: bool
    offload: bool


class _DynamicProgram:
    """Dynamic program for one budget, solved backward from the end of the chain."""

    def __init__(self, chain: ForwardChain, tables: Reversals, room_bytes: int) -> None:
        self.chain, self.tables = chain, tables
        self.unit = max(1, -(-room_bytes // LEVELS))
        self.shape = (LEVELS + 1,) * 3
        size, problem = tables.size, chain.problem
        self.size = size
        moved = [problem.nbytes(state) for state in chain.boundary]
        seconds = [sum(problem.tensors[i].page_out_s for i in state) for state in chain.boundary]
        # Transfers without cost get a tiny one, so that the arithmetic stays finite.
        self.bandwidth = (sum(moved) or 1) / (sum(seconds) or 1e-12)
        times = [operator.time_s for operator in problem.operators]
        starts = [*chain.backward_start, len(problem.operators)]
        self.forward_s = np.array(chain.cost(times))
        self.backward_s = np.array(
            [sum(times[starts[k] : len(times) if k == 0 else starts[k - 1]]) for k in range(len(chain))]
        )
        self.power = _power(chain)
        count = len(chain)
        self.value = np.full((count + 1, *self.shape), np.inf)
        self.value[count] = 0.0
        self.move: list[list[_Move]] = [[] for _ in range(count)]
        self.choice = np.zeros((count + 1, *self.shape), dtype=np.int32)
        for i in range(count - 1, -1, -1):
            self._solve(i)

    def _solve(self, i: int) -> None:
        kept, leaving, returning = np.indices(self.shape)
        best = np.full(self.shape, np.inf)
        choice = np.zeros(self.shape, dtype=np.int32)
        for j in range(i + 1, min(len(self.chain), i + BLOCKS) + 1):
            for again in (False, True) if j == i + 1 else (True,):
                if again and i == len(self.chain) - 1:
                    continue
                for offload in (False, True) if i else (False,):
                    move = _Move(i, j, again, offload)
                    total = self._cost(move, kept, leaving, returning)
                    better = total < best
                    if better.any():
                        choice[better] = len(self.move[i])
                        best = np.where(better, total, best)
                        self.move[i].append(move)
        self.value[i], self.choice[i] = best, choice

    def _cost(self, move: _Move, kept: np.ndarray, leaving: np.ndarray, returning: np.ndarray) -> np.ndarray:
        """Return the seconds of a move and of all that follow it, for every state."""
        possible, idle_s, *after = self._next_state(move, kept, leaving, returning)
        seconds: np.ndarray | float = 0.0
        if move.again:
            # The reversal within RAM gets the units that are left.
            free_units = (LEVELS - kept - self._units(self.size.state[move.first]) - returning) * self.unit
            level = np.clip(free_units // self.tables.unit, -1, self.tables.top)
            joules = np.where(level >= 0, self.tables.C[move.first, move.end, np.maximum(level, 0)], np.inf)
            seconds = joules / self.power
        following = self.value[(move.end, *(np.minimum(units, LEVELS) for units in after))]
        return np.where(possible, seconds + idle_s + following, np.inf)

    def _next_state(self, move: _Move, kept: Any, leaving: Any, returning: Any) -> tuple[Any, Any, Any, Any, Any]:
        """Return whether a move is possible, its idle seconds, and the state after it."""
        i, j, size, unit = move.first, move.end, self.size, self.unit
        state = self._units(size.state[i])
        kept_after = kept + (0 if move.again else self._units(size.tape[i])) + (0 if move.offload else state)
        if move.again:
            forward = max(size.pass_peak[k] + (size.state[k] if k > i else 0) for k in range(i, j))
            excess_b = np.zeros_like(kept)
        else:
            forward = size.full_peak[i]
            excess_b = np.maximum(0, kept + returning + state + self._units(size.backward_peak[i]) - LEVELS)
        excess_f = np.maximum(0, kept + leaving + state + self._units(forward) - LEVELS)
        offloaded = state if move.offload else 0
        moved_f, moved_b = (
            float(each[i:j].sum()) * self.bandwidth / unit for each in (self.forward_s, self.backward_s)
        )
        leaving_after = np.maximum(0, np.ceil(leaving - excess_f + offloaded - moved_f)).astype(np.int64)
        returning_after = np.maximum(0, np.ceil(returning - excess_b + offloaded - moved_b)).astype(np.int64)
        # Only bytes that wait to leave can make room for the pass.
        possible = (excess_f <= leaving) & (excess_b <= returning)
        possible &= (kept_after <= LEVELS) & (leaving_after <= LEVELS) & (returning_after <= LEVELS)
        return possible, (excess_f + excess_b) * unit / self.bandwidth, kept_after, leaving_after, returning_after

    def _units(self, nbytes: int) -> int:
        # Rounded to the nearest unit: errors cancel, and the simulator decides.
        return int(nbytes / self.unit + 0.5)

    def schedule(self) -> Schedule | None:
        """Return the recomputes and page-ins of the best moves, or None if there are none."""
        if not np.isfinite(self.value[0, 0, 0, 0]):
            return None
        chain, problem, last = self.chain, self.chain.problem, self.chain.problem.last_forward
        i, kept, leaving, returning = 0, 0, 0, 0
        runs: set[tuple[int, int]] = set()
        offloaded: list[int] = []
        while i < len(chain):
            move = self.move[i][int(self.choice[i, kept, leaving, returning])]
            state = self._units(self.size.state[i])
            if move.offload:
                offloaded += chain.boundary[i]
            if move.again:
                free_units = (LEVELS - kept - state - returning) * self.unit
                runs.update(self.tables.interval(i, move.end, self.tables.level(free_units)))
            kept, leaving, returning = map(
                int, self._next_state(move, np.array(kept), np.array(leaving), returning)[2:]
            )
            i = move.end
        reads: dict[int, int] = {}
        for tensor in offloaded:
            stages = [reader for reader in problem.readers[tensor] if reader > last]
            stages += [stage for stage, operator in runs if tensor in problem.operators[operator].inputs]
            if stages:
                reads[tensor] = min(stages)
        return Schedule(frozenset(runs), frozenset((stage, tensor) for tensor, stage in reads.items()))


def _power(chain: ForwardChain) -> float:
    """Return the average watts, which convert the reversal tables' joules to the program's seconds."""
    operators = chain.problem.operators
    seconds = sum(operator.time_s for operator in operators)
    joules = sum(operator.energy_j for operator in operators)
    return joules / seconds if seconds > 0 and joules > 0 else 1.0
