"""Ladder of scopes: each begins with the results of the one before, and the widest proof is claimed.

A shallow scope is proven in a fraction of the time of a wide one. It leaves the wide one an incumbent, the tight cuts,
and schedules that need not be searched again. If a scope was requested, shallower ones only warm it up, each in a share
of the time. With `auto` each may be the answer. A scope is left for a wider one once it is proven, or nearly proven
after a share of the time. The last one has the rest of the time, as long as its proof is within reach.
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


def _requested_scope(options: Options, scopes: Sequence[str]) -> str:
    """Return the requested scope, or the only one (without recomputation all scopes are the same)."""
    is_only = len(scopes) == 1 and (options.scope == "auto" or not options.remat)
    return scopes[0] if is_only else options.scope


def _warm_ups(scopes: Sequence[str], requested: str) -> tuple[str, ...]:
    """Return the scopes inside of the requested one that warm it up."""
    if len(scopes) == 1:
        return ()
    depths = [scope for scope in scopes if scope_depth(scope) < scope_depth(requested)]
    return tuple(depths[:3])


def _scope_ladder(scopes: Sequence[str]) -> tuple[str, ...]:
    """Return the scopes of `auto` in order, without the widest.

    If the last of them allows chains of any length, the network is small, and the first one is skipped.
    """
    ladder = tuple(scopes[:-1])
    return ladder[1:] if len(ladder) > 1 and _has_unbounded_depth(ladder[-1]) else ladder


def _has_unbounded_depth(scope: str) -> bool:
    """Return whether the scope has chains of any length."""
    return math.isinf(scope_depth(scope))


class Deepening:
    """Search of one run's scopes, up to the one that its options request, or as far as the time allows.

    Parameters
    ----------
    all_plans
        Bound on all plans, if there is one. Once it proves the incumbent, no wider scope is searched.

    Attributes
    ----------
    first
        Scope that is searched first. Plans that are found earlier are reported as part of it.
    """

    def __init__(self, run: Run, all_plans: AllPlans | None = None) -> None:
        options = run.options
        self._run = run
        self._all_plans = all_plans
        self._scopes = run.chosen.search.scopes(run.problem, limits_of(options), options.paging, options.remat)
        self._requested = _requested_scope(options, self._scopes)
        self._warm_ups = () if self._requested == "auto" else _warm_ups(self._scopes, self._requested)
        self.first = (
            _scope_ladder(self._scopes)[0] if self._requested == "auto" else (*self._warm_ups, self._requested)[0]
        )
        self._current = self.first
        """Scope that is being searched."""
        self._last: Proof | None = None
        """Proof of the scope searched last, if any."""
        self._proven: Proof | None = None
        self._nearly_proven: Proof | None = None
        """Widest scopes that are proven and nearly proven, if each may be the answer."""

    def deepen(self) -> Proof:
        """Search the scopes; return the proof at the end or at an interrupt."""
        try:
            return self._climb() if self._requested == "auto" else self._prove_requested(self._requested)
        except KeyboardInterrupt:
            self._run.interrupt()
            proof = interrupted(self._run, self._current, self._last)
            return claim(self._proven, self._nearly_proven, proof, self._run.options.gap)

    def _prove_requested(self, requested: str) -> Proof:
        """Prove the requested scope, after narrower ones have warmed it up."""
        run = self._run
        if proof := self._prove_plain_optimal([requested]):
            return proof
        is_quick = improved = True
        for index, scope in enumerate(self._warm_ups):
            if index > 1 and not (improved and is_quick and self._last is not None and self._last.within(WARM_UP_GAP)):
                break
            budget, before = run.budget, run.incumbent.value
            intended_s, begin_s = budget.meant_s, run.work.seconds
            warm_up_gap = max(budget.gap / FINER, FINEST)
            part = replace(budget, gap=min(budget.gap, warm_up_gap)).part(WARM_UP_SHARES[index])
            self._search(scope, part.nearly_after(WARM_ENOUGH_SHARE))
            assert self._last is not None
            is_quick = run.work.seconds - begin_s <= WARM_UP_TIME * intended_s
            improved = self._last.pays(before, run.options.gap)
        last = self._search(requested, run.budget, no_goods=1.0)
        return self._extend_to_all(last, 1.0) if requested == self._scopes[-1] else last

    def _climb(self) -> Proof:
        """Prove one scope after the other, each of which may be the answer, and the widest only if none is."""
        run, gap = self._run, self._run.options.gap
        ladder, widest = _scope_ladder(self._scopes), self._scopes[-1]
        top = ladder[-1]
        settled = False
        last = self._prove_plain_optimal(ladder)
        self._proven = last
        begin = 0 if last is None else ladder.index(last.asked) + 1
        for index, scope in enumerate(ladder[begin:], begin):
            if index and run.remaining_s(run.budget) < LEAST_S:
                break
            if settled and (self._all_plans or not _has_unbounded_depth(scope)):
                continue  # a bound on all plans covers this scope
            before = run.incumbent.value
            share = 1.0 if scope == top else NO_GOODS_SHARE
            awaits_bound = self._awaits_bound
            last = self._search(scope, self._budget(scope, top), no_goods=share)
            if awaits_bound and not (last.closed or last.finished or last.infeasible):
                if self._bounds_all(last):
                    break
                last = self._search(scope, self._budget(scope, top), no_goods=share)  # in the remaining time
            improved = last.pays(before, gap)
            if last.closed:
                settled = self._proven is not None and not improved
                self._proven = last
            elif last.within(NEARLY):
                settled = self._proven is not None and not improved
                self._nearly_proven = last
            elif not last.infeasible and not last.finished:
                settled = True
            if self._bounds_all(last):
                break  # no wider scope has a better plan
        assert last is not None
        if last.infeasible and run.remaining_s(run.budget) >= LEAST_S:
            last = self._extend_to_all(last, OUTER_SHARE)
        none_in_scope = last.infeasible and not last.covers_all_plans
        if (none_in_scope or (not last.infeasible and self._needs_widest)) and run.remaining_s(run.budget) >= LEAST_S:
            last = self._search(widest, run.budget, no_goods=NO_GOODS_SHARE)
        if run.incumbent.best is None and not last.infeasible and run.remaining_s(run.budget) > 2 * LEAST_S:
            self._last = None
            last = self._search(last.asked, run.budget, no_goods=1.0)
        return claim(self._proven, self._nearly_proven, last, gap)

    @property
    def _needs_widest(self) -> bool:
        """Return whether a bound on all plans leaves a large gap, and the widest scope is small."""
        run, value = self._run, self._run.incumbent.value
        if (
            self._all_plans is None
            or not self._all_plans.relaxed
            or value is None
            or self._all_plans.bound >= FAR_SHARE * value
        ):
            return False
        return count_recomputes(run.problem, "full") <= FAR_RECOMPUTES

    @property
    def _awaits_bound(self) -> bool:
        """Return whether a bound on all plans, which has its own part of the time, is still to come."""
        return bool(self._all_plans and not self._all_plans.relaxed and self._run.incumbent.best)

    def _bounds_all(self, last: Proof) -> bool:
        """Bound all plans after a scope; return whether no wider scope has a better plan."""
        return bool(self._all_plans and not last.infeasible and self._all_plans.prove(last))

    def _prove_plain_optimal(self, scopes: Sequence[str]) -> Proof | None:
        """Return the proof of a scope of the plain problem if a search shows that no streaming pays; else None."""
        run, plain, best = self._run, self._run.plain_proof, self._run.incumbent.best
        if plain is None or plain.asked not in scopes or best is None or best.schedule.variants:
            return None
        self._current = plain.asked
        proof = search_scope(run, plain.asked, run.budget.part(BESIDE_SHARE), None)
        if not proof.closed:
            return None
        self._last = proof
        return proof

    def _extend_to_all(self, last: Proof, share: float) -> Proof:
        """Extend `last`, a proof that a scope has no schedule, to all plans if that is proven."""
        if not last.infeasible or self._run.incumbent.best is not None:
            return last
        if not no_plan(self._run, self._run.budget.part(share)):
            return last
        widest = self._scopes[-1]
        return replace(last, asked=widest, scope=scope_name(widest), covers_all_plans=True)

    def _budget(self, scope: str, top: str) -> Budget:
        budget = self._run.budget
        if scope == top:
            # without an answer from a narrower scope, this one has all of the time
            return budget if self._proven is None else replace(budget, pace_s=PACE_S)
        if self._proven is not None and _has_unbounded_depth(top):
            budget = budget.part(CLAIMED_SHARE)
        elif self._awaits_bound:
            return budget.part(CLAIMED_SHARE).nearly_after(SOON_SHARE / CLAIMED_SHARE)
        return budget.nearly_after(SOON_SHARE)

    def _search(self, scope: str, budget: Budget, *, no_goods: float = 0.0, bound: float = 0.0) -> Proof:
        self._current = scope
        self._last = search_scope(self._run, scope, budget, self._last, no_goods=no_goods, bound=bound)
        return self._last


def claim(proven: Proof | None, nearly: Proof | None, last: Proof, gap: float) -> Proof:
    """Return the proof to claim of several scopes: the widest, with a note of the gap in a wider one.

    Parameters
    ----------
    proven, nearly, last
        Proofs of the widest proven scope, of the widest nearly proven one, and of the one searched last.
    """
    if last.closed:
        return last
    if proven is None and nearly is not None and last.gap > nearly.gap and last.value == nearly.value:
        return replace(nearly, note=_gap_note(last))  # the wider scope has no better plan so far
    if proven is None:
        return last
    return replace(
        proven,
        note=(
            f"the plan has {kind_words(last.scope)}; a better one of that kind may save up to "
            f"{show_share(last.gap)} of the overhead (requested: {show_share(gap)})"
        )
        if last.value is not None and (proven.value is None or last.value < proven.value)
        else _gap_note(last),
    )


def _gap_note(last: Proof) -> str:
    wider = kind_words(last.scope)
    if last.gap >= 1.0:
        return f"nothing is proven of schedules with {wider}; a longer time limit would search them"
    return f"a schedule with {wider} may save up to {show_share(last.gap)} of the overhead"
