"""The simulator's clock for computes and transfers in an order of one's choice, with the frees that follow from it.

A stay that has been touched for the last time is freed at once where no page-out of it is under way; else when its
room is needed, or when the page-out is found to be over. Page-outs that end first give way first: for a given
order no other choice of frees makes the CPU wait less.
"""

from __future__ import annotations

import heapq

from poetopt.plan.instructions import Action, Instruction
from poetopt.plan.stays import START, Moves


class Queueing:
    """One moment of a plan on a device with DMA: `step` advances it by an event, `copy` lets a search branch.

    cpu, channel
        When the CPU, and the transfer channel, have done all that they were given.
    steps
        The instructions so far, where they are written down.
    waits
        Each time that the CPU stood still for a transfer: seconds, the event that waited, the tensor under way.
    """

    __slots__ = ("arrived", "channel", "cpu", "done", "live", "moves", "queued", "ram_bytes", "resident", "settled",
                 "steps", "waiting", "waits")  # fmt: skip

    def __init__(self, moves: Moves, ram_bytes: int, *, written: bool = False) -> None:
        problem = moves.problem
        self.moves = moves
        self.ram_bytes = ram_bytes
        self.cpu = self.channel = 0.0
        self.done = 0
        self.queued: set[int] = set()
        self.arrived = [0.0] * len(problem.tensors)
        self.settled = [0.0] * len(problem.tensors)
        self.resident = [START] * len(problem.tensors)
        self.waiting: list[tuple[float, int]] = []
        self.live = problem.start_bytes
        self.steps: list[Instruction] | None = [] if written else None
        self.waits: list[tuple[float, int, int]] = []
        for index, stay in enumerate(moves.stays):
            if stay.made_by == START:
                self.resident[stay.tensor] = index
        for index, stay in enumerate(moves.stays):
            if stay.made_by == START:
                self._ended(index)

    def copy(self) -> Queueing:
        """The same moment, to go on from differently; nothing is written down from here on."""
        other = Queueing.__new__(Queueing)
        other.moves, other.ram_bytes, other.steps, other.waits = self.moves, self.ram_bytes, None, []
        other.cpu, other.channel, other.done, other.live = self.cpu, self.channel, self.done, self.live
        other.arrived, other.settled = self.arrived.copy(), self.settled.copy()
        other.resident, other.waiting, other.queued = self.resident.copy(), self.waiting.copy(), self.queued.copy()
        return other

    @property
    def makespan_s(self) -> float:
        """When all so far is over."""
        return max(self.cpu, self.channel)

    def step(self, event: int) -> bool:
        """Do one event. False where there is no room for it, whatever is freed; the clock is then of no more use."""
        moves, tensors = self.moves, self.moves.problem.tensors
        while self.waiting and self.waiting[0][0] <= self.cpu:
            self._release(event)
        begins = moves.begins[event]
        for index in begins:
            # The stay before it may still wait for its page-out: the tensor has one buffer at a time.
            if self.resident[moves.stays[index].tensor] != START:
                self._free(self.resident[moves.stays[index].tensor], event)
        need = sum(tensors[moves.stays[index].tensor].nbytes for index in begins)
        transfer = moves.transfer(event)
        workspace = 0 if transfer else moves.problem.operators[moves.computes[event]].workspace_bytes
        while self.live + need + workspace > self.ram_bytes:
            if not self.waiting:
                return False
            self._release(event)
        self.live += need
        for index in begins:
            self.resident[moves.stays[index].tensor] = index
        if transfer:
            self._write(transfer.action, transfer.tensor)
            self.channel = end = max(self.cpu, self.channel) + transfer.seconds
            self.settled[transfer.tensor] = end
            if transfer.action is Action.PAGE_IN:
                self.arrived[transfer.tensor] = end
            self.queued.add(event)
            self._ended(transfer.stay)
        else:
            self._compute(event)
        return True

    def finish(self) -> None:
        """Free what only waits for its page-out, after the last event."""
        while self.waiting:
            self._release(START)

    def _compute(self, event: int) -> None:
        target = self.moves.computes[event]
        operator = self.moves.problem.operators[target]
        start, cause = self.cpu, START
        for i in operator.inputs:
            if self.arrived[i] > start:
                start, cause = self.arrived[i], i
        for i in operator.outputs:
            if self.settled[i] > start:
                start, cause = self.settled[i], i
        if cause != START:
            self.waits.append((start - self.cpu, event, cause))
        self.cpu = start + operator.time_s
        self._write(Action.COMPUTE, target)
        self.done = event + 1
        for index in self.moves.ends[event]:
            self._ended(index)

    def _ended(self, index: int) -> None:
        """Free a stay, or let it wait for its page-out, if nothing more is to come of it."""
        stay = self.moves.stays[index]
        if stay.touched and stay.touched[1] >= self.done:
            return
        if stay.page_out is not None and stay.page_out not in self.queued:
            return
        if self.settled[stay.tensor] <= self.cpu:
            self._free(index, START)
        else:
            heapq.heappush(self.waiting, (self.settled[stay.tensor], index))

    def _release(self, event: int) -> None:
        """Free the stay whose page-out is the first to end."""
        _, index = heapq.heappop(self.waiting)
        if self.resident[self.moves.stays[index].tensor] == index:
            self._free(index, event)

    def _free(self, index: int, event: int) -> None:
        tensor = self.moves.stays[index].tensor
        if self.settled[tensor] > self.cpu:
            self.waits.append((self.settled[tensor] - self.cpu, event, tensor))
            self.cpu = self.settled[tensor]
        self.resident[tensor] = START
        self.live -= self.moves.problem.tensors[tensor].nbytes
        self._write(Action.FREE, tensor)

    def _write(self, action: Action, target: int) -> None:
        if self.steps is not None:
            self.steps.append(Instruction(action, target))
