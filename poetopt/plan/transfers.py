"""Queueing times of transfers that make the CPU wait least (section 5.5 of the paper).

On a device with DMA, a transfer costs no time while the CPU computes. `plan_transfers` keeps the order of computes and
the stay of every transfer. It moves page-ins earlier if memory allows, page-outs to times when the channel is idle,
and frees of tensors in transfer later. Transfers share one channel, so earlier is not always better: a transfer that
is queued too early delays a more urgent one. Several simple orders are tried, the best one is improved where the CPU
waits, and a branch and bound finishes small cases exactly. Last, page-ins are delayed again as long as that costs
nothing: just in time.

Branch and bound. A node is a state of `Queueing`. Its remaining time is at least that of the remaining computes, at
least that of the remaining transfers, and for each compute k at least that of the page-ins that k or an earlier
compute needs, one after the other, followed by all computes from k on.
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
"""Makespans within this fraction are equal: sums of floats depend on their order."""


class _Branching:
    """Branch and bound over the order of events: depth first from the start, the most promising event first.

    Attributes
    ----------
    order, makespan_s
        Best order so far, and its end.
    proven
        Whether no order is better; False if the nodes ran out.
    """

    def __init__(self, moves: Moves, ram_bytes: int, order: Sequence[int], makespan_s: float, nodes: int) -> None:
        self.moves = moves
        self.order = list(order)
        self.makespan_s = makespan_s
        self._nodes_left = nodes
        self._seen: dict[tuple[int, frozenset[int], tuple[int, ...]], list[tuple[float, ...]]] = {}
        self._due = _due(moves)
        initial = Queueing(moves, ram_bytes)
        self.bound_s = self.bound(initial)
        # An explicit stack of (state, events so far): plans are longer than the limit of Python's recursion.
        stack: list[tuple[Queueing, tuple[int, ...]]] = [(initial, ())] if self._may_improve(initial) else []
        while stack and self._nodes_left > 0:
            self._nodes_left -= 1
            state, prefix = stack.pop()
            if len(prefix) == len(self.order):
                if state.makespan_s < self.makespan_s * (1 - TOLERANCE):
                    self.order, self.makespan_s = list(prefix), state.makespan_s
                continue
            if not self._may_improve(state) or self._dominated(state):
                continue
            branches = []
            for rank, event in enumerate(self._next(state)):
                next_state = state.copy()
                if next_state.step(event) and self._may_improve(next_state):
                    branches.append((self.bound(next_state), next_state.clock.cpu, rank, next_state, event))
            branches.sort(key=lambda branch: branch[:3], reverse=True)
            stack += [(next_state, (*prefix, event)) for _, _, _, next_state, event in branches]
        self.proven = not stack

    @staticmethod
    def least_s(moves: Moves, ram_bytes: int) -> float:
        """Return a lower bound, in seconds, on the end of any order of the events."""
        return _bound(moves, _due(moves), Queueing(moves, ram_bytes))

    def bound(self, state: Queueing) -> float:
        """Return a lower bound, in seconds, on the end of any continuation of `state`."""
        return _bound(self.moves, self._due, state)

    def _may_improve(self, state: Queueing) -> bool:
        return self.bound(state) < self.makespan_s * (1 - TOLERANCE)

    def _next(self, state: Queueing) -> list[int]:
        """Return the events that may come next."""
        moves = self.moves
        candidates = []
        blocked = state.done
        for event, transfer in enumerate(moves.transfers, start=moves.count):
            if event in state.queued:
                continue
            if state.done in transfer.before:
                blocked = moves.count
            if all(other < state.done if other < moves.count else other in state.queued for other in transfer.after):
                candidates.append(event)
        # Page-outs come first because they need no RAM.
        candidates.sort(key=lambda event: moves.transfers[event - moves.count].action is Action.PAGE_IN)
        return [state.done, *candidates] if blocked < moves.count else candidates

    def _dominated(self, state: Queueing) -> bool:
        """Return whether an earlier state was at least as good in all respects; if not, remember this one."""
        held = tuple(index for index in state.held if index >= 0)
        clock = state.clock
        times = (clock.cpu, clock.channel, *clock.arrived, *clock.settled)
        # Only transfers that are still in progress can make a difference.
        times = tuple(max(time, clock.cpu) for time in times)
        seen = self._seen.setdefault((state.done, frozenset(state.queued), held), [])
        if any(all(a <= b for a, b in zip(other, times, strict=True)) for other in seen):
            return True
        seen.append(times)
        return False


def _due(moves: Moves) -> list[tuple[int, int]]:
    """Return (compute that it must precede, page-in) of each page-in, sorted."""
    return sorted((moves.first_use(event), event) for event in moves.page_ins())


def _bound(moves: Moves, due_by: list[tuple[int, int]], state: Queueing) -> float:
    queued = state.queued
    left_s = sum(
        transfer.seconds for event, transfer in enumerate(moves.transfers, start=moves.count) if event not in queued
    )
    free_s = max(state.clock.cpu, state.clock.channel)
    bound_s = max(state.clock.cpu + moves.tail_s[state.done], state.clock.channel, free_s + left_s if left_s else 0.0)
    due_s = free_s
    for place, event in due_by:
        if event not in queued:
            due_s += moves.transfers[event - moves.count].seconds
            bound_s = max(bound_s, due_s + moves.tail_s[place])
    return bound_s


TRIALS = 1500
"""Maximum number of orders to try while improving."""
NODES = 4000
"""Maximum number of nodes of the branch and bound."""
EFFORT = 400_000
"""Maximum number of events in the trials, and in the nodes: long plans get fewer trials and nodes."""
LEADS = (1.0, 1.5, 2.0, 4.0, 16.0, float("inf"))
"""Lead times of page-ins before just in time in the simple orders, in units of their own duration."""


@dataclass(frozen=True)
class TransferOverlap:
    """Share of a plan's transfers that happens while the CPU computes.

    Attributes
    ----------
    transfer_s, hidden_s
        Seconds of all transfers, and of the transfers while the CPU computes.
    transfer_bytes, hidden_bytes
        Bytes of all transfers, and those that move while the CPU computes (each transfer at a steady rate).
    """

    transfer_s: float
    hidden_s: float
    transfer_bytes: int
    hidden_bytes: int

    @property
    def share(self) -> float:
        """Share of the transfer time that is hidden; 1 if there are no transfers."""
        return self.hidden_s / self.transfer_s if self.transfer_s else 1.0


def overlap(plan: Plan, simulation: Simulation | None = None) -> TransferOverlap:
    """Return the share of the transfers that `plan` hides. Raises PlanError for an invalid plan.

    The CPU waits only while the channel is busy. So the hidden seconds are those of all transfers, minus the difference
    between the makespan and the seconds of the computes.
    """
    run = simulate(plan) if simulation is None else simulation
    busy = [
        (run.start_s[k], run.end_s[k])
        for k, step in enumerate(plan.instructions)
        if step.action is Action.COMPUTE and run.end_s[k] > run.start_s[k]
    ]
    ends = [end for _, end in busy]
    moved = 0.0
    for k, step in enumerate(plan.instructions):
        start, end = run.start_s[k], run.end_s[k]
        if step.action not in (Action.PAGE_IN, Action.PAGE_OUT) or end <= start or not plan.problem.dma:
            continue
        covered = 0.0
        place = bisect_right(ends, start)
        while place < len(busy) and busy[place][0] < end:
            covered += min(end, busy[place][1]) - max(start, busy[place][0])
            place += 1
        moved += plan.problem.tensors[step.target].nbytes * min(1.0, covered / (end - start))
    hidden_s = run.transfer_s - (run.makespan_s - run.compute_s)
    return TransferOverlap(run.transfer_s, min(max(hidden_s, 0.0), run.transfer_s), run.bytes_paged, round(moved))


def plan_transfers(
    plan: Plan, ram_bytes: int, *, trials: int = TRIALS, nodes: int = NODES, goal_s: float | None = None
) -> Plan:
    """Return the plan with its transfers queued so that it ends early; computes and transfers stay the same.

    The new plan needs at most the energy of the old one (less if `normalize` finds waste), and less time. If nothing is
    gained, or the device has no DMA, the result is `plan` itself. A new plan has no offsets.

    Parameters
    ----------
    plan
        Plan that `simulate` accepts with `ram_bytes`.
    ram_bytes
        Budget that the new plan keeps too; it may use more of it than the old one.
    trials, nodes
        Maximum effort: orders to try, and nodes of the exact search.
    goal_s
        Seconds that suffice, if there is such a limit. A makespan within it is not improved further. If no order can
        reach it, nothing is improved.

    Raises
    ------
    PlanError
        For an invalid plan.
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
    sufficient_s = max(search.least_s, goal_s or 0.0)
    is_unreachable = goal_s is not None and _Branching.least_s(moves, ram_bytes) > goal_s * (1 + TOLERANCE)
    if search.makespan_s > sufficient_s * (1 + TOLERANCE) and not is_unreachable:
        search.improve()
        exact = _Branching(moves, ram_bytes, search.order, search.makespan_s, nodes)
        search.order, search.makespan_s = exact.order, exact.makespan_s
    if search.makespan_s >= before.makespan_s * (1 - TOLERANCE):
        return plan
    search.put_off(trials)
    state = search.run(search.order, written=True)
    if state is None or state.steps is None:
        return plan
    state.finish()
    planned = replace(plan, instructions=tuple(state.steps), offsets=())
    # A shorter order may wake the storage more often.
    return planned if not plan.problem.wake_j or simulate(planned).overhead_j <= before.overhead_j else plan


