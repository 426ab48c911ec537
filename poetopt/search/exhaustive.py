"""Every plan of a small problem, the cheapest first: what is left open where models, layouts or the clock don't agree.

A uniform-cost search over instructions. A moment is what is in RAM (where layouts count, at which offset), what storage
holds, and the event clock. Bytes are given up only as others need them, as nothing is gained by doing so before. Of two
moments alike only those matter that are later in no respect; where a pause of the storage costs energy, later may be
better, and only equal ones are the same.
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

MOST_OPERATORS, MOST_TENSORS = 8, 12
"""Of more the states would run out before anything is known, and each has too many ways to make room."""
MOST_STATES = 50_000
"""So many are looked at, at most: some five seconds of one processor."""
LOOKS = 16
"""After so many states the clock is looked at."""

Ram = tuple[tuple[int, int], ...]
"""Tensors in RAM, ascending, each with its offset; 0 where layouts don't count."""


@dataclass(frozen=True)
class Asked:
    """The demands on plans: bytes, seconds, no transfers, nothing computed again; `placed`: and have a layout."""

    ram_bytes: int
    deadline_s: float | None = None
    paging: bool = True
    remat: bool = True
    placed: bool = False
    floor: float = 0.0
    """Joules that no plan is below: until then the deepest moment is looked at first, not the cheapest."""


@dataclass(frozen=True)
class Found:
    """No plan costs less than `bound`, inf where there is none; `plan` is one that costs as much, if any was found."""

    bound: float
    plan: Plan | None = None


def small(problem: Problem) -> bool:
    """Say whether all plans can be looked at; none may save by streaming, as no move may cost less than 0."""
    plain = problem.parts == 1 and problem.closing is None
    dearer = all(way.energy_j >= operator.energy_j for operator in problem.operators for way in operator.variants)
    few = len(problem.operators) <= MOST_OPERATORS and len(problem.tensors) <= MOST_TENSORS
    return few and plain and dearer


def cheapest(problem: Problem, asked: Asked, ceiling: float, until: float, most: int = MOST_STATES) -> Found:
    """The cheapest plan of less than `ceiling` joules above one pass; what is known of it where states or time end.

    problem
        A `small` one, as it was asked for: what is carried may stay in RAM from step to step.
    until
        A moment of `time.monotonic`.
    most
        So many states are looked at, at most.
    """
    able = [i for i, tensor in enumerate(problem.tensors) if tensor.may_stay]
    stays = itertools.chain.from_iterable(itertools.combinations(able, n) for n in range(len(able) + 1))
    searches = [_Search(problem.keeping(kept), asked) for kept in stays]
    if asked.placed and any(operator.variants for operator in problem.operators):
        return Found(0.0)
    ticket = itertools.count()
    queue = [(asked.floor, 0, next(ticket), s, start) for s, own in enumerate(searches) for start in own.starts()]
    states = 0
    while queue:
        cost, _, _, s, now = heapq.heappop(queue)
        own = searches[s]
        if own.seen(now):
            continue
        if own.ended(now):
            return Found(cost, own.plan(now))
        states += 1
        if states > most or (states % LOOKS == 0 and time.monotonic() > until):
            return Found(cost)
        for after in own.moves(now):
            if after.cost < ceiling * (1 - RELATIVE_TOLERANCE) and not own.late(after):
                heapq.heappush(queue, (max(after.cost, asked.floor), -after.done, next(ticket), s, after))
    return Found(ceiling)


@dataclass(frozen=True, slots=True)
class _Moment:
    """The cost of coming here, the instructions, and the state; `places`: blocks of whom storage holds."""

    cost: float
    done: int
    ram: Ram
    stored: frozenset[int]
    places: frozenset[int]
    clock: Clock
    before: _Moment | None = None
    steps: tuple[Instruction, ...] = ()
    made: Ram = ()
    """The tensors that the last of them made, with offsets; its workspace is -1."""
    began: Ram = ()
    """The places at the start of what lasts from step to step."""


