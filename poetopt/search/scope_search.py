"""One scope: the model that was asked for, and restrictions of it while layout or clock refuse its plans."""

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
    """The part of what was asked that a model lacks: bytes, seconds; and the share that may hide."""

    shrink: int = 0
    slower: float = 0.0
    hidden_share: float = 1.0

    @property
    def exact(self) -> bool:
        """Say whether the model is what was asked, so that its bounds prove something."""
        return self == Restriction()

    def of(self, options: Options) -> Options:
        """The options that were asked, less what the model lacks of it."""
        deadline_s = None if options.deadline_s is None else options.deadline_s - self.slower
        return replace(options, ram_bytes=options.ram_bytes - self.shrink, deadline_s=deadline_s)


class Refinement:
    """The steps: `next` after a refusal, told by `ended` how the model before ended.

    With DMA a plan is late because the model hides more of its transfers than the planner could. What may hide is then
    bisected: at the share that the plan reached, further down while plans are late, and up again where that is too
    tight. At 0 the model is the device's without DMA, whose plans are in time whatever their order. Else the deadline
    itself is put forward by what the plan was late.
    """

    def __init__(self, ram_bytes: int, *, overlaps: bool) -> None:
        self._overlaps = overlaps
        self._step = max(1, ram_bytes // SHRINK)
        self._least = ram_bytes // (8 * SHRINK)
        self._now = Restriction()
        self._impossible, self._late = 0.0, 1.0
        self._last = False

    def next(self, found: Incumbent) -> Restriction | None:
        """The restriction to try now, by what was refused of the model before; None where nothing is left."""
        if self._last:
            return None
        if found.arena_excess is not None:
            self._now = replace(self._now, shrink=self._step)
            self._step *= 2
        elif found.makespan_excess_s is None:
            return None
        elif not self._overlaps:
            self._now = replace(self._now, slower=self._now.slower + found.makespan_excess_s)
        else:
            self._late = self._now.hidden_share
            reached = found.hidden_share
            between = self._impossible + CLOSE < reached < self._late - CLOSE
            return self._share(reached if between else (self._impossible + self._late) / 2)
        return self._now

    def ended(self, ending: Ending) -> Restriction | None:
        """The restriction to try at once after one that was too tight: between the refused and the impossible."""
        now = self._now
        if ending is not Ending.INFEASIBLE or self._last:
            return None
        if now.hidden_share < 1 and not now.shrink:
            self._impossible = now.hidden_share
            return self._share((self._impossible + self._late) / 2)
        self._last = True
        self._now = replace(now, shrink=now.shrink // 2, slower=now.slower / 2)
        if self._now.shrink < self._least and not self._now.slower:
            return None
        return self._now

    def _share(self, share: float) -> Restriction | None:
        if self._late - self._impossible < CLOSE:
            return None
        self._now = replace(self._now, hidden_share=share)
        return self._now


def search_scope(
    run: Run,
    scope: str,
    budget: Budget,
    inner: Proof | None,
    *,
    no_goods: float = 0.0,
    bound: float = 0.0,
) -> Proof:
    """Solve one scope: exactly, and restricted while only the layout or the clock refuse its plans.

    inner
        What a scope inside of it ended with, if anything: where that is settled, only what lies beyond it is searched.
    no_goods
        Share of the time then left that may go into leaving out refused schedules one by one.
    bound
        What is known of the scope already.
    """
    run.enter(scope, bound)
    return _ScopeSearch(run, scope, budget, inner).search(no_goods)


def relax_scope(run: Run, scope: str, budget: Budget) -> Proof:
    """The proof of one scope's relaxation, with the plans that its points lead to: its model isn't searched."""
    run.enter(scope)
    return _ScopeSearch(run, scope, budget, None).relax()


def interrupted(run: Run, scope: str, last: Proof | None) -> Proof:
    """The proof of the scope at hand or, where there is none yet, of the last one with the plan found since."""
    value, gap = run.incumbent.value, run.options.gap
    if run.bound <= 0 and last is not None and not last.infeasible:
        run.enter(last.asked, last.bound)  # a plan that is better lies outside of that scope
        return replace(last, value=value, closed=run.closed(gap))
    return Proof(scope, scope_name(scope), run.bound, False, value, run.closed(gap))


def _refused(found: Incumbent) -> str:
    """The reason why a model's cheaper schedules are no plans, where nothing else keeps a gap open; empty: unknown."""
    if found.arena_excess is not None:
        return (
            "what is open is of schedules that keep the budget in bytes; none that was tried has a memory layout "
            f"within it, and the nearest takes {show_bytes(found.arena_excess)} more"
        )
    if found.makespan_excess_s is not None:
        return (
            "what is open is of schedules that the clock refuses; the nearest that was tried is "
            f"{show_seconds(found.makespan_excess_s)} late"
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
        late = run.incumbent.makespan_excess_s is not None
        refusal = _refused(run.incumbent) if exact is Ending.REFUSED else ""
        self._restricted(exact)
        open_ = exact is not Ending.INFEASIBLE and not run.closed(gap)
        refused = late or run.incumbent.best is None or exact is Ending.REFUSED
        if no_goods and open_ and run.chosen.search.no_good is not None and refused:
            exact = self._without_refused(exact, no_goods)
            refusal = (refusal and _refused(run.incumbent)) or refusal
        return self._proof(exact, refusal)

    def relax(self) -> Proof:
        """Build and relax what was asked for."""
        return self._proof(self._attempt(Restriction(), self.budget, relaxed_only=True), "")

    def _proof(self, exact: Ending, refusal: str) -> Proof:
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
            note="" if run.closed(gap) else refusal,
            sources=self.sources,
            binding=self.binding,
        )

    def _restricted(self, exact: Ending) -> None:
        """Solve again, a little tighter each time, while only the layout or the clock refuse what is found."""
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

    def _without_refused(self, before: Ending, share: float) -> Ending:
        """Search once more for what was asked: each refused schedule is left out, with what else it proves late."""
        budget = self.budget.part(share)
        if self.run.remaining_s(budget) <= LEAST_S:
            return before
        ending = self._attempt(Restriction(), budget, no_goods=True)
        return ending if ending in (Ending.INFEASIBLE, Ending.FINISHED, Ending.EXHAUSTED) else before

    def _attempt(
        self, restriction: Restriction, budget: Budget, *, no_goods: bool = False, relaxed_only: bool = False
    ) -> Ending:
        """Build and search one model."""
        run, chosen, ceiling = self.run, self.run.chosen, self._ceiling()
        run.incumbent.forget()
        try:
            with run.timed("build"), work.ending(run.latest):
                asked = restriction.of(run.options)
                model = model_of(
                    chosen, run.problem, asked, self.scope, hidden_share=restriction.hidden_share, ceiling_j=ceiling
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
        """The proofs of parts of the model, each with the row that leaves that part out.

        It is proven of the limits that were asked for.
        """
        chosen, inner, plain = self.run.chosen, self.settled, self.run.plain
        if not restriction.exact:
            return []
        rows: list[tuple[Row | None, Proof]] = []
        if inner is not None and chosen.search.scope_difference is not None:
            rows.append((chosen.search.scope_difference(model, inner.asked, inner.sources), inner))
        if plain is not None and chosen.search.streaming_difference is not None:
            rows.append((chosen.search.streaming_difference(model, plain.asked, plain.sources), plain))
        return [(row, proof) for row, proof in rows if row is not None]

    def _ceiling(self) -> float:
        """The cost of the best plan, where a model may leave out what costs more: which runs may stream."""
        run, value = self.run, self.run.incumbent.value
        useful = Feature.STREAMED in run.problem.features and run.chosen.plain and run.chosen.kind is Kind.LEAN
        return math.inf if value is None or not useful else value

    def _nothing_beyond(self, covered: Sequence[Proof], ceiling: float, *, exact: bool) -> Ending:
        """A model without a schedule, beside those that some proofs cover and those that cost more than a plan.

        It lacks what costs more than the ceiling, inf where that is nothing. Of a restriction nothing is proven.
        """
        bounds = [proof.bound for proof in covered if not proof.infeasible]
        if not exact or (not bounds and ceiling == math.inf):
            return Ending.INFEASIBLE
        self.run.raise_bound(min([ceiling, *bounds]), "search")
        return Ending.FINISHED
