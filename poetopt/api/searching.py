"""The search of `solve`: the engine's `Options` of what was asked, and the first problem that has a schedule."""

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
"""A solver that is told to use a hundred thousand threads tries, and stops the machine."""
SCOPES = ("auto", "forward", "full")
"""Beside `depth:D`."""


def search(problems: Iterable[Problem], options: SolvingOptions, starts: tuple[Schedule, ...] = ()) -> Report:
    """The report of the first problem that has a schedule, or else of the last one; `starts` are known schedules."""
    for problem in problems:
        found = _solution(problem, options, starts)
        if not _without(found):
            break
    return Report(problem=problem, solution=found)


def _solution(problem: Problem, options: SolvingOptions, starts: tuple[Schedule, ...]) -> Solution:
    asked = engine_options(problem, options)
    if asked.ram_bytes <= 0 and options.ram is None:
        return _no_room(problem, asked, total_bytes(options))
    if options.minimize == "ram":
        return least_budget(problem, asked, options.listener, begin=options.begin)
    return solve(problem, asked, options.listener, starts=starts, begin=options.begin)


def run_of(problem: Problem, options: SolvingOptions) -> WholeTraining | None:
    """The training that is asked about; None for a step alone. Raises OptionError."""
    return training_run(problem, steps=options.steps, epochs=options.epochs, samples=options.samples)


def engine_options(problem: Problem, options: SolvingOptions) -> Options:
    """The engine's options for a problem: every text is read and checked. Raises OptionError, TypeError."""
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
    chosen = options.formulation if isinstance(options.formulation, str) else formulation_of(options.formulation)
    if options.blocks:
        chosen = with_options(formulation_of(chosen), options.blocks, problem, steps)
    found = Options(
        ram_bytes=_ram_bytes(problem, options),
        deadline_s=_deadline_s(problem, options, steps),
        deadline_model=DeadlineModel(options.deadline_model),
        formulation=chosen,
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
        found = limited(problem, found, _limit_j(problem, found, options, steps))
    return found if options.log is None else replace(found, log=os.fspath(options.log))


def _limit_j(problem: Problem, found: Options, options: SolvingOptions, steps: int) -> float | None:
    """Joules of a step within which the least RAM is looked for."""
    if options.energy_limit is None:
        return None
    limit = parse_energy(options.energy_limit, option="--with energy-limit=")
    if isinstance(limit, Factor):
        return limit.times * formulation_of(found.formulation).baseline_j(problem)
    return limit / steps


def _ram_bytes(problem: Problem, options: SolvingOptions) -> int:
    """The budget in bytes; not positive where the resident region alone fills the device, or the `total_ram`."""
    total = total_bytes(options)
    if total is not None:
        return total - problem.beside_bytes
    if options.ram is not None:
        found = parse_ram(options.ram)
        return int(found.fraction * store_all_peak_bytes(problem)) if isinstance(found, Share) else found
    if problem.device_ram_bytes is not None:
        return problem.device_ram_bytes - problem.beside_bytes
    if options.minimize == "ram":
        return store_all_peak_bytes(problem)
    raise OptionError(f"{problem.name}: the RAM of {problem.device} is not known here; say how much with --ram")


def _deadline_s(problem: Problem, options: SolvingOptions, steps: int) -> float | None:
    """Seconds of a step."""
    if steps < 1:
        raise OptionError(f"--steps {steps}: must be at least 1")
    deadline = None if options.deadline is None else parse_deadline(options.deadline)
    if isinstance(deadline, Factor):
        return deadline.times * problem.baseline_time_s
    if deadline is None:
        totals = options.blocks or options.samples is not None or options.energy_limit is not None
        if steps > 1 and not totals:
            raise OptionError(f"--steps {steps} divides a total deadline: give one with --deadline, as in 3h")
        return None
    return deadline / steps


def checked_scope(scope: str) -> str:
    """A scope as options spell it. Raises OptionError."""
    kind, _, depth = scope.partition(":")
    if scope in SCOPES or (kind == "depth" and re.fullmatch("0*[1-9][0-9]{0,8}", depth)):
        return scope
    digits = re.search(r"[1-9]\d*", scope)
    meant = [f"depth:{digits[0]}"] if digits else near(scope, SCOPES)
    hint = f"; did you mean {' or '.join(meant)}?" if meant else ""
    raise OptionError(f"--scope {scope}: must be auto, depth:D (D >= 1, as in depth:4), forward or full{hint}")


def _without(solution: Solution) -> bool:
    """Tell whether more time would find no plan: another way of asking may."""
    return (solution.status is Status.INFEASIBLE or solution.exhausted) and not solution.interrupted


def _no_room(problem: Problem, options: Options, total: int | None) -> Solution:
    """The answer where no `--ram` was given and what lies beside the schedule fills the device, or `--total-ram`."""
    stack = f" and {problem.stack_bytes:,} of stack" if problem.stack_bytes else ""
    what = f"{problem.resident_bytes:,} resident bytes of parameters, gradients and constants{stack}"
    bound = problem.least_ram_bytes
    if total is not None:
        reason = (
            f"{total:,} bytes in all don't hold the {what}, and the {bound:,} bytes that any {kind(problem)} needs: "
            f"{problem.beside_bytes + bound:,} together"
        )
    else:
        reason = (
            f"the device's {problem.device_ram_bytes:,} bytes of RAM don't hold the {what}, and the {bound:,} bytes "
            f"that any {kind(problem)} needs. Train fewer parameters (--train), take a smaller model or another "
            "device, or give --ram for the schedule alone"
        )
    return Solution(
        status=Status.INFEASIBLE,
        scope="full",
        options=options,
        store_all_peak_bytes=store_all_peak_bytes(problem),
        ram_bound_bytes=problem.least_ram_bytes,
        reason=reason,
    )
