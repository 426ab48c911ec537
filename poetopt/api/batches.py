"""A smaller batch for which a schedule is known, where none is for the one that was asked for."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from poetopt.api.models import differentiated, read
from poetopt.api.training import DEVICE, PROFILE, TrainingFile, parameters_of, stream_of
from poetopt.report.training_run import batch_of
from poetopt.util.errors import PoetError

if TYPE_CHECKING:
    from poetopt.graph.problem import Problem
    from poetopt.search.incumbent import Candidate
    from poetopt.search.solution import Options

MOST_OPERATORS = 2_000
"""Reading a larger network some times more takes longer than what is known at once is worth."""


def fitting_batch(problem: Problem, ask: Callable[[Problem], Options]) -> int | None:
    """A batch with a schedule that heuristics find, the largest of a few that are tried; None where none has one.

    problem
        Its model is read again, with batch 1 and one or two between.
    ask
        What is asked of a problem: shares and multiples are of that problem's own figures.
    """
    batch = batch_of(problem)
    if batch is None or batch < 2 or PROFILE in problem.recipe or len(problem.operators) > MOST_OPERATORS:
        return None
    try:
        one = _with_batch(problem, 1)
        if one is None or not _fits(one, ask(one)):
            return None
        return next((size for size in _between(problem, one, batch, ask) if _fitting(problem, size, ask)), 1)
    except (PoetError, OSError):  # its batch can't be changed, or it is read but once
        return None


def _between(problem: Problem, one: Problem, batch: int, ask: Callable[[Problem], Options]) -> Iterator[int]:
    """Batches to try: where the least RAM would reach the budget if it grew evenly, and half of that."""
    low, high, ram = one.least_ram_bytes, problem.least_ram_bytes, ask(one).ram_bytes
    most = batch - 1 if ram >= high else 1 + int((batch - 1) * (ram - low) / max(high - low, 1))
    sizes = (min(most, batch - 1), min(most, batch - 1) // 2)
    return (size for size in sizes if size > 1)


def _fitting(problem: Problem, size: int, ask: Callable[[Problem], Options]) -> bool:
    smaller = _with_batch(problem, size)
    return smaller is not None and _fits(smaller, ask(smaller))


def _with_batch(problem: Problem, batch: int) -> Problem | None:
    """The same model with another batch; None where that isn't to be had. Raises PoetError."""
    from poetopt.frontends.reading import from_recipe

    reference, recipe = problem.model_ref, problem.recipe
    if not reference or (os.path.exists(reference) and not os.path.isfile(reference)):
        return None
    loaded = read(reference, replace(from_recipe(recipe), batch=batch))
    if isinstance(loaded, TrainingFile):
        return None
    path = recipe.get(DEVICE)
    device = path if isinstance(path, str) else problem.device
    step, parameters = differentiated(loaded, recipe), parameters_of(recipe)
    made = step.cost(device, runtime=problem.runtime or None, parameters=parameters, stream=stream_of(recipe))
    alike = made.device_ram_bytes == problem.device_ram_bytes and made.paging == problem.paging
    return made if alike and batch_of(made) == batch else None


def _fits(problem: Problem, options: Options) -> bool:
    return known_schedule(problem, options, first=True) is not None


def known_schedule(problem: Problem, options: Options, *, first: bool = False) -> Candidate | None:
    """A schedule that heuristics find, laid out, or None. They count their work: the answer is the same each time.

    first
        Whether any will do, else the best that they find.
    """
    from poetopt.formulations import formulation
    from poetopt.plan.storeall import everything
    from poetopt.search.constructive import greedy_schedules
    from poetopt.search.incumbent import Incumbent
    from poetopt.search.limits import impossible
    from poetopt.search.tuning import WORK
    from poetopt.util.work import Work

    chosen = formulation(options.formulation)
    if not (chosen.judged and chosen.plans_count) or impossible(problem, options) or chosen.impossible(problem):
        return None
    trial = Incumbent(problem, options)
    if trial.offer(everything(problem), quick=True):
        return trial.best
    for found in greedy_schedules(problem, options, options.ram_bytes, Work(WORK)):
        if trial.offer(found, quick=True) and first:
            break
    return trial.best
