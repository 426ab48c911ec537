"""The moments to queue each transfer, so that the CPU waits least: the paper's section 5.5.

On a device with DMA a transfer costs no time while the CPU computes. `plan_transfers` keeps the computes in their
order and every transfer in its stay, and moves page-ins earlier where memory allows, page-outs where the channel is
idle, and frees of what is under way later. Transfers share one channel, so that earlier is not always better:
what is queued too early is in the way of what is due first. Several simple orders are tried, the best is improved
where the CPU waits, and a branch and bound finishes small cases exactly. Last, page-ins are put off again as long as
that costs nothing: just in time.

The best order of a plan's events by branch and bound, within a number of nodes.

A node is a moment of the `Queueing`. What is left takes at least the computes that are left and the transfers that are
left, and for each compute k: the page-ins that are still due by k, one after the other, and then all from k on.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from poetopt.plan.instructions import Action, Plan
from poetopt.plan.normalize import normalize
from poetopt.plan.simulate import Simulation, simulate
from poetopt.plan.stays import START, Moves, Queueing

TOLERANCE = 1e-12
"""Makespans that differ by less than this fraction are the same: sums of floats depend on their order."""


class _Branching:
    """Depth first from the start of the plan, the most promising event first.

    order, makespan_s
        The best order so far, and when it is over.
    proven
        Whether no order is better; False where the nodes ran out.
    """

    def __init__(self, moves: Moves, ram_bytes: int, order: Sequence[int], makespan_s: float, nodes: int) -> None:
        self.moves = moves
        self.order = list(order)
        self.makespan_s = makespan_s
        self._left = nodes
        self._seen: dict[tuple[int, frozenset[int], tuple[int, ...]], list[tuple[float, ...]]] = {}
        self._due = _due(moves)
        start = Queueing(moves, ram_bytes)
        self.bound_s = self.bound(start)
        # An explicit stack of (moment, events so far): plans are longer than Python's recursion.
        stack: list[tuple[Queueing, tuple[int, ...]]] = [(start, ())] if self._promising(start) else []
        while stack and self._left > 0:
            self._left -= 1
            moment, path = stack.pop()
            if len(path) == len(self.order):
                if moment.makespan_s < self.makespan_s * (1 - TOLERANCE):
                    self.order, self.makespan_s = list(path), moment.makespan_s
                continue
            if not self._promising(moment) or self._dominated(moment):
                continue
            branches = []
            for rank, event in enumerate(self._next(moment)):
                after = moment.copy()
                if after.step(event) and self._promising(after):
                    branches.append((self.bound(after), after.clock.cpu, rank, after, event))
            branches.sort(key=lambda branch: branch[:3], reverse=True)
            stack += [(after, (*path, event)) for _, _, _, after, event in branches]
        self.proven = not stack

    @staticmethod
    def least_s(moves: Moves, ram_bytes: int) -> float:
        """No order of the events is over earlier."""
        return _bound(moves, _due(moves), Queueing(moves, ram_bytes))

    def bound(self, moment: Queueing) -> float:
        """No way to go on from `moment` is over earlier."""
        return _bound(self.moves, self._due, moment)

    def _promising(self, moment: Queueing) -> bool:
        return self.bound(moment) < self.makespan_s * (1 - TOLERANCE)

    def _next(self, moment: Queueing) -> list[int]:
        """The events that may come now."""
        moves = self.moves
        found = []
        blocked = moment.done
        for event, transfer in enumerate(moves.transfers, start=moves.count):
            if event in moment.queued:
                continue
            if moment.done in transfer.before:
                blocked = moves.count
            if all(other < moment.done if other < moves.count else other in moment.queued for other in transfer.after):
                found.append(event)
        # Page-outs first: they take no room.
        found.sort(key=lambda event: moves.transfers[event - moves.count].action is Action.PAGE_IN)
        return [moment.done, *found] if blocked < moves.count else found

    def _dominated(self, moment: Queueing) -> bool:
        """Tell whether a moment like this one was seen no later in any respect; else remember it."""
        held = tuple(index for index in moment.held if index >= 0)
        clock = moment.clock
        times = (clock.cpu, clock.channel, *clock.arrived, *clock.settled)
        # What has settled by now is settled: only what is still under way can matter.
        times = tuple(max(time, clock.cpu) for time in times)
        seen = self._seen.setdefault((moment.done, frozenset(moment.queued), held), [])
        if any(all(a <= b for a, b in zip(other, times, strict=True)) for other in seen):
            return True
        seen.append(times)
        return False


def _due(moves: Moves) -> list[tuple[int, int]]:
    """The page-ins by the compute that each must precede."""
    return sorted((moves.first_use(event), event) for event in moves.page_ins())


def _bound(moves: Moves, due_by: list[tuple[int, int]], moment: Queueing) -> float:
    queued = moment.queued
    left = sum(
        transfer.seconds for event, transfer in enumerate(moves.transfers, start=moves.count) if event not in queued
    )
    free = max(moment.clock.cpu, moment.clock.channel)
    found = max(moment.clock.cpu + moves.tail_s[moment.done], moment.clock.channel, free + left if left else 0.0)
    due = free
    for place, event in due_by:
        if event not in queued:
            due += moves.transfers[event - moves.count].seconds
            found = max(found, due + moves.tail_s[place])
    return found


TRIALS = 1500
"""Orders tried while improving, at most."""
NODES = 4000
"""Nodes of the branch and bound, at most."""
EFFORT = 400_000
"""Events looked at while improving, and as many in the branch and bound: long plans get fewer trials and nodes."""
LEADS = (1.0, 1.5, 2.0, 4.0, 16.0, float("inf"))
"""Distances ahead of just in time at which page-ins are queued in the simple orders, in units of their own duration."""


@dataclass(frozen=True)
class TransferOverlap:
    """The part of a plan's transfers that happens while the CPU computes.

    transfer_s, hidden_s
        Seconds of all transfers, and those of them during which the CPU computes.
    transfer_bytes, hidden_bytes
        Bytes of all transfers, and those that move while the CPU computes (at a steady rate each).
    """

    transfer_s: float
    hidden_s: float
    transfer_bytes: int
    hidden_bytes: int

    @property
    def share(self) -> float:
        """The part of the transfers' time that is hidden; 1 where there is nothing to hide."""
        return self.hidden_s / self.transfer_s if self.transfer_s else 1.0


