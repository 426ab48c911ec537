"""The cheapest way through a space of states: what exhaustive searches have in common."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable
from typing import TypeVar

State = TypeVar("State", bound=tuple[object, ...])


def least_cost(start: State, moves: Callable[[State], Iterable[tuple[float, State]]], count: int) -> float | None:
    """The least cost from `start` to a state with `count` operators done (its first entry); None: there is no way.

    moves
        A state -> what each move costs (never below 0), and where it leads.
    """
    best, closed, ticket = {start: 0.0}, set(), itertools.count()
    queue: list[tuple[float, int, int, State]] = [(0.0, 0, 0, start)]
    while queue:
        cost, _, _, state = heapq.heappop(queue)
        if state[0] == count:
            return cost
        if state in closed:
            continue
        closed.add(state)
        for added, after in moves(state):
            if cost + added < best.get(after, float("inf")):
                best[after] = cost + added
                done = after[0]
                assert isinstance(done, int)
                heapq.heappush(queue, (cost + added, -done, next(ticket), after))
    return None
