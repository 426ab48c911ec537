"""Greedy schedule in milliseconds: evict when memory is short, bring back in the cheaper way.

The fixed order is replayed. Before an operator runs, its missing inputs are brought back (paged in, or recomputed from
resident tensors), and tensors are evicted until everything fits. The evicted tensor is the one whose return costs least
for the bytes and the time that its absence frees. This is the rule of DTR (Kirisame et al. 2021), with the future known
instead of guessed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from poetopt.graph.problem import Problem, ProblemOperator
from poetopt.plan.effects import Effect, effects
from poetopt.plan.instructions import Action
from poetopt.plan.machine import Machine
from poetopt.plan.schedule import Schedule
from poetopt.search.heuristics.ways import ALL_PLAIN, whole_readers
from poetopt.util.work import Work

MAX_DEPTH = 24
"""Longest chain of recomputes with a known cost; longer ones aren't chosen."""
STAGE_WORK = 4
"""Units of work of a stage, beside the prices that are computed."""
_UNKNOWN = (math.inf, MAX_DEPTH + 1)


class _StuckError(Exception):
    """Error of a replay in which nothing can be evicted."""


@dataclass
class Replay:
    """State of one replay.

    Attributes
    ----------
    recomputable
        Operators that may run again, in backward stages up to their last.
    second_j
        Price of a second beside its energy, in joules.
    work
        Counter of the work, which ends the replay by OutOfWorkError.
    unit
        Bytes of which every tensor takes a multiple.
    ways
        Variant of each operator's runs that isn't plain. A run without room for it uses a smaller variant.
        Recomputes use only variants that stream no output.
    """

    problem: Problem
    ram_bytes: int
    paging: bool
    recomputable: frozenset[int]
    second_j: float = 0.0
    work: Work = field(default_factory=Work)
    unit: int = 1
    ways: Mapping[int, int] = field(default_factory=dict)
    stage: int = 0
    recomputes: set[tuple[int, int]] = field(default_factory=set)
    page_ins: set[tuple[int, int]] = field(default_factory=set)
    variants: set[tuple[int, int, int]] = field(default_factory=set)
    unneeded: set[int] = field(default_factory=set)
    """Tensors that returned only for another one, and have no later reader."""
    known: dict[int, tuple[float, int]] = field(default_factory=dict)
    """Costs of recomputing tensors from the current residents, with the depth of the request."""

    def __post_init__(self) -> None:
        # Lists by index, since a replay looks up hundreds of thousands of figures.
        problem, second_j = self.problem, self.second_j
        self._nbytes = [-(-tensor.nbytes // self.unit) * self.unit for tensor in problem.tensors]
        self.machine = Machine(problem, self._nbytes)
        self.resident = self.machine.resident
        table = effects(problem)
        self._compute_effects, self._page_in_effects = table[Action.COMPUTE], table[Action.PAGE_IN]
        self._streams = self.paging and any(operator.variants for operator in problem.operators)
        self._readers = problem.readers if not self._streams else whole_readers(problem, self.ways)
        """Operators that read each tensor from RAM when they first run."""
        self._max_live = self.ram_bytes + problem.reserve_bytes
        """Limit of live bytes. The machine counts the reserve, which isn't part of `ram_bytes`."""
        self._producer = [tensor.producer for tensor in problem.tensors]
        self._compute_j = [operator.energy_j + second_j * operator.time_s for operator in problem.operators]
        self._in_j = [tensor.page_in_j + second_j * tensor.page_in_s for tensor in problem.tensors]
        self._page_j = [
            math.inf if not self.paging else cost + written * (tensor.page_out_j + second_j * tensor.page_out_s)
            for cost, written, tensor in zip(
                self._in_j, map(problem.written_first, range(len(problem.tensors))), problem.tensors, strict=True
            )
        ]
        """Cost of bringing each tensor back from storage, with its write as long as it isn't written."""
        blocks, capacity = sum(map(problem.blocks, range(len(problem.tensors)))), problem.storage_blocks
        self._capacity = None if capacity is None or blocks <= capacity else capacity
        """Blocks of the storage, if they may run out."""
        self._last_run = (*problem.last_run, -1)
        """Last run of each operator, and -1 for none."""
        self._expiring: dict[int, set[int]] = {}
        """Operators that may not run again from a stage on."""
        for j, last in enumerate(problem.last_run):
            self._expiring.setdefault(last + 1, set()).add(j)
        self._n_past = [0] * len(problem.tensors)
        """Number of each tensor's readers before this stage."""
        self._next_read = [readers[0] if readers else -1 for readers in self._readers]
        """Stage of the next read of each tensor, this one included; -1 for none. For tensors of the next step it is the
        end."""
        self._at_end = frozenset(problem.at_end)
        for i in self._at_end:
            if self._next_read[i] < 0:
                self._next_read[i] = len(problem.operators)

    def run(self) -> Schedule | None:
        """Replay from beginning to end; return None if nothing can be evicted."""
        try:
            return self._replay()
        except (_StuckError, RecursionError):
            return None

    def _replay(self) -> Schedule:
        problem = self.problem
        for i in problem.at_start:
            self._arrive(i)
        for stage, operator in enumerate(problem.operators):
            self.stage = stage
            self.work.spend(STAGE_WORK)
            if stage in self._expiring:
                self.recomputable -= self._expiring[stage]
                self.known.clear()
            self._compute(stage, frozenset(), first=True)
            self._advance(operator)
        for i in problem.at_end:
            if i not in self.resident:
                self._restore(i, self._at_end)
        return Schedule(frozenset(self.recomputes), frozenset(self.page_ins), variants=frozenset(self.variants))

    def _compute(self, operator: int, locked: frozenset[int], *, first: bool) -> None:
        if not self._streams or not self.problem.operators[operator].variants:
            self._run(self._compute_effects[operator], locked)
        else:
            self._run_variant(operator, locked, first=first)
        if not first:
            self.recomputes.add((self.stage, operator))

    def _run(self, effect: Effect, locked: frozenset[int]) -> None:
        locked_now = locked.union(effect.reads, effect.makes)
        resident = self.resident
        missing = [i for i in effect.reads if i not in resident]
        for i in sorted(missing, key=lambda i: -self._producer[i]):
            if i not in resident:  # it may have returned with another one
                self._restore(i, locked_now)
        for i in effect.streams_out:
            if i in resident:  # recomputes of other inputs have read it
                self._evict(i)
        new = self.machine.fresh(effect)
        self._make_room(sum([self._nbytes[i] for i in new]) + effect.extra_bytes, locked_now)
        self.machine.apply(effect)
        for i in new:
            self._arrive(i)

    def _run_variant(self, operator: int, locked: frozenset[int], *, first: bool) -> None:
        """Run an operator in the chosen variant or, without room for it, in the largest smaller one."""
        table, preferred = effects(self.problem), self._first_variant(operator, first)
        for variant in itertools.chain((preferred,), self._smaller_variants(operator, preferred)):
            effect = table.variants[operator, variant] if variant else self._compute_effects[operator]
            if not first and effect.streams_out:
                continue
            new_on_storage = {*effect.streams_out}.difference(self.machine.stored, effect.streams_in)
            try:
                self._stream(effect)
                self._run(effect, locked)
            except _StuckError:
                for i in new_on_storage & self.machine.stored:
                    self.machine.give_back(i)
                continue
            for i in effect.streams_out:
                self._page_j[i] = self._in_j[i]
            if variant:
                self.variants.add((self.stage, operator, variant))
            return
        raise _StuckError

    def _smaller_variants(self, operator: int, preferred: int) -> Iterator[int]:
        """Yield the variants with a smaller working set than the chosen one, the largest first."""
        problem = self.problem
        n_bytes = problem.working_set_bytes(operator, preferred)
        smaller = [v for v in problem.ways(operator) if problem.working_set_bytes(operator, v) < n_bytes]
        yield from sorted(smaller, key=lambda v: (-problem.working_set_bytes(operator, v), v))

    def _first_variant(self, operator: int, first: bool) -> int:
        """Return the variant that is tried first."""
        return self.ways.get(operator, 0)

    def _stream(self, effect: Effect) -> None:
        """Store the tensors that a run streams in, and evict those that it streams out, with blocks for them."""
        for i in effect.streams_in:
            if i not in self.machine.stored:
                self._store(i)  # the plan writes it as soon as it exists
                self._page_j[i] = self._in_j[i]
        for i in effect.streams_out:
            if i in self.resident:
                self._evict(i)
            self._store(i)

    def _store(self, i: int) -> None:
        if not self.machine.has_blocks_for(i):
            raise _StuckError
        self.machine.store(i)

    def _prefers_paging(self, i: int) -> bool:
        """Return whether tensor i returns from storage rather than by recomputation."""
        page_cost = self._page_cost(i)
        return page_cost < math.inf and page_cost <= self._recompute_cost(i)

    def _restore(self, i: int, locked: frozenset[int]) -> None:
        if self._prefers_paging(i):
            self._make_room(self._nbytes[i], locked)
            self._store(i)  # evictions may have taken the last blocks; the plan writes it as soon as it exists
            self._page_j[i] = self._in_j[i]
            self.machine.apply(self._page_in_effects[i])
            self._arrive(i)
            self.page_ins.add((self.stage, i))
        elif self._may_recompute(self._producer[i]):
            locked_now = locked.union((i,))
            self._compute(self._producer[i], locked_now, first=False)
            self._drop_unneeded(locked_now)
        else:
            raise _StuckError

    def _may_recompute(self, producer: int) -> bool:
        return producer in self.recomputable and self.stage > self.problem.last_forward

    def _page_cost(self, i: int) -> float:
        """Return the cost of paging in tensor i; inf if it can't have been on storage."""
        return self._page_j[i] if self._capacity is None or self.machine.has_blocks_for(i) else math.inf

    def _recompute_cost(self, i: int, depth: int = 0) -> float:
        """Return the cost of recomputing tensor i from the current residents; inf if that is impossible."""
        producer = self._producer[i]
        if producer not in self.recomputable or depth > MAX_DEPTH:
            return math.inf
        known_cost, known_depth = self.known.get(i, _UNKNOWN)
        if known_cost < math.inf or known_depth <= depth:  # a chain that was too long there may not be here
            return known_cost
        self.work.done += 1
        cost = self._compute_j[producer]
        for u in self.problem.operators[producer].inputs:
            if u not in self.resident:
                cost += min(self._recompute_cost(u, depth + 1), self._page_cost(u))
        self.known[i] = cost, depth
        return cost

    def _return_cost(self, i: int) -> float:
        """Return the cost of the next read of tensor i if it is evicted now."""
        cost = self._page_cost(i)
        if self.problem.last_forward < self._next_read[i] <= self._last_run[self._producer[i]]:
            cost = min(cost, self._recompute_cost(i))
        return cost

    def _arrive(self, i: int) -> None:
        self.known.clear()
        if self._next_read[i] < 0:
            self.unneeded.add(i)

    def _evict(self, i: int) -> None:
        self.machine.free(i)
        self.unneeded.discard(i)
        self.known.clear()

    def _make_room(self, nbytes: int, locked: frozenset[int]) -> None:
        self._drop_unneeded(locked)
        if self.machine.live + nbytes <= self._max_live:
            return
        self.work.spend(len(self.resident))
        evictable = [i for i in self.resident if i not in locked and self._nbytes[i]]
        for tier in self._tiers(evictable):
            for price, i in sorted((self._price(i), i) for i in tier):
                if price == math.inf:
                    break
                if self._capacity is not None and not self._can_return(i):
                    continue
                self._evict(i)
                if self.machine.live + nbytes <= self._max_live:
                    return
        raise _StuckError

    def _tiers(self, evictable: list[int]) -> Iterable[list[int]]:
        """Split the candidates: those of the first parts are evicted before all others at any cost."""
        return (evictable,)

    def _price(self, i: int) -> float:
        """Return the cost of bringing tensor i back, per byte and stage of its absence."""
        stages = self._next_read[i] - self.stage + 1
        return self._return_cost(i) / (self._nbytes[i] * stages)

    def _can_return(self, i: int) -> bool:
        """Return whether tensor i can return after its eviction; reserve blocks on a storage that fills."""
        page_cost = self._page_cost(i)
        if page_cost == math.inf:
            return self._return_cost(i) < math.inf
        if page_cost <= self._return_cost(i):
            self.machine.store(i)
            self.known.clear()
        return True

    def _drop_unneeded(self, locked: frozenset[int]) -> None:
        if self.unneeded:
            for i in sorted(self.unneeded - locked):
                self._evict(i)

    def _advance(self, operator: ProblemOperator) -> None:
        """Advance to the stage after `operator`, and evict tensors without a later reader."""
        self.stage += 1
        for i in operator.inputs:
            readers, n_past = self._readers[i], self._n_past[i]
            while n_past < len(readers) and readers[n_past] < self.stage:
                n_past += 1
            self._n_past[i] = n_past
            end = len(self.problem.operators) if i in self._at_end else -1
            self._next_read[i] = readers[n_past] if n_past < len(readers) else end
        for i in (*operator.inputs, *operator.outputs):
            if self._next_read[i] < 0 and i in self.resident:
                self._evict(i)


def may_run_again(problem: Problem, remat: bool) -> frozenset[int]:
    """Return the operators that a replay may recompute: the recomputable ones of the forward pass."""
    operators = enumerate(problem.operators)
    return frozenset(j for j, operator in operators if remat and operator.recomputable and not operator.backward)


def greedy(
    problem: Problem,
    ram_bytes: int,
    *,
    paging: bool,
    remat: bool,
    second_j: float = 0.0,
    work: Work | None = None,
    rounded: bool = False,
    ways: Mapping[int, int] = ALL_PLAIN,
) -> Schedule | None:
    """Return a schedule that aims at `ram_bytes`, or None if the rule finds nothing to evict.

    It is also None if storage is too small for the initial tensors. The schedule isn't simulated: the order of
    recomputes in a plan may need a little more than the replay did.

    Parameters
    ----------
    second_j
        Price of a second beside its energy, in joules: higher for a short deadline.
    work
        Counter and limit of the work; None: no limit.
    rounded
        Whether tensors take whole multiples of the alignment, as small ones may in the arena.
    ways
        Variant of each operator's runs that isn't plain (`heuristics.ways`).

    Raises
    ------
    OutOfWorkError
        At the limit of the work.
    """
    if not problem.starts_within_storage:
        return None
    recomputable = may_run_again(problem, remat)
    unit = problem.alignment if rounded else 1
    uses_paging, work = paging and problem.paging, work or Work()
    return Replay(problem, ram_bytes, uses_paging, recomputable, second_j, work=work, unit=unit, ways=ways).run()
