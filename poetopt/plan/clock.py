"""The time that a plan takes: one CPU, and one transfer channel beside it on a device with DMA.

Without DMA every instruction follows the one before. With DMA the CPU walks the list, and the channel works first in,
first out: a transfer is queued when the CPU reaches it, which takes no CPU time. Everything else waits for the
page-ins of what it reads, and for all transfers of what it overwrites or frees. A compute that streams takes both, CPU
and channel, for as long as it runs.

Waking. Transfers that follow each other without a pause are one run: the storage is powered on before it and off after
it, which takes `Problem.wake_j` joules each time. Any compute that takes time ends a run, unless a transfer goes on
beside it, or it streams: then it is one of the run.
"""

from __future__ import annotations

from poetopt.graph.problem import Problem
from poetopt.plan.effects import Effect


class Clock:
    """One moment of a plan that the machine passes.

    cpu, channel
        When the CPU has done all that it was given, and when the last transfer ends.
    arrived, settled
        With DMA: when the last queued page-in, and the last queued transfer, of each tensor ends.
    wakes
        How often the storage was powered on.
    """

    __slots__ = ("arrived", "channel", "cpu", "dma", "settled", "wakes")

    def __init__(self, problem: Problem) -> None:
        self.dma = problem.dma
        self.cpu = self.channel = 0.0
        self.arrived = [0.0] * len(problem.tensors)
        self.settled = [0.0] * len(problem.tensors)
        self.wakes = 0

    def copy(self) -> Clock:
        """The same moment, to go on from differently."""
        other = Clock.__new__(Clock)
        other.dma, other.cpu, other.channel, other.wakes = self.dma, self.cpu, self.channel, self.wakes
        other.arrived, other.settled = self.arrived.copy(), self.settled.copy()
        return other

    @property
    def makespan_s(self) -> float:
        """The moment at which all so far is over."""
        return max(self.cpu, self.channel)

    def advance(self, effect: Effect) -> float:
        """Run an instruction: the second at which it starts; it takes `effect.seconds` from there."""
        start = self.cpu
        if effect.fetches or effect.stores:
            if start > self.channel or not self.wakes:
                self.wakes += 1
            else:
                start = self.channel
            self.channel = end = start + effect.seconds
            if not self.dma:
                self.cpu = end
                return start
            for i in effect.fetches:
                self.arrived[i] = self.settled[i] = end
            for i in effect.stores:
                self.settled[i] = end
            return start
        if self.channel > start:  # something may be under way
            for i in effect.reads:
                if self.arrived[i] > start:
                    start = self.arrived[i]
            for i in effect.settles:
                if self.settled[i] > start:
                    start = self.settled[i]
        if effect.streams:
            if start > self.channel or not self.wakes:
                self.wakes += 1
            else:
                start = self.channel
            self.channel = start + effect.seconds
        self.cpu = start + effect.seconds
        return start
