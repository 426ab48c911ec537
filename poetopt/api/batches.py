"""Largest batch with a schedule (`--batch max`), and number of parts of a batch with the least energy.

The least needs of a step grow with the batch. So the largest batch that isn't refused is bracketed by bisection over
bounds of each batch: by the secant of the room that two batches leave, and by halves if that doesn't help. Each batch
is read once. For parts, all divisors of the batch are tried.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from math import floor, inf, isfinite
from typing import TYPE_CHECKING

from poetopt.api.options import AUTO, MAX, SolveOptions
from poetopt.api.problems import costed, step_of
from poetopt.api.searching import engine_options, search
from poetopt.api.training import Training
from poetopt.formulations import formulation
from poetopt.frontends.parts import divisors
from poetopt.frontends.reading import LARGEST_SIZE
from poetopt.plan.assemble import everything, schedule_of
from poetopt.report.goals import LargestBatch, PartsTried
from poetopt.search.constructive import greedy_schedules
from poetopt.search.incumbent import Incumbent
from poetopt.search.limits import binds, hardest_step, impossible, kind, placed_bytes
from poetopt.search.search import search as search_problem
from poetopt.search.solution import Progress, Status
from poetopt.search.tuning import WORK
from poetopt.util.errors import ModelError, OptionError
from poetopt.util.units import Share, parse_ram, parse_time, show_seconds
from poetopt.util.work import Work

if TYPE_CHECKING:
    from collections.abc import Iterator

    from poetopt.api.problems import Solvable
    from poetopt.api.training import TrainingFile
    from poetopt.graph.problem import Problem
    from poetopt.plan.schedule import Schedule
    from poetopt.report.report import Report
    from poetopt.search.incumbent import Candidate
    from poetopt.search.solution import Options

EARLY_SHARE = 0.5
"""Share of the time limit after which no optional search begins."""


@dataclass(frozen=True)
class ExaminedBatch:
    """Knowledge about a batch.

    Attributes
    ----------
    room
        Share of the RAM, or of the deadline if less, that the least need leaves; negative: refused.
    why
        Reason of the refusal, or "".
    open
        Problems that aren't refused.
    known
        One of them with a schedule, and that schedule; None if none is known.
    plain
        Whether the schedule neither recomputes nor pages.
    """

    batch: int
    room: float
    why: str = ""
    open: tuple[Problem, ...] = ()
    known: tuple[Problem, Schedule] | None = None
    plain: bool = False


def largest_batch(given: Solvable, options: SolveOptions, begin: float) -> Report:
    """Return the report of the largest batch with a schedule, or of the smallest one if none is known to have one.

    Parameters
    ----------
    begin
        Moment (of `time.monotonic`) at which the time limit begins.

    Raises
    ------
    OptionError
        If nothing limits the batch.
    ModelError
        For a model whose batch can't be changed.
    """
    if isinstance(options.ram, str | Share) and isinstance(parse_ram(options.ram), Share):
        raise OptionError(f"--batch {MAX}: --ram {options.ram} grows with the batch. Give a size, or --total-ram")
    result = _largest(given, options, begin)
    if result is None:
        return search(_problems_at(given, options, 1), options)
    largest, problem, schedule = result
    return replace(search((problem,), options, (schedule,)), largest=largest)


def _problems_at(given: Solvable, options: SolveOptions, batch: int, *, roomiest: bool = False) -> Iterator[Problem]:
    return costed(step_of(given, replace(options, batch=batch)), options, roomiest=roomiest)


def _largest(given: Solvable, options: SolveOptions, begin: float) -> tuple[LargestBatch, Problem, Schedule] | None:
    """Return the largest batch with a schedule, its problem, and the schedule; None if none is known to have one."""
    max_batch = LARGEST_SIZE if options.samples is None else options.samples
    # Problems with the most room for the schedule come first.
    batches = _Batches(given, options, begin, max_batch, roomiest=True)
    # Start from the first of these that isn't refused: under a deadline for the whole training, larger ones are faster.
    first_batches = dict.fromkeys(min(batch, max_batch) for batch in (1, 16, 256, 4096))
    low = next((one for one in map(batches.look, first_batches) if one.room >= 0), None)
    if low is None:
        return None
    refused = _smallest_refused(batches, low)
    best, refused = _with_schedule(batches, refused)
    if best is None or best.known is None:
        return None
    known = best.known
    if best.plain:  # then the most room isn't needed
        known = (
            _Batches(given, options, begin, max_batch, roomiest=False).scheduled(best.batch, search=False).known
            or known
        )
    largest = LargestBatch(
        batch=best.batch,
        refused=refused.batch if refused else None,
        why=refused.why if refused else "",
        most=max_batch,
    )
    return largest, *known


class _Batches:
    """Batches that were examined."""

    def __init__(self, given: Solvable, options: SolveOptions, begin: float, most: int, *, roomiest: bool) -> None:
        self.given, self.options, self.begin, self.most, self.roomiest = given, options, begin, most, roomiest
        self.known: dict[int, ExaminedBatch] = {}
        self.limit_s = inf

    @property
    def early(self) -> bool:
        """Whether enough of the time limit is left for an optional search."""
        return time.monotonic() < self.begin + EARLY_SHARE * self.limit_s

    def look(self, batch: int) -> ExaminedBatch:
        """Return the verdict of bounds on a batch. Raises ModelError for the first one that can't be read."""
        if batch not in self.known:
            self._report_progress(batch)
            try:
                looked = self._bound(batch)
            except ModelError as error:
                if not self.known:
                    raise
                looked = ExaminedBatch(batch, -inf, f"the model can't be read: {error}")
            if looked.open:  # problems have weights, and smaller batches are seldom needed again
                self.known = {other: one for other, one in self.known.items() if other > batch or not one.open}
            self.known[batch] = looked
        return self.known[batch]

    def _report_progress(self, batch: int) -> None:
        if self.options.listener is not None:
            took_s = time.monotonic() - self.begin
            self.options.listener(Progress(took_s, f"trying a batch of {batch:,}", "", None, None))

    def _bound(self, batch: int) -> ExaminedBatch:
        room, why = -inf, ""
        for problem in _problems_at(self.given, self.options, batch, roomiest=self.roomiest):
            options = engine_options(problem, self.options)
            self.limit_s = options.time_limit_s
            room_of_problem, refusal = _room(problem, options)
            if not refusal:
                return ExaminedBatch(batch, room_of_problem, open=(problem,))
            if room_of_problem > room:
                room, why = room_of_problem, refusal
        return ExaminedBatch(batch, room, why)

    def scheduled(self, batch: int, *, search: bool = True) -> ExaminedBatch:
        """Return the batch with a schedule of heuristics, or of a search while it is early, which may refuse it."""
        looked = self.look(batch)
        if looked.known is not None:
            return looked
        for problem in looked.open:
            options = engine_options(problem, self.options)
            known = known_schedule(problem, options)
            if known is not None:
                plain = not (known.schedule.recomputes or known.schedule.page_ins or known.simulation.overhead_j)
                looked = replace(looked, known=(problem, known.schedule), plain=plain)
            elif search and self.early:
                looked = _search_schedule(looked, problem, options)
        self.known[batch] = looked
        return looked


