"""Plans as computes in a fixed order, and transfers that can move between them.

A *stay* is a tensor's time in RAM, from the event that makes it (a compute, a page-in, or the start) to its FREE.
Computes keep their order; every read and every transfer keeps its stay; the queueing time of a transfer is free.
Events are numbered: the k-th compute is event k, and transfers follow.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from poetopt.graph.problem import Problem
from poetopt.plan.effects import Effect, effects
from poetopt.plan.instructions import Action, Instruction
from poetopt.plan.machine import Clock, Machine


class Queueing:
    """State of a plan at one moment on a device with DMA. `step` advances it by an event; `copy` lets a search branch.

    Attributes
    ----------
    machine, clock
        State of its bytes and its seconds.
    done, queued
        Number of completed computes, and the queued transfers.
    held
        Stay of each tensor in RAM, `START` for the others.
    steps
        Instructions so far, if they are recorded.
    waits
        Each wait of the CPU for a transfer: seconds, the event that waited, and the tensor in transfer, or `START` if a
        streaming compute waited for any transfer on the channel.
    """

    __slots__ = ("clock", "done", "held", "machine", "moves", "queued", "ram_bytes", "steps", "waiting", "waits")

    def __init__(self, moves: Moves, ram_bytes: int, *, written: bool = False) -> None:
        self.moves = moves
        self.ram_bytes = ram_bytes
        self.machine, self.clock = Machine(moves.problem), Clock(moves.problem)
        self.done = 0
        self.queued: set[int] = set()
        self.held = [START] * len(moves.problem.tensors)
        self.waiting: list[tuple[float, int]] = []
        self.steps: list[Instruction] | None = [] if written else None
        self.waits: list[tuple[float, int, int]] = []
        initial = [index for index, stay in enumerate(moves.stays) if stay.made_by == START]
        for index in initial:
            self.held[moves.stays[index].tensor] = index
        for index in initial:
            self._end_stay(index)

    def copy(self) -> Queueing:
        """Return a copy of this state, to continue differently; it records no instructions."""
        other = Queueing.__new__(Queueing)
        other.moves, other.ram_bytes, other.steps, other.waits = self.moves, self.ram_bytes, None, []
        other.machine, other.clock, other.done = self.machine.copy(), self.clock.copy(), self.done
        other.held, other.waiting, other.queued = self.held.copy(), self.waiting.copy(), self.queued.copy()
        return other

    @property
    def makespan_s(self) -> float:
        """Second at which all events so far are complete."""
        return self.clock.makespan_s

    def step(self, event: int) -> bool:
        """Execute one event. Return False if it doesn't fit even after all frees; the state is then unusable."""
        moves, machine = self.moves, self.machine
        while self.waiting and self.waiting[0][0] <= self.clock.cpu:
            self._free_earliest(event)
        begins = moves.begins[event]
        for index in begins:
            # The previous stay may still wait for its page-out, but a tensor has one buffer at a time.
            if self.held[moves.stays[index].tensor] != START:
                self._free(self.held[moves.stays[index].tensor], event)
        effect = moves.effects[event]
        for i in effect.streams_out:
            if self.held[i] != START:
                self._free(self.held[i], event)
        need = machine.need(effect) if begins else effect.extra_bytes
        while machine.live + need > self.ram_bytes:
            if not self.waiting:
                return False
            self._free_earliest(event)
        machine.apply(effect)
        cpu = self.clock.cpu
        start = self.clock.advance(effect)
        if self.steps is not None:
            self.steps.append(effect.step)
        for index in begins:
            self.held[moves.stays[index].tensor] = index
        if event >= moves.count:
            self.queued.add(event)
            self._end_stay(moves.transfers[event - moves.count].stay)
            return True
        if start > cpu:
            arrived, settled = self.clock.arrived, self.clock.settled
            awaited = (
                [i for i in effect.reads if arrived[i] == start]
                or [i for i in effect.settles if settled[i] == start]
                or [START]  # a streaming compute waits for the channel
            )
            self.waits.append((start - cpu, event, awaited[0]))
        self.done = event + 1
        for index in moves.ends[event]:
            self._end_stay(index)
        return True

    def finish(self) -> None:
        """Free the tensors that only wait for their page-out, after the last event."""
        while self.waiting:
            self._free_earliest(START)

    def _end_stay(self, index: int) -> None:
        """Free a stay that has no events left, or let it wait for its page-out."""
        stay = self.moves.stays[index]
        if stay.lasts or (stay.touched and stay.touched[1] >= self.done):
            return
        if stay.page_out is not None and stay.page_out not in self.queued:
            return
        settled = self.clock.settled[stay.tensor]
        if settled <= self.clock.cpu:
            self._free(index, START)
        else:
            heapq.heappush(self.waiting, (settled, index))

    def _free_earliest(self, event: int) -> None:
        """Free the stay whose page-out ends first."""
        _, index = heapq.heappop(self.waiting)
        if self.held[self.moves.stays[index].tensor] == index:
            self._free(index, event)

    def _free(self, index: int, event: int) -> None:
        tensor, clock = self.moves.stays[index].tensor, self.clock
        effect = self.moves.frees[tensor]
        self.held[tensor] = START
        self.machine.free(tensor)
        if clock.settled[tensor] > clock.cpu:
            self.waits.append((clock.settled[tensor] - clock.cpu, event, tensor))
            clock.advance(effect)
        if self.steps is not None:
            self.steps.append(effect.step)


