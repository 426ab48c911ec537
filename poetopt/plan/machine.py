"""Machine that executes a plan on paper: effects of instructions on RAM and storage, and conditions for them.

The simulator, the replays and the reports step it, one instruction at a time. `poetopt.plan.effects` lists what each
instruction reads, makes, stores and frees.

Bytes. A buffer counts from the instruction that makes it to the FREE that releases it, both included; a workspace
counts during its COMPUTE. The buffer of an input that a COMPUTE overwrites belongs to the output from then on, and a
later FREE of the input releases nothing. A tensor occupies whole blocks of the storage to the end of the step, from
its first PAGE_OUT, from the first COMPUTE that streams it out, or from the start if its home is storage. A tensor that
is written again keeps its blocks.

Time. There is one CPU and, on a device with DMA, one transfer channel. Without DMA, instructions run one after
another. With DMA the CPU walks the list, and the channel works first in, first out: the CPU queues a transfer when it
reaches it, which takes no CPU time. Every other instruction waits for the page-ins of the tensors that it reads, and
for all transfers of the tensors that it overwrites or frees. A compute that streams occupies both CPU and channel
while it runs.

Wake-ups. Transfers without a pause between them are one run. The storage is powered on before a run and off after it,
which takes `Problem.wake_j` joules each time. A compute that takes time ends a run, unless a transfer continues during
it, or it streams: then it belongs to the run.
"""

from __future__ import annotations

from collections.abc import Sequence

from poetopt.graph.problem import Home, Problem
from poetopt.plan.effects import Effect
from poetopt.util.errors import PlanError


