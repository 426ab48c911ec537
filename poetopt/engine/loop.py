"""The solve loop: relaxation with cuts, integer search, simulation, and again at a deeper scope.

It knows no formulation: rows come from the blocks' separators, and schedules from the formulation's
own reading of a point. Whatever it finds counts only after simulation.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from poetopt.backends.solver import Capability, Outcome, Point, Session, backend
from poetopt.engine.cutting import cut
from poetopt.engine.greedy import greedy
from poetopt.engine.incumbent import Incumbent
from poetopt.engine.least import SEARCH_S, remedies
from poetopt.engine.limits import impossible
from poetopt.engine.model import model_of, session_of
from poetopt.engine.neighbourhood import improve
from poetopt.engine.objective import objective_of
from poetopt.engine.run import Run
from poetopt.engine.solution import (
    OPTIMAL_GAP,
    Listener,
    Options,
    Solution,
    Status,
)
from poetopt.engine.why_not import SECONDS as WHY_S
from poetopt.engine.why_not import explain
from poetopt.errors import InfeasibleError
from poetopt.formulations import formulation as formulation_of
from poetopt.formulations.language import Formulation
from poetopt.plan.storeall import store_all_bytes
from poetopt.problem import Problem
from poetopt.schedule import Schedule

DEPTHS = (4, 8, 12, 16, 24, 32)
"""The depths that `auto` tries, in order."""
WARM_UP = (4, 8)
"""The depths that a deeper scope starts from: each leaves it an incumbent and the cuts that were tight."""
WARM_UP_SHARE = 0.35
"""Share of the remaining time that one of them may take."""
CUT_SHARE = 0.5
"""Share of the remaining time that cutting may take before the integer search."""
ATTEMPTS = 6
"""So many times a model is solved again, a little tighter, where only the layout or the clock refused its plan."""
SHRINK = 400
"""The first such time with this fraction of the budget less, then with twice as much each time."""
IMPROVE_SHARE = 0.3
"""Share of the remaining time that neighbourhoods of the incumbent may take before the whole is searched."""
TARGET = 1e4
"""What the objective is scaled to: solvers' tolerances are absolute."""


class _Outcome(Enum):
    """How the search of one model ended."""

    FINISHED = "solved within the gap"
    STOPPED = "out of time"
    INFEASIBLE = "proven to have no schedule"


@dataclass(frozen=True)
class _Proof:
    """What one scope ended with."""

    scope: str
    bound: float
    infeasible: bool
    overhead_j: float | None
    closed: bool
    finished: bool = False
    """Whether the model was solved to the end: what is open then is the layout's or the clock's doing."""
    note: str = ""

    @property
    def overhead_gap(self) -> float:
        """Of the best plan against this scope's bound."""
        if not self.overhead_j:
            return 0.0
        return max(0.0, (self.overhead_j - self.bound) / self.overhead_j)


def solve(
    problem: Problem, options: Options, listener: Listener | None = None, *, starts: Sequence[Schedule] = ()
) -> Solution:
    """Find the schedule of least energy for `problem` within `options`.

    Never raises for an infeasible problem or an interrupt: the Solution's status says so.

    starts
        Schedules found elsewhere, taken like those of the heuristics.

    Raises FormulationError and BackendUnavailableError for options that don't exist.
    """
    begin = time.monotonic()
    solution = _solve(problem, options, listener, starts)
    if solution.plan is not None or solution.interrupted:
        return solution
    # What would help is worth a few seconds, but not the limit that was asked for.
    spare = 1.0 + 1.05 * options.time_limit_s - (time.monotonic() - begin)
    helped = replace(solution, **remedies(problem, options, _solve, min(SEARCH_S, max(0.0, spare))))
    spare = 1.0 + 1.05 * options.time_limit_s - (time.monotonic() - begin)
    why = explain(problem, options, helped, _solve, min(WHY_S, max(0.0, spare)))
    return replace(
        helped,
        why=why.says,
        ram_bound_bytes=max(helped.ram_bound_bytes or 0, why.ram_bound_bytes or 0) or None,
        least_deadline_s=why.least_deadline_s or helped.least_deadline_s,
    )


