"""A first schedule in milliseconds: evict when memory is short, bring back by the cheaper way.

The fixed order is replayed. To run an operator, its missing inputs are brought back (paged in, or
recomputed from what is there) and tensors are evicted until everything fits. Evicted is the tensor
whose return costs least for the bytes and the time that its absence frees, which is the rule of DTR
(Kirisame et al. 2021) with the future known instead of guessed.
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

DEEPEST = 24
"""Chains of recomputes that are longer than this cost what can't be told: they aren't chosen."""
STAGE_WORK = 4
"""Units of work of a stage, besides the prices that are asked for."""
_UNKNOWN = (math.inf, DEEPEST + 1)


class _StuckError(Exception):
    """Nothing can be evicted."""


@dataclass
class Replay:
    """The state of one replay.

    recomputable
        The operators that may run again, in backward stages up to their last.
    second_j
        What a second counts for beside its energy, in joules.
    work
        Counts what it does, and ends it by OutOfWorkError.
    unit
        Every tensor takes a multiple of so many bytes.
    ways
        The variant of each operator's runs, where it isn't plain; a run for which there is no room goes by one that
        takes less. Recomputes go by those alone that stream no output.
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
    """Tensors that came back for another's sake, and that nothing reads later."""
    known: dict[int, tuple[float, int]] = field(default_factory=dict)
    """The costs of computing tensors again while what is there stays, and the depth at which that was asked."""

    def __post_init__(self) -> None:
        # Lists by index: a replay looks figures up by the hundred thousand.
        problem, second_j = self.problem, self.second_j
        self._nbytes = [-(-tensor.nbytes // self.unit) * self.unit for tensor in problem.tensors]
        self.machine = Machine(problem, self._nbytes)
        self.resident = self.machine.resident
        table = effects(problem)
        self._computes, self._fetches = table[Action.COMPUTE], table[Action.PAGE_IN]
        self._streams = self.paging and any(operator.variants for operator in problem.operators)
        self._readers = problem.readers if not self._streams else whole_readers(problem, self.ways)
        """Of each tensor, the operators that read it from RAM when they first run."""
        self._most = self.ram_bytes + problem.reserve_bytes
        """Of live bytes: the reserve, which the machine counts, isn't part of `ram_bytes`."""
        self._producer = [tensor.producer for tensor in problem.tensors]
        self._compute_j = [operator.energy_j + second_j * operator.time_s for operator in problem.operators]
        self._in_j = [tensor.page_in_j + second_j * tensor.page_in_s for tensor in problem.tensors]
        self._page_j = [
            math.inf if not self.paging else cost + written * (tensor.page_out_j + second_j * tensor.page_out_s)
            for cost, written, tensor in zip(
                self._in_j, map(problem.written_first, range(len(problem.tensors))), problem.tensors, strict=True
            )
        ]
        """Of bringing it back from storage, and of writing it out as long as it wasn't."""
        blocks, capacity = sum(map(problem.blocks, range(len(problem.tensors)))), problem.storage_blocks
        self._capacity = None if capacity is None or blocks <= capacity else capacity
        """Blocks of the storage, where they may become short."""
        self._last_run = (*problem.last_run, -1)
        """Of each operator, and last of none."""
        self._overtaken: dict[int, set[int]] = {}
        """Stage -> the operators that may not run again from it on."""
        for j, last in enumerate(problem.last_run):
            self._overtaken.setdefault(last + 1, set()).add(j)
        self._past = [0] * len(problem.tensors)
        """Of each tensor's readers, those before this stage."""
        self._next_read = [readers[0] if readers else -1 for readers in self._readers]
        """The stage that reads it next, this one included; -1 where none does, the end's where the next step does."""
        self._lasting = frozenset(problem.at_end)
        for i in self._lasting:
            if self._next_read[i] < 0:
                self._next_read[i] = len(problem.operators)

    def run(self) -> Schedule | None:
        """Replay from the beginning to the end; None where nothing can be evicted."""
        try:
            return self._through()
        except (_StuckError, RecursionError):
            return None

    def _through(self) -> Schedule:
        problem = self.problem
        for i in problem.at_start:
            self._came(i)
        for stage, operator in enumerate(problem.operators):
            self.stage = stage
            self.work.spend(STAGE_WORK)
            if stage in self._overtaken:
                self.recomputable -= self._overtaken[stage]
                self.known.clear()
            self._compute(stage, frozenset(), first=True)
            self._go_on(operator)
        for i in problem.at_end:
            if i not in self.resident:
                self._restore(i, self._lasting)
        return Schedule(frozenset(self.recomputes), frozenset(self.page_ins), variants=frozenset(self.variants))

    def _compute(self, operator: int, locked: frozenset[int], *, first: bool) -> None:
        if not self._streams or not self.problem.operators[operator].variants:
            self._run(self._computes[operator], locked)
        else:
            self._run_in_some_way(operator, locked, first=first)
        if not first:
            self.recomputes.add((self.stage, operator))

    def _run(self, effect: Effect, locked: frozenset[int]) -> None:
        held = locked.union(effect.reads, effect.makes)
        resident = self.resident
        missing = [i for i in effect.reads if i not in resident]
        for i in sorted(missing, key=lambda i: -self._producer[i]):
            if i not in resident:  # it may have come with another one
                self._restore(i, held)
        for i in effect.streams_out:
            if i in resident:  # what ran again for the others has read it
                self._evict(i)
        fresh = self.machine.fresh(effect)
        self._make_room(sum([self._nbytes[i] for i in fresh]) + effect.extra_bytes, held)
        self.machine.apply(effect)
        for i in fresh:
            self._came(i)

    def _run_in_some_way(self, operator: int, locked: frozenset[int], *, first: bool) -> None:
        """By the way that was chosen or, where there is no room for it, by those that take less, the largest first."""
        table, chosen = effects(self.problem), self._way(operator, first)
        for way in itertools.chain((chosen,), self._leaner(operator, chosen)):
            effect = table.variants[operator, way] if way else self._computes[operator]
            if not first and effect.streams_out:
                continue
            fresh = {*effect.streams_out}.difference(self.machine.stored, effect.streams_in)
            try:
                self._stream(effect)
                self._run(effect, locked)
            except _StuckError:
                for i in fresh & self.machine.stored:
                    self.machine.give_back(i)
                continue
            for i in effect.streams_out:
                self._page_j[i] = self._in_j[i]
            if way:
                self.variants.add((self.stage, operator, way))
            return
        raise _StuckError

    def _leaner(self, operator: int, chosen: int) -> Iterator[int]:
        """The ways that take less than the chosen one, the largest first; worked out once one is asked for."""
        problem = self.problem
        room = problem.working_set_bytes(operator, chosen)
        less = [v for v in problem.ways(operator) if problem.working_set_bytes(operator, v) < room]
        yield from sorted(less, key=lambda v: (-problem.working_set_bytes(operator, v), v))

    def _way(self, operator: int, first: bool) -> int:
        """The variant that is tried first."""
        return self.ways.get(operator, 0)

    def _stream(self, effect: Effect) -> None:
        """Have on storage what it streams in, and not in RAM what it streams out, whose blocks are set aside."""
        for i in effect.streams_in:
            if i not in self.machine.stored:
                self._store(i)  # the plan writes it out as soon as it is made
                self._page_j[i] = self._in_j[i]
        for i in effect.streams_out:
            if i in self.resident:
                self._evict(i)
            self._store(i)

    def _store(self, i: int) -> None:
        if not self.machine.has_blocks_for(i):
            raise _StuckError
        self.machine.store(i)

    def _pages(self, i: int) -> bool:
        """Say whether tensor i comes back from storage rather than by computing."""
        page_cost = self._page_cost(i)
        return page_cost < math.inf and page_cost <= self._recompute_cost(i)

    def _restore(self, i: int, locked: frozenset[int]) -> None:
        if self._pages(i):
            self._make_room(self._nbytes[i], locked)
            self._store(i)  # what made room may have taken the last blocks; the plan writes it as soon as it is made
            self._page_j[i] = self._in_j[i]
            self.machine.apply(self._fetches[i])
            self._came(i)
            self.page_ins.add((self.stage, i))
        elif self._may_recompute(self._producer[i]):
            held = locked.union((i,))
            self._compute(self._producer[i], held, first=False)
            self._drop_unneeded(held)
        else:
            raise _StuckError

    def _may_recompute(self, producer: int) -> bool:
        return producer in self.recomputable and self.stage > self.problem.last_forward

    def _page_cost(self, i: int) -> float:
        """The cost of bringing tensor i back from storage; infinite where it can't have been there."""
        return self._page_j[i] if self._capacity is None or self.machine.has_blocks_for(i) else math.inf

    def _recompute_cost(self, i: int, depth: int = 0) -> float:
        """The cost of bringing tensor i back by computing, from what is resident now; infinite where it can't be."""
        producer = self._producer[i]
        if producer not in self.recomputable or depth > DEEPEST:
            return math.inf
        known, asked = self.known.get(i, _UNKNOWN)
        if known < math.inf or asked <= depth:  # what was too deep there may not be here
            return known
        self.work.done += 1
        cost = self._compute_j[producer]
        for u in self.problem.operators[producer].inputs:
            if u not in self.resident:
                cost += min(self._recompute_cost(u, depth + 1), self._page_cost(u))
        self.known[i] = cost, depth
        return cost

    def _return_cost(self, i: int) -> float:
        """The cost of the next read of i if it is evicted now."""
        cost = self._page_cost(i)
        if self.problem.last_forward < self._next_read[i] <= self._last_run[self._producer[i]]:
            cost = min(cost, self._recompute_cost(i))
        return cost

    def _came(self, i: int) -> None:
        self.known.clear()
        if self._next_read[i] < 0:
            self.unneeded.add(i)

    def _evict(self, i: int) -> None:
        self.machine.free(i)
        self.unneeded.discard(i)
        self.known.clear()

    def _make_room(self, nbytes: int, locked: frozenset[int]) -> None:
        self._drop_unneeded(locked)
        if self.machine.live + nbytes <= self._most:
            return
        self.work.spend(len(self.resident))
        able = [i for i in self.resident if i not in locked and self._nbytes[i]]
        for tier in self._tiers(able):
            for price, i in sorted((self._price(i), i) for i in tier):
                if price == math.inf:
                    break
                if self._capacity is not None and not self._comes_back(i):
                    continue
                self._evict(i)
                if self.machine.live + nbytes <= self._most:
                    return
        raise _StuckError

    def _tiers(self, able: list[int]) -> Iterable[list[int]]:
        """`able` in parts: what is in the first ones is evicted before all others, whatever it costs."""
        return (able,)

    def _price(self, i: int) -> float:
        """The cost of bringing back tensor i for the bytes and the time that its absence frees."""
        away = self._next_read[i] - self.stage + 1
        return self._return_cost(i) / (self._nbytes[i] * away)

    def _comes_back(self, i: int) -> bool:
        """Say whether tensor i, evicted now, has a way back on a storage that fills; blocks are set aside for it."""
        pages = self._page_cost(i)
        if pages == math.inf:
            return self._return_cost(i) < math.inf
        if pages <= self._return_cost(i):
            self.machine.store(i)
            self.known.clear()
        return True

    def _drop_unneeded(self, locked: frozenset[int]) -> None:
        if self.unneeded:
            for i in sorted(self.unneeded - locked):
                self._evict(i)

    def _go_on(self, operator: ProblemOperator) -> None:
        """To the next stage, after `operator`, without what nothing reads any more."""
        self.stage += 1
        for i in operator.inputs:
            readers, past = self._readers[i], self._past[i]
            while past < len(readers) and readers[past] < self.stage:
                past += 1
            self._past[i] = past
            ended = len(self.problem.operators) if i in self._lasting else -1
            self._next_read[i] = readers[past] if past < len(readers) else ended
        for i in (*operator.inputs, *operator.outputs):
            if self._next_read[i] < 0 and i in self.resident:
                self._evict(i)


def may_run_again(problem: Problem, remat: bool) -> frozenset[int]:
    """The operators that a replay recomputes: of the forward pass, those that can be."""
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
    """A schedule that aims at `ram_bytes`, or None where the rule finds nothing to evict.

    Nor is there one where storage doesn't hold what begins there.

    second_j
        What a second counts for beside its energy, in joules: more, where a deadline is short.
    work
        Counts what it takes; without it there is no limit.
    rounded
        Whether tensors take whole multiples of the alignment: small ones may need that in the arena.
    ways
        The variant of each operator's runs, where it isn't plain (`heuristics.ways`).

    It isn't simulated: the order of recomputes in a plan may need a little more than the replay did. Raises
    OutOfWorkError.
    """
    if not problem.starts_within_storage:
        return None
    again = may_run_again(problem, remat)
    unit = problem.alignment if rounded else 1
    paged, work = paging and problem.paging, work or Work()
    return Replay(problem, ram_bytes, paged, again, second_j, work=work, unit=unit, ways=ways).run()
