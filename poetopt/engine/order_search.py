"""A local search over orders of the operators, judged by the relaxation that the proof rests on.

A move swaps two neighbouring stretches of the order, of one operator or a few, that don't depend on each other and
lie on the same side of the loss: a weight gradient earlier or later, one forward branch before the other. Moves are
drawn at random from a seed and sieved by what costs nothing to know, the bytes by which ordinary training in that order
exceeds the budget, summed over operators. What passes is judged by the retention relaxation at a low depth with all its
cuts: its bound is within a percent or two of the optimum, and it ends as soon as that is above the best order's.
Where no order has a schedule yet, the excess alone leads.

The same seed tries the same moves. The clock only ends the search, and the result says whether it did.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from poetopt.engine.cutting import cut
from poetopt.engine.model import model_of, session_of
from poetopt.engine.order import Precedence, reordered
from poetopt.engine.solution import Options
from poetopt.formulations import formulation
from poetopt.problem import Problem

JUDGED = 300
"""At most so many orders are judged by the relaxation."""
DRAWN = 40
"""At most so many moves are drawn for each operator of the problem."""
STRETCH = 8
"""The longest stretch of operators that a move takes along."""
SLACK = 0.02
"""An order goes to the judge if its excess is at most this fraction above the best order's."""
GAIN = 1e-4
"""An order is better if its judged overhead is lower by this fraction: less is noise of the cutting."""
DEPTH = 4
"""Scope depth of the relaxation that judges."""


@dataclass(frozen=True)
class OrderSearch:
    """What a search found.

    order
        Operator indices of the given problem; the identity where nothing better was found.
    given_j, found_j
        Joules of overhead as judged; infinite where the relaxation has no solution.
    moves, judged, drawn
        Moves taken on the way, orders judged, moves drawn.
    finished
        Whether it ended of itself and not by the clock.
    """

    order: tuple[int, ...]
    given_j: float
    found_j: float
    moves: int
    judged: int
    drawn: int
    finished: bool


def search_order(
    problem: Problem,
    options: Options,
    *,
    until: float,
    seed: int = 0,
    on_better: Callable[[float], None] | None = None,
) -> OrderSearch:
    """Look for an order of `problem` in which `options` cost less, until the moment `until` of `time.monotonic`.

    on_better
        Told the judged overhead of each better order.
    """
    return _Search(problem, options, until, random.Random(seed), on_better or (lambda _: None)).run()


class _OutOfTimeError(Exception):
    """The clock has ended the search."""


