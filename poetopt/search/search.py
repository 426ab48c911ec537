"""Search from beginning to end: closed answers, heuristics, scope after scope, the conclusion.

In the plain problem only those operators stream that don't fit the budget otherwise. It is smaller than the whole
problem, and its relaxation is tighter. Its plans are plans of the whole problem, at the same energy. Once it is proven,
the search of the whole problem only considers schedules that stream more.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from poetopt.backends.solvers.solver import backend
from poetopt.formulations import formulation as formulation_of
from poetopt.formulations.goal import ENERGY
from poetopt.formulations.language import Formulation
from poetopt.formulations.scope import proven_words
from poetopt.graph.problem import (
    COMPUTES,
    PLAINLY,
    Feature,
    Problem,
    check_supported,
)
from poetopt.plan.assemble import everything, store_all_bytes
from poetopt.plan.closing import closing_of
from poetopt.plan.ends import with_ends, without_ends
from poetopt.plan.instructions import Action
from poetopt.plan.layout import arena_bytes, lay_out
from poetopt.plan.schedule import Schedule
from poetopt.plan.simulate import simulate
from poetopt.search.constructive import first_schedules, plain_schedules
from poetopt.search.deepening import Deepening
from poetopt.search.exhaustive import DECIDING_SHARE, decidable, decided
from poetopt.search.incumbent import Candidate
from poetopt.search.limits import impossible, within
from poetopt.search.outer import AllPlans
from poetopt.search.run import Proof, Run, outdone
from poetopt.search.scope_search import relax_scope
from poetopt.search.solution import Listener, Objective, Options, Solution, Status, graded
from poetopt.search.tuning import ALL_SHARE, LEAST_S, RELAX_SHARE, RUN_PLAIN


def run_plain(problem: Problem, ram_bytes: int) -> Problem:
    """Return the problem without the variants of operators that fit the budget without streaming."""
    operators = tuple(
        replace(operator, variants=()) if problem.fits_plain(k, ram_bytes) else operator
        for k, operator in enumerate(problem.operators)
    )
    return problem if operators == problem.operators else replace(problem, operators=operators)


@dataclass
class PlainRun(Run):
    """Run over the plain problem, in a part of the effort of the `whole` run, whose incumbent it shares.

    It ends once nothing plain is better than that incumbent, so a streamed plan saves most of it.
    """

    whole: Run = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.incumbent = self.whole.incumbent

    @classmethod
    def of(cls, run: Run, plain: Problem) -> PlainRun:
        """Return a run over the plain problem of `run`, in a part of the effort that is left now."""
        share = RUN_PLAIN[Feature.STREAMED in plain.features]
        return cls(
            plain,
            run.options,
            None,
            begin=run.begin,
            work=run.work,
            starts=run.starts,
            lock=run.lock,
            whole=run,
            part_budget=run.budget.part(share),
            share=run.share * share,
        )

    def offer(self, schedule: Schedule, phase: str, *, quick: bool = False) -> bool:
        """Offer a schedule to the whole run; return whether it is the whole problem's best now."""
        return self.whole.offer(schedule, phase, quick=quick)

    def report_progress(self, phase: str) -> None:
        """Report nothing: its bounds are not the whole problem's."""


def plain_first(run: Run, scope: str, all_plans: AllPlans | None) -> Proof | None:
    """Search the plain problem, whose plans are the run's.

    First come the plans of a relaxation of `scope` with streamed runs, so that the plain problem is searched no further
    than it can be better. An interrupt of the plain search is one of the run.

    Returns
    -------
    Proof or None
        Proof of the plain problem, if it is settled. None also if all operators fit plain, or none does.
    """
    problem = run_plain(run.problem, run.options.ram_bytes)
    if not run.options.paging or problem is run.problem:
        return None
    if run.work.clock_s > 2 * LEAST_S:
        relax_scope(run, scope, run.budget.part(RELAX_SHARE))
    plain = PlainRun.of(run, problem)
    deepening = Deepening(plain, all_plans)
    plain.enter_scope(deepening.first)
    with run.timed("plain schedules"):
        proof = deepening.deepen()
    if plain.interrupted:
        raise KeyboardInterrupt
    return proof if proof.settled else None


def objective_of(
    chosen: Formulation, problem: Problem, value: float | None, bound: float | None
) -> tuple[float | None, Objective | None]:
    """Return the overhead bound in joules if the simulator's energy was minimised, else the objective."""
    if chosen.plain:
        return bound, None
    adding = " and ".join(block.name for block in chosen.blocks if block.adds_j is not None)
    name = chosen.goal.name if chosen.goal is not ENERGY else f"energy with {adding}"
    baseline = chosen.goal.baseline(problem, chosen.baseline_j(problem))
    return None, Objective(name, chosen.goal.unit, baseline, value, bound)