def _solve(
    problem: Problem, options: Options, listener: Listener | None = None, starts: Sequence[Schedule] = ()
) -> Solution:
    """The same without a word of what would help."""
    chosen = formulation_of(options.formulation)
    run = Run(problem, options, listener)
    backend(options.backend)  # says at once where there is none
    store_all = store_all_bytes(problem)
    run.scope = "store-all"
    if chosen.judged:
        run.offer(Schedule(), "store-all")
    if run.incumbent.best is not None:
        return _solution(run, Status.OPTIMAL, store_all)
    refusal = impossible(problem, options)
    if refusal is not None:
        return replace(_solution(run, Status.INFEASIBLE, store_all), **refusal)
    hopeless = chosen.impossible(problem)
    if hopeless is not None:
        return replace(_solution(run, Status.INFEASIBLE, store_all), reason=hopeless)
    try:
        with run.timed("heuristics"):
            _first_schedules(run, chosen.strict or not chosen.judged, starts)
        proof = _through_scopes(run, chosen)
    except KeyboardInterrupt:
        run.interrupted = True
        proof = _Proof(run.scope, run.bound, False, run.incumbent.value, False)
    return _conclude(run, proof, store_all)


def _first_schedules(run: Run, strict: bool, given: Sequence[Schedule] = ()) -> None:
    """Heuristic plans at several targets: the replay is a little optimistic about memory.

    A strict formulation takes them as warm starts only: what the solver accepts of them counts.
    """
    trial = Incumbent(run.problem, run.options) if strict else run.incumbent
    for known in given:
        if trial.offer(known):
            run.starts.insert(0, known)
            if not strict:
                run.say("start")
    options = run.options
    modes = [(options.paging, False), (options.paging, options.remat), (False, options.remat)]
    for paging, remat in dict.fromkeys(modes):
        if not paging and not remat:
            continue
        for share in (1.0, 0.97, 0.93, 0.88, 0.8, 0.7):
            schedule = greedy(run.problem, int(options.ram_bytes * share), paging=paging, remat=remat)
            if schedule is not None and trial.offer(schedule):
                run.starts.insert(0, schedule)
                if not strict:
                    run.say("heuristic")


def _scopes(options: Options, chosen: Formulation) -> tuple[str, ...]:
    """The scopes to go through: for `auto` those to prove, else those to warm up with, and the one asked for."""
    if not chosen.deepening:
        return ("full" if options.scope == "auto" else options.scope,)
    if not options.remat:
        return ("forward" if options.scope == "auto" else options.scope,)
    if options.scope == "auto":
        return tuple(f"depth:{d}" for d in DEPTHS)
    asked = chosen.depth(options.scope)
    return (*(f"depth:{d}" for d in WARM_UP if d < asked), options.scope)


def _through_scopes(run: Run, chosen: Formulation) -> _Proof:
    """Solve at each scope in turn until a deeper one no longer pays or the time is up."""
    proven: _Proof | None = None
    last: _Proof | None = None
    scopes = _scopes(run.options, chosen)
    automatic = run.options.scope == "auto"
    for place, scope in enumerate(scopes):
        warm_up = not automatic and place < len(scopes) - 1
        run.until = run.begin + run.options.time_limit_s
        if warm_up:
            run.until = time.monotonic() + WARM_UP_SHARE * run.remaining_s
        if automatic and last is not None and run.remaining_s < 0.5:
            break
        before = run.incumbent.value
        run.bound = 0.0
        last = _one_scope(run, chosen, scope)
        if not automatic:
            continue
        if last.closed:
            paid = (
                before is not None
                and last.overhead_j is not None
                and (before - last.overhead_j > run.options.gap * max(last.overhead_j, 1e-300))
            )
            settled = proven is not None and not paid
            proven = last
            if settled:
                break
        elif not last.infeasible and not last.finished:
            break
    if last is None:
        raise AssertionError("no scope was tried")
    return _better_claim(proven, last, run.options.gap)