@dataclass
class _Search:
    """The state of one search: the best order, its excess and its judged overhead."""

    problem: Problem
    options: Options
    until: float
    rng: random.Random
    on_better: Callable[[float], None]
    judged: int = 0
    drawn: int = 0
    moves: int = 0

    def run(self) -> OrderSearch:
        self.precedence = Precedence.of(self.problem)
        self.order = list(range(len(self.problem.operators)))
        self.excess = excess_bytes(self.problem, self.order, self.options.ram_bytes)
        self.found_j = given_j = math.inf
        finished = True
        try:
            self.found_j = given_j = self._judge(self.order, math.inf)
            self._climb()
        except _OutOfTimeError:
            finished = False
        return OrderSearch(tuple(self.order), given_j, self.found_j, self.moves, self.judged, self.drawn, finished)

    def _climb(self) -> None:
        seen = {tuple(self.order)}
        limit = DRAWN * len(self.order)
        while self.drawn < limit and self.judged < JUDGED and self.found_j > 0:
            if time.monotonic() > self.until:
                raise _OutOfTimeError
            self.drawn += 1
            tried = self._drawn_move()
            if tried is None or tuple(tried) in seen:
                continue
            seen.add(tuple(tried))
            excess = excess_bytes(self.problem, tried, self.options.ram_bytes)
            if excess > self.excess * (1 + SLACK):
                continue
            overhead_j = self._judge(tried, self.found_j)
            better = overhead_j < self.found_j * (1 - GAIN) or (self.found_j == math.inf and overhead_j < math.inf)
            if better or (overhead_j <= self.found_j and excess < self.excess):
                self.order, self.excess = tried, excess
                self.found_j = min(self.found_j, overhead_j)
                self.moves += 1
                if better:
                    self.on_better(overhead_j)

    def _drawn_move(self) -> list[int] | None:
        """The order with two neighbouring stretches swapped, or None where what was drawn can't be."""
        order, rng = self.order, self.rng
        at = rng.randrange(len(order))
        size = 1 if rng.random() < 0.5 else rng.randint(2, STRETCH)
        stretch = order[at : at + size]
        later = rng.random() < 0.5
        room = self._room(at, len(stretch), later)
        if not room:
            return None
        far = room if rng.random() < 0.3 else rng.randint(1, room)
        if later:
            passed = order[at + size : at + size + far]
            return [*order[:at], *passed, *stretch, *order[at + size + far :]]
        passed = order[at - far : at]
        return [*order[: at - far], *stretch, *passed, *order[at + size :]]

    def _room(self, at: int, size: int, later: bool) -> int:
        """How many places the stretch can move: up to the next operator that it depends on, or that depends on it."""
        order, precedence = self.order, self.precedence
        stretch = order[at : at + size]
        backward = precedence.backward[stretch[0]]
        if any(precedence.backward[k] != backward for k in stretch):
            return 0
        edges = precedence.after if later else precedence.before
        blocked = {other for k in stretch for other in edges[k]}
        others = order[at + size :] if later else order[:at][::-1]
        room = 0
        for other in others:
            if other in blocked or precedence.backward[other] != backward:
                break
            room += 1
        return room

    def _judge(self, order: Sequence[int], best_j: float) -> float:
        """Joules that the relaxation needs in `order`; infinite where it has no solution, or a bound above `best_j`."""
        self.judged += 1
        overhead_j = judged_j(reordered(self.problem, order), self.options, self.until, best_j)
        if time.monotonic() > self.until:
            raise _OutOfTimeError
        return overhead_j


def judged_j(problem: Problem, options: Options, until: float, best_j: float = math.inf) -> float:
    """Joules of overhead that the retention relaxation at a low depth proves; infinite where it has no solution.

    It ends early, with whatever it has then, once that is above `best_j`.
    """
    if options.ram_bytes < problem.least_ram_bytes:
        return math.inf
    chosen = formulation("retention")
    asked = replace(options, formulation=chosen.name)
    model = model_of(chosen, problem, asked, _scope(options))
    scale = 1e4 / (problem.baseline_energy_j or 1.0)
    session = session_of(model, options, scale=scale, threads=1)
    reached = 0.0

    def enough(bound_j: float) -> bool:
        nonlocal reached
        reached = max(reached, bound_j)
        return bound_j > best_j

    infeasible = cut(chosen, model, session, until=until, overhead_j=None, on_bound=enough)
    return math.inf if infeasible else reached


def _scope(options: Options) -> str:
    if not options.remat:
        return "forward"
    kind, _, depth = options.scope.partition(":")
    return f"depth:{min(DEPTH, int(depth)) if kind == 'depth' else DEPTH}"


def excess_bytes(problem: Problem, order: Sequence[int], ram_bytes: int) -> int:
    """Bytes over `ram_bytes` in ordinary training, summed over operators."""
    operators, tensors = problem.operators, problem.tensors
    waiting = [len(readers) for readers in problem.readers]
    live = sum(tensors[i].nbytes for i in problem.inputs if waiting[i]) + problem.reserve_bytes
    total = 0
    for k in order:
        operator = operators[k]
        live += sum(tensors[i].nbytes for i in operator.outputs)
        total += max(0, live + operator.workspace_bytes - ram_bytes)
        for i in operator.inputs:
            waiting[i] -= 1
            if not waiting[i]:
                live -= tensors[i].nbytes
        live -= sum(tensors[i].nbytes for i in operator.outputs if not waiting[i])
    return total
