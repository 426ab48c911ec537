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
    """Find the schedule of least energy within a RAM budget and a deadline.

    An interrupt (Ctrl-C) returns the best plan so far, or the proof that there is none.

    Parameters
    ----------
    problem
        A problem, or a model (the path of its file, the name of a zoo network, or the result of `load` or
        `differentiate`). A model needs `device`; a path may have the options of `load` (`batch`, `train`, ...) and of
        `Model.differentiate` (`loss`, `optimizer`, ...), as on the command line.
    {options}

    Returns
    -------
    Report
        The plan, with its costs and the proof.

    Raises
    ------
    InfeasibleError
        If there is no schedule; the message says what would be feasible.
    NoScheduleError
        If no schedule was found in time.
    OptionError
        For an invalid option.
    UnsupportedOpError
        For an operator that the runtime c doesn't support.
    BackendUnavailableError
        For a solver that isn't installed.
    KeyboardInterrupt
        If an interrupt precedes both a plan and a proof.
    """
    imports.check_solving()
    begin = time.monotonic() if options.begin is None else options.begin
    options = _prepare_options(options)
    if options.begin is None and not isinstance(problem, Problem | Training | TrainingFile):
        options = replace(options, begin=begin)
    if options.micro_batch == AUTO:
        report = least_energy(problem, options, begin)
    elif options.batch == MAX:
        report = largest_batch(problem, options, begin)
    else:
        model = read(problem, options)
        step = differentiated(model, options)
        problems = costed(step, options)
        report = search(problems, options)
    return _finish_report(report, options)


class _LogPath(os.PathLike[str]):
    """Path of a file that is emptied on first use."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.given = os.fspath(path)

    @cached_property
    def path(self) -> str:
        """Path, after the file was emptied; later solves append to it."""
        write_atomically(self.given, "")
        return self.given

    def __fspath__(self) -> str:
        return self.path


def _prepare_options(options: SolveOptions) -> SolveOptions:
    """Return the options with their listener, and an energy limit as its block. Raises OptionError."""
    total_bytes(options)
    minimize, blocks, energy_limit = options.minimize, options.blocks, options.energy_limit
    if minimize not in ("energy", "ram"):
        raise OptionError(f"--minimize {minimize}: must be energy or ram")
    if minimize == "ram" and (options.batch == MAX or options.micro_batch == AUTO):
        raise OptionError("--minimize ram: it needs a single problem. Leave out --batch max and --micro-batch auto")
    if energy_limit is not None and minimize == "energy":
        blocks = [
            *blocks,
            f"energy-limit={f'{energy_limit.times}x' if isinstance(energy_limit, Factor) else energy_limit}",
        ]
    return replace(
        options,
        blocks=blocks,
        listener=listening(telling(options.progress), options.listener),
        log=None if options.log is None else _LogPath(options.log),
    )


def _finish_report(report: Report, options: SolveOptions) -> Report:
    """Return the report with its training. Raises the errors of `solve` if there is no plan."""
    if report.plan is None and report.solution.interrupted and report.status is not Status.INFEASIBLE:
        raise KeyboardInterrupt
    problem = report.problem
    report = replace(report, run=run_of(problem, options))
    interrupts.hold()
    if report.plan is not None:
        return report
    failure = InfeasibleError if report.status is Status.INFEASIBLE else NoScheduleError
    is_whole_step = options.total_ram is not None or (problem.parameters == "paged" and options.ram is None)
    steps = 1 if report.run is None else report.run.steps
    reason = failure_words(problem, report.solution, whole=is_whole_step, steps=steps)
    prefix = f"--batch {MAX}: not even a batch of 1 has a schedule: " if options.batch == MAX else ""
    if report.tried:
        numbers = ", ".join(str(one.parts) for one in report.tried)
        prefix = f"--micro-batch {AUTO}: the batch has no schedule in {numbers} parts. In the last: "
    raise failure(prefix + reason, report=report.to_dict())
