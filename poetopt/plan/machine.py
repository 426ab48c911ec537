"""The machine that a plan runs on: what an instruction does to RAM and storage, and where it must not run.

The simulator, the replays and the reports walk it, instruction by instruction; what each one reads, makes, stores and
frees is in `poetopt.plan.effects`.

Bytes. A buffer counts from the instruction that makes it to the FREE that releases it, both included; a workspace
counts during its COMPUTE. What a COMPUTE takes over is its output's from then on, and no longer in RAM: a FREE of it
that follows releases nothing. A tensor takes its whole blocks of the storage from its first PAGE_OUT, from the first
COMPUTE that streams it out, or from the start where that is its home, to the end of the step; one written again takes
the same place.

Time. There is one CPU, and one transfer channel beside it on a device with DMA.
Without DMA every instruction follows the one before. With DMA the CPU walks the list, and the channel works first in,
first out: a transfer is queued when the CPU reaches it, which takes no CPU time. Everything else waits for the
page-ins of what it reads, and for all transfers of what it overwrites or frees. A compute that streams takes both, CPU
and channel, for as long as it runs.

Waking. Transfers that follow each other without a pause are one run: the storage is powered on before it and off after
it, which takes `Problem.wake_j` joules each time. Any compute that takes time ends a run, unless a transfer goes on
beside it, or it streams: then it is one of the run.
"""

from __future__ import annotations

from collections.abc import Sequence

from poetopt.graph.problem import Home, Problem
from poetopt.plan.effects import Effect
from poetopt.util.errors import PlanError


