"""Cleanup of a list of instructions: those without effect are removed, and buffers are released earlier.

One backward walk removes page-ins that nothing reads, page-outs that nothing reads back (and all but the first of a
tensor), and recomputes whose outputs are unread or already in RAM. Instructions that only these needed are removed as
well. A FREE moves to right after the last use. On a device with DMA, a FREE that waits for a page-out keeps its place,
because it would wait longer earlier.

No step raises the peak, the energy or the makespan: each tensor is resident during part of its earlier time, each
remaining compute and transfer reads the same content in the same order, and with fewer of them nothing starts later.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from poetopt.graph.problem import Problem
from poetopt.plan.effects import effects
from poetopt.plan.instructions import Action, Instruction, Plan

NEVER = -2
"""No instruction; -1 is the moment before the first one."""


def normalize(plan: Plan) -> Plan:
    """Return the plan without instructions that have no effect; it has no offsets unless nothing changed.

    The plan must be one that `simulate` accepts. `normalize(normalize(plan))` equals `normalize(plan)`.
    """
    steps = plan.instructions
    while True:
        cleaned = _Walk(plan.problem, steps).cleaned()
        if cleaned == steps:
            return plan if steps == plan.instructions else replace(plan, instructions=steps, offsets=())
        steps = cleaned


class _Walk:
    """One backward walk. A *stay* is a tensor's time in RAM, from its first instruction to its last use or FREE."""

    def __init__(self, problem: Problem, steps: Sequence[Instruction]) -> None:
        self.problem = problem
        self.effects = [*effects(problem).each(steps)]
        tensors = len(problem.tensors)
        # For each tensor, of its current stay: the last use, the FREE, whether a page-out belongs to it.
        self.last_use = [NEVER] * tensors
        self.freed = [NEVER] * tensors
        self.written_out = [False] * tensors
        # Frees after each instruction; after the end (none); and, last, before the first.
        self.frees: list[list[int]] = [[] for _ in range(len(steps) + 2)]
        for i in problem.at_end:
            self.last_use[i] = len(steps)

    def cleaned(self) -> tuple[Instruction, ...]:
        """Return the remaining instructions, with frees where they belong."""
        problem = self.problem
        first, held, stored = self._forward()
        # A page-out is needed by the next page-in, or by the next step.
        read_back = {i for i in problem.stored_at_start if problem.tensors[i].carried}
        kept = [False] * len(self.effects)
        for index in range(len(self.effects) - 1, -1, -1):
            effect = self.effects[index]
            if effect.frees:
                for i in effect.frees:
                    self.freed[i] = index
            elif effect.stores:
                kept[index] = index in first and not read_back.isdisjoint(effect.stores)
                if kept[index]:
                    for i in effect.stores:
                        self._use(i, index)
                        self.written_out[i] = True
            else:
                read_back.difference_update(effect.updates)
                kept[index] = (
                    index in first
                    or any(self.last_use[i] != NEVER and i not in held[index] for i in effect.makes)
                    or not read_back.isdisjoint(stored[index])
                )
                for i in effect.makes:
                    if kept[index] or i not in held[index]:
                        self._begin(i, index, kept[index])
                if kept[index]:
                    read_back.update(effect.fetches, effect.streams_in)
                    for i in effect.reads:
                        self._use(i, index)
        for i in problem.at_start:
            self._begin(i, -1, True)
        free = effects(problem)[Action.FREE]
        result = [free[i].step for i in sorted(self.frees[-1])]
        for index, effect in enumerate(self.effects):
            if kept[index]:
                result.append(effect.step)
            result += [free[i].step for i in sorted(self.frees[index])]
        return tuple(result)

    def _forward(self) -> tuple[set[int], list[set[int]], dict[int, set[int]]]:
        """Return first runs and first page-outs, and the tensors that each instruction overwrites in place.

        The third result has the tensors that each streaming compute puts on storage for the first time.
        """
        ran: set[int] = set()
        stored = set(self.problem.stored_at_start)
        resident = set(self.problem.at_start)
        first: set[int] = set()
        held: list[set[int]] = []
        streamed: defaultdict[int, set[int]] = defaultdict(set)
        for index, effect in enumerate(self.effects):
            if (effect.operator >= 0 and effect.operator not in ran) or not stored.issuperset(effect.stores):
                first.add(index)
            ran.add(effect.operator)
            stored.difference_update(effect.updates)
            if effect.streams:
                streamed[index] = {*effect.streams_out} - stored
                stored.update(effect.streams_out)
            stored.update(effect.stores)
            held.append(resident.intersection(effect.makes))
            resident.update(effect.makes)
            resident.difference_update(effect.frees)
        return first, held, streamed

    def _use(self, tensor: int, index: int) -> None:
        if self.last_use[tensor] == NEVER:
            self.last_use[tensor] = index

    def _begin(self, tensor: int, index: int, begins: bool) -> None:
        """Handle the instruction that makes a tensor: place the FREE of the stay that begins here, if one does."""
        if begins:
            last = self.last_use[tensor] if self.last_use[tensor] != NEVER else index
            if self.problem.dma and self.written_out[tensor]:
                last = self.freed[tensor]
            if last != NEVER:
                self.frees[last].append(tensor)
        self.last_use[tensor] = self.freed[tensor] = NEVER
        self.written_out[tensor] = False
