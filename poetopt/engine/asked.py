"""A scope that was asked for, and the less deep ones that warm it up.

Each of these leaves it an incumbent and the cuts that were tight. Between a depth and a scope of chains of any length
there may be one (`Formulation.between`) that has the schedules of both in a fraction of the room to search.
"""

from __future__ import annotations

import math
import time

from poetopt.engine.attempt import interrupted, search_scope
from poetopt.engine.lightened import Lightened
from poetopt.engine.model import limits_of
from poetopt.engine.proof import Proof
from poetopt.engine.run import LEAST_S, Run
from poetopt.engine.solution import Options
from poetopt.engine.stagewise import Stagewise
from poetopt.formulations.language import Formulation
from poetopt.formulations.scope import scope_name
from poetopt.problem import Problem

WARM_UP = (4, 8)
"""The depths that a deeper scope starts from."""
DEEPER = (12,)
"""Those that follow while each pays, leaves no more than WARM_UP_GAP open, and takes no more than WARM_UP_TIME."""
WARM_UP_SHARE = (0.2, 0.6)
"""Share of the remaining time that each of WARM_UP may take."""
DEEPER_SHARE = (0.25, 0.55)
"""Share of it for each of DEEPER, and if the one before is proven."""
WARM_UP_GAP = 0.05
WARM_UP_TIME = 0.18
"""Share of what was left when it began: after one that took more, the next would leave too little for the one asked."""
FINER, FINEST = 6.0, 5e-3
"""A warm-up is searched to this many times less than the gap that is asked for, but to no less than FINEST: what its
schedule costs too much is open in all scopes that come after it."""
BETWEEN_SHARE, BETWEEN_S = (0.06, 0.6), 6.0
"""Share of the remaining time that the first depth may take where a scope between is the second one, and that scope:
schedules are found there, and the depth takes more than its share only as far as these seconds and WARM_UP_SHARE."""
BETWEEN_FINER = 3.0
"""What FINER is in that scope."""
WARM_ENOUGH_SHARE = 0.4
"""Share of its time after which a warm-up ends though a little is open."""
STAGES_SHARE = 0.8
"""Share of the remaining time that the search stage by stage of the scope that is asked for may take, where its
incumbent seems within reach. It begins when the first warm-up has left an incumbent."""


def asked_scope(options: Options, chosen: Formulation) -> str:
    """What is asked for: where nothing runs again, all scopes are one."""
    return "full" if chosen.deepening and not options.remat else options.scope


def warm_ups(options: Options, chosen: Formulation) -> tuple[str, ...]:
    """The depths that may warm it up, which begins with the first of them."""
    asked = chosen.depth(asked_scope(options, chosen)) if chosen.deepening and options.remat else 0
    return tuple(f"depth:{depth}" for depth in (*WARM_UP, *DEEPER) if depth < asked)


def search_asked(run: Run, chosen: Formulation) -> Proof:
    """Solve the scope that was asked for, once those that warm it up have left what they find."""
    scopes = _Asked(run, chosen)
    try:
        return scopes.search()
    except KeyboardInterrupt:
        run.interrupt()
        return interrupted(run, scopes.at_hand, scopes.last)


