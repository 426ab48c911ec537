"""One ladder of scopes: each begins with what the one before left, and the widest that is proven is claimed.

A shallow scope is proven in a fraction of the time of a wide one, and leaves the wide one an incumbent, the cuts that
were tight, and what need not be searched again. Where a scope was asked for, the shallower ones only warm it up, each
in a share of the time. With `auto` each may be the answer: a scope is left for a wider one once it is proven, or nearly
and a share of the time is over; the last one has the rest of the time, for as long as its proof is within reach.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from poetopt.formulations.retention.enumeration import count_recomputes
from poetopt.formulations.scope import kind_words, scope_depth, scope_name
from poetopt.search.cutting import limits_of
from poetopt.search.outer import AllPlans, no_plan
from poetopt.search.run import Budget, Proof, Run
from poetopt.search.scope_search import interrupted, search_scope
from poetopt.search.solution import Options
from poetopt.search.tuning import (
    BESIDE_SHARE,
    CLAIMED_SHARE,
    FAR_RECOMPUTES,
    FAR_SHARE,
    FINER,
    FINEST,
    LEAST_S,
    NEARLY,
    NO_GOODS_SHARE,
    OUTER_SHARE,
    PACE_S,
    SOON_SHARE,
    WARM_ENOUGH_SHARE,
    WARM_UP_GAP,
    WARM_UP_SHARES,
    WARM_UP_TIME,
)
from poetopt.util.units import show_share


def _asked(options: Options, scopes: Sequence[str]) -> str:
    """The scope that is asked for: where nothing runs again, all are one; `auto` is the only one where there is one."""
    alone = len(scopes) == 1 and (options.scope == "auto" or not options.remat)
    return scopes[0] if alone else options.scope


def _warm_ups(scopes: Sequence[str], asked: str) -> tuple[str, ...]:
    """The scopes inside of the one asked for that warm it up."""
    if len(scopes) == 1:
        return ()
    depths = [scope for scope in scopes if scope_depth(scope) < scope_depth(asked)]
    return tuple(depths[:3])


def _rungs(scopes: Sequence[str]) -> tuple[str, ...]:
    """The scopes that `auto` goes through, but for the widest.

    Where the last of them has chains of any length, the network is small: the first one is quick, and left at once.
    """
    rungs = tuple(scopes[:-1])
    return rungs[1:] if len(rungs) > 1 and _wide(rungs[-1]) else rungs


def _wide(scope: str) -> bool:
    """Say whether its chains have any length."""
    return math.isinf(scope_depth(scope))


class Deepening:
    """The way up one run's ladder, as far as its options ask, or as far as the time allows.

    all_plans
        Bounds all plans, if anything does: once that proves the incumbent, no wider scope is searched.
    first
        The scope that is searched first: what is found before is said to be of it.
    """

    def __init__(self, run: Run, all_plans: AllPlans | None = None) -> None:
        options = run.options
        self._run = run
        self._all = all_plans
        self._scopes = run.chosen.search.scopes(run.problem, limits_of(options), options.paging, options.remat)
        self._asked = _asked(options, self._scopes)
        self._warm_ups = () if self._asked == "auto" else _warm_ups(self._scopes, self._asked)
        self.first = _rungs(self._scopes)[0] if self._asked == "auto" else (*self._warm_ups, self._asked)[0]
        self._at_hand = self.first
        """The scope that is searched."""
        self._last: Proof | None = None
        """The last one's proof, if any."""
        self._proven: Proof | None = None
        self._nearly: Proof | None = None
        """The widest scope that is proven, and the widest that is but for a little, where each may be the answer."""

    def deepen(self) -> Proof:
        """The proof at the end, or at an interrupt."""
        try:
            return self._through() if self._asked == "auto" else self._to(self._asked)
        except KeyboardInterrupt:
            self._run.interrupt()
            found = interrupted(self._run, self._at_hand, self._last)
            return claim(self._proven, self._nearly, found, self._run.options.gap)

    def _to(self, asked: str) -> Proof:
        """Prove the scope that was asked for, once narrower ones have warmed it up."""
        run = self._run
        if proof := self._beside_plain([asked]):
            return proof
        quick = paid = True
        for place, scope in enumerate(self._warm_ups):
            if place > 1 and not (paid and quick and self._last is not None and self._last.within(WARM_UP_GAP)):
                break
            budget, before = run.budget, run.incumbent.value
            left_s, begun_s = budget.meant_s, run.work.seconds
            finer = max(budget.gap / FINER, FINEST)
            part = replace(budget, gap=min(budget.gap, finer)).part(WARM_UP_SHARES[place])
            self._search(scope, part.nearly_after(WARM_ENOUGH_SHARE))
            assert self._last is not None
            quick = run.work.seconds - begun_s <= WARM_UP_TIME * left_s
            paid = self._last.pays(before, run.options.gap)
        last = self._search(asked, run.budget, no_goods=1.0)
        return self._of_all(last, 1.0) if asked == self._scopes[-1] else last

    def _through(self) -> Proof:
        """Prove one scope after the other, each of which may be the answer; the widest where nothing else holds any."""
        run, gap = self._run, self._run.options.gap
        rungs, widest = _rungs(self._scopes), self._scopes[-1]
        top = rungs[-1]
        settled = False
        last = self._beside_plain(rungs)
        self._proven = last
        begin = 0 if last is None else rungs.index(last.asked) + 1
        for place, scope in enumerate(rungs[begin:], begin):
            if place and run.remaining_s(run.budget) < LEAST_S:
                break
            if settled and (self._all or not _wide(scope)):
                continue  # what bounds all plans bounds those, too
            before = run.incumbent.value
            share = 1.0 if scope == top else NO_GOODS_SHARE
            waiting = self._waiting
            last = self._search(scope, self._budget(scope, top), no_goods=share)
            if waiting and not (last.closed or last.finished or last.infeasible):
                if self._bounds_all(last):
                    break
                last = self._search(scope, self._budget(scope, top), no_goods=share)  # with the time that is left
            paid = last.pays(before, gap)
            if last.closed:
                settled = self._proven is not None and not paid
                self._proven = last
            elif last.within(NEARLY):
                settled = self._proven is not None and not paid
                self._nearly = last
            elif not last.infeasible and not last.finished:
                settled = True
            if self._bounds_all(last):
                break  # no wider scope has a better one
        assert last is not None
        if last.infeasible and run.remaining_s(run.budget) >= LEAST_S:
            last = self._of_all(last, OUTER_SHARE)
        lost = last.infeasible and not last.of_all
        if (lost or (not last.infeasible and self._far)) and run.remaining_s(run.budget) >= LEAST_S:
            last = self._search(widest, run.budget, no_goods=NO_GOODS_SHARE)
        if run.incumbent.best is None and not last.infeasible and run.remaining_s(run.budget) > 2 * LEAST_S:
            self._last = None
            last = self._search(last.asked, run.budget, no_goods=1.0)
        return claim(self._proven, self._nearly, last, gap)

    @property
    def _far(self) -> bool:
        """Say whether a bound on all plans leaves much open, and the widest scope is small."""
        run, value = self._run, self._run.incumbent.value
        if self._all is None or not self._all.relaxed or value is None or self._all.least >= FAR_SHARE * value:
            return False
        return count_recomputes(run.problem, "full") <= FAR_RECOMPUTES

    @property
    def _waiting(self) -> bool:
        """Say whether a bound on all plans is still to come: it has the other part of the time."""
        return bool(self._all and not self._all.relaxed and self._run.incumbent.best)

    def _bounds_all(self, last: Proof) -> bool:
        """Look at all plans beside a scope's; say whether no wider scope has a better one."""
        return bool(self._all and not last.infeasible and self._all.prove(last))

    def _beside_plain(self, scopes: Sequence[str]) -> Proof | None:
        """The scope that is proven of the plain problem, where a search says that no streaming pays; else None."""
        run, plain, best = self._run, self._run.plain, self._run.incumbent.best
        if plain is None or plain.asked not in scopes or best is None or best.schedule.variants:
            return None
        self._at_hand = plain.asked
        found = search_scope(run, plain.asked, run.budget.part(BESIDE_SHARE), None)
        if not found.closed:
            return None
        self._last = found
        return found

    def _of_all(self, last: Proof, share: float) -> Proof:
        """`last`, a proof that a scope has no schedule, as one that there is no plan at all, where that is proven."""
        if not last.infeasible or self._run.incumbent.best is not None:
            return last
        if not no_plan(self._run, self._run.budget.part(share)):
            return last
        widest = self._scopes[-1]
        return replace(last, asked=widest, scope=scope_name(widest), of_all=True)

    def _budget(self, scope: str, top: str) -> Budget:
        budget = self._run.budget
        if scope == top:
            # what no narrower scope has an answer for is worth all of the time
            return budget if self._proven is None else replace(budget, pace_s=PACE_S)
        if self._proven is not None and _wide(top):
            budget = budget.part(CLAIMED_SHARE)
        elif self._waiting:
            return budget.part(CLAIMED_SHARE).nearly_after(SOON_SHARE / CLAIMED_SHARE)
        return budget.nearly_after(SOON_SHARE)

    def _search(self, scope: str, budget: Budget, *, no_goods: float = 0.0, bound: float = 0.0) -> Proof:
        self._at_hand = scope
        self._last = search_scope(self._run, scope, budget, self._last, no_goods=no_goods, bound=bound)
        return self._last


def claim(proven: Proof | None, nearly: Proof | None, last: Proof, gap: float) -> Proof:
    """The proof that is claimed of several scopes: of the widest proven, with a note of what a wider one left open.

    proven, nearly, last
        The widest scope that is proven, the widest that is but for a little, and the last one searched.
    """
    if last.closed:
        return last
    if proven is None and nearly is not None and last.gap > nearly.gap and last.value == nearly.value:
        return replace(nearly, note=_open(last))  # nothing better was found beyond it
    if proven is None:
        return last
    return replace(
        proven,
        note=(
            f"the plan has {kind_words(last.scope)}; a better one with that may save up to "
            f"{show_share(last.gap)} of the overhead (asked: {show_share(gap)})"
        )
        if last.value is not None and (proven.value is None or last.value < proven.value)
        else _open(last),
    )


def _open(last: Proof) -> str:
    wider = kind_words(last.scope)
    if last.gap >= 1.0:
        return f"nothing is proven of schedules with {wider}: give more --time-limit to search them"
    return f"a schedule with {wider} may save up to {show_share(last.gap)} of the overhead"
