"""Enumeration of the plans of a small problem, the cheapest first, where models, layouts and clock disagree.

It is a uniform-cost search over instructions. A moment consists of the tensors in RAM (with offsets if layouts count),
the tensors on storage, and the event clock. Bytes are freed only when others need them, since nothing is gained by
freeing them earlier. A moment is dropped if an otherwise equal one is later in no respect. If a pause of the storage
costs energy, later may be better, and only equal ones are dropped.
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from poetopt.formulations.goal import ENERGY
from poetopt.graph.problem import Problem
from poetopt.plan.assemble import with_frees
from poetopt.plan.effects import Effect, Effects, effects
from poetopt.plan.ends import LAST
from poetopt.plan.instructions import Action, Instruction, Plan
from poetopt.plan.machine import Clock
from poetopt.plan.simulate import RELATIVE_TOLERANCE
from poetopt.search.run import Proof, Run
from poetopt.search.solution import OPTIMAL_GAP, DeadlineModel

MAX_OPERATORS, MAX_TENSORS = 8, 12
"""Limits of the problem: beyond them the states run out early, and each has too many ways to make room."""
MAX_STATES = 50_000
"""Largest number of states: some five seconds of one processor."""
STATES_PER_LOOK = 16
"""Number of states between two looks at the clock."""

Ram = tuple[tuple[int, int], ...]
"""Tensors in RAM, ascending, each with its offset; 0 if layouts don't count."""


@dataclass(frozen=True)
class Asked:
    """Limits of plans: bytes, seconds, whether they may page and recompute.

    Attributes
    ----------
    placed
        Whether plans need a layout.
    floor
        Joules that no plan is below. Up to them the deepest moment is explored first, not the cheapest.
    """

    ram_bytes: int
    deadline_s: float | None = None
    paging: bool = True
    remat: bool = True
    placed: bool = False
    floor: float = 0.0


@dataclass(frozen=True)
class Enumeration:
    """Bound on the cost of all plans (inf: there is none), and a plan of that cost, if one was found."""

    bound: float
    plan: Plan | None = None


def is_small(problem: Problem) -> bool:
    """Return whether all plans can be enumerated: no variant may save energy, as costs can't be negative."""
    is_plain = problem.parts == 1 and problem.closing is None
    never_saves = all(v.energy_j >= operator.energy_j for operator in problem.operators for v in operator.variants)
    has_few = len(problem.operators) <= MAX_OPERATORS and len(problem.tensors) <= MAX_TENSORS
    return has_few and is_plain and never_saves


def cheapest(problem: Problem, asked: Asked, ceiling: float, until: float, max_states: int = MAX_STATES) -> Enumeration:
    """Return the cheapest plan of less than `ceiling` joules above one pass, or a bound if states or time end.

    Parameters
    ----------
    problem
        Small problem in its original form: carried tensors may stay in RAM from step to step.
    until
        Moment of `time.monotonic`.
    max_states
        Largest number of states.
    """
    may_stay = [i for i, tensor in enumerate(problem.tensors) if tensor.may_stay]
    resident_sets = itertools.chain.from_iterable(itertools.combinations(may_stay, n) for n in range(len(may_stay) + 1))
    searches = [_Search(problem.keeping(resident), asked) for resident in resident_sets]
    if asked.placed and any(operator.variants for operator in problem.operators):
        return Enumeration(0.0)
    ticket = itertools.count()
    queue = [
        (asked.floor, 0, next(ticket), s, moment) for s, search in enumerate(searches) for moment in search.starts()
    ]
    states = 0
    while queue:
        cost, _, _, s, moment = heapq.heappop(queue)
        search = searches[s]
        if search.seen(moment):
            continue
        if search.ended(moment):
            return Enumeration(cost, search.plan(moment))
        states += 1
        if states > max_states or (states % STATES_PER_LOOK == 0 and time.monotonic() > until):
            return Enumeration(cost)
        for after in search.moves(moment):
            if after.cost < ceiling * (1 - RELATIVE_TOLERANCE) and not search.late(after):
                heapq.heappush(queue, (max(after.cost, asked.floor), -after.done, next(ticket), s, after))
    return Enumeration(ceiling)


@dataclass(frozen=True, slots=True)
class _Moment:
    """State after some instructions, with their cost and the number of operators that have run.

    `block_owners` are tensors with blocks on storage. `outputs` are those of the last instruction with their offsets,
    and its workspace as -1. `start_offsets` belong to the tensors that last from step to step, at its start.
    """

    cost: float
    done: int
    ram: Ram
    stored: frozenset[int]
    block_owners: frozenset[int]
    clock: Clock
    before: _Moment | None = None
    steps: tuple[Instruction, ...] = ()
    outputs: Ram = ()
    start_offsets: Ram = ()


