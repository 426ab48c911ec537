"""Search of one scope: the requested model, and restrictions of it while layout or clock reject its plans."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from poetopt.formulations.block import Kind
from poetopt.formulations.rows import Row
from poetopt.formulations.scope import scope_name
from poetopt.graph.problem import Feature
from poetopt.search.cutting import model_of, session_of
from poetopt.search.incumbent import Incumbent
from poetopt.search.model_search import Mode, ModelSearch
from poetopt.search.run import Budget, Ending, Proof, Run
from poetopt.search.solution import DeadlineModel, Options
from poetopt.search.tuning import ATTEMPTS, CLOSE, LEAST_S, RESTRICTED_SHARE, SHRINK
from poetopt.util import work
from poetopt.util.errors import InfeasibleError, TimeUpError
from poetopt.util.units import show_bytes, show_seconds


@dataclass(frozen=True)
class Restriction:
    """Reduction of the requested limits in bytes and seconds, and the share of transfers that may hide."""

    shrink: int = 0
    slower: float = 0.0
    hidden_share: float = 1.0

    @property
    def exact(self) -> bool:
        """Return whether the model is the requested one, so that its bounds prove something."""
        return self == Restriction()

    def of(self, options: Options) -> Options:
        """Return the requested options, reduced by this restriction."""
        deadline_s = None if options.deadline_s is None else options.deadline_s - self.slower
        return replace(options, ram_bytes=options.ram_bytes - self.shrink, deadline_s=deadline_s)


class Refinement:
    """Sequence of restrictions: `next` after a rejected plan, `ended` after the outcome of a model.

    With DMA a plan is late if the model hides more of its transfers than the planner can. The share that may hide is
    then bisected. It starts at the share that the plan reached, goes down while plans are late, and up again if that is
    too tight. At 0 the model is that of the device without DMA, whose plans are in time in any order. Without DMA the
    deadline itself is brought forward by the lateness of the plan.
    """

    def __init__(self, ram_bytes: int, *, overlaps: bool) -> None:
        self._overlaps = overlaps
        self._step = max(1, ram_bytes // SHRINK)
        self._min_shrink = ram_bytes // (8 * SHRINK)
        self._current = Restriction()
        self._impossible_share, self._late_share = 0.0, 1.0
        self._is_last = False

    def next(self, incumbent: Incumbent) -> Restriction | None:
        """Return the next restriction after the rejections of the model before; None if nothing is left."""
        if self._is_last:
            return None
        if incumbent.arena_excess is not None:
            self._current = replace(self._current, shrink=self._step)
            self._step *= 2
        elif incumbent.makespan_excess_s is None:
            return None
        elif not self._overlaps:
            self._current = replace(self._current, slower=self._current.slower + incumbent.makespan_excess_s)
        else:
            self._late_share = self._current.hidden_share
            reached_share = incumbent.hidden_share
            is_between = self._impossible_share + CLOSE < reached_share < self._late_share - CLOSE
            return self._with_hidden_share(
                reached_share if is_between else (self._impossible_share + self._late_share) / 2
            )
        return self._current

    def ended(self, ending: Ending) -> Restriction | None:
        """Return a restriction between the rejected one and one that was too tight, to try at once."""
        current = self._current
        if ending is not Ending.INFEASIBLE or self._is_last:
            return None
        if current.hidden_share < 1 and not current.shrink:
            self._impossible_share = current.hidden_share
            return self._with_hidden_share((self._impossible_share + self._late_share) / 2)
        self._is_last = True
        self._current = replace(current, shrink=current.shrink // 2, slower=current.slower / 2)
        if self._current.shrink < self._min_shrink and not self._current.slower:
            return None
        return self._current

    def _with_hidden_share(self, share: float) -> Restriction | None:
        if self._late_share - self._impossible_share < CLOSE:
            return None
        self._current = replace(self._current, hidden_share=share)
        return self._current


def search_scope(
    run: Run,
    scope: str,
    budget: Budget,
    inner: Proof | None,
    *,
    no_goods: float = 0.0,
    bound: float = 0.0,
) -> Proof:
    """Solve one scope: exactly, then restricted while only the layout or the clock reject its plans.

    Parameters
    ----------
    inner
        Proof of a scope inside of it, if any. If that is settled, only schedules outside of it are searched.
    no_goods
        Share of the remaining time for excluding rejected schedules one by one.
    bound
        Bound that is known of the scope already.
    """
    run.enter_scope(scope, bound)
    return _ScopeSearch(run, scope, budget, inner).search(no_goods)


def relax_scope(run: Run, scope: str, budget: Budget) -> Proof:
    """Offer the plans of one scope's relaxation, and return its proof, without a search of the model."""
    run.enter_scope(scope)
    return _ScopeSearch(run, scope, budget, None).relax()


