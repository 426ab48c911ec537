"""What a solve found, in sentences: its transfers, and why there is no schedule."""

from __future__ import annotations

from poetopt.graph.problem import Problem
from poetopt.plan.simulate import Simulation
from poetopt.plan.transfers import Overlap
from poetopt.search.limits import kind
from poetopt.search.solution import Solution, Status
from poetopt.util.units import show_bytes, show_limit, show_seconds


def streamed_words(simulation: Simulation) -> str:
    """How many runs stream operands and how much, after what else moves; nothing where none does."""
    runs = simulation.streamed_runs
    if not runs:
        return ""
    return f"; {runs} run{'s' * (runs > 1)} streamed ({show_bytes(simulation.bytes_streamed)} in chunks)"


def failure_words(problem: Problem, solution: Solution, *, whole: bool = False, steps: int = 1) -> str:
    """Why a solve ended without a plan, and what would help: the message of exit codes 3 and 4.

    whole
        Whether what was asked for is the RAM of all of the step, so that its figures are those of `--total-ram`.
    steps
        How many steps `--deadline` is for.
    """
    reason = solution.reason.rstrip(".") or f"no schedule with {solution.options.ram_bytes:,} bytes of RAM"
    paged = problem.parameters == "paged"
    return "; ".join(
        [
            f"{problem.model_ref or problem.name} on {problem.device}: {_with_paged(problem) if paged else ''}"
            f"{_each(solution, steps)}{reason}",
            *solution.why,
            *_remedies(problem, solution, " ".join([reason, *solution.why]), whole, steps),
        ]
    )


def _each(solution: Solution, steps: int) -> str:
    """What a deadline for many steps leaves each of them."""
    deadline = solution.options.deadline_s
    if deadline is None or steps == 1:
        return ""
    return f"{steps:,} steps in {show_seconds(steps * deadline)} have {show_seconds(deadline)} each: "


def _with_paged(problem: Problem) -> str:
    """What a step is whose parameters didn't fit beside a schedule."""
    optimizer = problem.recipe.get("optimizer", "none")
    beside = f"{problem.beside_bytes:,} bytes beside the budget"
    return f"with parameters on storage and updated by {optimizer}, {beside}, "


def _remedies(problem: Problem, solution: Solution, said: str, whole: bool, steps: int) -> list[str]:
    """The smallest RAM and deadline known to be feasible, or the best bounds on them, unless `said` already."""
    option_of_ram, beside = ("--total-ram", problem.beside_bytes) if whole else ("--ram", 0)
    least, bound, deadline = solution.least_ram_bytes, solution.ram_bound_bytes, solution.least_deadline_s
    # with more RAM the parameters may be resident, of which nothing is known
    asking = f"--parameters paged {option_of_ram}" if whole and problem.parameters == "paged" else option_of_ram
    known = []
    if solution.interrupted:
        known.append("interrupted in looking for what would help")
    if least is not None and least == bound and f"{bound:,}" in said:
        known.append(f"a schedule with just that is known ({asking} {least + beside})")
    elif least is not None and f"{least:,}" not in said:
        known.append(f"a schedule is known with {least:,} bytes ({show_bytes(least)}, {asking} {least + beside})")
    if bound is not None and bound != least and "shorter than one pass" not in said and f"{bound:,}" not in said:
        known.append(f"no {kind(problem)} has less than {bound:,} bytes")
    if deadline is not None:
        shortest = show_limit(deadline, "s")
        all_steps = f", for {steps:,} steps" if steps > 1 else ""
        option = f"(--deadline {show_limit(steps * deadline, 's').replace(' ', '')}{all_steps})"
        told = (
            "that long is enough" if shortest in said else f"the shortest deadline known to be feasible is {shortest}"
        )
        known.append(f"{told} {option}")
    if solution.fitting_batch is not None:
        known.append(f"--batch {solution.fitting_batch} would fit")
    if solution.status is Status.UNKNOWN:
        ways = [option_of_ram] if solution.exhausted else ["--time-limit", option_of_ram]
        ways += ["a longer --deadline"] if solution.options.deadline_s is not None else []
        known.append(f"give more {' or '.join([', '.join(ways[:-1]), ways[-1]] if len(ways) > 1 else ways)}")
    elif least is None and deadline is None and "--" not in said and not solution.why:
        known.append(f"give more {option_of_ram}, a longer --deadline or a smaller --batch")
    return known


def overlap_words(found: Overlap) -> str:
    """How much of the transfers the CPU's computing hides."""
    return f"{show_bytes(found.transfer_bytes)} in {show_seconds(found.transfer_s)}, {during_words(found)}"


def during_words(found: Overlap) -> str:
    """What the CPU does while transfers go on."""
    return f"{show_seconds(found.hidden_s)} of it while the CPU computes" if found.hidden_s else "while the CPU waits"