class _Search:
    """Plans in which one set of tensors stays in RAM from step to step."""

    def __init__(self, problem: Problem, asked: Asked) -> None:
        self.problem, self.asked = problem, asked
        self.table: Effects = effects(problem)
        self.sizes = [tensor.nbytes for tensor in problem.tensors]
        self.room = asked.ram_bytes - problem.reserve_bytes
        self.paging = asked.paging and problem.paging
        self.count = len(problem.operators)
        last = problem.operators[-1]  # its inputs stay in RAM while others return
        self.at_end = frozenset((*problem.at_end, *(last.inputs if last.name == LAST else ())))
        self.home = frozenset(i for i in problem.stored_at_start if problem.tensors[i].carried)
        self.timed = asked.deadline_s is not None or (problem.dma and problem.wake_j > 0)
        self.limit_s = math.inf if asked.deadline_s is None else asked.deadline_s * (1 + RELATIVE_TOLERANCE)
        self.ways = [
            [self.table.of(Instruction(Action.COMPUTE, k, v)) for v in problem.ways(k, paging=self.paging)]
            for k in range(self.count)
        ]
        quickest = [min(effect.seconds for effect in ways) for ways in self.ways]
        self.rest_s = [sum(quickest[k:]) for k in range(self.count + 1)]
        self.useful = [self._useful(k) for k in range(self.count + 1)]
        self.offsets = _offsets(problem, self.room) if asked.placed else [0]
        self._seen: dict[object, list[tuple[float, ...]]] = {}

    def _useful(self, done: int) -> frozenset[int]:
        """Return the tensors that may be read from now on, or have to be there at the end."""
        useful = {*self.at_end, *self.home}
        for k in range(self.count - 1, -1, -1):
            operator = self.problem.operators[k]
            if k >= done or (self.asked.remat and operator.recomputable and not useful.isdisjoint(operator.outputs)):
                useful.update(operator.inputs)
        return frozenset(useful)

    def starts(self) -> Iterator[_Moment]:
        stored = frozenset(self.problem.stored_at_start)
        if self.problem.nbytes(self.problem.at_start) > self.room:
            return
        for ram, _, outputs in self._make_room((), frozenset(self.problem.at_start), self.problem.at_start, 0):
            start_offsets = tuple(entry for entry in ram if entry[0] in self.at_end)
            yield _Moment(
                0.0, 0, ram, stored, stored, Clock(self.problem), outputs=outputs[:-1], start_offsets=start_offsets
            )

    def ended(self, moment: _Moment) -> bool:
        has_all = moment.done == self.count and self.home <= moment.stored and self.at_end <= {i for i, _ in moment.ram}
        return has_all and set(moment.start_offsets) <= set(moment.ram)

    def late(self, moment: _Moment) -> bool:
        return max(moment.clock.cpu + self.rest_s[moment.done], moment.clock.channel) > self.limit_s

    def seen(self, moment: _Moment) -> bool:
        """Return whether an equal moment that is no later was seen; otherwise remember this one."""
        clock, cpu = moment.clock, moment.clock.cpu
        is_awake = clock.wakes > 0 and clock.channel >= cpu
        capacity = moment.block_owners if self.problem.storage_bytes is not None else None
        key: tuple[object, ...] = (moment.done, moment.ram, moment.stored, capacity, moment.start_offsets)
        times: tuple[float, ...] = ()
        cost = (moment.cost,) if self.asked.floor else ()
        if self.timed:
            in_ram = [i for i, _ in moment.ram]
            times = (clock.channel, *(clock.arrived[i] for i in in_ram), *(clock.settled[i] for i in in_ram))
            times = tuple(max(time_s, cpu) for time_s in times)
        if self.problem.wake_j:
            key = (*key, is_awake, *(time_s - cpu for time_s in times))
            times = ()
        if self.asked.deadline_s is not None:
            times = (cpu, *times)
        times = (*cost, *times)
        times_seen = self._seen.setdefault(key, [])
        if any(all(a <= b for a, b in zip(other, times, strict=True)) for other in times_seen):
            return True
        times_seen.append(times)
        return False

    def moves(self, moment: _Moment) -> Iterator[_Moment]:
        """Yield the moments after one more instruction, with the frees that it needs."""
        in_ram = frozenset(i for i, _ in moment.ram)
        for k in range(min(moment.done + 1, self.count)):
            useful = self.useful[moment.done].intersection(self.problem.operators[k].outputs)
            for effect in self.ways[k]:
                missing = useful - in_ram or useful.intersection(effect.streams_out) - moment.stored
                may_recompute = self.asked.remat and effect.recomputable and moment.done <= effect.until and missing
                if (k == moment.done or may_recompute) and moment.stored.issuperset(effect.streams_in):
                    yield from self._after(moment, in_ram, effect)
        if not self.paging:
            return
        for i in sorted(self.useful[moment.done]):
            if i in in_ram and i not in moment.stored:
                yield from self._after(moment, in_ram, self.table[Action.PAGE_OUT][i])
            elif i in moment.stored and i not in in_ram:
                yield from self._after(moment, in_ram, self.table[Action.PAGE_IN][i])

    def _after(self, moment: _Moment, in_ram: frozenset[int], effect: Effect) -> Iterator[_Moment]:
        if not in_ram.issuperset(effect.reads):
            return
        problem, is_first = self.problem, effect.operator == moment.done
        block_owners = moment.block_owners.union(effect.stores, effect.streams_out)
        if problem.storage_blocks is not None and sum(map(problem.blocks, block_owners)) > problem.storage_blocks:
            return
        stored = moment.stored.union(effect.stores, effect.streams_out)
        if is_first:
            stored -= set(effect.updates).difference(effect.streams_out)
        joules = effect.joules
        if is_first:
            joules -= problem.operators[effect.operator].energy_j
        streamed = in_ram.intersection(effect.streams_out)
        ram = tuple(entry for entry in moment.ram if entry[0] not in streamed)
        fresh = tuple(i for i in effect.makes if i not in in_ram)
        needed, extra = frozenset((*effect.reads, *effect.makes)), effect.extra_bytes
        over = problem.operators[effect.operator].takes if effect.takes and self.asked.placed else ()
        if over:  # its output begins at the offset of the input that it overwrites
            fresh, extra = tuple(i for i in fresh if i != over[1]), extra + self.sizes[over[0]]
        for ram_after, freed, outputs in self._make_room(ram, needed, fresh, extra):
            if over:
                placed = (over[1], dict(ram_after)[over[0]])
                ram_after = tuple(sorted((*ram_after, placed)))
                outputs = (*sorted((*outputs[:-1], placed)), outputs[-1])
            clock = moment.clock.copy()
            frees = [self.table[Action.FREE][i] for i in sorted(freed | streamed)]
            for free in frees:
                clock.advance(free)
            wakes = clock.wakes
            clock.advance(effect)
            done = moment.done + is_first
            under_way = [i for i, end in enumerate(clock.settled) if end > clock.cpu] if self.timed else []
            kept = self.useful[done].union(under_way).difference(effect.takes)
            dead = [self.table[Action.FREE][i].step for i, _ in ram_after if i not in kept]
            yield _Moment(
                moment.cost + joules + problem.wake_j * (clock.wakes - wakes),
                done,
                tuple(entry for entry in ram_after if entry[0] in kept),
                stored & self.useful[done],
                block_owners if problem.storage_bytes is not None else moment.block_owners,
                clock,
                moment,
                (*(free.step for free in frees), effect.step, *dead),
                outputs if effect.operator >= 0 else outputs[:-1],
                moment.start_offsets,
            )

    def _make_room(
        self, ram: Ram, needed: frozenset[int], fresh: Sequence[int], beside: int
    ) -> Iterator[tuple[Ram, frozenset[int], Ram]]:
        """Yield RAM with room for `fresh` and `beside` more bytes, the freed tensors, and the new offsets."""
        if self.asked.placed:
            todo = [*((i, self.sizes[i]) for i in fresh), (-1, beside)]
            yield from self._place(ram, needed, todo, frozenset(), ())
            return
        missing_bytes = sum(self.sizes[i] for i, _ in ram) + sum(self.sizes[i] for i in fresh) + beside - self.room
        evictable = [i for i, _ in ram if i not in needed and self.sizes[i]]
        minimal: list[frozenset[int]] = []
        for freed in itertools.chain.from_iterable(
            itertools.combinations(evictable, n) for n in range(len(evictable) + 1)
        ):
            if sum(self.sizes[i] for i in freed) >= missing_bytes and not any(
                other.issubset(freed) for other in minimal
            ):
                minimal.append(frozenset(freed))
                kept = [entry for entry in ram if entry[0] not in freed]
                yield tuple(sorted([*kept, *((i, 0) for i in fresh)])), minimal[-1], ()

    def _place(
        self, ram: Ram, needed: frozenset[int], todo: Sequence[tuple[int, int]], freed: frozenset[int], outputs: Ram
    ) -> Iterator[tuple[Ram, frozenset[int], Ram]]:
        """Yield the ways to make room if layouts count: the tensors at a chosen offset are freed."""
        if not todo:
            yield tuple(sorted([*ram, *(entry for entry in outputs if entry[0] >= 0)])), freed, outputs
            return
        (i, size), *later = todo
        for offset in self.offsets if size else [0]:
            end = offset + size
            if end > self.room:
                break
            if size and any(self.sizes[j] and start < end and offset < start + self.sizes[j] for j, start in outputs):
                continue
            hit = {j for j, start in ram if size and self.sizes[j] and start < end and offset < start + self.sizes[j]}
            if not hit & needed:
                kept = tuple(entry for entry in ram if entry[0] not in hit)
                yield from self._place(kept, needed, later, freed | hit, (*outputs, (i, offset)))

    def plan(self, end: _Moment) -> Plan:
        """Return the plan that led to this moment, laid out if layouts count, else with the earliest frees."""
        moments: list[_Moment] = []
        moment: _Moment | None = end
        while moment is not None:
            moments.append(moment)
            moment = moment.before
        moments.reverse()
        steps = tuple(step for state in moments for step in state.steps)
        if not self.asked.placed and not (self.problem.dma and self.timed):  # waiting for a page-out is free
            events = [step for step in steps if step.action is not Action.FREE]
            return Plan(self.problem, tuple(with_frees(self.problem, events)))
        return Plan(self.problem, steps, tuple(offset for state in moments for _, offset in state.outputs))


