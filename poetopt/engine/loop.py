"""A solve from beginning to end: what is plain without a search, heuristics, scope after scope, the answer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from poetopt.backends.solver import backend
from poetopt.engine.incumbent import Candidate
from poetopt.engine.least import SEARCH_S, remedies
from poetopt.engine.limits import impossible
from poetopt.engine.lookout import Lookout, Sighting, graded
from poetopt.engine.objective import objective_of
from poetopt.engine.proof import Proof, outdone
from poetopt.engine.run import Run
from poetopt.engine.scopes import first_scope, through_scopes
from poetopt.engine.solution import Listener, Options, Solution, Status
from poetopt.engine.starts import first_schedules, plain_schedules
from poetopt.engine.why_not import SECONDS as WHY_S
from poetopt.engine.why_not import explain
from poetopt.formulations import formulation as formulation_of
from poetopt.formulations.scope import kind_words
from poetopt.plan.storeall import store_all_bytes
from poetopt.problem import Problem
from poetopt.schedule import Schedule

OVER_SHARE, OVER_S = 0.1, 1.0
"""What is looked for beside a schedule ends by this share of the time limit, and this many seconds, after it."""


def solve(
    problem: Problem,
    options: Options,
    listener: Listener | None = None,
    *,
    starts: Sequence[Schedule] = (),
    begin: float | None = None,
) -> Solution:
    """Find the schedule of least energy for `problem` within `options`.

    Never raises for an infeasible problem or an interrupt: the Solution's status says so.

    starts
        Schedules found elsewhere, taken like those of the heuristics.
    begin
        The moment (of `time.monotonic`) at which the time limit begins: before now where reading the model counts.

    Raises FormulationError and BackendUnavailableError for options that don't exist.
    """
    begin = time.monotonic() if begin is None else begin
    solution = search(problem, options, listener, starts, begin)
    if solution.plan is not None or solution.interrupted:
        return solution
    try:
        return _helped(problem, options, solution, begin)
    except Sighting as sighting:
        return sighting.solution
    except KeyboardInterrupt:  # what is proven stands
        return replace(solution, interrupted=True)


def _helped(problem: Problem, options: Options, solution: Solution, begin: float) -> Solution:
    """`solution`, which has no plan, with what would help. Raises Sighting where a plan that fits comes up."""
    lookout = Lookout(problem, options, solution)

    def seen(candidate: Candidate) -> None:
        lookout.see(candidate.plan, candidate.simulation, candidate.arena_bytes)

    def watched(problem: Problem, trial: Options) -> Solution:
        found = search(problem, trial)
        if found.plan is not None and found.simulation is not None and found.arena_bytes is not None:
            # Rules that are stricter than a plan's hold for a smaller budget alike, but not for other moves or blocks.
            alike = replace(trial, ram_bytes=options.ram_bytes, time_limit_s=options.time_limit_s, gap=options.gap)
            lookout.see(found.plan, found.simulation, found.arena_bytes, by_rules=alike == options)
        return found

    # What would help is worth a few seconds, but not the limit that was asked for. Where a block limits something, more
    # RAM is only half of it.
    latest = begin + (1 + OVER_SHARE) * options.time_limit_s + OVER_S
    # What sums refuse is answered at once, and with the same figures each time: by heuristics alone.
    chosen = formulation_of(options.formulation)
    plain = impossible(problem, options) is not None or chosen.impossible(problem) is not None
    trials = None if plain and chosen.plans_count else watched
    spare = latest - time.monotonic()
    limited = any(block.limits is not None for block in chosen.blocks)
    for_ram = min(SEARCH_S, max(0.0, spare / 2 if limited else spare))
    helped = replace(solution, **remedies(problem, options, trials, for_ram, seen))
    if helped.interrupted:
        return helped
    why = explain(problem, options, helped, trials, min(WHY_S, max(0.0, latest - time.monotonic())))
    return replace(
        helped,
        why=why.says,
        ram_bound_bytes=max(helped.ram_bound_bytes or 0, why.ram_bound_bytes or 0) or None,
        least_deadline_s=why.least_deadline_s or helped.least_deadline_s,
        interrupted=why.interrupted,
    )


def search(
    problem: Problem,
    options: Options,
    listener: Listener | None = None,
    starts: Sequence[Schedule] = (),
    begin: float | None = None,
) -> Solution:
    """The same without a word of what would help where there is no schedule."""
    chosen, now = formulation_of(options.formulation), time.monotonic()
    run = Run(problem, options, listener, begin=now if begin is None else begin)
    if begin is not None:
        run.timing["reading"] = now - begin
    backend(options.backend)  # says at once where there is none
    with run.timed("layout"):
        store_all = store_all_bytes(problem)
    run.scope = "store-all"
    try:
        with run.timed("layout"):
            if chosen.judged:
                run.offer(Schedule(), "store-all")
            run.incumbent.settle()
    except KeyboardInterrupt:
        run.interrupt()
    if run.incumbent.best is not None:
        return _solution(run, Status.OPTIMAL, store_all)
    refusal = impossible(problem, options)
    if refusal is not None:
        return replace(_solution(run, Status.INFEASIBLE, store_all), **refusal)
    hopeless = chosen.impossible(problem)
    if hopeless is not None:
        return replace(_solution(run, Status.INFEASIBLE, store_all), reason=hopeless)
    if run.interrupted:
        return _solution(run, Status.UNKNOWN, store_all)
    strict = not chosen.plans_count
    run.scope = first_scope(options, chosen)
    try:
        with run.timed("heuristics"):
            first_schedules(run, strict=strict, given=starts)
        if not strict:
            plain_schedules(run, search)
        proof = through_scopes(run, chosen)
    except KeyboardInterrupt:
        run.interrupt()
        proof = Proof(run.scope, run.scope, run.bound, False, run.incumbent.value, False)
    return _conclude(run, proof, store_all)


def _conclude(run: Run, proof: Proof, store_all_peak: int) -> Solution:
    run.scope, run.bound = proof.scope, proof.bound
    begin = time.monotonic()
    try:
        if not run.interrupted:  # seconds, for large ones
            run.incumbent.hide_transfers(quick=time.monotonic() > run.latest)
        run.incumbent.settle()
    except KeyboardInterrupt:
        run.interrupt()
    run.timing["layout"] = run.timing.get("layout", 0.0) + time.monotonic() - begin
    best = run.incumbent.best
    if best is None:
        status = Status.INFEASIBLE if proof.infeasible else Status.UNKNOWN
        reason = (
            "no schedule exists"
            if proof.scope == "full"
            else f"no schedule of the kind searched exists, by proof; kind: {kind_words(proof.scope)}; a wider --scope "
            "may have one"
            if proof.infeasible
            else f"no schedule was found in {run.elapsed_s:.1f} s, and none is proven impossible"
        )
        return replace(_solution(run, status, store_all_peak), reason=reason)
    overhead = best.value
    gap = 0.0 if overhead <= 0 else max(0.0, (overhead - run.bound) / overhead)
    status = graded(gap, run.options.gap)
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
        outdone=best is not None and outdone(best.value, run.bound),
        objective=objective,
        arena_bytes=None if best is None else best.arena_bytes,
        store_all_peak_bytes=store_all_peak,
        build_s=run.timing.get("build", 0.0),
        solve_s=total_s - run.timing.get("build", 0.0) - run.timing.get("reading", 0.0),
        timing=dict(run.timing),
        total_s=total_s,
        interrupted=run.interrupted,
        trace=tuple(run.trace),
    )