MODELS = frozenset({Feature.STORED, Feature.UPDATED, *COMPUTES, *PLAINLY})
SUPPORTS = MODELS | {Feature.MAPPED, Feature.CARRIED, Feature.RESULT}
"""Features that the search supports, and among them those that models have decisions for."""

_BY_SUMS = " (where operators may stream, only sums of bytes and seconds prove that)"
_NONE_BY_ITS_RULES = "no schedule by the rules of the formulation '{}' exists, which are stricter than those of plans"


def search(
    problem: Problem,
    options: Options,
    listener: Listener | None = None,
    starts: Sequence[Schedule] = (),
    begin: float | None = None,
    whole: Run | None = None,
    share: float = 1.0,
    bounds_all_plans: bool = True,
) -> Solution:
    """Find the schedule of least energy for `problem` within `options`.

    It doesn't raise for an infeasible problem or an interrupt: the status of the Solution says so.
    `poetopt.search.diagnosis.solve` adds remedies where there is no schedule.

    Parameters
    ----------
    starts
        Schedules from elsewhere, used like those of the heuristics.
    begin
        Moment (of `time.monotonic`) at which the time limit begins; before now if reading the model counts.
    whole, share
        Search that this one is part of, and the share of its effort.
    bounds_all_plans
        Whether to reserve time for a bound on all plans.

    Raises
    ------
    FormulationError, BackendUnavailableError
        For options that don't exist.
    ProblemError
        For a problem with features that the search doesn't support.
    """
    check_supported(problem, "the search", SUPPORTS)
    if problem.beyond(MODELS) is not None:
        begin = time.monotonic() if begin is None else begin
        solution = search(without_ends(problem), options, listener, starts, begin)
        return _with_ends(solution, Run(problem, options, listener, begin=begin))
    chosen, search_begin = formulation_of(options.formulation), time.monotonic()
    run = Run(problem, options, listener, begin=search_begin if begin is None else begin)
    if whole is not None:
        part = whole.budget.part(share)
        run = Run(problem, options, listener, begin=whole.begin, work=whole.work, part_budget=part)
    if begin is not None:
        run.timing["reading"] = search_begin - begin
    backend(options.backend)  # raises early if it is missing
    with run.timed("layout"):
        store_all = store_all_bytes(problem)
    try:
        with run.timed("layout"):
            if chosen.judged:
                run.offer(everything(problem), "store-all")
            run.incumbent.settle()
    except KeyboardInterrupt:
        run.interrupt()
    if run.incumbent.best is not None and _moves_least(run, run.incumbent.best):
        # Every schedule moves the inputs of each batch, and the tensors that only the update after its parts reads.
        run.all_plans_bound = run.incumbent.best.value
        run.raise_bound(run.all_plans_bound, "store-all")
        return _solution(run, Status.OPTIMAL, store_all)
    reason = impossible(problem, options)
    if reason is not None:
        return replace(_solution(run, Status.INFEASIBLE, store_all), **reason)
    block_reason = chosen.impossible(problem)
    if block_reason is not None:
        return replace(_solution(run, Status.INFEASIBLE, store_all), reason=block_reason)
    if run.interrupted:
        return _solution(run, Status.UNKNOWN, store_all)
    strict = not chosen.plans_count
    all_plans = AllPlans(run) if bounds_all_plans else None
    deepening = Deepening(run, all_plans)
    run.enter_scope(deepening.first)
    share_left = 1.0 - (ALL_SHARE if all_plans else 0.0)
    enumerable = decidable(run)
    run.allot(share_left)
    try:
        with run.timed("heuristics"):
            first_schedules(run, strict=strict, starts=starts)
        if not strict:
            plain_schedules(run, partial(search, bounds_all_plans=False))
            run.plain_proof = plain_first(run, deepening.first, all_plans)
        run.allot(share_left - DECIDING_SHARE if enumerable else share_left)
        proof = deepening.deepen()
        if enumerable:
            run.allot(share_left)
            with run.timed("exhaustive"):
                proof = decided(run, proof)
    except KeyboardInterrupt:
        run.interrupt()
        proof = Proof(run.scope, run.scope, run.bound, False, run.incumbent.value, False)
    try:
        run.allot(1.0)
        if all_plans and not run.interrupted:
            all_plans.search(proof)
    except KeyboardInterrupt:
        run.interrupt()
    return _conclude(run, proof, store_all)