class _Asked:
    """The way to one scope.

    at_hand
        The scope that is searched.
    last
        What the last one proved of the problem at hand, if anything.
    """

    def __init__(self, run: Run, chosen: Formulation) -> None:
        self._run, self._chosen, self._scope = run, chosen, asked_scope(run.options, chosen)
        self._between = _between(run.problem, run.options, chosen)
        # Of less deep scopes it would say as much, but they are asked for to see what lies in them.
        whole = chosen.backwards is not None and math.isinf(chosen.depth(self._scope))
        self._stagewise = Stagewise.of(run, chosen, self._scope) if whole else None
        self._quick = self._paid = True
        self.at_hand = self._scope
        self.last: Proof | None = None

    def search(self) -> Proof:
        """Scope after scope; or stage by stage, where that is enough."""
        run = self._run
        depths = warm_ups(run.options, self._chosen)
        for place, depth in enumerate(depths[:1] if self._between else depths):
            if place >= len(WARM_UP) and not self._goes_on():
                break
            if place and (proof := self._by_stages()):
                return proof
            self._depth(place, depth)
        if proof := self._by_stages():
            return proof
        if not self._between:
            return self._asked(run)
        lightened = Lightened.of(run)
        seconds = BETWEEN_SHARE[1] * self._left_s()
        if lightened is None:
            self.last = self._warm_up(run, self._between, seconds, BETWEEN_FINER, self.last)
            return self._by_stages() or self._asked(run)
        # What is proven of less room is nothing to build on, or to tell.
        found = self._warm_up(lightened.aside, self._between, seconds, BETWEEN_FINER)
        lightened.relaxed.pool = lightened.aside.pool
        if proof := self._by_stages():
            return proof
        proof = self._asked(lightened.relaxed, rare=found.within(lightened.aside.gap))
        if proof.settled or self._left_s() < LEAST_S:
            return proof
        return self._asked(run, bound=proof.bound)  # what is small made the difference

    def _goes_on(self) -> bool:
        """Whether one more depth is worth it."""
        return self._paid and self._quick and self.last is not None and self.last.within(WARM_UP_GAP)

    def _left_s(self) -> float:
        return self._run.latest - time.monotonic()

    def _depth(self, place: int, scope: str) -> None:
        """Search a depth."""
        run, left_s, before = self._run, self._left_s(), self._run.incumbent.value
        proven = self.last is not None and self.last.closed
        share = WARM_UP_SHARE[place] if place < len(WARM_UP) else DEEPER_SHARE[proven]
        seconds = share * left_s
        if self._between:
            seconds = max(BETWEEN_SHARE[0] * left_s, min(seconds, BETWEEN_S))
        begin = time.monotonic()
        self.last = self._warm_up(run, scope, seconds, FINER, self.last)
        self._quick = time.monotonic() - begin <= WARM_UP_TIME * left_s
        self._paid = self.last.pays(before, run.options.gap)

    def _warm_up(self, at: Run, scope: str, seconds: float, finer: float, inner: Proof | None = None) -> Proof:
        """Search a scope for what it leaves to the next one, in a run of its own or the one over the whole problem."""
        gap = at.options.gap
        at.gap, at.until = min(gap, max(gap / finer, FINEST)), time.monotonic() + seconds
        at.soon = time.monotonic() + WARM_ENOUGH_SHARE * seconds
        self._enter(at, scope, 0.0)
        return search_scope(at, self._chosen, scope, inner)

    def _asked(self, at: Run, *, rare: bool = False, bound: float = 0.0) -> Proof:
        """Search the scope that was asked for, whose `bound` is known; hand on what `at` proves of a relaxation."""
        run = self._run
        at.gap, at.until, at.soon = run.options.gap, run.latest, math.inf
        at.above = run if at is not run else None
        self._enter(at, self._scope, max(bound, 0.0 if self._stagewise is None else self._stagewise.bound_j))
        inner = self.last if at is run else None
        # What layout or clock refuse is to be left out of the whole problem, not of a relaxation.
        patience = 1.0 if at is run else 0.0
        return search_scope(at, self._chosen, self._scope, inner, patience, rare=rare)

    def _enter(self, at: Run, scope: str, bound: float) -> None:
        self.at_hand, self._run.scope = scope, scope_name(scope)
        self._run.bound = at.bound = bound

    def _by_stages(self) -> Proof | None:
        """What the search stage by stage proves of the scope that is asked for, if that is enough."""
        run, stagewise = self._run, self._stagewise
        if stagewise is None:
            return None
        run.gap, run.until, run.soon = run.options.gap, run.latest, math.inf
        self._enter(run, self._scope, 0.0)
        with run.timed("stages"):
            stagewise.climb(STAGES_SHARE * self._left_s())
        if not run.closed(run.gap):
            return None
        return Proof(self._scope, run.scope, run.bound, False, run.incumbent.value, True, True)


def _between(problem: Problem, options: Options, chosen: Formulation) -> str:
    """The scope between the depths and the one asked for that is to warm up with; empty where there is none."""
    if chosen.between is None or not options.remat or not math.isinf(chosen.depth(options.scope)):
        return ""
    found = chosen.between(problem, limits_of(options), options.paging)
    return "" if found == options.scope else found