class Machine:
    """State of RAM and storage at one moment of a training step, which begins with the tensors in their homes.

    Attributes
    ----------
    resident
        Tensors in RAM.
    stored, stale
        Tensors with a valid copy on storage, and those whose copy precedes their update.
    taken
        Inputs whose buffer already belongs to an output, until their FREE.
    live
        Bytes in RAM, including those reserved for kernels.
    blocks
        Occupied blocks of the storage.
    ahead
        Operator that is computed next for the first time: the stage.
    sizes
        Bytes of each tensor in RAM; by default the tensor's own.
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
        """Return a copy of this state, to continue differently."""
        other = Machine.__new__(Machine)
        other.problem, other.sizes = self.problem, self.sizes
        other.live, other.blocks, other.ahead = self.live, self.blocks, self.ahead
        other.resident, other.stored, other.stale = self.resident.copy(), self.stored.copy(), self.stale.copy()
        other.taken = self.taken.copy()
        return other

    def apply(self, effect: Effect) -> int:
        """Run an instruction and return the live bytes during it. Raises PlanError if it must not run now."""
        resident = self.resident
        operator = effect.operator
        if operator >= 0 and operator != self.ahead:
            self._check_order(effect)
        if (effect.stores or effect.fetches or effect.streams) and not self.problem.paging:
            raise PlanError(f"device {self.problem.device!r} has no storage to page to")
        for i in effect.reads:
            if i not in resident:
                name = self.problem.tensors[i].name
                raise PlanError(
                    f"it reads {name!r}, which is not in RAM" if operator >= 0 else self._why_not_resident(i)
                )
        for i in effect.fetches:
            if i not in self.stored:
                raise PlanError(self._why_not_stored(i))
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
        live_bytes = self.live + effect.extra_bytes
        for i in effect.takes:
            self.free(i)
            self.taken.add(i)
        for i in effect.frees:
            self.free(i)
        if operator == self.ahead:
            self.ahead += 1
            if effect.updates:
                stale = self.stored.intersection(effect.updates)
                if effect.streams:
                    stale = stale.difference(effect.streams_out)  # written anew there, chunk by chunk
                self.stored -= stale
                self.stale |= stale
        return live_bytes

    def fresh(self, effect: Effect) -> list[int]:
        """Return the tensors that `effect` would make and that aren't in RAM: one buffer each, in this order."""
        return [i for i in effect.makes if i not in self.resident]

    def need(self, effect: Effect) -> int:
        """Return the bytes that `effect` would need besides the live ones."""
        return sum([self.sizes[i] for i in effect.makes if i not in self.resident]) + effect.extra_bytes

    def free(self, i: int) -> None:
        """Release the buffer of tensor `i`. Raises PlanError if it has none."""
        if i not in self.resident:
            if i not in self.taken:
                raise PlanError(self._why_not_resident(i))
            self.taken.remove(i)
            return
        self.resident.remove(i)
        self.live -= self.sizes[i]

    def store(self, i: int) -> None:
        """Put a copy of tensor `i` on storage, in its blocks there. Raises PlanError if storage is full."""
        if i in self.stored:
            return
        if i in self.stale:
            self.stale.remove(i)
        else:
            if not self.has_blocks_for(i):
                raise PlanError(_storage_full(self.problem, self.blocks + self.problem.blocks(i)))
            self.blocks += self.problem.blocks(i)
        self.stored.add(i)

    def has_blocks_for(self, i: int) -> bool:
        """Return whether storage has blocks for a copy of tensor `i`, or already holds its blocks."""
        capacity = self.problem.storage_blocks
        if capacity is None or i in self.stored or i in self.stale:
            return True
        return self.blocks + self.problem.blocks(i) <= capacity

    def give_back(self, i: int) -> None:
        """Free the blocks that `store` reserved for a copy of tensor `i` that was never written."""
        self.stored.remove(i)
        self.blocks -= self.problem.blocks(i)

    def finish(self) -> None:
        """Check that the step may end and the next one begin. Raises PlanError, worded to follow "the plan ends".

        All carried tensors are at home then, and the next step reads nothing else that is left: it begins with
        `Machine(problem)` again, so a plan that is valid once is valid in every step.
        """
        problem = self.problem
        if self.ahead < len(problem.operators):
            name = problem.operators[self.ahead].name
            raise PlanError(f"without operator {self.ahead} ({name!r}). Every operator must be computed")
        for i in problem.at_end:
            if i not in self.resident:
                raise PlanError(f"without {problem.tensors[i].name!r} in RAM, where it must be when the step ends")
        for i in problem.stored_at_start:
            if problem.tensors[i].carried and i not in self.stored:
                raise PlanError(
                    f"with an old copy of {problem.tensors[i].name!r} on storage, where the next step reads it. "
                    f"Page it out after {self._updater(i)}"
                )

    def _stream(self, effect: Effect) -> None:
        """Transfer tensors in chunks to and from storage. Raises PlanError if that is impossible."""
        tensors = self.problem.tensors
        for i in effect.streams_in:
            if i not in self.stored:
                raise PlanError(f"it streams {tensors[i].name!r} in, but {self._why_not_stored(i)}")
        for i in effect.streams_out:
            if i in self.resident:
                raise PlanError(f"it streams {tensors[i].name!r} out, but an old copy is in RAM. Free that before")
            self.store(i)

    def _check_order(self, effect: Effect) -> None:
        """Raise PlanError if an operator that isn't the next one must not run."""
        if effect.operator > self.ahead:
            raise PlanError(f"it must run after {self.problem.operators[self.ahead].name!r}, which is not computed yet")
        if not effect.recomputable:
            raise PlanError("it is computed a second time, but can't be recomputed")
        if self.ahead > effect.until:
            tensors = self.problem.tensors
            names = [
                repr(tensors[i].name)
                for i in (*effect.reads, *effect.streams_in)
                if tensors[i].updated_by == effect.until
            ]
            updater = f"{self.problem.operators[effect.until].name!r}, which updates it"
            raise PlanError(f"it reads {(names or ['a resident tensor'])[0]} as it was before {updater}")

    def _why_not_resident(self, i: int) -> str:
        """Return why there is nothing to free or to page out."""
        return _MAPPED if self.problem.tensors[i].home is Home.FLASH else "it is not in RAM"

    def _why_not_stored(self, i: int) -> str:
        """Return why there is nothing to page in."""
        if i in self.stale:
            return f"its copy on storage is from before {self._updater(i)}"
        return _MAPPED if self.problem.tensors[i].home is Home.FLASH else "it was never written out"

    def _updater(self, i: int) -> str:
        return f"{self.problem.operators[self.problem.tensors[i].updated_by].name!r}, which updates it"


_MAPPED = "it lies in flash, where it is read in place"


def _storage_full(problem: Problem, blocks: int) -> str:
    """Return the message that so many blocks exceed the storage."""
    unit = problem.storage_block_bytes
    rounded = f" in blocks of {unit}" if unit > 1 else ""
    return (
        f"the tensors written out take {blocks * unit:,} bytes{rounded}, but the storage of {problem.device!r} holds "
        f"{problem.storage_bytes:,}"
    )


class Clock:
    """Time at one moment of a plan that the machine accepts.

    Attributes
    ----------
    cpu, channel
        When the CPU has completed its work so far, and when the last transfer ends.
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
        """Return a copy of this state, to continue differently."""
        other = Clock.__new__(Clock)
        other.dma, other.cpu, other.channel, other.wakes = self.dma, self.cpu, self.channel, self.wakes
        other.arrived, other.settled = self.arrived.copy(), self.settled.copy()
        return other

    @property
    def makespan_s(self) -> float:
        """Second at which all instructions so far are complete."""
        return max(self.cpu, self.channel)

    def advance(self, effect: Effect) -> float:
        """Run an instruction and return the second at which it starts; it takes `effect.seconds` from there."""
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
        if self.channel > start:  # a transfer may be in progress
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
