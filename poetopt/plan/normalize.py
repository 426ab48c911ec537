"""Cleaning a list of instructions: what has no effect goes, and buffers are released as early as that is free.

One backward walk removes page-ins that nothing reads, page-outs that nothing reads back (and all but the
first of the same tensor), and recomputes whose outputs are all unread or in RAM anyway; what they alone needed
goes with them. A FREE moves to right after the last use. On a device with DMA one that waits for a page-out
stays where it is, since it would wait longer earlier.

None of it can raise the peak, the energy or the makespan: each tensor is resident during part of the time that
it was, each compute and transfer that stays reads the same content in the same order, and with fewer of them nothing
starts later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from poetopt.plan.instructions import Action, Instruction, Plan
from poetopt.problem import Problem

NEVER = -2
"""No instruction; -1 is the moment before the first one."""


def normalize(plan: Plan) -> Plan:
    """The same plan without what has no effect; it has no offsets unless nothing changed.

    The plan must be one that `simulate` passes. `normalize(normalize(plan))` is `normalize(plan)`.
    """
    steps = plan.instructions
    while True:
        cleaned = _Walk(plan.problem, steps).cleaned()
        if cleaned == steps:
            return plan if steps == plan.instructions else replace(plan, instructions=steps, offsets=())
        steps = cleaned


class _Walk:
    """One backward walk. A *stay* is a tensor's time in RAM, from what makes it to its last use or FREE."""

    def __init__(self, problem: Problem, steps: Sequence[Instruction]) -> None:
        self.problem = problem
        self.steps = steps
        tensors = len(problem.tensors)
        # Of the stay that the walk is in, for each tensor: its last use, its FREE, whether a page-out belongs to it.
        self.last_use = [NEVER] * tensors
        self.freed = [NEVER] * tensors
        self.written_out = [False] * tensors
        self.frees: list[list[int]] = [[] for _ in range(len(steps) + 1)]

    def cleaned(self) -> tuple[Instruction, ...]:
        """The instructions that stay, with frees where they belong."""
        problem, steps = self.problem, self.steps
        first_runs, first_outs, held = self._forward()
        read_back = [False] * len(problem.tensors)
        kept: list[bool] = [False] * len(steps)
        for index in range(len(steps) - 1, -1, -1):
            action, target = steps[index].action, steps[index].target
            if action is Action.FREE:
                self.freed[target] = index
            elif action is Action.COMPUTE:
                operator = problem.operators[target]
                kept[index] = first_runs[target] == index or any(
                    self.last_use[i] != NEVER and i not in held[index] for i in operator.outputs
                )
                for i in operator.outputs:
                    if kept[index] or i not in held[index]:
                        self._begin(i, index, kept[index])
                if kept[index]:
                    for i in operator.inputs:
                        self._use(i, index)
            elif action is Action.PAGE_IN:
                kept[index] = self.last_use[target] != NEVER
                read_back[target] |= kept[index]
                self._begin(target, index, kept[index])
            elif read_back[target] and first_outs[target] == index:
                kept[index] = True
                self._use(target, index)
                self.written_out[target] = True
        for i in problem.at_start:
            self._begin(i, -1, True)
        result = [Instruction(Action.FREE, i) for i in sorted(self.frees[-1])]
        for index, step in enumerate(steps):
            if kept[index]:
                result.append(step)
            result += [Instruction(Action.FREE, i) for i in sorted(self.frees[index])]
        return tuple(result)

    def _forward(self) -> tuple[list[int], list[int], list[frozenset[int]]]:
        """First run of each operator, first page-out of each tensor, and which outputs each compute overwrites."""
        problem = self.problem
        first_runs = [NEVER] * len(problem.operators)
        first_outs = [NEVER] * len(problem.tensors)
        resident = set(problem.at_start)
        held: list[frozenset[int]] = []
        for index, step in enumerate(self.steps):
            overwritten: frozenset[int] = frozenset()
            if step.action is Action.COMPUTE:
                outputs = problem.operators[step.target].outputs
                overwritten = frozenset(resident.intersection(outputs))
                resident.update(outputs)
                if first_runs[step.target] == NEVER:
                    first_runs[step.target] = index
            elif step.action is Action.PAGE_IN:
                resident.add(step.target)
            elif step.action is Action.FREE:
                resident.discard(step.target)
            elif first_outs[step.target] == NEVER:
                first_outs[step.target] = index
            held.append(overwritten)
        return first_runs, first_outs, held

    def _use(self, tensor: int, index: int) -> None:
        if self.last_use[tensor] == NEVER:
            self.last_use[tensor] = index

    def _begin(self, tensor: int, index: int, made: bool) -> None:
        """The walk has reached what makes a tensor: place the FREE of the stay that begins here, if it does begin."""
        if made:
            last = self.last_use[tensor] if self.last_use[tensor] != NEVER else index
            if self.problem.dma and self.written_out[tensor]:
                last = self.freed[tensor]
            if last != NEVER:
                self.frees[last].append(tensor)
        self.last_use[tensor] = self.freed[tensor] = NEVER
        self.written_out[tensor] = False
