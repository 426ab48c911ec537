"""One scope: the model that was asked for, and again a little tighter while layout or clock refuse its plans."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from poetopt import clock
from poetopt.engine.model import model_of, session_of
from poetopt.engine.model_search import ModelSearch
from poetopt.engine.proof import Ending, Proof
from poetopt.engine.run import LEAST_S, Run
from poetopt.engine.solution import DeadlineModel, Options
from poetopt.engine.tighten import Tightening, Tighter
from poetopt.errors import InfeasibleError, TimeUpError
from poetopt.formulations.language import Formulation
from poetopt.formulations.scope import scope_name

AHEAD = {"depth:8": "depth:12"}
"""Where schedules are looked for beyond a scope of which much is open."""
ATTEMPTS = 8
"""How many times a model is solved again, a little tighter, where only the layout or the clock refused its plan."""
TIGHTER_SHARE = 0.5
"""Share of the remaining time that tightening may take where there is a plan already."""
SETTLED_DEPTH = 8
"""Beyond a proven scope of this depth better schedules are rare, and what is left to do is to prove that."""
TARGET = 1e4
"""What the objective is scaled to: solvers' tolerances are absolute."""


def search_scope(
    run: Run,
    chosen: Formulation,
    scope: str,
    inner: Proof | None,
    patience: float = 0.0,
    *,
    rare: bool = False,
) -> Proof:
    """Solve one scope: exactly, and again a little tighter while only the layout or the clock refuse its plans.

    inner
        What a scope inside of it ended with, if anything: where that is settled, only what lies beyond is searched.
    patience
        Share of the time then left that may go into leaving out refused schedules one by one.
    rare
        Whether a better schedule is hardly to be found there, so that what is left is to prove that.
    """
    run.scope = scope_name(scope)
    inner = inner if inner is not None and inner.settled else None
    exact = _attempt(run, chosen, scope, inner, Tighter(), ahead=_ahead(run, chosen, scope), rare=rare)
    overlaps = run.problem.dma and run.options.paging and run.options.deadline_model is not DeadlineModel.PAPER
    steps = Tightening(run.options.ram_bytes, overlaps=overlaps)
    late = run.incumbent.makespan_excess_s is not None
    tighter: Tighter | None = None
    until = run.until
    if run.incumbent.best is not None:
        run.until = time.monotonic() + TIGHTER_SHARE * max(run.remaining_s, 0.0)
    for _ in range(ATTEMPTS):
        if exact is Ending.INFEASIBLE or run.closed(run.options.gap) or run.remaining_s < LEAST_S:
            break
        tighter = tighter or steps.next(run.incumbent)
        if tighter is None:
            break
        tighter = steps.ended(_attempt(run, chosen, scope, inner, tighter))
    run.until = until
    open_ = exact is not Ending.INFEASIBLE and not run.closed(run.options.gap)
    refused = late or run.incumbent.best is None or exact is Ending.REFUSED
    if patience and open_ and chosen.gives_up is not None and refused:
        exact = _patient(run, chosen, scope, inner, exact, patience)
    return Proof(
        scope,
        run.scope,
        run.bound,
        exact is Ending.INFEASIBLE,
        run.incumbent.value,
        run.closed(run.options.gap),
        exact in (Ending.FINISHED, Ending.REFUSED),
        sources=run.sources,
    )


def interrupted(run: Run, scope: str, last: Proof | None) -> Proof:
    """What is known of the scope at hand or, where that is nothing yet, of the last one with the plan found since."""
    value = run.incumbent.value
    if run.bound <= 0 and last is not None and not last.infeasible:
        run.bound = last.bound  # a plan that is better lies outside of that scope
        return replace(last, value=value, closed=run.closed(run.options.gap))
    return Proof(scope, run.scope, run.bound, False, value, run.closed(run.options.gap))


