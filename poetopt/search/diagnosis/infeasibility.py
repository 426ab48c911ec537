"""Explanation of a missing schedule: binding requirements, found by leaving out one at a time, and the hardest step.

Every statement is about a schedule that was found, or about sums that hold for all schedules.
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
"""Largest number of seconds of all trials together."""
LEAST_GAP = 0.01
"""Gap of a trial that minimises the quantity that a block limits, if there is time."""
MAX_NAMED = 3
"""Largest number of kept tensors that are named."""


@dataclass(frozen=True)
class Findings:
    """Sentences of `explain`, and figures that are better than the known ones (None: they aren't)."""

    says: tuple[str, ...] = ()
    ram_bound_bytes: int | None = None
    least_deadline_s: float | None = None
    interrupted: bool = False


def explain(
    problem: Problem, options: Options, solution: Solution, search: Search | None, seconds: float = SECONDS
) -> Findings:
    """Find the binding requirements of a problem for which `solution` has no schedule.

    Parameters
    ----------
    search
        Solve for the trials. None: they use heuristics alone, and have the same result in each call.
    seconds
        Limit of all trials together. A trial that finds nothing in its share proves nothing, and is not reported.
    """
    until = time.monotonic() + seconds
    sentences: list[str] = []
    step = hardest_step(problem, options)
    bound = step.nbytes if step.nbytes > problem.least_ram_bytes else None
    if bound is not None and step.nbytes > options.ram_bytes:
        sentences.append(_step_words(problem, options, step))
    one_pass = problem.baseline_time_s * (1 - 1e-9)
    below_one_pass = options.deadline_s is not None and options.deadline_s < one_pass
    if options.ram_bytes < (step.nbytes if below_one_pass else problem.least_ram_bytes):
        return Findings(tuple(sentences), bound)  # only more RAM helps
    try:
        if search is None:
            sentences += _heuristic_findings(problem, options)
            shortest = None
        elif below_one_pass:
            shortest = _shortest(problem, options, solution, search, until)
        else:
            shortest = _try_without_each(problem, options, solution, search, until, sentences)
    except KeyboardInterrupt:  # return the findings so far
        return Findings(tuple(sentences), bound, interrupted=True)
    return Findings(tuple(sentences), bound, shortest)


def _try_without_each(
    problem: Problem, options: Options, solution: Solution, search: Search, until: float, says: list[str]
) -> float | None:
    """Leave out one requirement at a time, and append the result to `says`; return a new shortest deadline, if any.

    Raise KeyboardInterrupt at Ctrl-C.
    """
    useless: list[str] = []
    for requirement, relaxed, block in _relaxed_options(options, problem):
        gap = 1.0 if block is None or block.limits is None else LEAST_GAP
        try:
            trial = solve_in_time(problem, relaxed, search, until, gap=gap)
        except TimeoutError:
            if block is not None and block.limits is not None:
                says += _heuristic_least(problem, relaxed, block, block.limits)
            continue
        if trial.simulation is not None:
            says.append(f"without {requirement} a schedule exists{_figures(trial.simulation)}")
            if block is not None and block.limits is not None:
                says.append(least_words(problem, block, block.limits, trial))
        elif trial.status is Status.INFEASIBLE:
            useless.append(requirement)
    if problem.storage_bytes is not None and options.paging and problem.paging:
        with suppress(TimeoutError):
            simulation = solve_in_time(problem.on_any_storage(), options, search, until).simulation
            if simulation is not None:
                says.append(
                    f"with more storage than {show_bytes(problem.storage_bytes)} a schedule exists"
                    f"{_figures(simulation)}, with {show_bytes(simulation.stored_bytes)} on it"
                )
    if useless and not any(text.startswith("without") for text in says):
        says.append(f"leaving out {' or '.join(useless)} alone makes none possible")
    return _shortest(problem, options, solution, search, until)


def _relaxed_options(options: Options, problem: Problem) -> Iterator[tuple[str, Options, Block | None]]:
    """Yield each requirement beside the RAM, the options without it, and the block that it comes from, if any.

    Without a block that limits a quantity, that quantity is minimised.
    """
    if options.deadline_s is not None:
        yield f"the deadline of {show_seconds(options.deadline_s)}", replace(options, deadline_s=None), None
    if not options.paging and problem.paging:
        yield "the ban on paging", replace(options, paging=True), None
    if not options.remat:
        yield "the ban on recomputation", replace(options, remat=True), None
    chosen = formulation(options.formulation)
    for block in chosen.blocks:
        if block.name not in chosen.simulated:
            chosen_without = without(chosen, block, minimising=block.limits)
            requirement = f"the block {block.name} ({block.says})" if block.says else f"the block {block.name}"
            yield requirement, replace(options, formulation=chosen_without), block


def _shortest(problem: Problem, options: Options, solution: Solution, search: Search, until: float) -> float | None:
    """Return the seconds of the fastest schedule that a search finds within the RAM, if they beat the known ones."""
    chosen = formulation(options.formulation)
    paper = options.deadline_model is DeadlineModel.PAPER
    if options.deadline_s is None or paper or chosen.goal is not ENERGY:
        return None
    quick_options = replace(options, deadline_s=None, formulation=chosen.with_block(least(TIME)))
    try:
        trial = solve_in_time(problem, quick_options, search, until, gap=LEAST_GAP, most_s=math.inf)
    except TimeoutError:
        return None
    known_s = solution.least_deadline_s
    if trial.simulation is None or (known_s is not None and trial.simulation.makespan_s >= known_s):
        return None
    return trial.simulation.makespan_s


def least_words(problem: Problem, block: Block, goal: Goal, solution: Solution) -> str:
    """Return the least known feasible limit of `block`, in words, with the proof of `solution`, which minimises it."""
    assert solution.plan is not None
    assert solution.simulation is not None
    chosen = formulation(solution.options.formulation)
    base = goal.baseline(problem, chosen.baseline_j(problem))
    value = base + goal.value(chosen.trial(solution.plan, solution.simulation))
    bound = solution.overhead_bound_j if solution.objective is None else solution.objective.bound
    proof = ""
    if solution.status is Status.OPTIMAL:
        proof = f", and no schedule with {proven_words(solution.scope)} has less"
    elif bound:
        proven = show_limit(base + bound, goal.unit, up=False)
        proof = f", and no schedule with {proven_words(solution.scope)} has less than {proven}"
    known = show_limit(value, goal.unit)
    return f"the least known to be feasible for {block.name} is {known} a step{proof}"


def _heuristic_findings(problem: Problem, options: Options) -> Iterator[str]:
    """Yield the requirements without which heuristics find a schedule, in words."""
    for requirement, relaxed, block in _relaxed_options(options, problem):
        candidate = _by_heuristics(problem, relaxed, quick=True)
        if candidate is None:
            continue
        yield f"without {requirement} a schedule exists{_figures(candidate.simulation)}"
        if block is not None and block.limits is not None:
            yield from _heuristic_least(problem, relaxed, block, block.limits)


def _heuristic_least(problem: Problem, relaxed: Options, block: Block, goal: Goal) -> list[str]:
    """Return the least limit of `block` that heuristics reach, in words, without a proof."""
    chosen = formulation(relaxed.formulation)
    candidate = _by_heuristics(problem, relaxed) if chosen.plans_count else None
    if candidate is None:
        return []
    value = goal.baseline(problem, chosen.baseline_j(problem)) + candidate.value
    return [f"the least known to be feasible for {block.name} is {show_limit(value, goal.unit)} a step"]


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
    others = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    reason = "can't be computed again" if options.remat else "may not be computed again"
    kernels = f", kernels {problem.reserve_bytes:,}" if problem.reserve_bytes else ""
    needs = (
        f"{step.nbytes:,} bytes without paging: {step.working_bytes:,} for its inputs, outputs and workspace{kernels}"
    )
    return (
        f"operator {step.operator} '{problem.operators[step.operator].name}' needs {needs}, and "
        f"{problem.nbytes(step.kept):,} for {', '.join(names[:MAX_NAMED])}{others}, which are read later and {reason}"
    )