def _search_schedule(looked: ExaminedBatch, problem: Problem, options: Options) -> ExaminedBatch:
    """The find of a search in a part of its time: a schedule, that there is none, or nothing."""
    # of the time limit, for a search of a schedule at a batch where heuristics find none
    found = search_problem(problem, replace(options, gap=1.0, time_limit_s=0.2 * options.time_limit_s))
    if found.interrupted:
        raise KeyboardInterrupt
    if found.plan is not None:
        return replace(looked, known=(problem, schedule_of(found.plan)))
    if found.status is Status.INFEASIBLE:
        return replace(looked, open=(), why="a search proves that there is no schedule")
    return looked


def _smallest_refused(batches: _Batches, low: ExaminedBatch) -> ExaminedBatch | None:
    """Return the smallest batch that bounds refuse, given that `low` isn't refused; None if there is none."""
    other, high = None, None
    guesses = 0
    while high is None or high.batch > low.batch + 1:
        max_batch = batches.most if high is None else high.batch - 1
        if low.batch == max_batch:
            return None
        guesses += 1
        # Eight guesses by the secant, then by halves.
        guess = _guess(low, other, max_batch) if guesses <= 8 else (low.batch + max_batch + 1) // 2
        looked = batches.look(guess)
        other = looked if looked.room < 0 else low
        if looked.room < 0:
            high = looked
        else:
            low = looked
    return high