START = -1
"""Moment before the first event."""


@dataclass
class Stay:
    """A tensor's time in RAM.

    Attributes
    ----------
    made_by
        Event that begins it, or `START`.
    touched
        First and last compute that reads or writes it, or None if there is none.
    page_out
        Its page-out, or None.
    lasts
        Whether it lasts to the end of the step, because the next step or the caller needs the tensor in RAM.
    """

    tensor: int
    made_by: int
    touched: tuple[int, int] | None = None
    page_out: int | None = None
    lasts: bool = False


@dataclass
class PlannedTransfer:
    """A page-in or page-out, its stay, and the events that it must follow (`after`) and precede (`before`)."""

    action: Action
    tensor: int
    stay: int
    seconds: float
    after: list[int] = field(default_factory=list)
    before: list[int] = field(default_factory=list)


class Moves:
    """Movable events of a plan that `simulate` accepts and `normalize` has cleaned.

    Attributes
    ----------
    computes
        Operator of each compute.
    order
        Events in the order of the plan.
    effects, frees
        Effect of each event, and of a FREE of each tensor.
    begins
        For each event, the stays that it makes.
    ends
        For each compute, the stays that it touches last.
    tail_s
        For each compute, the seconds of all computes from it on.
    """

    def __init__(self, problem: Problem, steps: Sequence[Instruction]) -> None:
        self.problem = problem
        table = effects(problem)
        self.effects = [table.of(step) for step in steps if step.action is Action.COMPUTE]
        self.computes = [effect.operator for effect in self.effects]
        self.count = len(self.computes)
        self.frees = table[Action.FREE]
        self.stays: list[Stay] = []
        self.transfers: list[PlannedTransfer] = []
        self.order: list[int] = []
        self.begins: list[list[int]] = [[] for _ in range(self.count)]
        self._current: dict[int, int] = {}
        self._latest: dict[int, int] = {}
        self._page_outs: dict[int, int] = {}
        self._updated: dict[int, int] = {}
        self._streamed: dict[int, int] = {}
        self._place = -1
        for i in problem.at_start:
            self._begin(i, START)
        for effect in table.each(steps):
            self._add(effect)
        for i in problem.at_end:
            self.stays[self._current[i]].lasts = True
        self.ends: list[list[int]] = [[] for _ in range(self.count)]
        for index, stay in enumerate(self.stays):
            if stay.touched is not None:
                self.ends[stay.touched[1]].append(index)
                if stay.made_by >= self.count:
                    self.transfers[stay.made_by - self.count].before.append(stay.touched[0])
        self.tail_s = [0.0] * (self.count + 1)
        for place in range(self.count - 1, -1, -1):
            self.tail_s[place] = self.tail_s[place + 1] + self.effects[place].seconds

    def transfer(self, event: int) -> PlannedTransfer | None:
        """Return the transfer of an event, or None for a compute."""
        return self.transfers[event - self.count] if event >= self.count else None

    def places(self, order: Sequence[int], event: int) -> range:
        """Return the positions in `order`, without the transfer `event`, where that could be."""
        transfer = self.transfers[event - self.count]
        low, high, position = 0, len(order) - 1, 0
        for other in order:
            if other == event:
                continue
            if other in transfer.after:
                low = position + 1
            elif other in transfer.before:
                high = min(high, position)
            position += 1
        return range(low, high + 1)

    def page_ins(self) -> Iterator[int]:
        """Return the events that are page-ins."""
        return (self.count + k for k, transfer in enumerate(self.transfers) if transfer.action is Action.PAGE_IN)

    def first_use(self, event: int) -> int:
        """Return the compute that a page-in must precede; the number of computes if nothing reads its tensor."""
        touched = self.stays[self.transfers[event - self.count].stay].touched
        return touched[0] if touched else self.count

    def _add(self, effect: Effect) -> None:
        for i in effect.frees:
            del self._current[i]
        if effect.operator >= 0:
            place = self._place = self._place + 1
            self.order.append(place)
            for i in effect.makes:
                if i not in self._current:
                    self._begin(i, place)
            for i in (*effect.reads, *effect.makes):
                stay = self.stays[self._current[i]]
                stay.touched = (stay.touched[0] if stay.touched else place, place)
            for i in effect.streams_in:
                if i in self._page_outs:  # its copy must be complete
                    self.transfers[self._page_outs[i] - self.count].before.append(place)
            for i in effect.streams_out:
                self._streamed[i] = place
            for i in effect.updates:
                self._updated[i] = place
                if i in effect.streams_out:
                    continue
                page_out = self.stays[self._current[i]].page_out
                if page_out is not None:  # it writes the old value
                    self.transfers[page_out - self.count].before.append(place)
        elif not effect.frees:
            event = self.count + len(self.transfers)
            self.order.append(event)
            self.begins.append([])
            self.effects.append(effect)
            for i in effect.stores:
                self._page_out(i, event)
            for i in effect.fetches:
                self._page_in(i, event)

    def _page_out(self, tensor: int, event: int) -> None:
        index = self._current[tensor]
        stay = self.stays[index]
        stay.page_out = self._page_outs[tensor] = event
        after = [] if stay.made_by == START else [stay.made_by]
        if tensor in self._updated:
            after = [self._updated[tensor]]
        seconds = self.problem.tensors[tensor].page_out_s
        self.transfers.append(PlannedTransfer(Action.PAGE_OUT, tensor, index, seconds, after))

    def _page_in(self, tensor: int, event: int) -> None:
        after: list[int] = []
        if tensor in self._page_outs:  # otherwise storage has it from the start
            after.append(self._page_outs[tensor])
            self.transfers[self._page_outs[tensor] - self.count].before.append(event)
        if tensor in self._streamed:
            after.append(self._streamed[tensor])
        if tensor in self._latest:
            touched = self.stays[self._latest[tensor]].touched
            after += touched[1:] if touched else ()
        seconds = self.problem.tensors[tensor].page_in_s
        self.transfers.append(PlannedTransfer(Action.PAGE_IN, tensor, len(self.stays), seconds, after))
        self._begin(tensor, event)

    def _begin(self, tensor: int, event: int) -> None:
        if tensor in self._latest:
            page_out = self.stays[self._latest[tensor]].page_out
            if page_out is not None and event < self.count:
                self.transfers[page_out - self.count].before.append(event)
        index = len(self.stays)
        self.stays.append(Stay(tensor, event))
        self._current[tensor] = self._latest[tensor] = index
        if event != START:
            self.begins[event].append(index)