def _with_ends(solution: Solution, run: Run) -> Solution:
    """Return the solution of the run's problem, from that of the problem `without_ends`."""
    if solution.plan is None:
        return solution
    problem, options = run.problem, run.options
    plan = with_ends(problem, solution.plan)
    laid_out = lay_out(plan, ram_bytes=run.incumbent.room_bytes)
    simulation, arena = simulate(plan), arena_bytes(laid_out)
    if within(options, problem, simulation, arena):
        return replace(solution, plan=laid_out, simulation=simulation, arena_bytes=arena)
    proof = Proof(solution.scope, solution.scope, solution.overhead_bound_j or 0.0, False, None, False)
    return _conclude(run, decided(run, proof) if decidable(run) else proof, solution.store_all_peak_bytes)


def _moves_least(run: Run, store_all: Candidate) -> bool:
    """Return whether no schedule spends less on transfers than ordinary training.

    Streaming may be cheaper than paging. Another order may wake the storage less often. After the last part of a batch,
    an operator may stream only because of the tensors that the parts keep in RAM.
    """
    plan, problem = store_all.plan, store_all.plan.problem
    update_phase = closing_of(problem, plan.instructions)
    if update_phase is not None and any(step.variant for step in update_phase.instructions):
        return False
    paged_in = {step.target for step in plan.instructions if step.action is Action.PAGE_IN}
    if paged_in and problem.wake_j and store_all.simulation.wakes > 1:
        return False
    streamed = [
        (
            variant.energy_j - operator.energy_j,
            sum(problem.tensors[i].page_in_j for i in paged_in.intersection(variant.streamed_in)),
        )
        for operator in problem.operators
        for variant in operator.variants
        if paged_in.intersection(variant.streamed_in)
    ]
    return all(run.chosen.plain and extra_j >= saved_j for extra_j, saved_j in streamed)


def _conclude(run: Run, proof: Proof, store_all_peak: int) -> Solution:
    run.enter_scope(proof.scope, max(proof.bound, run.all_plans_bound))
    begin = time.monotonic()
    try:
        if not run.interrupted:  # takes seconds for large problems
            run.incumbent.hide_transfers(quick=time.monotonic() > run.latest)
        run.incumbent.settle()
    except KeyboardInterrupt:
        run.interrupt()
    run.timing["layout"] = run.timing.get("layout", 0.0) + time.monotonic() - begin
    best = run.incumbent.best
    if best is None:
        status, reason = _without_plan(run, proof)
        exhausted = proof.infeasible or proof.exhausted
        return replace(_solution(run, status, store_all_peak), reason=reason, exhausted=exhausted)
    solution = _solution(run, Status.FEASIBLE, store_all_peak)
    return replace(solution, status=graded(solution.overhead_gap, run.options.gap), reason=proof.note)


def _without_plan(run: Run, proof: Proof) -> tuple[Status, str]:
    """Return the status and the reason of a search that found no plan.

    The status is infeasible if that is proven of everything that was requested: of all plans, of the requested scope,
    or of a formulation with rules of its own.
    """
    chosen, words = run.chosen, proven_words(proof.scope)
    if proof.exhausted:
        return Status.UNKNOWN, (
            f"each schedule with {words} whose bytes fit the budget was tried; none has a memory layout within it, "
            "keeps the deadline and satisfies every block"
        )
    caveat = _BY_SUMS if Feature.STREAMED in run.problem.features else ""
    if not proof.infeasible:
        return Status.UNKNOWN, f"no schedule was found in {run.elapsed_s:.1f} s, and none is proven impossible{caveat}"
    if proof.covers_all_plans:
        return Status.INFEASIBLE, "no schedule exists"
    reason = f"no schedule with {words} exists, by proof"
    if proof.scope == "full" and not chosen.plans_count:
        return Status.INFEASIBLE, _NONE_BY_ITS_RULES.format(chosen.name)
    if proof.scope == "full":
        return Status.UNKNOWN, f"{reason}; whether another one exists is open{caveat}"
    was_requested = run.options.scope == proof.asked
    return Status.INFEASIBLE if was_requested else Status.UNKNOWN, f"{reason}; a wider scope may have one"


def _solution(run: Run, status: Status, store_all_peak: int) -> Solution:
    best = run.incumbent.best
    total_s = run.elapsed_s
    value = math.inf if best is None else best.value
    is_infeasible = status is Status.INFEASIBLE
    bound, scope_bound = (None if is_infeasible else min(proven, value) for proven in (run.all_plans_bound, run.bound))
    bound_j, objective = objective_of(run.chosen, run.problem, run.incumbent.value, bound)
    return Solution(
        status=status,
        scope=run.scope,
        options=run.options,
        plan=None if best is None else best.plan,
        simulation=None if best is None else best.simulation,
        overhead_bound_j=bound_j,
        scope_bound=scope_bound,
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
