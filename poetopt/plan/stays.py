"""A plan seen as computes in a fixed order, and transfers that can move between them.

A *stay* is a tensor's time in RAM, from what makes it (a compute, a page-in, or the start) to its FREE. Computes keep
their order, every read its stay and every transfer too; when a transfer is queued is open. Events are numbered: the
k-th compute is event k, and transfers follow.
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
    """One moment of a plan on a device with DMA: `step` advances it by an event, `copy` lets a search branch.

    machine, clock
        Its bytes and its seconds.
    done, queued
        How many computes are behind it, and the transfers that are.
    held
        The stay of each tensor in RAM, `START` of the others.
    steps
        The instructions so far, where they are written down.
    waits
        Each time that the CPU stood still for a transfer: seconds, the event that waited, the tensor under way, or
        `START` where a compute that streams waited for whatever was on the channel.
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
        begun = [index for index, stay in enumerate(moves.stays) if stay.made_by == START]
        for index in begun:
            self.held[moves.stays[index].tensor] = index
        for index in begun:
            self._ended(index)

    def copy(self) -> Queueing:
        """The same moment, to go on from differently; nothing is written down from here on."""
        other = Queueing.__new__(Queueing)
        other.moves, other.ram_bytes, other.steps, other.waits = self.moves, self.ram_bytes, None, []
        other.machine, other.clock, other.done = self.machine.copy(), self.clock.copy(), self.done
        other.held, other.waiting, other.queued = self.held.copy(), self.waiting.copy(), self.queued.copy()
        return other

    @property
    def makespan_s(self) -> float:
        """The moment at which all so far is over."""
        return self.clock.makespan_s

    def step(self, event: int) -> bool:
        """Do one event. False where there is no room for it, whatever is freed; it is then of no more use."""
        moves, machine = self.moves, self.machine
        while self.waiting and self.waiting[0][0] <= self.clock.cpu:
            self._release(event)
        begins = moves.begins[event]
        for index in begins:
            # The stay before it may still wait for its page-out: the tensor has one buffer at a time.
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
            self._release(event)
        machine.apply(effect)
        cpu = self.clock.cpu
        start = self.clock.advance(effect)
        if self.steps is not None:
            self.steps.append(effect.step)
        for index in begins:
            self.held[moves.stays[index].tensor] = index
        if event >= moves.count:
            self.queued.add(event)
            self._ended(moves.transfers[event - moves.count].stay)
            return True
        if start > cpu:
            arrived, settled = self.clock.arrived, self.clock.settled
            late = (
                [i for i in effect.reads if arrived[i] == start]
                or [i for i in effect.settles if settled[i] == start]
                or [START]  # one that streams, and waits for the channel
            )
            self.waits.append((start - cpu, event, late[0]))
        self.done = event + 1
        for index in moves.ends[event]:
            self._ended(index)
        return True

    def finish(self) -> None:
        """Free what only waits for its page-out, after the last event."""
        while self.waiting:
            self._release(START)

    def _ended(self, index: int) -> None:
        """Free a stay, or let it wait for its page-out, if nothing more is to come of it."""
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

    def _release(self, event: int) -> None:
        """Free the stay whose page-out is the first to end."""
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
"""The moment before the first event."""


@dataclass
class Stay:
    """A tensor's time in RAM.

    made_by
        The event that begins it, or `START`.
    touched
        First and last compute that reads or writes it, or None where none does.
    page_out
        The page-out that belongs to it, or None.
    lasts
        Whether it lasts to the end of the step: the next step, or somebody else, finds the tensor in RAM then.
    """

    tensor: int
    made_by: int
    touched: tuple[int, int] | None = None
    page_out: int | None = None
    lasts: bool = False


@dataclass
class PlannedTransfer:
    """A page-in or page-out, the stay that it is of, and the events that it must follow and precede."""

    action: Action
    tensor: int
    stay: int
    seconds: float
    after: list[int] = field(default_factory=list)
    before: list[int] = field(default_factory=list)


class Moves:
    """The movable events of a plan that `simulate` passes and `normalize` has cleaned.

    computes
        The operator of each compute.
    order
        The events as they stand in the plan.
    effects, frees
        What each event does, and what a FREE of each tensor does.
    begins
        For each event the stays that it makes.
    ends
        For each compute the stays that it is the last to touch.
    tail_s
        Seconds of all computes from each one on.
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
            self._read(effect)
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
        """The transfer that an event is, or None for a compute."""
        return self.transfers[event - self.count] if event >= self.count else None

    def places(self, order: Sequence[int], event: int) -> range:
        """Places where the transfer `event` could stand in `order` once it is taken out of it."""
        transfer = self.transfers[event - self.count]
        low, high, place = 0, len(order) - 1, 0
        for other in order:
            if other == event:
                continue
            if other in transfer.after:
                low = place + 1
            elif other in transfer.before:
                high = min(high, place)
            place += 1
        return range(low, high + 1)

    def page_ins(self) -> Iterator[int]:
        """The events that are page-ins."""
        return (self.count + k for k, transfer in enumerate(self.transfers) if transfer.action is Action.PAGE_IN)

    def first_use(self, event: int) -> int:
        """The compute that a page-in must precede; the end where none reads what it brings."""
        touched = self.stays[self.transfers[event - self.count].stay].touched
        return touched[0] if touched else self.count

    def _read(self, effect: Effect) -> None:
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
                if i in self._page_outs:  # its copy has to be whole
                    self.transfers[self._page_outs[i] - self.count].before.append(place)
            for i in effect.streams_out:
                self._streamed[i] = place
            for i in effect.updates:
                self._updated[i] = place
                if i in effect.streams_out:
                    continue
                page_out = self.stays[self._current[i]].page_out
                if page_out is not None:  # of what it was before
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
        if tensor in self._page_outs:  # else it lies on storage from the start
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
