"""A local search over orders of the operators, judged by the relaxation that the proof rests on.

A move swaps two neighbouring stretches of the order, of one operator or a few, that don't depend on each other and
lie on the same side of the loss: a weight gradient earlier or later, one forward branch before the other. Moves are
drawn at random from a seed. What is judged is the retention relaxation at a medium depth with all its cuts: its bound
is within a percent or two of the optimum, and it ends as soon as that is above the best order's. Before that moves are
sieved by what costs nothing to know: how many bytes fewer ordinary training keeps during the operators that bind,
those in whose stages the best order's relaxation leaves no byte of the budget. Moves that free nothing there are judged
once in a while. Where no order has a schedule yet, all operators over the budget bind.

The same seed tries the same moves. The clock only ends the search, and the result says whether it did.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from poetopt import clock
from poetopt.engine.budget import Budget
from poetopt.engine.cutting import cut
from poetopt.engine.model import model_of, session_of
from poetopt.engine.solution import Options
from poetopt.errors import TimeUpError
from poetopt.formulations import formulation
from poetopt.formulations.retention.memory import tight_stages
from poetopt.orders.precedence import Precedence, reordered
from poetopt.problem import Problem

JUDGED = 300
"""At most this many orders are judged by the relaxation."""
DRAWN = 200
"""At most this many moves are drawn for each operator of the problem."""
STRETCH = 8
"""The longest stretch of operators that a move takes along."""
ODDS = 0.03
"""Share of the moves that relieve no binding operator and are judged all the same; of more in small problems."""
SMALL = 10
"""Where there are at most this many operators, every move is judged."""
GAIN = 1e-4
"""An order is better if its judged overhead is lower by this fraction: less is noise of the cutting."""
DEPTH = 8
"""Scope depth of the relaxation that judges: at 4 it misses what longer chains save in transformers."""


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
    """The state of one search: the best order, its judgement, and what it keeps where that binds."""

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
        self.found = Judgement(math.inf, None)
        given_j = math.inf
        finished = True
        try:
            self._take(self.order, self._judge(self.order, math.inf))
            given_j = self.found.overhead_j
            self._climb()
        except _OutOfTimeError:
            finished = False
        return OrderSearch(
            tuple(self.order), given_j, self.found.overhead_j, self.moves, self.judged, self.drawn, finished
        )

    def _climb(self) -> None:
        seen = {tuple(self.order)}
        limit = DRAWN * len(self.order)
        odds = max(ODDS, SMALL / max(1, len(self.order)))
        while self.drawn < limit and self.judged < JUDGED and self.found.overhead_j > 0:
            if time.monotonic() > self.until:
                raise _OutOfTimeError
            self.drawn += 1
            tried = self._drawn_move()
            if tried is None or tuple(tried) in seen:
                continue
            seen.add(tuple(tried))
            pressure = self._pressure(tried)
            if pressure >= self.pressure and self.rng.random() >= odds:
                continue
            best_j = self.found.overhead_j
            judgement = self._judge(tried, best_j)
            better = judgement.overhead_j < best_j * (1 - GAIN) or (best_j == math.inf > judgement.overhead_j)
            if better or (judgement.overhead_j <= best_j and pressure < self.pressure):
                self._take(tried, judgement)
                self.moves += 1
                if better:
                    self.on_better(judgement.overhead_j)

    def _take(self, order: list[int], judgement: Judgement) -> None:
        self.order, self.found = order, judgement
        self.binding = None if judgement.tight is None else [order[stage] for stage in judgement.tight]
        self.pressure = self._pressure(order)

    def _pressure(self, order: Sequence[int]) -> int:
        """Bytes that ordinary training keeps while binding operators run, or beyond the budget while any does."""
        live = live_bytes(self.problem, order)
        if self.binding is None:
            return sum(max(0, nbytes - self.options.ram_bytes) for nbytes in live)
        return sum(live[k] for k in self.binding)

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

    def _judge(self, order: Sequence[int], best_j: float) -> Judgement:
        self.judged += 1
        judgement = judge(reordered(self.problem, order), self.options, self.until, best_j)
        if time.monotonic() > self.until:
            raise _OutOfTimeError
        return judgement


@dataclass(frozen=True)
class Judgement:
    """What the relaxation says of an order.

    overhead_j
        Joules that no schedule in that order undercuts, within the scope; infinite where there is none.
    tight
        The stages in which the relaxation leaves no byte of the budget; None where it wasn't solved to the end.
    """

    overhead_j: float
    tight: tuple[int, ...] | None


def judge(problem: Problem, options: Options, until: float, best_j: float = math.inf) -> Judgement:
    """Solve the retention relaxation of `problem` at a medium depth, with its cuts, until it is above `best_j`."""
    if options.ram_bytes < problem.least_ram_bytes:
        return Judgement(math.inf, None)
    chosen = formulation("retention")
    try:
        with clock.ending(until):
            model = model_of(chosen, problem, replace(options, formulation=chosen.name), _scope(options))
            session = session_of(model, options, scale=1e4 / (problem.baseline_energy_j or 1.0), threads=1)
    except TimeUpError:
        return Judgement(0.0, None)
    reached = 0.0

    def enough(bound_j: float) -> bool:
        nonlocal reached
        reached = max(reached, bound_j)
        return bound_j > best_j

    if cut(chosen, model, session, until=Budget.by_clock(until), overhead_j=None, on_bound=enough).infeasible:
        return Judgement(math.inf, None)
    left_s = until - time.monotonic()
    point = None if reached > best_j or left_s <= 0 else session.relax(left_s).point
    return Judgement(reached, None if point is None else tight_stages(model, point))


def _scope(options: Options) -> str:
    if not options.remat:
        return "forward"
    kind, _, depth = options.scope.partition(":")
    return f"depth:{min(DEPTH, int(depth)) if kind == 'depth' else DEPTH}"


def live_bytes(problem: Problem, order: Sequence[int]) -> list[int]:
    """For each operator, the bytes that are live while it runs in ordinary training in that order."""
    operators, tensors = problem.operators, problem.tensors
    waiting = [len(readers) for readers in problem.readers]
    live = sum(tensors[i].nbytes for i in problem.at_start if waiting[i]) + problem.reserve_bytes
    during = [0] * len(operators)
    for k in order:
        operator = operators[k]
        live += sum(tensors[i].nbytes for i in operator.outputs)
        during[k] = live + problem.extra_bytes[k]
        for i in operator.inputs:
            waiting[i] -= 1
            if not waiting[i]:
                live -= tensors[i].nbytes
        live -= sum(tensors[i].nbytes for i in operator.outputs if not waiting[i])
    return during