class Machine:
    """One moment of a training step, which begins as the tensors' homes say.

    resident
        The tensors in RAM.
    stored, stale
        The tensors with a copy on storage, and those whose copy is from before their update.
    taken
        What is an output's by now, and waits for its FREE.
    live
        Bytes in RAM, what is reserved for kernels included.
    blocks
        Blocks of the storage that are taken.
    ahead
        The operator that is computed next for the first time: the stage.
    sizes
        The bytes that each tensor takes in RAM; its own where they aren't given.
    """

    __slots__ = ("ahead", "blocks", "live", "problem", "resident", "sizes", "stale", "stored", "taken")

    def __init__(self, problem: Problem, sizes: Sequence[int] | None = None) -> None:
        self.problem = problem
        self.sizes = [tensor.nbytes for tensor in problem.tensors] if sizes is None else sizes
        self.resident = set(problem.at_start)
        self.live = problem.reserve_bytes + sum(self.sizes[i] for i in problem.at_start)
        self.stored: set[int] = set()
        self.stale: set[int] = set()
        self.taken: set[int] = set()
        self.blocks = self.ahead = 0
        for i in problem.stored_at_start:
            self.store(i)

    def copy(self) -> Machine:
        """The same moment, to go on from differently."""
        other = Machine.__new__(Machine)
        other.problem, other.sizes = self.problem, self.sizes
        other.live, other.blocks, other.ahead = self.live, self.blocks, self.ahead
        other.resident, other.stored, other.stale = self.resident.copy(), self.stored.copy(), self.stale.copy()
        other.taken = self.taken.copy()
        return other

    def apply(self, effect: Effect) -> int:
        """Run an instruction; the bytes that are live during it. Raises PlanError where it must not run now."""
        resident = self.resident
        operator = effect.operator
        if operator >= 0 and operator != self.ahead:
            self._check_turn(effect)
        if (effect.stores or effect.fetches or effect.streams) and not self.problem.paging:
            raise PlanError(f"device {self.problem.device!r} has no storage to page to")
        for i in effect.reads:
            if i not in resident:
                name = self.problem.tensors[i].name
                raise PlanError(f"it reads {name!r}, which is not in RAM" if operator >= 0 else self._absent(i))
        for i in effect.fetches:
            if i not in self.stored:
                raise PlanError(self._not_stored(i))
            if i in resident:
                raise PlanError("it is in RAM already")
        if effect.streams:
            self._stream(effect)
        for i in effect.stores:
            self.store(i)
        for i in effect.makes:
            if i not in resident:
                resident.add(i)
                self.taken.discard(i)
                self.live += self.sizes[i]
        during = self.live + effect.extra_bytes
        for i in effect.takes:
            self.free(i)
            self.taken.add(i)
        for i in effect.frees:
            self.free(i)
        if operator == self.ahead:
            self.ahead += 1
            if effect.updates:
                old = self.stored.intersection(effect.updates)
                if effect.streams:
                    old = old.difference(effect.streams_out)  # written anew there, chunk by chunk
                self.stored -= old
                self.stale |= old
        return during

    def fresh(self, effect: Effect) -> list[int]:
        """Tensors that it would make and that aren't in RAM: a buffer each, in this order."""
        return [i for i in effect.makes if i not in self.resident]

    def need(self, effect: Effect) -> int:
        """The bytes that it would take beside the live ones."""
        return sum([self.sizes[i] for i in effect.makes if i not in self.resident]) + effect.extra_bytes

    def free(self, i: int) -> None:
        """Release the buffer of tensor `i`. Raises PlanError where it has none."""
        if i not in self.resident:
            if i not in self.taken:
                raise PlanError(self._absent(i))
            self.taken.remove(i)
            return
        self.resident.remove(i)
        self.live -= self.sizes[i]

    def store(self, i: int) -> None:
        """Put a copy of tensor `i` on storage, at its place there. Raises PlanError where that is full."""
        if i in self.stored:
            return
        if i in self.stale:
            self.stale.remove(i)
        else:
            if not self.has_blocks_for(i):
                raise PlanError(_full(self.problem, self.blocks + self.problem.blocks(i)))
            self.blocks += self.problem.blocks(i)
        self.stored.add(i)

    def has_blocks_for(self, i: int) -> bool:
        """Return whether storage has room for a copy of tensor `i`, or its place there."""
        capacity = self.problem.storage_blocks
        if capacity is None or i in self.stored or i in self.stale:
            return True
        return self.blocks + self.problem.blocks(i) <= capacity

    def give_back(self, i: int) -> None:
        """Free the blocks that `store` set aside for a copy of tensor `i` that was not written after all."""
        self.stored.remove(i)
        self.blocks -= self.problem.blocks(i)

    def finish(self) -> None:
        """Check that the step may end here, and another begin. Raises PlanError, which goes on from "the plan ends".

        What is carried is at home then, and the next step reads nothing else that is there: the moment in which it
        begins is `Machine(problem)` again, and what has passed once passes each time.
        """
        problem = self.problem
        if self.ahead < len(problem.operators):
            name = problem.operators[self.ahead].name
            raise PlanError(f"without operator {self.ahead} ({name!r}); every operator must be computed")
        for i in problem.at_end:
            if i not in self.resident:
                raise PlanError(f"without {problem.tensors[i].name!r} in RAM, where it has to be when the step ends")
        for i in problem.stored_at_start:
            if problem.tensors[i].carried and i not in self.stored:
                raise PlanError(
                    f"with an old copy of {problem.tensors[i].name!r} on storage, where the next step reads it; "
                    f"page it out after {self._updater(i)}"
                )

    def _stream(self, effect: Effect) -> None:
        """Move tensors to storage and from there, chunk by chunk. Raises PlanError where it can't."""
        tensors = self.problem.tensors
        for i in effect.streams_in:
            if i not in self.stored:
                raise PlanError(f"it streams {tensors[i].name!r} in, and {self._not_stored(i)}")
        for i in effect.streams_out:
            if i in self.resident:
                raise PlanError(
                    f"it streams {tensors[i].name!r} out, which is in RAM, where an old copy would stay; free it before"
                )
            self.store(i)

    def _check_turn(self, effect: Effect) -> None:
        """Raise PlanError where an operator that isn't the next one must not run."""
        if effect.operator > self.ahead:
            raise PlanError(f"its turn comes only after {self.problem.operators[self.ahead].name!r}, not computed yet")
        if not effect.recomputable:
            raise PlanError("it is computed a second time, and must not be")
        if self.ahead > effect.until:
            tensors = self.problem.tensors
            what = [
                repr(tensors[i].name)
                for i in (*effect.reads, *effect.streams_in)
                if tensors[i].updated_by == effect.until
            ]
            updater = f"{self.problem.operators[effect.until].name!r}, which updates it"
            raise PlanError(f"it reads {(what or ['a resident tensor'])[0]} as it was before {updater}")

    def _absent(self, i: int) -> str:
        """The reason that there is nothing to free or to page out."""
        return _MAPPED if self.problem.tensors[i].home is Home.FLASH else "it is not in RAM"

    def _not_stored(self, i: int) -> str:
        """The reason that there is nothing to page in."""
        if i in self.stale:
            return f"its copy on storage is from before {self._updater(i)}"
        return _MAPPED if self.problem.tensors[i].home is Home.FLASH else "it was never written out"

    def _updater(self, i: int) -> str:
        return f"{self.problem.operators[self.problem.tensors[i].updated_by].name!r}, which updates it"


_MAPPED = "it lies in flash, where it is read in place"


def _full(problem: Problem, blocks: int) -> str:
    """The complaint about so many blocks on storage."""
    unit = problem.storage_block_bytes
    rounded = f" in blocks of {unit}" if unit > 1 else ""
    return (
        f"what is written out takes {blocks * unit:,} bytes{rounded}, more than the storage of {problem.device!r} "
        f"holds, {problem.storage_bytes:,}"
    )


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
