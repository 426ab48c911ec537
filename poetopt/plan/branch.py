"""The best order of a plan's events by branch and bound, within a number of nodes.

A node is a moment of the `Queueing`. What is left takes at least the computes that are left and the transfers that are
left, and for each compute k: the page-ins that are still due by k, one after the other, and then all from k on.
"""

from __future__ import annotations

from collections.abc import Sequence

from poetopt.plan.instructions import Action
from poetopt.plan.queueing import Queueing
from poetopt.plan.stays import Moves

TOLERANCE = 1e-12
"""Makespans that differ by less than this fraction are the same: sums of floats depend on their order."""


class Branching:
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
        """Whether a moment like this one was seen no later in any respect; else remember it."""
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