def _guess(low: ExaminedBatch, other: ExaminedBatch | None, most: int) -> int:
    """Return the batch at which a line through the room of two batches ends, above `low` and up to `most`."""
    if other is None:
        # With one batch only, the next is 16 times as large.
        return min(most, 16 * low.batch)
    if not isfinite(other.room):
        return (low.batch + most + 1) // 2
    shrinks = (low.room - other.room) / (other.batch - low.batch)
    if shrinks <= 0:  # parameters moved from RAM to storage
        return min(most, low.batch + max(1, low.batch // 4))
    return max(low.batch + 1, min(most, floor(low.batch + low.room / shrinks)))


def _with_schedule(
    batches: _Batches, refused: ExaminedBatch | None
) -> tuple[ExaminedBatch | None, ExaminedBatch | None]:
    """Return the largest batch with a schedule, and the smallest one above that provably has none."""
    best: ExaminedBatch | None = None
    bound = refused.batch if refused else batches.most + 1
    batch = bound - 1
    while (best.batch if best else 0) < bound - 1:
        looked = batches.scheduled(batch)
        if looked.known is not None:
            best = looked
        else:
            bound = batch
            refused = refused if looked.open else looked
        batch = ((best.batch if best else 0) + bound) // 2
    return best, refused


def _room(problem: Problem, options: Options) -> tuple[float, str]:
    """Return the share of RAM or deadline that the least need leaves, the smaller one, and the reason if negative."""
    rule = formulation(options.formulation).impossible(problem)
    if rule is not None:
        return -inf, rule
    need = max(problem.least_ram_bytes, hardest_step(problem, options).nbytes, placed_bytes(problem))
    total_bytes = options.ram_bytes + problem.beside_bytes
    room, why = (options.ram_bytes - need) / max(total_bytes, 1), ""
    if room < 0:
        and_total = f", {need + problem.beside_bytes:,} in total" if problem.beside_bytes else ""
        why = f"any {kind(problem)} needs {need:,} bytes{and_total} ({binds(problem)})"
    if options.deadline_s is not None:
        spare = 1 - problem.baseline_time_s / options.deadline_s
        if spare < -1e-9:
            one_pass = show_seconds(problem.baseline_time_s)
            why = f"one pass takes {one_pass}, but a step has only {show_seconds(options.deadline_s)}"
        room = min(room, spare if abs(spare) > 1e-9 else 0.0)
    return room, why


def least_energy(given: Solvable, options: SolveOptions, begin: float) -> Report:
    """Return the report of the number of parts with the least energy, or the fewest parts if several have it.

    If no number has a schedule, the report is that of the last one.

    Parameters
    ----------
    begin
        Moment at which the time limit of all solves begins. They share half of it. The best number gets the remaining
        time if its proof is open. A batch that can't be cut gets all of it.

    Raises
    ------
    ModelError
        If the first number can't be read.
    OptionError
        If there is no batch.
    """
    if options.batch == MAX:
        raise OptionError(f"--batch {MAX}: --micro-batch cuts a batch of a known size. Give a number")
    whole_batch = step_of(given, replace(options, micro_batch=1))
    limit_s = parse_time(options.time_limit, option="--time-limit")
    tried: dict[int, PartsTried] = {}
    numbers = [1]
    for parts in divisors(_batch_of(whole_batch, given))[1:]:
        try:
            step_of(given, replace(options, micro_batch=parts))
            numbers.append(parts)
        except (ModelError, OptionError) as error:
            tried[parts] = PartsTried(parts=parts, why=str(error))
    remaining_s = begin + limit_s - time.monotonic()
    # Minimum seconds of the search for each number.
    first_s = max(1.0, remaining_s if len(numbers) == 1 else EARLY_SHARE * remaining_s / len(numbers))
    best: tuple[int, Report] | None = None
    least_j: float | None = None
    for parts in numbers:
        step = whole_batch if parts == 1 else step_of(given, replace(options, micro_batch=parts))
        limited = replace(options, time_limit=first_s, begin=time.monotonic())
        try:
            report = search(_below_energy(costed(step, options), least_j), limited)
        except _TooMuchEnergyError:
            tried[parts] = PartsTried(
                parts=parts, why="one compute of each operator takes more energy than the best step"
            )
            continue
        tried[parts] = _tried_figures(parts, report)
        energy_j = tried[parts].energy_j
        if least_j is None or (energy_j is not None and energy_j < least_j):
            least_j, best = energy_j, (parts, report)
        if report.solution.interrupted:
            break
    assert best is not None  # the first number of parts has an answer
    parts, report = best
    remaining_s = begin + limit_s - time.monotonic()
    if report.status in ("feasible", "unknown") and not report.solution.interrupted and remaining_s > 0:
        step = whole_batch if parts == 1 else step_of(given, replace(options, micro_batch=parts))
        limited = replace(options, time_limit=remaining_s, begin=time.monotonic())
        known = () if report.plan is None else (schedule_of(report.plan),)
        report = search(costed(step, options), limited, known)
        tried[parts] = _tried_figures(parts, report)
    return replace(report, tried=tuple(tried[parts] for parts in sorted(tried)))


class _TooMuchEnergyError(Exception):
    """Raised when one compute of each operator takes more energy than a known step."""


def _below_energy(problems: Iterator[Problem], joules: float | None) -> Iterator[Problem]:
    for problem in problems:
        if joules is not None and problem.baseline_energy_j >= joules:
            raise _TooMuchEnergyError
        yield problem


def _batch_of(step: Problem | Training | TrainingFile, given: Solvable) -> int:
    """Return the batch to cut into parts. Raises OptionError if there is none."""
    graph = step.graph if isinstance(step, Training) else None
    shape = graph.tensors[graph.inputs[0]].shape if graph is not None and graph.inputs else ()
    if not shape:
        raise OptionError(f"{given}: --micro-batch {AUTO}: there is no batch to cut into parts")
    return shape[0]


def _tried_figures(parts: int, report: Report) -> PartsTried:
    document = report.to_dict()
    if report.plan is None:
        return PartsTried(parts=parts, why=report.solution.reason or f"no schedule was found ({report.status})")
    figures = {name: document[name] for name in ("energy_j", "energy_bound_j", "total_ram_bytes")}
    return PartsTried(parts=parts, time_s=document["makespan_s"], **figures)  # type: ignore[arg-type]


def known_schedule(problem: Problem, options: Options) -> Candidate | None:
    """Return a schedule of heuristics, laid out, or None. They count their work, so the answer is reproducible."""
    rules = formulation(options.formulation)
    if not (rules.judged and rules.plans_count) or impossible(problem, options) or rules.impossible(problem):
        return None
    trial = Incumbent(problem, options)
    if trial.offer(everything(problem), quick=True):
        return trial.best
    for schedule in greedy_schedules(problem, options, options.ram_bytes, Work(WORK)):
        trial.offer(schedule, quick=True)
    return trial.best
