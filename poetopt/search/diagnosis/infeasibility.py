"""The reasons why there is no schedule: what binds, by leaving out one thing at a time, and the hardest step.

Everything said here is of a schedule that was found, or of sums that hold for all of them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from poetopt.formulations import formulation
from poetopt.formulations.block import Block
from poetopt.formulations.composition import without
from poetopt.formulations.goal import ENERGY, TIME, Goal
from poetopt.formulations.scope import proven_words
from poetopt.formulations.within import least
from poetopt.graph.problem import Problem
from poetopt.plan.simulate import Simulation
from poetopt.search.constructive import greedy_schedules
from poetopt.search.diagnosis.minimum_budget import Search, solve_in_time
from poetopt.search.incumbent import Candidate, Incumbent
from poetopt.search.limits import Step, hardest_step
from poetopt.search.solution import DeadlineModel, Options, Solution, Status
from poetopt.search.tuning import WORK
from poetopt.util.units import show_bytes, show_joules, show_limit, show_seconds
from poetopt.util.work import Work

SECONDS = 6.0
"""The seconds that all trials together may take."""
LEAST_GAP = 0.01
"""The gap within which a trial comes to the least of what a block limits, in time."""
NAMED = 3
"""The number of kept tensors that are named."""


@dataclass(frozen=True)
class Why:
    """The findings of `explain`: sentences, and figures that are sharper than those known (None: they aren't)."""

    says: tuple[str, ...] = ()
    ram_bound_bytes: int | None = None
    least_deadline_s: float | None = None
    interrupted: bool = False


def explain(
    problem: Problem, options: Options, solution: Solution, search: Search | None, seconds: float = SECONDS
) -> Why:
    """Find what binds in a problem that `solution` found no schedule for.

    search
        A whole solve, for the trials; without it they are of heuristics alone, and say the same in each call.
    seconds
        What they may take together; a trial that finds nothing in its share proves nothing, and nothing is said of it.
    """
    until = time.monotonic() + seconds
    says: list[str] = []
    step = hardest_step(problem, options)
    bound = step.nbytes if step.nbytes > problem.least_ram_bytes else None
    if bound is not None and step.nbytes > options.ram_bytes:
        says.append(_step_words(problem, options, step))
    one_pass = problem.baseline_time_s * (1 - 1e-9)
    hurried = options.deadline_s is not None and options.deadline_s < one_pass
    if options.ram_bytes < (step.nbytes if hurried else problem.least_ram_bytes):
        return Why(tuple(says), bound)  # nothing but RAM helps
    try:
        if search is None:
            says += _at_hand(problem, options)
            shortest = None
        elif hurried:
            shortest = _shortest(problem, options, solution, search, until)
        else:
            shortest = _tried(problem, options, solution, search, until, says)
    except KeyboardInterrupt:  # the user doesn't want to wait for more
        return Why(tuple(says), bound, interrupted=True)
    return Why(tuple(says), bound, shortest)


def _tried(
    problem: Problem, options: Options, solution: Solution, search: Search, until: float, says: list[str]
) -> float | None:
    """Leave out one thing at a time, and note in `says` what that makes possible; the shortest deadline, if it's new.

    Raises KeyboardInterrupt.
    """
    in_vain: list[str] = []
    for what, eased, block in _eased(options, problem):
        gap = 1.0 if block is None or block.limits is None else LEAST_GAP
        try:
            found = solve_in_time(problem, eased, search, until, gap=gap)
        except TimeoutError:
            if block is not None and block.limits is not None:
                says += _least_at_hand(problem, eased, block, block.limits)
            continue
        if found.simulation is not None:
            says.append(f"without {what} a schedule exists{_figures(found.simulation)}")
            if block is not None and block.limits is not None:
                says.append(least_words(problem, block, block.limits, found))
        elif found.status is Status.INFEASIBLE:
            in_vain.append(what)
    if problem.storage_bytes is not None and options.paging and problem.paging:
        with suppress(TimeoutError):
            roomy = solve_in_time(problem.on_any_storage(), options, search, until).simulation
            if roomy is not None:
                says.append(
                    f"with a storage that held more than {show_bytes(problem.storage_bytes)} a schedule exists"
                    f"{_figures(roomy)}, with {show_bytes(roomy.stored_bytes)} on it"
                )
    if in_vain and not any(text.startswith("without") for text in says):
        says.append(f"leaving out {' or '.join(in_vain)} alone makes none possible")
    return _shortest(problem, options, solution, search, until)


def _eased(options: Options, problem: Problem) -> Iterator[tuple[str, Options, Block | None]]:
    """Yield what was asked for beside the RAM, the options without it, and the block that asked, if one did.

    Without a block that limits something, the least of that is what is looked for.
    """
    if options.deadline_s is not None:
        yield f"the deadline of {show_seconds(options.deadline_s)}", replace(options, deadline_s=None), None
    if not options.paging and problem.paging:
        yield "--no-paging", replace(options, paging=True), None
    if not options.remat:
        yield "--no-remat", replace(options, remat=True), None
    chosen = formulation(options.formulation)
    for block in chosen.blocks:
        if block.name not in chosen.simulated:
            eased = without(chosen, block, minimising=block.limits)
            what = f"the block {block.name} ({block.says})" if block.says else f"the block {block.name}"
            yield what, replace(options, formulation=eased), block


def _shortest(problem: Problem, options: Options, solution: Solution, search: Search, until: float) -> float | None:
    """Seconds of the quickest schedule that a search finds within the RAM, where that beats what is known."""
    chosen = formulation(options.formulation)
    paper = options.deadline_model is DeadlineModel.PAPER
    if options.deadline_s is None or paper or chosen.goal is not ENERGY:
        return None
    quick = replace(options, deadline_s=None, formulation=chosen.with_block(least(TIME)))
    try:
        found = solve_in_time(problem, quick, search, until, gap=LEAST_GAP, most_s=math.inf)
    except TimeoutError:
        return None
    known = solution.least_deadline_s
    if found.simulation is None or (known is not None and found.simulation.makespan_s >= known):
        return None
    return found.simulation.makespan_s


def least_words(problem: Problem, block: Block, goal: Goal, found: Solution) -> str:
    """The least that `block` can be asked for: the value and the proof of `found`, which minimises that."""
    assert found.plan is not None
    assert found.simulation is not None
    chosen = formulation(found.options.formulation)
    base = goal.baseline(problem, chosen.baseline_j(problem))
    least = base + goal.value(chosen.trial(found.plan, found.simulation))
    bound = found.overhead_bound_j if found.objective is None else found.objective.bound
    proof = ""
    if found.status is Status.OPTIMAL:
        proof = f", and no schedule with {proven_words(found.scope)} has less"
    elif bound:
        proven = show_limit(base + bound, goal.unit, up=False)
        proof = f", and no schedule with {proven_words(found.scope)} has less than {proven}"
    known = show_limit(least, goal.unit)
    return f"the least known to be feasible for {block.name} is {known} a step{proof}"


def _at_hand(problem: Problem, options: Options) -> Iterator[str]:
    """Yield what becomes possible by heuristics where one thing at a time is left out."""
    for what, eased, block in _eased(options, problem):
        found = _by_heuristics(problem, eased, quick=True)
        if found is None:
            continue
        yield f"without {what} a schedule exists{_figures(found.simulation)}"
        if block is not None and block.limits is not None:
            yield from _least_at_hand(problem, eased, block, block.limits)


def _least_at_hand(problem: Problem, eased: Options, block: Block, goal: Goal) -> list[str]:
    """The same of what the heuristics find, where there is no time for a search; nothing is proven then."""
    chosen = formulation(eased.formulation)
    found = _by_heuristics(problem, eased) if chosen.plans_count else None
    if found is None:
        return []
    least = goal.baseline(problem, chosen.baseline_j(problem)) + found.value
    return [f"the least known to be feasible for {block.name} is {show_limit(least, goal.unit)} a step"]


def _by_heuristics(problem: Problem, options: Options, *, quick: bool = False) -> Candidate | None:
    trial = Incumbent(problem, options)
    for schedule in greedy_schedules(problem, options, options.ram_bytes, Work(WORK)):
        trial.offer(schedule, quick=quick)
    return trial.best


def _figures(simulation: Simulation) -> str:
    moved = f", {show_bytes(simulation.bytes_paged)} moved" if simulation.bytes_paged else ""
    energy, seconds = show_joules(simulation.energy_j), show_seconds(simulation.makespan_s)
    return f" ({energy} and {seconds} a step{moved})"


def _step_words(problem: Problem, options: Options, step: Step) -> str:
    names = [f"'{problem.tensors[i].name}'" for i in sorted(step.kept, key=lambda i: (-problem.tensors[i].nbytes, i))]
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    again = "can't be computed again" if options.remat else "may not be computed again"
    kernels = f", kernels {problem.reserve_bytes:,}" if problem.reserve_bytes else ""
    need = (
        f"{step.nbytes:,} bytes without paging: {step.working_bytes:,} for its inputs, outputs and workspace{kernels}"
    )
    return (
        f"operator {step.operator} '{problem.operators[step.operator].name}' needs {need}, and "
        f"{problem.nbytes(step.kept):,} for {', '.join(names[:NAMED])}{more}, read later, which {again}"
    )