def interrupted(run: Run, scope: str, last: Proof | None) -> Proof:
    """Return the proof of the current scope or, if it has no bound yet, of the last one with the plan since."""
    value, gap = run.incumbent.value, run.options.gap
    if run.bound <= 0 and last is not None and not last.infeasible:
        run.enter_scope(last.asked, last.bound)  # a better plan lies outside of that scope
        return replace(last, value=value, closed=run.closed(gap))
    return Proof(scope, scope_name(scope), run.bound, False, value, run.closed(gap))


def _rejection_note(incumbent: Incumbent) -> str:
    """Return why a model's cheaper schedules are no plans, if that alone keeps a gap open; else ""."""
    if incumbent.arena_excess is not None:
        return (
            "the open gap is due to schedules whose bytes fit the budget; none that was tried has a memory layout "
            f"within it, and the nearest takes {show_bytes(incumbent.arena_excess)} more"
        )
    if incumbent.makespan_excess_s is not None:
        return (
            "the open gap is due to schedules whose plans miss the deadline; the nearest that was tried is "
            f"{show_seconds(incumbent.makespan_excess_s)} late"
        )
    return ""


@dataclass
class _ScopeSearch:
    run: Run
    scope: str
    budget: Budget
    inner: Proof | None
    sources: frozenset[str] = frozenset()
    binding: tuple[tuple[str, Hashable], ...] = ()

    def __post_init__(self) -> None:
        self.binding = () if self.inner is None else self.inner.binding
        self.settled = self.inner if self.inner is not None and self.inner.settled else None

    def search(self, no_goods: float) -> Proof:
        run, gap = self.run, self.run.options.gap
        exact = self._attempt(Restriction(), self.budget)
        has_late_plan = run.incumbent.makespan_excess_s is not None
        note = _rejection_note(run.incumbent) if exact is Ending.REFUSED else ""
        self._search_restricted(exact)
        open_ = exact is not Ending.INFEASIBLE and not run.closed(gap)
        refused = has_late_plan or run.incumbent.best is None or exact is Ending.REFUSED
        if no_goods and open_ and run.chosen.search.no_good is not None and refused:
            exact = self._search_without_rejected(exact, no_goods)
            note = (note and _rejection_note(run.incumbent)) or note
        return self._proof(exact, note)

    def relax(self) -> Proof:
        return self._proof(self._attempt(Restriction(), self.budget, relaxed_only=True), "")

    def _proof(self, exact: Ending, note: str) -> Proof:
        run, gap = self.run, self.run.options.gap
        return Proof(
            self.scope,
            scope_name(self.scope),
            run.bound,
            exact is Ending.INFEASIBLE,
            run.incumbent.value,
            run.closed(gap),
            exact in (Ending.FINISHED, Ending.REFUSED, Ending.EXHAUSTED),
            exact is Ending.EXHAUSTED,
            note="" if run.closed(gap) else note,
            sources=self.sources,
            binding=self.binding,
        )

    def _search_restricted(self, exact: Ending) -> None:
        """Solve tighter and tighter models while only the layout or the clock reject the plans."""
        run = self.run
        overlaps = run.problem.dma and run.options.paging and run.options.deadline_model is not DeadlineModel.PAPER
        steps = Refinement(run.options.ram_bytes, overlaps=overlaps)
        budget = self.budget if run.incumbent.best is None else self.budget.part(RESTRICTED_SHARE)
        restriction: Restriction | None = None
        for _ in range(ATTEMPTS):
            if exact is Ending.INFEASIBLE or run.closed(run.options.gap) or run.remaining_s(budget) < LEAST_S:
                break
            restriction = restriction or steps.next(run.incumbent)
            if restriction is None:
                break
            restriction = steps.ended(self._attempt(restriction, budget))

    def _search_without_rejected(self, previous: Ending, share: float) -> Ending:
        """Search the requested model again, without each rejected schedule and others proven late with it."""
        budget = self.budget.part(share)
        if self.run.remaining_s(budget) <= LEAST_S:
            return previous
        ending = self._attempt(Restriction(), budget, no_goods=True)
        return ending if ending in (Ending.INFEASIBLE, Ending.FINISHED, Ending.EXHAUSTED) else previous

    def _attempt(
        self, restriction: Restriction, budget: Budget, *, no_goods: bool = False, relaxed_only: bool = False
    ) -> Ending:
        run, chosen, ceiling = self.run, self.run.chosen, self._ceiling()
        run.incumbent.forget()
        try:
            with run.timed("build"), work.ending(run.latest):
                options = restriction.of(run.options)
                model = model_of(
                    chosen, run.problem, options, self.scope, hidden_share=restriction.hidden_share, ceiling_j=ceiling
                )
                covered = self._covered(model, restriction)
                known = next((proof for row, proof in covered if not row.variables), None)
                if known is not None:
                    self.sources = known.sources
                    return self._nothing_beyond([known], ceiling, exact=restriction.exact)
                session = session_of(model, run.options, scale=run.scale)
                session.work = run.work
        except InfeasibleError:
            return self._nothing_beyond((), ceiling, exact=restriction.exact)
        except TimeUpError:
            return Ending.STOPPED
        bounds = [ceiling, *(proof.bound for _, proof in covered if not proof.infeasible)]
        run.proving.ceiling = min(bounds)
        mode = Mode(
            restriction.exact,
            no_goods,
            known=tuple(row for row, _ in covered),
            relaxed_only=relaxed_only,
        )
        search = ModelSearch(run, budget, model, session, mode, self.binding)
        try:
            ending = search.search()
        finally:
            run.proving.ceiling = math.inf
        self.binding = search.binding
        if restriction.exact:
            self.sources = search.sources.union(*(proof.sources for _, proof in covered))
        if ending is Ending.INFEASIBLE:
            return self._nothing_beyond([proof for _, proof in covered], ceiling, exact=restriction.exact)
        return ending

    def _covered(self, model: Any, restriction: Restriction) -> list[tuple[Row, Proof]]:
        """Return the proofs of parts of the model, each with the row that excludes that part.

        The proofs hold for the requested limits.
        """
        chosen, inner, plain = self.run.chosen, self.settled, self.run.plain_proof
        if not restriction.exact:
            return []
        rows: list[tuple[Row | None, Proof]] = []
        if inner is not None and chosen.search.scope_difference is not None:
            rows.append((chosen.search.scope_difference(model, inner.asked, inner.sources), inner))
        if plain is not None and chosen.search.streaming_difference is not None:
            rows.append((chosen.search.streaming_difference(model, plain.asked, plain.sources), plain))
        return [(row, proof) for row, proof in rows if row is not None]

    def _ceiling(self) -> float:
        """Return the cost of the best plan if a streaming model may omit schedules that cost more; else inf."""
        run, value = self.run, self.run.incumbent.value
        can_omit = Feature.STREAMED in run.problem.features and run.chosen.plain and run.chosen.kind is Kind.LEAN
        return math.inf if value is None or not can_omit else value

    def _nothing_beyond(self, covered: Sequence[Proof], ceiling: float, *, exact: bool) -> Ending:
        """Conclude from a model without a schedule, apart from the parts that proofs cover.

        It also lacks schedules that cost more than the ceiling (inf: none). A restriction proves nothing.
        """
        bounds = [proof.bound for proof in covered if not proof.infeasible]
        if not exact or (not bounds and ceiling == math.inf):
            return Ending.INFEASIBLE
        self.run.raise_bound(min([ceiling, *bounds]), "search")
        return Ending.FINISHED
