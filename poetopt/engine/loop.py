"""A solve from beginning to end: what is plain without a search, heuristics, scope after scope, the answer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from poetopt.backends.solver import backend
from poetopt.engine.greedy import greedy
from poetopt.engine.incumbent import Candidate, Incumbent
from poetopt.engine.least import SEARCH_S, remedies
from poetopt.engine.limits import impossible
from poetopt.engine.lookout import Lookout, Sighting, graded
from poetopt.engine.objective import objective_of
from poetopt.engine.proof import Proof
from poetopt.engine.run import Run
from poetopt.engine.scopes import through_scopes
from poetopt.engine.solution import Listener, Options, Solution, Status
from poetopt.engine.why_not import SECONDS as WHY_S
from poetopt.engine.why_not import explain
from poetopt.formulations import formulation as formulation_of
from poetopt.plan.storeall import store_all_bytes
from poetopt.problem import Problem
from poetopt.schedule import Schedule

QUICK_PRICES = (1.0, 4.0, 16.0, 64.0)
"""What a second costs, in units of the power that computing takes, where schedules of least energy come late."""
QUICK_SHARE = 0.1
"""Share of the time limit that schedules of those prices may take."""


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
    solution = search(problem, options, listener, starts)
    if solution.plan is not None or solution.interrupted:
        return solution
    try:
        return _helped(problem, options, solution, begin)
    except Sighting as sighting:
        return sighting.solution


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
    spare = 1.0 + 1.05 * options.time_limit_s - (time.monotonic() - begin)
    limited = any(block.limits is not None for block in formulation_of(options.formulation).blocks)
    for_ram = min(SEARCH_S, max(0.0, spare / 2 if limited else spare))
    helped = replace(solution, **remedies(problem, options, watched, for_ram, seen))
    if helped.interrupted:
        return helped
    spare = 1.0 + 1.05 * options.time_limit_s - (time.monotonic() - begin)
    why = explain(problem, options, helped, watched, min(WHY_S, max(0.0, spare)))
    if helped.status is Status.UNKNOWN and (why.ram_bound_bytes or 0) > options.ram_bytes:
        reason = (
            f"the budget of {options.ram_bytes:,} bytes is below the {why.ram_bound_bytes:,} that any schedule needs"
        )
        helped = replace(helped, status=Status.INFEASIBLE, overhead_bound_j=None, reason=reason)
    return replace(
        helped,
        why=why.says,
        ram_bound_bytes=max(helped.ram_bound_bytes or 0, why.ram_bound_bytes or 0) or None,
        least_deadline_s=why.least_deadline_s or helped.least_deadline_s,
        interrupted=why.interrupted,
    )


def search(
    problem: Problem, options: Options, listener: Listener | None = None, starts: Sequence[Schedule] = ()
) -> Solution:
    """The same without a word of what would help where there is no schedule."""
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
        proof = through_scopes(run, chosen)
    except KeyboardInterrupt:
        run.interrupted = True
        proof = Proof(run.scope, run.scope, run.bound, False, run.incumbent.value, False)
    return _conclude(run, proof, store_all)


def _first_schedules(run: Run, strict: bool, given: Sequence[Schedule] = ()) -> None:
    """Heuristic plans at several targets: the replay is a little optimistic about memory.

    A strict formulation takes them as warm starts only: what the solver accepts of them counts.
    """
    trial = Incumbent(run.problem, run.options) if strict else run.incumbent
    for known in given:
        _taken(run, trial, known, "start", strict)
    options = run.options
    modes = [(options.paging, False), (options.paging, options.remat), (False, options.remat)]
    found = False  # a given schedule is no reason to look for quick ones any less
    for paging, remat in dict.fromkeys(modes):
        if not paging and not remat:
            continue
        for share in (1.0, 0.97, 0.93, 0.88, 0.8, 0.7):
            schedule = greedy(run.problem, int(options.ram_bytes * share), paging=paging, remat=remat)
            found |= _taken(run, trial, schedule, "heuristic", strict)
    if not found and options.deadline_s is not None:
        _quick_schedules(run, trial, strict)


def _taken(run: Run, trial: Incumbent, schedule: Schedule | None, phase: str, strict: bool) -> bool:
    """Whether a schedule is the best so far; it is a start then, and told where plans count."""
    if schedule is None or not trial.offer(schedule):
        return False
    run.starts.insert(0, schedule)
    if not strict:
        run.say(phase)
    return True


def _quick_schedules(run: Run, trial: Incumbent, strict: bool) -> None:
    """Heuristic plans where those of least energy come late: a second has a price, and targets lie closer together.

    All targets of one price are tried, since the best plan counts; dearer seconds only where there is none.
    """
    options = run.options
    watts = run.problem.baseline_energy_j / (run.problem.baseline_time_s or 1.0)
    found = False
    until = time.monotonic() + QUICK_SHARE * options.time_limit_s
    modes = [(options.paging, options.remat, times * watts) for times in QUICK_PRICES]
    modes += [(False, options.remat, 0.0), (options.paging, False, 0.0)]
    for paging, remat, second_j in modes:
        if not (paging or remat):
            continue
        for percent in range(100, 50, -2):
            if time.monotonic() > until:
                return
            ram_bytes = options.ram_bytes * percent // 100
            schedule = greedy(run.problem, ram_bytes, paging=paging, remat=remat, second_j=second_j)
            found |= _taken(run, trial, schedule, "heuristic", strict)
        if found:
            return


def _conclude(run: Run, proof: Proof, store_all_peak: int) -> Solution:
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