def overlap(plan: Plan, simulation: Simulation | None = None) -> TransferOverlap:
    """The part that `plan` hides. Raises PlanError for one that is not valid.

    The CPU stands still only while the channel is busy, so the hidden seconds are those of all transfers less what the
    makespan exceeds the computes by.
    """
    found = simulate(plan) if simulation is None else simulation
    busy = [
        (found.start_s[k], found.end_s[k])
        for k, step in enumerate(plan.instructions)
        if step.action is Action.COMPUTE and found.end_s[k] > found.start_s[k]
    ]
    ends = [end for _, end in busy]
    moved = 0.0
    for k, step in enumerate(plan.instructions):
        start, end = found.start_s[k], found.end_s[k]
        if step.action not in (Action.PAGE_IN, Action.PAGE_OUT) or end <= start or not plan.problem.dma:
            continue
        covered = 0.0
        place = bisect_right(ends, start)
        while place < len(busy) and busy[place][0] < end:
            covered += min(end, busy[place][1]) - max(start, busy[place][0])
            place += 1
        moved += plan.problem.tensors[step.target].nbytes * min(1.0, covered / (end - start))
    hidden = found.transfer_s - (found.makespan_s - found.compute_s)
    return TransferOverlap(found.transfer_s, min(max(hidden, 0.0), found.transfer_s), found.bytes_paged, round(moved))


