"""Search of `solve`: the engine's `Options`, and the first problem that has a schedule."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from poetopt.api.options import SolvingOptions
from poetopt.api.problems import store_all_peak_bytes, total_bytes
from poetopt.backends.onnxruntime import sessions
from poetopt.formulations import formulation as formulation_of
from poetopt.formulations.options import with_options
from poetopt.graph.problem import Problem, check_problem
from poetopt.ops.runtimes import DEFAULT
from poetopt.ops.runtimes.c import steps as calls
from poetopt.report.goals import WholeTraining, training_run
from poetopt.report.report import Report
from poetopt.search.diagnosis.least_budget import least_budget, limited
from poetopt.search.diagnosis.solve import solve
from poetopt.search.limits import kind
from poetopt.search.solution import DeadlineModel, Options, Solution, Status
from poetopt.util.errors import OptionError
from poetopt.util.text import near
from poetopt.util.units import Factor, Share, parse_deadline, parse_energy, parse_fraction, parse_ram, parse_time

if TYPE_CHECKING:
    from poetopt.plan.schedule import Schedule

MOST_THREADS = 512
"""Maximum number of threads. A solver with a hundred thousand threads stops the machine."""
SCOPES = ("auto", "forward", "full")
"""Scopes besides `depth:D`."""


def search(problems: Iterable[Problem], options: SolvingOptions, starts: tuple[Schedule, ...] = ()) -> Report:
    """Return the report of the first problem that has a schedule, or else of the last one.

    Parameters
    ----------
    starts
        Known schedules.
    """
    for problem in problems:
        solution = _solve(problem, options, starts)
        if not _is_final(solution):
            break
    return Report(problem=problem, solution=solution)


def _solve(problem: Problem, options: SolvingOptions, starts: tuple[Schedule, ...]) -> Solution:
    solver_options = engine_options(problem, options)
    if solver_options.ram_bytes <= 0 and options.ram is None:
        return _no_room_solution(problem, solver_options, total_bytes(options))
    if options.minimize == "ram":
        return least_budget(problem, solver_options, options.listener, begin=options.begin)
    return solve(problem, solver_options, options.listener, starts=starts, begin=options.begin)


def run_of(problem: Problem, options: SolvingOptions) -> WholeTraining | None:
    """Return the training in question, or None for a single step. Raises OptionError."""
    return training_run(problem, steps=options.steps, epochs=options.epochs, samples=options.samples)


def engine_options(problem: Problem, options: SolvingOptions) -> Options:
    """Return the engine's options for a problem; every text is parsed. Raises OptionError, TypeError."""
    check_problem(problem)
    check_runs = {"c": calls.check_runs, DEFAULT: sessions.check_runs}.get(problem.runtime)
    if problem.graph is not None and check_runs is not None:
        check_runs(problem.graph.joint)
    run = run_of(problem, options)
    steps = 1 if run is None else run.steps
    if options.deadline_model not in tuple(DeadlineModel):
        raise OptionError(f"--deadline-model {options.deadline_model}: must be {' or '.join(DeadlineModel)}")
    if not 0 <= options.threads <= MOST_THREADS:
        raise OptionError(f"--threads {options.threads}: must be 1 to {MOST_THREADS}, or 0 to let the solver choose")
    rules = options.formulation if isinstance(options.formulation, str) else formulation_of(options.formulation)
    if options.blocks:
        rules = with_options(formulation_of(rules), options.blocks, problem, steps)
    engine = Options(
        ram_bytes=_ram_bytes(problem, options),
        deadline_s=_deadline_s(problem, options, steps),
        deadline_model=DeadlineModel(options.deadline_model),
        formulation=rules,
        backend=options.backend,
        scope=checked_scope(options.scope),
        paging=options.paging,
        remat=options.remat,
        time_limit_s=parse_time(options.time_limit, option="--time-limit"),
        gap=parse_fraction(options.gap, option="--gap"),
        threads=options.threads,
        solver_options=dict(options.solver_options or {}),
    )
    if options.minimize == "ram":
        engine = limited(problem, engine, _limit_j(problem, engine, options, steps))
    return engine if options.log is None else replace(engine, log=os.fspath(options.log))


