"""Dynamic tensor rematerialization (Kirisame, Lyubomirsky, Haan, Brennan, He, Roesch, Chen, Tatlock, ICLR 2021).

An online greedy: the fixed order is replayed. To run an operator, its missing inputs are rematerialized, then
resident tensors are evicted, the one of least score first, until the outputs and the workspace fit. The score of a
tensor t with computing time c, bytes m and staleness s (time since its last access):

    (c(t) + sum of c over the evicted neighbourhood of t) / (m(t) s(t))

The evicted neighbourhood is what is reached from t through evicted tensors, over its ancestors (which
must run again to have t back) and over its descendants (which need t to be had back). A tensor that the program
will not read again is dropped at once, as when its last reference goes in the framework, and costs nothing
as a descendant. It knows nothing of the future otherwise, and doesn't page.

It is defined for general graphs. An operator with several outputs runs again for any of them and gives all; its cost
counts once. Graph inputs, and what can't be recomputed, are never evicted. It fails where nothing is left to evict,
and where it thrashes: after WORK times as many computes as there are operators. It is run at the budget, and where
its buffers can't be laid out, or in the hope of less energy, a little below it as well.
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
"""More computes than this times the number of operators are thrashing."""


class _NothingToEvictError(Exception):
    """Nothing can be evicted, or it thrashes; the text says which."""


@dataclass
class _Replay:
    """The runtime's state. `left` counts the program's reads to come, `locked` who needs a tensor right now."""

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
        # The last stage in which a rematerialization could still read each tensor.
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
            raise _NothingToEvictError(f"it thrashes: {WORK} times as many computes as there are operators, and no end")
        operator = self.problem.operators[index]
        touched = (*operator.inputs, *operator.outputs)
        for i in touched:
            self.locked[i] += 1
        for i in operator.inputs:
            if i not in self.machine.resident:
                self._again(i)
        effect = self.computes[index]
        fresh = self.machine.fresh(effect)
        self._make_room(self.machine.need(effect), index)
        self._do(effect)
        for i in fresh:
            self.evicted[i] = False
        # The tick keeps the order of accesses where operators take no time.
        self.clock += operator.time_s + self.tick
        for i in touched:
            self.accessed[i] = self.clock
            self.locked[i] -= 1

    def _again(self, tensor: int) -> None:
        producer = self.problem.tensors[tensor].producer
        if not self.problem.may_recompute(tensor):
            # A rematerialization before it in the same stage was the last to need it.
            raise _NothingToEvictError(f"'{self.problem.tensors[tensor].name}' is gone, and can't be computed again")
        self._compute(producer)
        for i in (*self.problem.operators[producer].inputs, *self.problem.operators[producer].outputs):
            self._drop_if_done(i)

    def _drop_if_done(self, i: int) -> None:
        if i not in self.machine.resident or self.left[i] or self.locked[i]:
            return
        if not self.fixed[i] or self.until[i] <= self.stage:
            self._evict(i)

    def _evict(self, i: int) -> None:
        self._do(self.frees[i])
        self.evicted[i] = True

    def _do(self, effect: Effect) -> None:
        self.machine.apply(effect)
        self.steps.append(effect.step)

    def _make_room(self, nbytes: int, index: int) -> None:
        while (needed := self.machine.live - self.problem.reserve_bytes + nbytes) > self.room:
            able = [
                i
                for i in self.machine.resident
                if not self.locked[i] and not self.fixed[i] and self.problem.tensors[i].nbytes
            ]
            if not able:
                name = self.problem.operators[index].name
                raise _NothingToEvictError(
                    f"at operator '{name}' nothing is left to evict: {needed:,} bytes are needed there"
                )
            self._evict(min(zip(self._scores(able), able, strict=True))[1])

    def _scores(self, able: list[int]) -> list[float]:
        above, below, tensors = self._above(), self._below(), self.problem.tensors
        stale = [self.clock - self.accessed[i] + self.tick for i in able]
        costs = [self._cost(above[i] | below[i] | 1 << tensors[i].producer) for i in able]
        return [c / (tensors[i].nbytes * s) for i, c, s in zip(able, costs, stale, strict=True)]

    def _above(self) -> list[int]:
        """For each tensor, the operators (as bits) that must run again to have it, itself not counted."""
        masks = [0] * len(self.problem.tensors)
        for operator in self.problem.operators:
            mask = 0
            for u in operator.inputs:
                if self.evicted[u] and not self.fixed[u]:
                    mask |= masks[u] | 1 << self.problem.tensors[u].producer
            for i in operator.outputs:
                masks[i] = mask
        return masks

    def _below(self) -> list[int]:
        """For each tensor, the operators (as bits) of evicted tensors that need it back and will be read."""
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

    def _cost(self, operators: int) -> float:
        """Seconds of a set of operators, given as bits."""
        total = 0.0
        while operators:
            low = operators & -operators
            total += self.seconds[low.bit_length() - 1]
            operators ^= low
        return total


def schedule(problem: Problem, ram_bytes: int, settings: Settings = DEFAULTS) -> Plan:
    """The cheapest replay. Raises NoScheduleError."""
    # Where everything fits nothing is evicted, not even what `fixed` is careful about.
    plans: list[Schedule | Plan] = [Schedule()]
    why = ""
    room = ram_bytes - problem.reserve_bytes
    if problem.start_bytes > ram_bytes:
        raise NoScheduleError("the graph inputs alone exceed the budget, and it evicts no inputs")
    # of the budget, that the replay aims at
    for share in (1.0, 0.985, 0.96, 0.92):
        try:
            plans.append(_Replay(problem, int(room * share)).run())
        except _NothingToEvictError as error:
            why = why or str(error)
        except RecursionError:
            why = why or "rematerializations nest too deeply"
    if len(plans) == 1 and simulate(plan_of(problem, Schedule())).peak_bytes > ram_bytes:
        raise NoScheduleError(why)
    return cheapest(problem, ram_bytes, plans, settings)
