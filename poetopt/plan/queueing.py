"""Machine and clock for computes and transfers in an order of one's choice, with the frees that follow from it.

A stay that has been touched for the last time is freed at once where no page-out of it is under way; else when its
room is needed, or when the page-out is found to be over. Page-outs that end first give way first: for a given
order no other choice of frees makes the CPU wait less.
"""

from __future__ import annotations

import heapq

from poetopt.plan.clock import Clock
from poetopt.plan.instructions import Instruction
from poetopt.plan.machine import Machine
from poetopt.plan.stays import START, Moves


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
        """When all so far is over."""
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
