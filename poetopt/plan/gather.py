"""Fewer runs of transfers: where waking the storage costs energy, page-outs wait for company and page-ins seek it.

Computes keep their order. A transfer may stand anywhere within its stay. A run saves its waking only where all of its
transfers find a place beside those of other runs, so that runs are dissolved whole, the shortest first; what the
simulator passes within the budget and finds cheaper is taken, until there is none.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice, product

from poetopt.plan.assemble import with_frees
from poetopt.plan.instructions import Action, Instruction, Plan
from poetopt.plan.simulate import Simulation, simulate
from poetopt.util.errors import PlanError

TRIALS = 4000
"""Plans tried, at most."""
EFFORT = 200_000
"""Events looked at in all, at most: long plans get fewer trials."""


def gather(plan: Plan, ram_bytes: int, *, trials: int = TRIALS) -> Plan:
    """`plan` with its transfers in fewer runs, or itself where that saves nothing.

    plan
        One that `simulate` passes with `ram_bytes`.
    ram_bytes
        The budget that the new plan keeps as well; it may use more of it than the old one.

    Raises PlanError for a plan that is not valid. A new plan has no offsets.
    """
    best = simulate(plan, ram_bytes=ram_bytes)
    if not plan.problem.wake_j:
        return plan
    found = plan
    trials = min(trials, EFFORT // max(len(plan.instructions), 1))
    gained = True
    while gained and best.wakes > 1:
        gained = False
        for tried in _Board(found, best, ram_bytes).candidates():
            if trials <= 0:
                return found
            trials -= 1
            steps = tuple(with_frees(plan.problem, tried))
            simulation = _passed(plan, steps, ram_bytes)
            if simulation is not None and simulation.overhead_j < best.overhead_j * (1 - 1e-12):
                best, gained = simulation, True
                found = replace(plan, instructions=steps, offsets=())
                break
    return found


class _Board:
    """The events of a plan without frees, and where each transfer could stand among them.

    A place is the index of the event that it is before.
    """

    def __init__(self, plan: Plan, simulation: Simulation, ram_bytes: int) -> None:
        self.problem = plan.problem
        self.ram_bytes = ram_bytes
        kept = [k for k, step in enumerate(plan.instructions) if step.action is not Action.FREE]
        self.events = [plan.instructions[k] for k in kept]
        self.live = [simulation.live_bytes[k] for k in kept]
        self.runs: list[list[int]] = []
        self.touches: list[list[int]] = [[] for _ in self.problem.tensors]
        until = 0.0
        for place, (k, step) in enumerate(zip(kept, self.events, strict=True)):
            if step.action is Action.COMPUTE:
                operator = self.problem.operators[step.target]
                for i in (*operator.inputs, *operator.outputs):
                    self.touches[i].append(place)
                if not operator.variant(step.variant).streams:
                    continue
            else:
                self.touches[step.target].append(place)
            if not self.runs or simulation.start_s[k] > until:
                self.runs.append([])
            self.runs[-1].append(place)
            until = simulation.end_s[k]

    def candidates(self) -> Iterator[list[Instruction]]:
        """The events with one run dissolved: a lone transfer in every way, the members of others in some."""
        for run in sorted(self.runs, key=len):
            if any(self.events[k].action is Action.COMPUTE for k in run):
                continue  # it streams, and stays where it is
            company = {place for other in self.runs if other is not run for k in other for place in (k, k + 1)}
            ways = [self._places(k, company) for k in run]
            if not all(ways):
                continue
            # ways to dissolve a run of several transfers that are tried
            for places in islice(product(*ways), 4 if len(run) > 1 else None):
                yield self._moved(dict(zip(run, places, strict=True)))

    def _places(self, k: int, company: set[int]) -> list[int]:
        """The places in company that transfer `k` may stand at, the nearest first."""
        low, high = self._window(k)
        places = sorted((place for place in company if low <= place <= high), key=lambda place: (abs(place - k), place))
        if self.events[k].action is Action.PAGE_OUT:
            return places
        spare = self.ram_bytes - self.problem.tensors[self.events[k].target].nbytes
        # A page-in that comes earlier takes its bytes for that much longer.
        return [place for place in places if place > k or max(self.live[place:k], default=0) <= spare]

    def _window(self, k: int) -> tuple[int, int]:
        """The first and the last place where transfer `k` still moves what it does."""
        touches = self.touches[self.events[k].target]
        at = bisect_left(touches, k)
        if self.events[k].action is Action.PAGE_IN:
            return (touches[at - 1] + 1 if at else 0), touches[at + 1] if at + 1 < len(touches) else len(self.events)
        tensor = self.problem.tensors[self.events[k].target]
        updated = [
            place
            for place in touches[:at]
            if self.events[place].action is Action.COMPUTE and self.events[place].target == tensor.updated_by
        ]
        first = updated[-1] + 1 if updated else touches[0] + 1 if tensor.computed else 0
        later = (place for place in touches[at + 1 :] if self._reads_back(place, self.events[k].target))
        return first, next(later, len(self.events))

    def _reads_back(self, place: int, tensor: int) -> bool:
        """Tell whether the event there needs the copy of `tensor` on storage."""
        event = self.events[place]
        if event.action is Action.COMPUTE:
            return tensor in self.problem.operators[event.target].variant(event.variant).streamed_in
        return event.action is Action.PAGE_IN

    def _moved(self, places: dict[int, int]) -> list[Instruction]:
        """The events with some transfers at other places."""
        order = sorted(range(len(self.events)), key=lambda k: (places[k], 0, k) if k in places else (k, 1, k))
        return [self.events[k] for k in order]


def _passed(plan: Plan, steps: Sequence[Instruction], ram_bytes: int) -> Simulation | None:
    try:
        return simulate(plan.problem, steps, ram_bytes=ram_bytes)
    except PlanError:
        return None
