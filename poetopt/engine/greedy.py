"""A first schedule in milliseconds: evict when memory is short, bring back by the cheaper way.

The fixed order is replayed. To run an operator, its missing inputs are brought back (paged in, or
recomputed from what is there) and tensors are evicted until everything fits. Evicted is the tensor
whose return costs least for the bytes and the time that its absence frees, which is the rule of DTR
(Kirisame et al. 2021) with the future known instead of guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from poetopt.problem import Problem
from poetopt.schedule import Schedule


class _StuckError(Exception):
    """Nothing can be evicted."""


def no_pause() -> None:
    """A replay that goes on."""


@dataclass
class Replay:
    """The state of one replay.

    recomputable
        The operators that may run again, in backward stages.
    second_j
        What a second counts for beside its energy, in joules.
    pause
        Called at each stage.
    """

    problem: Problem
    ram_bytes: int
    paging: bool
    recomputable: frozenset[int]
    second_j: float = 0.0
    pause: Callable[[], None] = no_pause
    resident: set[int] = field(default_factory=set)
    live: int = 0
    stage: int = 0
    recomputes: set[tuple[int, int]] = field(default_factory=set)
    page_ins: set[tuple[int, int]] = field(default_factory=set)
    written: set[int] = field(default_factory=set)
    promised: set[int] = field(default_factory=set)
    promised_blocks: int = 0
    position: list[int] = field(default_factory=list)
    unneeded: set[int] = field(default_factory=set)
    """What came back for another's sake, and nothing reads later."""
    known: dict[int, tuple[float, int]] = field(default_factory=dict)
    """What computing a tensor again costs as long as what is there stays the same, and how deep that was asked."""

    def run(self) -> Schedule | None:
        """Replay from the beginning to the end; None where nothing can be evicted."""
        try:
            return self._through()
        except (_StuckError, RecursionError):
            return None

    def _through(self) -> Schedule:
        problem = self.problem
        self.position = [0] * len(problem.tensors)
        for i in problem.inputs:
            self._admit(i)
        for stage, operator in enumerate(problem.operators):
            self.stage = stage
            self.pause()
            self._compute(stage, set(), first=True)
            self._drop_dead((*operator.inputs, *operator.outputs))
        return Schedule(frozenset(self.recomputes), frozenset(self.page_ins))

    def _compute(self, operator: int, locked: set[int], *, first: bool) -> None:
        op = self.problem.operators[operator]
        held = locked | set(op.inputs) | set(op.outputs)
        for i in sorted(op.inputs, key=lambda i: -self.problem.tensors[i].producer):
            if i not in self.resident:
                self._restore(i, held)
        fresh = [i for i in op.outputs if i not in self.resident]
        self._make_room(self.problem.nbytes(fresh) + op.workspace_bytes, held)
        for i in fresh:
            self._admit(i)
        if not first:
            self.recomputes.add((self.stage, operator))

    def _pages(self, i: int) -> bool:
        """Whether tensor i comes back from storage rather than by computing."""
        page_cost = self._page_cost(i)
        return page_cost < float("inf") and page_cost <= self._recompute_cost(i, 0)

    def _restore(self, i: int, locked: set[int]) -> None:
        tensor = self.problem.tensors[i]
        if self._pages(i):
            self._make_room(tensor.nbytes, locked)
            if not self._fits_storage(i):  # what made room for it has taken the last blocks
                raise _StuckError
            self._promise(i)
            self._admit(i)
            self.page_ins.add((self.stage, i))
            self.written.add(i)
            self.known.clear()
        elif self._may_recompute(tensor.producer):
            self._compute(tensor.producer, locked | {i}, first=False)
            self._drop_unneeded(locked | {i})
        else:
            raise _StuckError

    def _may_recompute(self, producer: int) -> bool:
        return producer in self.recomputable and self.stage > self.problem.last_forward

    def _fits_storage(self, i: int) -> bool:
        capacity = self.problem.storage_blocks
        return capacity is None or i in self.promised or self.promised_blocks + self.problem.blocks(i) <= capacity

    def _promise(self, i: int) -> None:
        """Set blocks of the storage aside for tensor i."""
        if i not in self.promised:
            self.promised.add(i)
            self.promised_blocks += self.problem.blocks(i)
            self.known.clear()

    def _page_cost(self, i: int) -> float:
        """What bringing tensor i back from storage costs; infinite where it can't have been there."""
        if not self.paging or not self._fits_storage(i):
            return float("inf")
        tensor = self.problem.tensors[i]
        cost = tensor.page_in_j + self.second_j * tensor.page_in_s
        if i not in self.written:
            cost += tensor.page_out_j + self.second_j * tensor.page_out_s
        return cost

    def _recompute_cost(self, i: int, depth: int) -> float:
        """What bringing tensor i back by computing costs, from what is resident now; infinite where it can't be."""
        producer = self.problem.tensors[i].producer
        if producer not in self.recomputable or depth > 24:
            return float("inf")
        known, asked = self.known.get(i, (float("inf"), depth + 1))
        if known < float("inf") or asked <= depth:  # what was too deep there may not be here
            return known
        cost = self.problem.operators[producer].energy_j + self.second_j * self.problem.operators[producer].time_s
        for u in self.problem.operators[producer].inputs:
            if u not in self.resident:
                other = self._recompute_cost(u, depth + 1)
                cost += min(other, self._page_cost(u))
        self.known[i] = cost, depth
        return cost

    def _return_cost(self, i: int) -> float:
        """What the next read of i costs if it is evicted now."""
        cost = self._page_cost(i)
        if self._next_read(i) > self.problem.last_forward:
            cost = min(cost, self._recompute_cost(i, 0))
        return cost

    def _next_read(self, i: int) -> int:
        readers = self.problem.readers[i]
        at = self.position[i]
        while at < len(readers) and readers[at] < self.stage:
            at += 1
        self.position[i] = at
        return readers[at] if at < len(readers) else -1

    def _admit(self, i: int) -> None:
        self.resident.add(i)
        self.live += self.problem.tensors[i].nbytes
        self.known.clear()
        if self._next_read(i) < 0:
            self.unneeded.add(i)

    def _evict(self, i: int) -> None:
        self.resident.discard(i)
        self.unneeded.discard(i)
        self.live -= self.problem.tensors[i].nbytes
        self.known.clear()

    def _make_room(self, nbytes: int, locked: set[int]) -> None:
        self._drop_unneeded(locked)
        if self.live + nbytes <= self.ram_bytes:
            return
        ranked = sorted((self._rank(i), i) for i in self.resident - locked if self.problem.tensors[i].nbytes)
        for (*_, score), i in ranked:
            if self.live + nbytes <= self.ram_bytes:
                return
            if score == float("inf"):
                continue
            if self.problem.storage_blocks is not None and not self._comes_back(i):
                continue
            self._evict(i)
        if self.live + nbytes > self.ram_bytes:
            raise _StuckError

    def _rank(self, i: int) -> tuple[float, ...]:
        """The lower, the sooner tensor i is evicted; what comes last is its price for what its absence frees."""
        away = self._next_read(i) - self.stage + 1
        return (self._return_cost(i) / (self.problem.tensors[i].nbytes * away),)

    def _comes_back(self, i: int) -> bool:
        """Whether tensor i, evicted now, still has a way back on a storage that fills; blocks are set aside for it."""
        pages = self._page_cost(i)
        if pages == float("inf"):
            return self._return_cost(i) < float("inf")
        if pages <= self._return_cost(i):
            self._promise(i)
        return True

    def _drop_unneeded(self, locked: set[int]) -> None:
        for i in sorted(self.unneeded - locked):
            self._evict(i)

    def _drop_dead(self, touched: Iterable[int]) -> None:
        self.stage += 1
        for i in touched:
            if i in self.resident and self._next_read(i) < 0:
                self._evict(i)


def may_run_again(problem: Problem, remat: bool) -> frozenset[int]:
    """The operators that a replay recomputes: of the forward pass, those that can be."""
    operators = enumerate(problem.operators)
    return frozenset(j for j, operator in operators if remat and operator.recomputable and not operator.backward)


def greedy(problem: Problem, ram_bytes: int, *, paging: bool, remat: bool, second_j: float = 0.0) -> Schedule | None:
    """A schedule that aims at `ram_bytes`, or None where the rule finds nothing to evict.

    second_j
        What a second counts for beside its energy, in joules: more, where a deadline is short.

    It isn't simulated: the order of recomputes in a plan may need a little more than the replay did.
    """
    again = may_run_again(problem, remat)
    return Replay(problem, ram_bytes, paging and problem.paging, again, second_j).run()
