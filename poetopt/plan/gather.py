"""Fewer runs of transfers: each wake-up of the storage costs energy, so transfers are moved next to other transfers.

Computes keep their order. A transfer may move anywhere within its stay. A run saves its wake-up only if all of its
transfers find a place next to those of other runs. So whole runs are dissolved, the shortest first. A new plan is
kept if the simulator accepts it within the budget and finds it cheaper, until no run can be dissolved.
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
"""Maximum number of plans to try."""
EFFORT = 200_000
"""Maximum number of events to look at in all: long plans get fewer trials."""


def gather(plan: Plan, ram_bytes: int, *, trials: int = TRIALS) -> Plan:
    """Return `plan` with its transfers in fewer runs, or `plan` itself if that saves nothing.

    A new plan has no offsets.

    Parameters
    ----------
    plan
        Plan that `simulate` accepts with `ram_bytes`.
    ram_bytes
        Budget that the new plan keeps too; it may use more of it than the old one.

    Raises
    ------
    PlanError
        For an invalid plan.
    """
    best = simulate(plan, ram_bytes=ram_bytes)
    if not plan.problem.wake_j:
        return plan
    best_plan = plan
    trials = min(trials, EFFORT // max(len(plan.instructions), 1))
    is_cheaper = True
    while is_cheaper and best.wakes > 1:
        is_cheaper = False
        for events in _Board(best_plan, best, ram_bytes).candidates():
            if trials <= 0:
                return best_plan
            trials -= 1
            steps = tuple(with_frees(plan.problem, events))
            simulation = _passed(plan, steps, ram_bytes)
            if simulation is not None and simulation.overhead_j < best.overhead_j * (1 - 1e-12):
                best, is_cheaper = simulation, True
                best_plan = replace(plan, instructions=steps, offsets=())
                break
    return best_plan


class _Board:
    """Events of a plan without frees, and the places where each transfer could be.

    A place is the index of the event that it precedes.
    """

    def __init__(self, plan: Plan, simulation: Simulation, ram_bytes: int) -> None:
        self.problem = plan.problem
        self.ram_bytes = ram_bytes
        kept = [k for k, step in enumerate(plan.instructions) if step.action is not Action.FREE]
        self.events = [plan.instructions[k] for k in kept]
        self.live = [simulation.live_bytes[k] for k in kept]
        self.runs: list[list[int]] = []
        self.touches: list[list[int]] = [[] for _ in self.problem.tensors]
        run_end_s = 0.0
        for place, (k, step) in enumerate(zip(kept, self.events, strict=True)):
            if step.action is Action.COMPUTE:
                operator = self.problem.operators[step.target]
                for i in (*operator.inputs, *operator.outputs):
                    self.touches[i].append(place)
                if not operator.variant(step.variant).streams:
                    continue
            else:
                self.touches[step.target].append(place)
            if not self.runs or simulation.start_s[k] > run_end_s:
                self.runs.append([])
            self.runs[-1].append(place)
            run_end_s = simulation.end_s[k]

    def candidates(self) -> Iterator[list[Instruction]]:
        """Yield the events with one run dissolved: all places of a lone transfer, some of those of several."""
        for run in sorted(self.runs, key=len):
            if any(self.events[k].action is Action.COMPUTE for k in run):
                continue  # a compute that streams keeps its place
            neighbours = {place for other in self.runs if other is not run for k in other for place in (k, k + 1)}
            choices = [self._places(k, neighbours) for k in run]
            if not all(choices):
                continue
            # Of a run of several transfers, only four combinations of places are tried.
            for places in islice(product(*choices), 4 if len(run) > 1 else None):
                yield self._moved(dict(zip(run, places, strict=True)))

    def _places(self, k: int, nearby: set[int]) -> list[int]:
        """Return the places in `nearby` that transfer `k` may move to, the nearest first."""
        low, high = self._window(k)
        places = sorted((place for place in nearby if low <= place <= high), key=lambda place: (abs(place - k), place))
        if self.events[k].action is Action.PAGE_OUT:
            return places
        spare = self.ram_bytes - self.problem.tensors[self.events[k].target].nbytes
        # A page-in that comes earlier takes its bytes for that much longer.
        return [place for place in places if place > k or max(self.live[place:k], default=0) <= spare]

    def _window(self, k: int) -> tuple[int, int]:
        """Return the first and the last place where transfer `k` still moves the same value."""
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
        """Return whether the event at `place` needs the copy of `tensor` on storage."""
        event = self.events[place]
        if event.action is Action.COMPUTE:
            return tensor in self.problem.operators[event.target].variant(event.variant).streamed_in
        return event.action is Action.PAGE_IN

    def _moved(self, places: dict[int, int]) -> list[Instruction]:
        """Return the events with some transfers moved to the given places."""
        order = sorted(range(len(self.events)), key=lambda k: (places[k], 0, k) if k in places else (k, 1, k))
        return [self.events[k] for k in order]


def _passed(plan: Plan, steps: Sequence[Instruction], ram_bytes: int) -> Simulation | None:
    try:
        return simulate(plan.problem, steps, ram_bytes=ram_bytes)
    except PlanError:
        return None