def _offsets(problem: Problem, room: int) -> list[int]:
    """Return the possible offsets of buffers, each pushed down until it is on top of others."""
    unit, offsets = problem.alignment, {0}
    sizes = {-(-n // unit) * unit for n in (*(t.nbytes for t in problem.tensors), *problem.extra_bytes) if n > 0}
    new = list(offsets)
    while new:
        new = [s + n for s in new for n in sizes if s + n < room and s + n not in offsets]
        offsets.update(new)
        if len(offsets) > MAX_STATES:
            break
    return sorted(offsets)


DECIDING_SHARE = 0.5
"""Share of the time limit for an enumeration of all plans."""
MAX_STATES_IF_PROVEN = 5_000
"""Largest number of states if a scope is proven, since a plan outside of it may be better."""


def decidable(run: Run) -> bool:
    """Return whether the plans are few, all in scope, and limited by energy, RAM and makespan alone."""
    chosen, options = run.chosen, run.options
    is_plain = chosen.goal is ENERGY and all(block.name in chosen.simulated for block in chosen.blocks)
    is_timed = options.deadline_s is None or options.deadline_model is DeadlineModel.MAKESPAN
    return chosen.plans_count and is_plain and is_timed and options.scope in ("auto", "full") and is_small(run.problem)


def decided(run: Run, proof: Proof) -> Proof:
    """Return `proof`, or an enumeration's result if that is more.

    It is more if it has a better plan or a higher bound, or if it proves that there is no plan. A bound from bytes and
    seconds alone holds for any layout.
    """
    incumbent, options = run.incumbent, run.options
    if proof.covers_all_plans:
        return proof
    best = incumbent.best
    was_closed = best is not None and (best.value <= 0 or run.closed(max(options.gap, OPTIMAL_GAP)))
    limits = Asked(
        options.ram_bytes - run.chosen.reserve_bytes(run.problem), options.deadline_s, options.paging, options.remat
    )
    bound = 0.0
    for placed in (False, True):
        ceiling = math.inf if incumbent.value is None else incumbent.value
        max_states = MAX_STATES_IF_PROVEN if was_closed else MAX_STATES
        result = cheapest(run.problem, replace(limits, placed=placed, floor=bound), ceiling, run.latest, max_states)
        bound = max(bound, result.bound)
        if result.plan is None:
            break
        if incumbent.take(result.plan):
            break
    value = incumbent.value
    run.all_plans_bound = max(run.all_plans_bound, bound if value is None else min(bound, value))
    if value is None and bound == math.inf:
        return replace(
            proof, asked="full", scope="full", bound=0.0, infeasible=True, covers_all_plans=True, closed=False
        )
    if value is None or (was_closed and incumbent.best is best):
        return proof if value is not None else replace(proof, bound=max(bound, proof.bound))
    bound = min(bound, value)
    if bound < proof.bound and incumbent.best is best:
        return proof
    run.enter_scope("full", bound)
    is_closed = run.closed(options.gap)
    return replace(
        proof, asked="full", scope="full", bound=bound, infeasible=False, value=value, closed=is_closed, note=""
    )