def _patient(run: Run, chosen: Formulation, scope: str, inner: Proof | None, before: Ending, patience: float) -> Ending:
    """What was asked once more, where each schedule that is refused is left out, with what else it proves late."""
    until = run.until
    run.until = time.monotonic() + patience * max(run.remaining_s, 0.0)
    try:
        ending = _attempt(run, chosen, scope, inner, Tighter(), patient=True) if run.remaining_s > LEAST_S else before
    finally:
        run.until = until
    return ending if ending in (Ending.INFEASIBLE, Ending.FINISHED) else before


def _attempt(
    run: Run,
    chosen: Formulation,
    scope: str,
    inner: Proof | None,
    tighter: Tighter,
    patient: bool = False,
    ahead: str = "",
    rare: bool = False,
) -> Ending:
    """Build and search one model, which is `tighter` than what was asked."""
    exact = tighter.exact
    run.incumbent.forget()
    beyond = None
    try:
        with _building(run):
            asked = _tightened(run.options, tighter)
            model = model_of(chosen, run.problem, asked, scope, hidden_share=tighter.hidden_share)
            if exact and inner is not None and chosen.beyond is not None:  # what was proven was proven of these limits
                beyond = chosen.beyond(model, inner.asked, inner.sources)
            if inner is not None and beyond is not None and not beyond.variables:
                return _nothing_beyond(run, inner)
            session = session_of(model, run.options, scale=_scale(run, chosen))
    except InfeasibleError:
        return Ending.INFEASIBLE
    except TimeUpError:
        return Ending.STOPPED
    if inner is not None and beyond is not None:
        run.ceiling = math.inf if inner.infeasible else inner.bound
        rare = not inner.infeasible and not inner.outdone and chosen.depth(inner.asked) >= SETTLED_DEPTH
    look = partial(look_ahead, run, chosen, ahead) if ahead else None
    search = ModelSearch(run, chosen, model, session, beyond, exact, patient, rare, look)
    try:
        ending = search.search()
    finally:
        run.ceiling = math.inf
    if exact:
        run.sources = search.sources if inner is None or beyond is None else search.sources | inner.sources
    if ending is Ending.INFEASIBLE and inner is not None and beyond is not None:
        return _nothing_beyond(run, inner)
    return ending


def _ahead(run: Run, chosen: Formulation, scope: str) -> str:
    """The scope to look at for schedules, from this one on; empty where that doesn't pay."""
    pays = chosen.leaning is not None and chosen.plans_count and run.options.remat
    # One thread's work is the same every time, and a look ends by the clock.
    return AHEAD.get(scope, "") if pays and run.options.threads != 1 else ""


def look_ahead(run: Run, chosen: Formulation, scope: str) -> None:
    """Cut the relaxation of a scope for the schedules that it leads to."""
    try:
        with _building(run):
            model = model_of(chosen, run.problem, run.options, scope)
            session = session_of(model, run.options, scale=_scale(run, chosen))
    except (InfeasibleError, TimeUpError):
        return
    ModelSearch(run, chosen, model, session, None, exact=False, patient=False).look()


@contextmanager
def _building(run: Run) -> Iterator[None]:
    """Count the time as that of building, and end it where the scope's is up. Raises TimeUpError then."""
    with run.timed("build"), clock.ending(time.monotonic() + run.remaining_s):
        yield


def _tightened(options: Options, tighter: Tighter) -> Options:
    """What was asked, less what a tighter model lacks of it."""
    deadline_s = None if options.deadline_s is None else options.deadline_s - tighter.slower
    return replace(options, ram_bytes=options.ram_bytes - tighter.shrink, deadline_s=deadline_s)


def _scale(run: Run, chosen: Formulation) -> float:
    """What the objective is multiplied by."""
    baseline = chosen.goal.baseline(run.problem, chosen.baseline_j(run.problem))
    return TARGET / (run.incumbent.value or baseline or 1.0)


def _nothing_beyond(run: Run, inner: Proof) -> Ending:
    """A scope without a schedule outside of `inner` is proven as that is."""
    if inner.infeasible:
        return Ending.INFEASIBLE
    run.raise_bound(inner.bound, "search")
    return Ending.FINISHED