def _limit_j(problem: Problem, found: Options, options: SolvingOptions, steps: int) -> float | None:
    """Return the joules of a step within which the least RAM is searched for."""
    if options.energy_limit is None:
        return None
    limit = parse_energy(options.energy_limit, option="--energy-limit")
    if isinstance(limit, Factor):
        return limit.times * formulation_of(found.formulation).baseline_j(problem)
    return limit / steps


def _ram_bytes(problem: Problem, options: SolvingOptions) -> int:
    """Return the budget in bytes; not positive if the resident region alone exceeds the device's RAM or `total_ram`."""
    total = total_bytes(options)
    if total is not None:
        return total - problem.beside_bytes
    if options.ram is not None:
        budget = parse_ram(options.ram)
        return int(budget.fraction * store_all_peak_bytes(problem)) if isinstance(budget, Share) else budget
    if problem.device_ram_bytes is not None:
        return problem.device_ram_bytes - problem.beside_bytes
    if options.minimize == "ram":
        return store_all_peak_bytes(problem)
    raise OptionError(f"{problem.name}: the RAM of {problem.device} is unknown. Give it with --ram")


def _deadline_s(problem: Problem, options: SolvingOptions, steps: int) -> float | None:
    """Return the seconds of a step."""
    if steps < 1:
        raise OptionError(f"--steps {steps}: must be at least 1")
    deadline = None if options.deadline is None else parse_deadline(options.deadline)
    if isinstance(deadline, Factor):
        return deadline.times * problem.baseline_time_s
    if deadline is None:
        has_totals = options.blocks or options.samples is not None or options.energy_limit is not None
        if steps > 1 and not has_totals:
            raise OptionError(f"--steps {steps} divides a total deadline. Give one with --deadline, as in 3h")
        return None
    return deadline / steps


def checked_scope(scope: str) -> str:
    """Return a valid scope. Raises OptionError."""
    kind, _, depth = scope.partition(":")
    if scope in SCOPES or (kind == "depth" and re.fullmatch("0*[1-9][0-9]{0,8}", depth)):
        return scope
    digits = re.search(r"[1-9]\d*", scope)
    suggestions = [f"depth:{digits[0]}"] if digits else near(scope, SCOPES)
    hint = f". Did you mean {' or '.join(suggestions)}?" if suggestions else ""
    raise OptionError(f"--scope {scope}: must be auto, depth:D (D >= 1, as in depth:4), forward or full{hint}")


def _is_final(solution: Solution) -> bool:
    """Return whether more time would find no plan, so that another problem should be tried."""
    return (solution.status is Status.INFEASIBLE or solution.exhausted) and not solution.interrupted


def _no_room_solution(problem: Problem, options: Options, total: int | None) -> Solution:
    """Return the answer if no `--ram` was given and the resident region alone exceeds the RAM or `--total-ram`."""
    stack = f" and {problem.stack_bytes:,} of stack" if problem.stack_bytes else ""
    resident = f"{problem.resident_bytes:,} resident bytes of parameters, gradients and constants{stack}"
    bound_bytes = problem.least_ram_bytes
    if total is not None:
        reason = (
            f"{total:,} bytes in total are too few for the {resident}, and the {bound_bytes:,} bytes that any "
            f"{kind(problem)} needs: {problem.beside_bytes + bound_bytes:,} together"
        )
    else:
        reason = (
            f"the device's {problem.device_ram_bytes:,} bytes of RAM are too few for the {resident}, and the "
            f"{bound_bytes:,} bytes that any {kind(problem)} needs. Train fewer parameters (--train), take a smaller "
            "model or another device, or give --ram for the schedule only"
        )
    return Solution(
        status=Status.INFEASIBLE,
        scope="full",
        options=options,
        store_all_peak_bytes=store_all_peak_bytes(problem),
        ram_bound_bytes=problem.least_ram_bytes,
        reason=reason,
    )
