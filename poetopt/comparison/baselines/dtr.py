"""Dynamic tensor rematerialization (Kirisame, Lyubomirsky, Haan, Brennan, He, Roesch, Chen, Tatlock, ICLR 2021).

An online greedy method replays the fixed order. To run an operator, it rematerializes missing inputs, and then evicts
resident tensors, the one of least score first, until the outputs and the workspace fit. The score of a tensor t with
computing time c, bytes m and staleness s (time since its last access) is

    (c(t) + sum of c over the evicted neighbourhood of t) / (m(t) s(t))

The evicted neighbourhood contains all tensors that are reached from t through evicted tensors, over its ancestors
(which must run again to restore t) and over its descendants (which need t to be restored). A tensor that the program
will not read again is dropped at once, as when its last reference goes in the framework, and costs nothing as a
descendant. The method has no other knowledge of the future, and doesn't page.

It is defined for general graphs. An operator with several outputs runs again for any of them and writes all; its cost
counts once. Graph inputs, and tensors that can't be recomputed, are never evicted. The method fails if nothing is left
to evict, or if it thrashes: after WORK times as many computes as there are operators. It runs at the budget, and also a
little below, in case the buffers can't be laid out or for less energy.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from poetopt.comparison.baselines.acceptance import DEFAULTS, Settings, cheapest
from poetopt.comparison.baselines.keeping import irreplaceable
from poetopt.graph.problem import Problem
from poetopt.plan.assemble import plan_of
from poetopt.plan.effects import Effect, effects
from poetopt.plan.instructions import Action, Instruction, Plan
from poetopt.plan.machine import Machine
from poetopt.plan.schedule import Schedule
from poetopt.plan.simulate import simulate
from poetopt.util.errors import NoScheduleError

WORK = 12
"""More computes than this times the number of operators count as thrashing."""


class _ReplayError(Exception):
    """Nothing can be evicted, or the replay thrashes; the message says which."""


@dataclass
class _Replay:
    """State of the runtime: `left` counts the program's future reads, `locked` the current users of a tensor."""

    problem: Problem
    room: int
    clock: float = 0.0
    work: int = 0
    steps: list[Instruction] = field(default_factory=list)

    def __post_init__(self) -> None:
        problem = self.problem
        count = len(problem.tensors)
        self.machine = Machine(problem)
        self.computes, self.frees = effects(problem)[Action.COMPUTE], effects(problem)[Action.FREE]
        self.evicted = [False] * count
        self.accessed = [0.0] * count
        self.locked = [0] * count
        self.left = [len(readers) for readers in problem.readers]
        self.fixed = [irreplaceable(problem, i) for i in range(count)]
        self.seconds = [operator.time_s for operator in problem.operators]
        self.tick = sum(self.seconds) * 1e-6 / max(1, len(self.seconds)) or 1.0
        self.stage = 0
        # Last stage in which a rematerialization could still read each tensor.
        self.until = [-1] * count
        for index in range(len(problem.operators) - 1, -1, -1):
            operator = problem.operators[index]
            end = max((self.until[i] for i in operator.outputs), default=-1)
            for i in operator.inputs:
                self.until[i] = max(self.until[i], index, end)

    def run(self) -> Plan:
        for i in self.problem.at_start:
            self._drop_if_done(i)
        for index, operator in enumerate(self.problem.operators):
            self.stage = index
            self._compute(index)
            for i in operator.inputs:
                self.left[i] -= 1
            for i in (*operator.inputs, *operator.outputs):
                self._drop_if_done(i)
        return Plan(self.problem, tuple(self.steps))

    def _compute(self, index: int) -> None:
        self.work += 1
        if self.work > WORK * len(self.problem.operators):
            raise _ReplayError(f"it thrashes: it ran more than {WORK} computes for each operator")
        operator = self.problem.operators[index]
        touched = (*operator.inputs, *operator.outputs)
        for i in touched:
            self.locked[i] += 1
        for i in operator.inputs:
            if i not in self.machine.resident:
                self._rematerialize(i)
        effect = self.computes[index]
        fresh = self.machine.fresh(effect)
        self._make_room(self.machine.need(effect), index)
        self._apply(effect)
        for i in fresh:
            self.evicted[i] = False
        # The tick keeps the order of accesses where operators take no time.
        self.clock += operator.time_s + self.tick
        for i in touched:
            self.accessed[i] = self.clock
            self.locked[i] -= 1

    def _rematerialize(self, tensor: int) -> None:
        producer = self.problem.tensors[tensor].producer
        if not self.problem.may_recompute(tensor):
            # An earlier rematerialization in the same stage released it.
            raise _ReplayError(f"'{self.problem.tensors[tensor].name}' is freed, and can't be computed again")
        self._compute(producer)
        for i in (*self.problem.operators[producer].inputs, *self.problem.operators[producer].outputs):
            self._drop_if_done(i)

    def _drop_if_done(self, i: int) -> None:
        if i not in self.machine.resident or self.left[i] or self.locked[i]:
            return
        if not self.fixed[i] or self.until[i] <= self.stage:
            self._evict(i)

    def _evict(self, i: int) -> None:
        self._apply(self.frees[i])
        self.evicted[i] = True

    def _apply(self, effect: Effect) -> None:
        self.machine.apply(effect)
        self.steps.append(effect.step)

    def _make_room(self, nbytes: int, index: int) -> None:
        while (needed := self.machine.live - self.problem.reserve_bytes + nbytes) > self.room:
            evictable = [
                i
                for i in self.machine.resident
                if not self.locked[i] and not self.fixed[i] and self.problem.tensors[i].nbytes
            ]
            if not evictable:
                name = self.problem.operators[index].name
                raise _ReplayError(f"nothing is left to evict at operator '{name}', which needs {needed:,} bytes")
            self._evict(min(zip(self._scores(evictable), evictable, strict=True))[1])

    def _scores(self, evictable: list[int]) -> list[float]:
        ancestors, descendants, tensors = self._evicted_ancestors(), self._evicted_descendants(), self.problem.tensors
        staleness = [self.clock - self.accessed[i] + self.tick for i in evictable]
        costs = [self._total_seconds(ancestors[i] | descendants[i] | 1 << tensors[i].producer) for i in evictable]
        return [c / (tensors[i].nbytes * s) for i, c, s in zip(evictable, costs, staleness, strict=True)]

    def _evicted_ancestors(self) -> list[int]:
        """Return, for each tensor, the operators (as bits) that must run again to restore it, without its own."""
        masks = [0] * len(self.problem.tensors)
        for operator in self.problem.operators:
            mask = 0
            for u in operator.inputs:
                if self.evicted[u] and not self.fixed[u]:
                    mask |= masks[u] | 1 << self.problem.tensors[u].producer
            for i in operator.outputs:
                masks[i] = mask
        return masks

    def _evicted_descendants(self) -> list[int]:
        """Return, for each tensor, the operators (as bits) of evicted tensors that need it and will be read."""
        masks = [0] * len(self.problem.tensors)
        for index in range(len(self.problem.operators) - 1, -1, -1):
            operator = self.problem.operators[index]
            mask = 0
            for i in operator.outputs:
                if self.evicted[i]:
                    mask |= masks[i] | (1 << index if self.left[i] else 0)
            if mask:
                for u in operator.inputs:
                    masks[u] |= mask
        return masks

    def _total_seconds(self, operators: int) -> float:
        """Return the seconds of a set of operators, given as bits."""
        total = 0.0
        while operators:
            low = operators & -operators
            total += self.seconds[low.bit_length() - 1]
            operators ^= low
        return total


def schedule(problem: Problem, ram_bytes: int, settings: Settings = DEFAULTS) -> Plan:
    """Return the cheapest replay. Raises NoScheduleError."""
    # If everything fits, nothing is evicted.
    plans: list[Schedule | Plan] = [Schedule()]
    reason = ""
    room = ram_bytes - problem.reserve_bytes
    if problem.start_bytes > ram_bytes:
        raise NoScheduleError("the graph inputs alone exceed the budget, and the method doesn't evict inputs")
    # shares of the budget that the replay aims at
    for share in (1.0, 0.985, 0.96, 0.92):
        try:
            plans.append(_Replay(problem, int(room * share)).run())
        except _ReplayError as error:
            reason = reason or str(error)
        except RecursionError:
            reason = reason or "rematerializations nest too deeply"
    if len(plans) == 1 and simulate(plan_of(problem, Schedule())).peak_bytes > ram_bytes:
        raise NoScheduleError(reason)
    return cheapest(problem, ram_bytes, plans, settings)