def out_of_reach(plan: Plan, ram_bytes: int, goal_s: float) -> bool:
    """Return whether provably no order of the plan's transfers ends by `goal_s`; False also if the nodes ran out.

    Each page-out keeps its stay in `plan`. Raises PlanError for an invalid plan.
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
    """Search for a better order: the best order so far, and moves from it."""

    def __init__(self, moves: Moves, ram_bytes: int, trials: int) -> None:
        self.moves = moves
        self.ram_bytes = ram_bytes
        self.trials = trials
        self.order = moves.order
        state = self.run(moves.order)
        self.makespan_s = float("inf") if state is None else state.makespan_s
        self.least_s = moves.tail_s[0]

    def run(self, order: Sequence[int], *, written: bool = False) -> Queueing | None:
        """Return the state after all events, or None if they don't fit in RAM."""
        state = Queueing(self.moves, self.ram_bytes, written=written)
        for event in order:
            if not state.step(event):
                return None
        return state

    def consider(self, order: list[int]) -> bool:
        """Adopt `order` if it ends earlier than the best; return whether it does."""
        self.trials -= 1
        state = self.run(order)
        if state is None or state.makespan_s >= self.makespan_s * (1 - TOLERANCE):
            return False
        self.order, self.makespan_s = order, state.makespan_s
        return True

    def try_simple_orders(self) -> None:
        """Try page-outs right after their tensor is made or at their place, and page-ins with several lead times."""
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
        room = self._free_bytes()
        # Earliest start of each compute; backwards from the end, the latest start of the channel.
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

    def _free_bytes(self) -> list[int]:
        """Return the free bytes during each compute if every stay is as short as possible."""
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
        """Move transfers around the longest waits until nothing helps or the trials are used up."""
        improved = True
        while improved and self.trials > 0 and self.makespan_s > self.least_s * (1 + TOLERANCE):
            improved = any(
                self.trials > 0 and self.consider(order)
                for event in self._suspects()
                for order in self._relocated(self.order, event)
            )

    def _suspects(self) -> list[int]:
        """Return transfers that caused waits or preceded those on the channel, the longest waits first."""
        state = self.run(self.order)
        if state is None:
            return []
        place = {event: k for k, event in enumerate(self.order)}
        suspects: dict[int, None] = {}
        for _, waiting, tensor in sorted(state.waits, reverse=True):
            end = place.get(waiting, len(self.order))
            transfers = [event for event in self.order[:end] if event >= self.moves.count]
            of_tensor = [
                k
                for k, event in enumerate(transfers)
                if self.moves.transfers[event - self.moves.count].tensor == tensor
            ]
            last = of_tensor[-1] if of_tensor else len(transfers) - 1
            suspects.update(dict.fromkeys(reversed(transfers[max(last - 4, 0) : last + 2])))
        suspects.update(dict.fromkeys(event for event in reversed(self.order) if event >= self.moves.count))
        return list(suspects)

    def _relocated(self, order: list[int], event: int) -> Iterator[list[int]]:
        """Yield `order` with one transfer elsewhere: near places first, then at doubling distances."""
        current = order.index(event)
        places = self.moves.places(order, event)
        rest = [other for other in order if other != event]
        step = 1
        while current - step >= places.start or current + step < places.stop:
            for place in (current - step, current + step):
                if place in places:
                    yield [*rest[:place], event, *rest[place:]]
            step = step + 1 if step < 4 else 2 * step

    def put_off(self, trials: int) -> None:
        """Queue each page-in as late as the makespan allows, the last one first."""
        for event in sorted(self.moves.page_ins(), key=self.order.index, reverse=True):
            current = self.order.index(event)
            rest = [other for other in self.order if other != event]
            low, high = current, self.moves.places(self.order, event).stop - 1
            while low < high and trials > 0:
                trials -= 1
                middle = (low + high + 1) // 2
                state = self.run([*rest[:middle], event, *rest[middle:]])
                if state is not None and state.makespan_s <= self.makespan_s * (1 + TOLERANCE):
                    low = middle
                else:
                    high = middle - 1
            self.order = [*rest[:low], event, *rest[low:]]
