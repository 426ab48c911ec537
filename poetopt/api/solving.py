"""`solve`: from a problem to a report with a plan and a proof."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from poetopt.api.batches import largest_batch, least_energy
from poetopt.api.options import AUTO, MAX, SolveOptions, keywords
from poetopt.api.problems import costed, differentiated, read, total_bytes
from poetopt.api.searching import run_of, search
from poetopt.api.training import Training, TrainingFile
from poetopt.graph.problem import Problem
from poetopt.report.layout import listening
from poetopt.report.proof import failure_words
from poetopt.search.solution import Status
from poetopt.util import imports, interrupts
from poetopt.util.errors import InfeasibleError, NoScheduleError, OptionError
from poetopt.util.files import write_atomically
from poetopt.util.progress import telling
from poetopt.util.units import Factor

if TYPE_CHECKING:
    from poetopt.api.problems import Solvable
    from poetopt.report.report import Report


@keywords(SolveOptions)
def solve(problem: Solvable, options: SolveOptions) -> Report:
    """The schedule of least energy that keeps a RAM budget and a deadline.

    problem
        A problem, or a model (the path of its file, a zoo network's name, what `load` or `differentiate` gave): then
        with `device`, and for a path with what `load` (`batch`, `train`, ...) and `Model.differentiate` (`loss`,
        `optimizer`, ...) take, as the command has them.
    {options}
    Raises InfeasibleError where there is no schedule (with what would be feasible), NoScheduleError where none was
    found in time, OptionError for an option that can't be understood, UnsupportedOpError for an operator that the
    runtime c can't run, BackendUnavailableError for a solver that isn't installed. An interrupt (Ctrl-C) gives
    the best plan so far, or the proof that there is none; KeyboardInterrupt where it comes before either.
    """
    imports.check_solving()
    now = time.monotonic() if options.begin is None else options.begin
    options = _checked(options)
    if options.begin is None and not isinstance(problem, Problem | Training | TrainingFile):
        options = replace(options, begin=now)
    if options.micro_batch == AUTO:
        report = least_energy(problem, options, now)
    elif options.batch == MAX:
        report = largest_batch(problem, options, now)
    else:
        model = read(problem, options)
        step = differentiated(model, options)
        problems = costed(step, options)
        report = search(problems, options)
    return _reported(report, options)


class _Log(os.PathLike[str]):
    """The path of a file that is emptied when it is first asked for."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.given = os.fspath(path)

    @cached_property
    def path(self) -> str:
        """The path, once the file is empty: what is tried after this goes behind it."""
        write_atomically(self.given, "")
        return self.given

    def __fspath__(self) -> str:
        return self.path


def _checked(options: SolveOptions) -> SolveOptions:
    """The options with their listener, and an energy limit as the block of that name. Raises OptionError."""
    total_bytes(options)
    minimize, blocks, limit = options.minimize, options.blocks, options.energy_limit
    if minimize not in ("energy", "ram"):
        raise OptionError(f"--with minimize={minimize}: must be energy or ram")
    if minimize == "ram" and (options.batch == MAX or options.micro_batch == AUTO):
        raise OptionError("--with minimize=ram: is of one problem; leave out --batch max and --micro-batch auto")
    if limit is not None and minimize == "energy":
        blocks = [*blocks, f"energy-limit={f'{limit.times}x' if isinstance(limit, Factor) else limit}"]
    return replace(
        options,
        blocks=blocks,
        listener=listening(telling(options.progress), options.listener),
        log=None if options.log is None else _Log(options.log),
    )


def _reported(report: Report, options: SolveOptions) -> Report:
    """The report with the training that was asked about. Raises where there is no plan, as `solve` says."""
    if report.plan is None and report.solution.interrupted and report.status is not Status.INFEASIBLE:
        raise KeyboardInterrupt
    problem = report.problem
    report = replace(report, run=run_of(problem, options))
    interrupts.hold()
    if report.plan is not None:
        return report
    failure = InfeasibleError if report.status is Status.INFEASIBLE else NoScheduleError
    whole = options.total_ram is not None or (problem.parameters == "paged" and options.ram is None)
    steps = 1 if report.run is None else report.run.steps
    words = failure_words(problem, report.solution, whole=whole, steps=steps)
    none = f"--batch {MAX}: not even a batch of 1 has a schedule: " if options.batch == MAX else ""
    if report.tried:
        numbers = ", ".join(str(one.parts) for one in report.tried)
        none = f"--micro-batch {AUTO}: in none of {numbers} parts does the batch have a schedule; in the last: "
    raise failure(none + words, report=report.to_dict())