class _Search:
    """The plans in which one set of tensors stays in RAM from step to step."""

    def __init__(self, problem: Problem, asked: Asked) -> None:
        self.problem, self.asked = problem, asked
        self.table: Effects = effects(problem)
        self.sizes = [tensor.nbytes for tensor in problem.tensors]
        self.room = asked.ram_bytes - problem.reserve_bytes
        self.paging = asked.paging and problem.paging
        self.count = len(problem.operators)
        last = problem.operators[-1]  # what the end of a step reads stays beside what is brought in after it
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
        """The tensors that may be read from now on, or have to be there at the end."""
        found = {*self.at_end, *self.home}
        for k in range(self.count - 1, -1, -1):
            operator = self.problem.operators[k]
            if k >= done or (self.asked.remat and operator.recomputable and not found.isdisjoint(operator.outputs)):
                found.update(operator.inputs)
        return frozenset(found)

    def starts(self) -> Iterator[_Moment]:
        stored = frozenset(self.problem.stored_at_start)
        if self.problem.nbytes(self.problem.at_start) > self.room:
            return
        for ram, _, made in self._rooms((), frozenset(self.problem.at_start), self.problem.at_start, 0):
            began = tuple(entry for entry in ram if entry[0] in self.at_end)
            yield _Moment(0.0, 0, ram, stored, stored, Clock(self.problem), made=made[:-1], began=began)

    def ended(self, now: _Moment) -> bool:
        there = now.done == self.count and self.home <= now.stored and self.at_end <= {i for i, _ in now.ram}
        return there and set(now.began) <= set(now.ram)

    def late(self, now: _Moment) -> bool:
        return max(now.clock.cpu + self.rest_s[now.done], now.clock.channel) > self.limit_s

    def seen(self, now: _Moment) -> bool:
        """Say whether a moment like this one, and no later, was seen; else remember it."""
        clock, cpu = now.clock, now.clock.cpu
        awake = clock.wakes > 0 and clock.channel >= cpu
        capacity = now.places if self.problem.storage_bytes is not None else None
        key: tuple[object, ...] = (now.done, now.ram, now.stored, capacity, now.began)
        times: tuple[float, ...] = ()
        cost = (now.cost,) if self.asked.floor else ()
        if self.timed:
            here = [i for i, _ in now.ram]
            times = (clock.channel, *(clock.arrived[i] for i in here), *(clock.settled[i] for i in here))
            times = tuple(max(moment, cpu) for moment in times)
        if self.problem.wake_j:
            key = (*key, awake, *(moment - cpu for moment in times))
            times = ()
        if self.asked.deadline_s is not None:
            times = (cpu, *times)
        times = (*cost, *times)
        known = self._seen.setdefault(key, [])
        if any(all(a <= b for a, b in zip(other, times, strict=True)) for other in known):
            return True
        known.append(times)
        return False

    def moves(self, now: _Moment) -> Iterator[_Moment]:
        """All that one more instruction leads to, with the frees that it needs."""
        there = frozenset(i for i, _ in now.ram)
        for k in range(min(now.done + 1, self.count)):
            useful = self.useful[now.done].intersection(self.problem.operators[k].outputs)
            for effect in self.ways[k]:
                lacking = useful - there or useful.intersection(effect.streams_out) - now.stored
                again = self.asked.remat and effect.recomputable and now.done <= effect.until and lacking
                if (k == now.done or again) and now.stored.issuperset(effect.streams_in):
                    yield from self._done(now, there, effect)
        if not self.paging:
            return
        for i in sorted(self.useful[now.done]):
            if i in there and i not in now.stored:
                yield from self._done(now, there, self.table[Action.PAGE_OUT][i])
            elif i in now.stored and i not in there:
                yield from self._done(now, there, self.table[Action.PAGE_IN][i])

    def _done(self, now: _Moment, there: frozenset[int], effect: Effect) -> Iterator[_Moment]:
        if not there.issuperset(effect.reads):
            return
        problem, first = self.problem, effect.operator == now.done
        places = now.places.union(effect.stores, effect.streams_out)
        if problem.storage_blocks is not None and sum(map(problem.blocks, places)) > problem.storage_blocks:
            return
        stored = now.stored.union(effect.stores, effect.streams_out)
        if first:
            stored -= set(effect.updates).difference(effect.streams_out)
        joules = effect.joules
        if first:
            joules -= problem.operators[effect.operator].energy_j
        old = there.intersection(effect.streams_out)
        ram = tuple(entry for entry in now.ram if entry[0] not in old)
        fresh = tuple(i for i in effect.makes if i not in there)
        needed, beside = frozenset((*effect.reads, *effect.makes)), effect.extra_bytes
        over = problem.operators[effect.operator].takes if effect.takes and self.asked.placed else ()
        if over:  # its output begins where the input does that it takes over
            fresh, beside = tuple(i for i in fresh if i != over[1]), beside + self.sizes[over[0]]
        for room, gone, made in self._rooms(ram, needed, fresh, beside):
            if over:
                begin = (over[1], dict(room)[over[0]])
                room = tuple(sorted((*room, begin)))
                made = (*sorted((*made[:-1], begin)), made[-1])
            clock = now.clock.copy()
            frees = [self.table[Action.FREE][i] for i in sorted(gone | old)]
            for free in frees:
                clock.advance(free)
            wakes = clock.wakes
            clock.advance(effect)
            done = now.done + first
            under_way = [i for i, end in enumerate(clock.settled) if end > clock.cpu] if self.timed else []
            kept = self.useful[done].union(under_way).difference(effect.takes)
            dead = [self.table[Action.FREE][i].step for i, _ in room if i not in kept]
            yield _Moment(
                now.cost + joules + problem.wake_j * (clock.wakes - wakes),
                done,
                tuple(entry for entry in room if entry[0] in kept),
                stored & self.useful[done],
                places if problem.storage_bytes is not None else now.places,
                clock,
                now,
                (*(free.step for free in frees), effect.step, *dead),
                made if effect.operator >= 0 else made[:-1],
                now.began,
            )

    def _rooms(
        self, ram: Ram, needed: frozenset[int], fresh: Sequence[int], beside: int
    ) -> Iterator[tuple[Ram, frozenset[int], Ram]]:
        """RAM with what is `fresh`, what had to go for it and for `beside` bytes more, and where it all lies."""
        if self.asked.placed:
            todo = [*((i, self.sizes[i]) for i in fresh), (-1, beside)]
            yield from self._places(ram, needed, todo, frozenset(), ())
            return
        short = sum(self.sizes[i] for i, _ in ram) + sum(self.sizes[i] for i in fresh) + beside - self.room
        able = [i for i, _ in ram if i not in needed and self.sizes[i]]
        least: list[frozenset[int]] = []
        for gone in itertools.chain.from_iterable(itertools.combinations(able, n) for n in range(len(able) + 1)):
            if sum(self.sizes[i] for i in gone) >= short and not any(other.issubset(gone) for other in least):
                least.append(frozenset(gone))
                kept = [entry for entry in ram if entry[0] not in gone]
                yield tuple(sorted([*kept, *((i, 0) for i in fresh)])), least[-1], ()

    def _places(
        self, ram: Ram, needed: frozenset[int], todo: Sequence[tuple[int, int]], gone: frozenset[int], made: Ram
    ) -> Iterator[tuple[Ram, frozenset[int], Ram]]:
        """The same where each needs a place: what lies there has to go."""
        if not todo:
            yield tuple(sorted([*ram, *(entry for entry in made if entry[0] >= 0)])), gone, made
            return
        (i, size), *later = todo
        for offset in self.offsets if size else [0]:
            end = offset + size
            if end > self.room:
                break
            if size and any(self.sizes[j] and start < end and offset < start + self.sizes[j] for j, start in made):
                continue
            hit = {j for j, start in ram if size and self.sizes[j] and start < end and offset < start + self.sizes[j]}
            if not hit & needed:
                kept = tuple(entry for entry in ram if entry[0] not in hit)
                yield from self._places(kept, needed, later, gone | hit, (*made, (i, offset)))

    def plan(self, now: _Moment) -> Plan:
        """The plan that led to this moment; laid out where layouts count, else freed as early as can be."""
        moments: list[_Moment] = []
        moment: _Moment | None = now
        while moment is not None:
            moments.append(moment)
            moment = moment.before
        moments.reverse()
        steps = tuple(step for one in moments for step in one.steps)
        if not self.asked.placed and not (
            self.problem.dma and self.timed
        ):  # where waiting for a page-out costs nothing
            events = [step for step in steps if step.action is not Action.FREE]
            return Plan(self.problem, tuple(with_frees(self.problem, events)))
        return Plan(self.problem, steps, tuple(offset for one in moments for _, offset in one.made))