def plan_transfers(
    plan: Plan, ram_bytes: int, *, trials: int = TRIALS, nodes: int = NODES, goal_s: float | None = None
) -> Plan:
    """The same computes and transfers, queued so that the plan is over as early as can be found.

    plan
        One that `simulate` passes with `ram_bytes`.
    ram_bytes
        The budget that the new plan keeps as well; it may use more of it than the old one.
    trials, nodes
        How much effort at most: orders tried, and nodes of the exact search.
    goal_s
        Seconds that are early enough, where that is all that matters: a makespan up to it is not improved further, and
        one that no order brings down to it is not improved at all.

    Its energy is the old one's or (where `normalize` finds waste) less, its makespan less; where nothing is gained, on
    a device without DMA the result is `plan` itself. A new plan has no offsets. Raises PlanError for a plan that is not
    valid.
    """
    before = simulate(plan, ram_bytes=ram_bytes)
    if not plan.problem.dma or not before.page_ins + before.page_outs:
        return plan
    moves = Moves(plan.problem, normalize(plan).instructions)
    if not moves.transfers:
        return plan
    trials = min(trials, EFFORT // len(moves.order))
    nodes = min(nodes, EFFORT // (10 * len(moves.transfers)))
    search = _TimingSearch(moves, ram_bytes, trials)
    search.try_simple_orders()
    enough_s = max(search.least_s, goal_s or 0.0)
    hopeless = goal_s is not None and _Branching.least_s(moves, ram_bytes) > goal_s * (1 + TOLERANCE)
    if search.makespan_s > enough_s * (1 + TOLERANCE) and not hopeless:
        search.improve()
        exact = _Branching(moves, ram_bytes, search.order, search.makespan_s, nodes)
        search.order, search.makespan_s = exact.order, exact.makespan_s
    if search.makespan_s >= before.makespan_s * (1 - TOLERANCE):
        return plan
    search.put_off(trials)
    moment = search.run(search.order, written=True)
    if moment is None or moment.steps is None:
        return plan
    moment.finish()
    planned = replace(plan, instructions=tuple(moment.steps), offsets=())
    # an order that is over earlier may wake the storage more often
    return planned if not plan.problem.wake_j or simulate(planned).overhead_j <= before.overhead_j else plan


def out_of_reach(plan: Plan, ram_bytes: int, goal_s: float) -> bool:
    """Tell whether no order of the plan's transfers is over by `goal_s`, by proof; False also where the nodes ran out.

    Each page-out stays with the stay that it is of in `plan`. Raises PlanError for a plan that is not valid.
    """
    before = simulate(plan, ram_bytes=ram_bytes)
    if before.makespan_s <= goal_s:
        return False
    moves = Moves(plan.problem, normalize(plan).instructions)
    if not plan.problem.dma or not moves.transfers:
        return sum(plan.problem.operators[j].time_s for j in moves.computes) > goal_s
    if _Branching.least_s(moves, ram_bytes) > goal_s:
        return True
    limit = min(NODES, EFFORT // (10 * len(moves.transfers)))
    search = _Branching(moves, ram_bytes, moves.order, goal_s * (1 + 2 * TOLERANCE), limit)
    return search.proven and search.makespan_s > goal_s


class _TimingSearch:
    """The best order so far, and ways to a better one."""

    def __init__(self, moves: Moves, ram_bytes: int, trials: int) -> None:
        self.moves = moves
        self.ram_bytes = ram_bytes
        self.trials = trials
        self.order = moves.order
        moment = self.run(moves.order)
        self.makespan_s = float("inf") if moment is None else moment.makespan_s
        self.least_s = moves.tail_s[0]

    def run(self, order: Sequence[int], *, written: bool = False) -> Queueing | None:
        """The moment after all events, or None where they don't fit in RAM."""
        moment = Queueing(self.moves, self.ram_bytes, written=written)
        for event in order:
            if not moment.step(event):
                return None
        return moment

    def consider(self, order: list[int]) -> bool:
        """Take `order` if it is over earlier than the best."""
        self.trials -= 1
        moment = self.run(order)
        if moment is None or moment.makespan_s >= self.makespan_s * (1 - TOLERANCE):
            return False
        self.order, self.makespan_s = order, moment.makespan_s
        return True

    def try_simple_orders(self) -> None:
        """Page-outs as soon as their tensor is made, or where they are; page-ins more or less ahead of time."""
        for early in (True, False):
            for lead in LEADS:
                self.consider(self._simple(lead, early))

    def _simple(self, lead: float, early: bool) -> list[int]:
        moves = self.moves
        slots: dict[int, int] = {}
        place = 0
        for event in moves.order:
            if event < moves.count:
                place = event + 1
                continue
            transfer = moves.transfers[event - moves.count]
            if transfer.action is Action.PAGE_OUT:
                slots[event] = max(transfer.after, default=START) + 1 if early else place
        room = self._room()
        # When each compute starts at the earliest, and, from the end backwards, when the channel must begin.
        head = [moves.tail_s[0] - tail for tail in moves.tail_s]
        channel = float("inf")
        page_ins = sorted((moves.first_use(event), event) for event in moves.page_ins())
        for due, event in reversed(page_ins):
            transfer = moves.transfers[event - moves.count]
            channel = min(channel, head[due]) - transfer.seconds
            wanted = channel - (lead - 1) * transfer.seconds if transfer.seconds else channel
            first = max((slots[other] if other >= moves.count else other + 1 for other in transfer.after), default=0)
            nbytes = moves.problem.tensors[transfer.tensor].nbytes
            place = due
            while place > first and head[place] > wanted and room[place - 1] >= nbytes:
                place -= 1
                room[place] -= nbytes
            slots[event] = place
        queues: list[list[int]] = [[] for _ in range(moves.count + 1)]
        for event, place in slots.items():
            if moves.transfers[event - moves.count].action is Action.PAGE_OUT:
                queues[place].append(event)
        for _, event in page_ins:
            queues[slots[event]].append(event)
        order = [*queues[0]]
        for place in range(moves.count):
            order += [place, *queues[place + 1]]
        return order

    def _room(self) -> list[int]:
        """Bytes that are free during each compute when nothing is in RAM longer than it must be."""
        moves, problem = self.moves, self.moves.problem
        change = [0] * (moves.count + 1)
        for stay in moves.stays:
            if stay.touched:
                first = 0 if stay.made_by < 0 else stay.touched[0]
                change[first] += problem.tensors[stay.tensor].nbytes
                change[moves.count if stay.lasts else stay.touched[1] + 1] -= problem.tensors[stay.tensor].nbytes
        live = problem.reserve_bytes
        room = []
        for place in range(moves.count):
            live += change[place]
            room.append(self.ram_bytes - live - moves.effects[place].extra_bytes)
        return room

    def improve(self) -> None:
        """Move transfers around the longest waits until nothing helps or the trials are over."""
        gained = True
        while gained and self.trials > 0 and self.makespan_s > self.least_s * (1 + TOLERANCE):
            gained = any(
                self.trials > 0 and self.consider(moved)
                for event in self._suspects()
                for moved in self._moved(self.order, event)
            )

    def _suspects(self) -> list[int]:
        """Transfers that something waited for, or that were on the channel before one of those, longest waits first."""
        moment = self.run(self.order)
        if moment is None:
            return []
        place = {event: k for k, event in enumerate(self.order)}
        found: dict[int, None] = {}
        for _, waiting, tensor in sorted(moment.waits, reverse=True):
            until = place.get(waiting, len(self.order))
            transfers = [event for event in self.order[:until] if event >= self.moves.count]
            own = [
                k
                for k, event in enumerate(transfers)
                if self.moves.transfers[event - self.moves.count].tensor == tensor
            ]
            last = own[-1] if own else len(transfers) - 1
            found.update(dict.fromkeys(reversed(transfers[max(last - 4, 0) : last + 2])))
        found.update(dict.fromkeys(event for event in reversed(self.order) if event >= self.moves.count))
        return list(found)

    def _moved(self, order: list[int], event: int) -> Iterator[list[int]]:
        """`order` with one transfer elsewhere: near first, then farther by doubling distances."""
        here = order.index(event)
        places = self.moves.places(order, event)
        rest = [other for other in order if other != event]
        step = 1
        while here - step >= places.start or here + step < places.stop:
            for place in (here - step, here + step):
                if place in places:
                    yield [*rest[:place], event, *rest[place:]]
            step = step + 1 if step < 4 else 2 * step

    def put_off(self, trials: int) -> None:
        """Queue each page-in as late as the makespan allows, the last first."""
        for event in sorted(self.moves.page_ins(), key=self.order.index, reverse=True):
            here = self.order.index(event)
            rest = [other for other in self.order if other != event]
            low, high = here, self.moves.places(self.order, event).stop - 1
            while low < high and trials > 0:
                trials -= 1
                middle = (low + high + 1) // 2
                moment = self.run([*rest[:middle], event, *rest[middle:]])
                if moment is not None and moment.makespan_s <= self.makespan_s * (1 + TOLERANCE):
                    low = middle
                else:
                    high = middle - 1
            self.order = [*rest[:low], event, *rest[low:]]