def _better_claim(proven: _Proof | None, last: _Proof, gap: float) -> _Proof:
    """The deepest scope that is proven, and what a deeper one that isn't left open, as a note."""
    if last.closed or proven is None:
        return last
    return replace(
        proven,
        note=(
            f"a plan of the deeper scope {last.scope} was taken, where {last.overhead_gap:.2%} of the overhead is open "
            f"(the tolerance is {gap:.2%})"
        )
        if last.overhead_j is not None and (proven.overhead_j is None or last.overhead_j < proven.overhead_j)
        else f"the deeper scope {last.scope} is open by {last.overhead_gap:.2%} of the overhead",
    )


def _one_scope(run: Run, chosen: Formulation, scope: str) -> _Proof:
    """Solve one scope: exactly, and again a little tighter while only the layout or the clock refuse its plans."""
    run.scope = scope.replace("depth:", "depth<=")
    exact = _attempt(run, chosen, scope, 0, 0.0)
    shrink, slower = 0, 0.0
    step = max(1, run.options.ram_bytes // SHRINK)
    for _ in range(ATTEMPTS):
        refused, late = run.incumbent.arena_excess, run.incumbent.makespan_excess_s
        if exact is _Outcome.INFEASIBLE or run.closed(run.options.gap) or run.remaining_s < 0.5:
            break
        if refused is not None:
            shrink, step = step, 2 * step
        elif late is not None:
            slower += late
        else:
            break
        if _attempt(run, chosen, scope, shrink, slower) is _Outcome.INFEASIBLE:
            # too tight: halfway between what was refused and what is impossible
            shrink, slower = shrink // 2, slower / 2
            if shrink < run.options.ram_bytes // (8 * SHRINK) and not slower:
                break
            _attempt(run, chosen, scope, shrink, slower)
            break
    return _Proof(
        run.scope,
        run.bound,
        exact is _Outcome.INFEASIBLE,
        run.incumbent.value,
        run.closed(run.options.gap),
        exact is _Outcome.FINISHED,
    )


def _attempt(run: Run, chosen: Formulation, scope: str, shrink: int, slower: float) -> _Outcome:
    """Build and search one model, with `shrink` bytes and `slower` seconds less than what was asked."""
    with run.timed("build"):
        options = run.options
        deadline_s = None if options.deadline_s is None else options.deadline_s - slower
        asked = replace(options, ram_bytes=options.ram_bytes - shrink, deadline_s=deadline_s)
        model = model_of(chosen, run.problem, asked, scope)
        baseline = chosen.goal.baseline(run.problem, chosen.baseline_j(run.problem))
        scale = TARGET / (run.incumbent.value or baseline or 1.0)
        try:
            session = session_of(model, options, scale=scale)
        except InfeasibleError:
            return _Outcome.INFEASIBLE
    run.incumbent.arena_excess = run.incumbent.makespan_excess_s = None
    return _search(run, chosen, model, session, exact=not shrink and not slower)


def _search(run: Run, chosen: Formulation, model: Any, session: Session, exact: bool) -> _Outcome:
    """Cut, search, simulate, repeat. Says how it ended.

    `exact` is False where the model was tightened for a layout's sake: its bounds then prove nothing.
    """

    def bound(value: float, phase: str) -> None:
        if exact:
            run.raise_bound(value, phase)

    def relaxed(value: float) -> bool:
        bound(value, "relaxation")
        return run.closed(run.options.gap)

    with run.timed("relaxation"):
        session.add(chosen.revive(model, run.pool))
        infeasible = cut(
            chosen,
            model,
            session,
            until=time.monotonic() + CUT_SHARE * max(run.remaining_s, 0.0),
            overhead_j=run.incumbent.value,
            on_bound=relaxed,
        )
    run.pool = [(row.block, row.key) for row in session.added if row.key is not None]
    if infeasible:
        return _Outcome.INFEASIBLE
    if not (exact and run.closed(run.options.gap)):
        with run.timed("neighbourhoods"):
            improve(run, chosen, model, session, time.monotonic() + IMPROVE_SHARE * max(run.remaining_s, 0.0))
    with run.timed("search"):
        return _integer(run, chosen, model, session, exact, bound)


def _integer(
    run: Run, chosen: Formulation, model: Any, session: Session, exact: bool, bound: Callable[[float, str], None]
) -> _Outcome:
    """The integer search, again for as long as its answer breaks rows that come late."""

    def improving(point: Point) -> None:
        run.offer(chosen.schedule(model, point), "search")

    while not (exact and run.closed(run.options.gap)) and run.remaining_s > 0:
        best = run.incumbent.best
        if exact and best is not None:
            session.tighten(best.value)
        starts = [*([] if best is None else [best.schedule]), *run.starts]
        start = next((values for s in starts if (values := chosen.start(model, s)) is not None), None)
        found = session.search(
            time_limit_s=run.remaining_s,
            gap=run.options.gap / 2,
            start=start if Capability.WARM_START in session.capabilities else None,
            on_point=improving,
            on_bound=lambda value: bound(min(value, run.incumbent.value or value), "search"),
        )
        if found.outcome is Outcome.INFEASIBLE:
            if best is None or not session.tightened:
                return _Outcome.INFEASIBLE
            bound(best.value, "search")  # nothing that is left is better
            return _Outcome.FINISHED
        bound(found.bound if best is None else min(found.bound, best.value), "search")
        if found.point is None:
            return _Outcome.STOPPED
        rows = [row for row in chosen.separate(model, found.point) if row.core]
        if not rows:
            return _Outcome.FINISHED if found.outcome is Outcome.OPTIMAL else _Outcome.STOPPED
        session.add(rows)
    return _Outcome.FINISHED if exact and run.closed(run.options.gap) else _Outcome.STOPPED


def _conclude(run: Run, proof: _Proof, store_all_peak: int) -> Solution:
    run.scope, run.bound = proof.scope, proof.bound
    try:
        run.incumbent.hide_transfers()
    except KeyboardInterrupt:
        run.interrupted = True
    best = run.incumbent.best
    if best is None:
        status = Status.INFEASIBLE if proof.infeasible else Status.UNKNOWN
        reason = (
            f"no schedule exists in the scope {proof.scope}"
            + ("" if proof.scope == "full" else ", by proof; a wider --scope may have one")
            if proof.infeasible
            else f"no schedule was found in {run.elapsed_s:.1f} s, and none is proven impossible"
        )
        return replace(_solution(run, status, store_all_peak), reason=reason)
    overhead = best.value
    gap = 0.0 if overhead <= 0 else max(0.0, (overhead - run.bound) / overhead)
    if gap <= OPTIMAL_GAP:
        status = Status.OPTIMAL
    elif gap <= run.options.gap:
        status = Status.WITHIN_GAP
    else:
        status = Status.FEASIBLE
    return replace(_solution(run, status, store_all_peak), reason=proof.note)


def _solution(run: Run, status: Status, store_all_peak: int) -> Solution:
    best = run.incumbent.best
    total_s = run.elapsed_s
    bound = None if status is Status.INFEASIBLE else run.bound if best is None else min(run.bound, best.value)
    bound_j, objective = objective_of(run.chosen, run.problem, run.incumbent.value, bound)
    return Solution(
        status=status,
        scope=run.scope,
        options=run.options,
        plan=None if best is None else best.plan,
        simulation=None if best is None else best.simulation,
        overhead_bound_j=bound_j,
        objective=objective,
        arena_bytes=None if best is None else best.arena_bytes,
        store_all_peak_bytes=store_all_peak,
        build_s=run.timing.get("build", 0.0),
        solve_s=total_s - run.timing.get("build", 0.0),
        timing=dict(run.timing),
        total_s=total_s,
        interrupted=run.interrupted,
        trace=tuple(run.trace),
    )