def _offsets(problem: Problem, room: int) -> list[int]:
    """The offsets at which a buffer may begin: pushed down as far as they go, all stand on others."""
    unit, found = problem.alignment, {0}
    sizes = {-(-n // unit) * unit for n in (*(t.nbytes for t in problem.tensors), *problem.extra_bytes) if n > 0}
    grown = list(found)
    while grown:
        grown = [s + n for s in grown for n in sizes if s + n < room and s + n not in found]
        found.update(grown)
        if len(found) > MOST_STATES:
            break
    return sorted(found)


DECIDING_SHARE = 0.5
"""Of the time limit, for a look at all plans, where there are few."""
CLOSED_STATES = 5_000
"""So many states are looked at where a scope is proven: a plan outside of it may be better."""


def decidable(run: Run) -> bool:
    """Say whether every plan is asked for, by nothing but energy, RAM and the makespan, and there are few."""
    chosen, options = run.chosen, run.options
    plain = chosen.goal is ENERGY and all(block.name in chosen.simulated for block in chosen.blocks)
    timed = options.deadline_s is None or options.deadline_model is DeadlineModel.MAKESPAN
    return chosen.plans_count and plain and timed and options.scope in ("auto", "full") and small(run.problem)


def decided(run: Run, proof: Proof) -> Proof:
    """`proof`, or what is known of all plans where that is more: a better plan, a higher bound, or that there is none.

    The bound of bytes and seconds alone holds whatever layouts say.
    """
    incumbent, options = run.incumbent, run.options
    if proof.of_all:
        return proof
    best = incumbent.best
    closed = best is not None and (best.value <= 0 or run.closed(max(options.gap, OPTIMAL_GAP)))
    asked = Asked(
        options.ram_bytes - run.chosen.reserve_bytes(run.problem), options.deadline_s, options.paging, options.remat
    )
    bound = 0.0
    for placed in (False, True):
        ceiling = math.inf if incumbent.value is None else incumbent.value
        most = CLOSED_STATES if closed else MOST_STATES
        found = cheapest(run.problem, replace(asked, placed=placed, floor=bound), ceiling, run.latest, most)
        bound = max(bound, found.bound)
        if found.plan is None:
            break
        if incumbent.take(found.plan):
            break
    value = incumbent.value
    run.least = max(run.least, bound if value is None else min(bound, value))
    if value is None and bound == math.inf:
        return replace(proof, asked="full", scope="full", bound=0.0, infeasible=True, of_all=True, closed=False)
    if value is None or (closed and incumbent.best is best):
        return proof if value is not None else replace(proof, bound=max(bound, proof.bound))
    bound = min(bound, value)
    if bound < proof.bound and incumbent.best is best:
        return proof
    run.enter("full", bound)
    gap = run.closed(options.gap)
    return replace(proof, asked="full", scope="full", bound=bound, infeasible=False, value=value, closed=gap, note="")
