"""The number of parts of a batch whose step takes the least energy, of all that divide it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from poetopt.frontends.parts import divisors
from poetopt.report.parts_tried import PartsTried
from poetopt.util.errors import ModelError, OptionError

if TYPE_CHECKING:
    from poetopt.graph.problem import Problem
    from poetopt.report.report import Report

AUTO = "auto"
"""What `--micro-batch` takes beside a number."""
LEAST_S = 1.0
"""Each number is searched for so long at least."""

Answer = Callable[[int, float | None, float], "tuple[Problem, Report | None]"]


def least_energy(batch: int, answer: Answer, limit_s: float, begin: float) -> tuple[Problem, Report]:
    """The report of the number of parts with the least energy, the fewest parts where several have it.

    answer
        (parts, joules that are known to do, seconds) -> the problem and its report, or no report where one pass takes
        more than these joules already.
    limit_s, begin
        The time limit of all together, and the moment at which it begins: each number has its share of what is left.

    Where none has a schedule, the last one's report. Raises ModelError where the first number can't be read.
    """
    numbers = divisors(batch)
    best: tuple[Problem, Report] | None = None
    last: tuple[Problem, Report] | None = None
    tried: list[PartsTried] = []
    for k, parts in enumerate(numbers):
        left = limit_s - (time.monotonic() - begin)
        known = None if best is None else best[1].to_dict()["energy_j"]
        try:
            made, report = answer(
                parts, known if isinstance(known, float) else None, max(LEAST_S, left / (len(numbers) - k))
            )
        except (ModelError, OptionError) as error:
            if parts == 1:
                raise
            tried.append(PartsTried(parts=parts, why=str(error)))
            continue
        if report is None:
            tried.append(PartsTried(parts=parts, why="one compute of each operator takes more than the best step"))
            continue
        last = made, report
        found = _figures(parts, report)
        tried.append(found)
        if found.energy_j is not None and (best is None or not isinstance(known, float) or found.energy_j < known):
            best = made, report
        if report.solution.interrupted:
            break
    chosen = best or last
    assert chosen is not None  # the first number of parts has an answer, or raises
    made, report = chosen
    return made, replace(report, tried=tuple(tried))


def _figures(parts: int, report: Report) -> PartsTried:
    said = report.to_dict()
    if report.plan is None:
        return PartsTried(parts=parts, why=report.solution.reason or f"no schedule was found ({report.status})")
    figures = {name: said[name] for name in ("energy_j", "energy_bound_j", "total_ram_bytes")}
    return PartsTried(parts=parts, time_s=said["makespan_s"], **figures)  # type: ignore[arg-type]
