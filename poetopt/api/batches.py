"""`--batch max`: the largest batch with a schedule, by bisection over what sums prove of each.

What a step needs at least grows with the batch, so the largest that isn't refused is bracketed: by the secant of what
two batches leave free, and by halves where that is no help. Each batch is read once.

The number of parts of a batch whose step takes the least energy, of all that divide it.
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
"""Of the time limit: nothing that isn't needed begins later."""


@dataclass(frozen=True)
class Looked:
    """Knowledge of a batch.

    room
        What the least need leaves, as a share of the RAM, or of the deadline where that is less; negative: refused.
    why
        The refusal, "" where there is none.
    open
        The problems that aren't refused.
    known
        One of them with a schedule, and that schedule; None where none is known.
    plain
        Whether it keeps everything.
    """

    batch: int
    room: float
    why: str = ""
    open: tuple[Problem, ...] = ()
    known: tuple[Problem, Schedule] | None = None
    plain: bool = False


def largest_batch(given: Solvable, options: SolveOptions, begin: float) -> Report:
    """The report of the largest batch with a schedule; that of the smallest where no batch is known to have one.

    begin
        The moment (of `time.monotonic`) at which the time limit begins.

    Raises OptionError where nothing bounds the batch, ModelError for a model whose batch can't be changed.
    """
    if isinstance(options.ram, str | Share) and isinstance(parse_ram(options.ram), Share):
        raise OptionError(f"--batch {MAX}: --ram {options.ram} grows with the batch; say a size, or --total-ram")
    found = _largest(given, options, begin)
    if found is None:
        return search(_problems_at(given, options, 1), options)
    largest, problem, schedule = found
    return replace(search((problem,), options, (schedule,)), largest=largest)


def _problems_at(given: Solvable, options: SolveOptions, batch: int, *, roomiest: bool = False) -> Iterator[Problem]:
    return costed(step_of(given, replace(options, batch=batch)), options, roomiest=roomiest)


def _largest(given: Solvable, options: SolveOptions, begin: float) -> tuple[LargestBatch, Problem, Schedule] | None:
    """The largest batch with a schedule, its problem, and that schedule; None where no batch is known to have one."""
    most = LARGEST_SIZE if options.samples is None else options.samples
    # the problems with the most room for the schedule come first
    batches = _Batches(given, options, begin, most, roomiest=True)
    # batches at which one that isn't refused is looked for: with a deadline for all of a training, larger are quicker
    begins = dict.fromkeys(min(batch, most) for batch in (1, 16, 256, 4096))
    low = next((one for one in map(batches.look, begins) if one.room >= 0), None)
    if low is None:
        return None
    refused = _bracketed(batches, low)
    best, refused = _with_schedule(batches, refused)
    if best is None or best.known is None:
        return None
    known = best.known
    if best.plain:  # there was no need for the most room
        known = _Batches(given, options, begin, most, roomiest=False).scheduled(best.batch, search=False).known or known
    largest = LargestBatch(
        batch=best.batch,
        refused=refused.batch if refused else None,
        why=refused.why if refused else "",
        most=most,
    )
    return largest, *known


class _Batches:
    """Batches that were looked at."""

    def __init__(self, given: Solvable, options: SolveOptions, begin: float, most: int, *, roomiest: bool) -> None:
        self.given, self.options, self.begin, self.most, self.roomiest = given, options, begin, most, roomiest
        self.known: dict[int, Looked] = {}
        self.limit_s = inf

    @property
    def early(self) -> bool:
        """Tell whether enough of the time limit is left for what isn't needed."""
        return time.monotonic() < self.begin + EARLY_SHARE * self.limit_s

    def look(self, batch: int) -> Looked:
        """The verdict of sums on a batch. Raises ModelError for the first one that can't be read."""
        if batch not in self.known:
            self._tell(batch)
            try:
                looked = self._looked(batch)
            except ModelError as error:
                if not self.known:
                    raise
                looked = Looked(batch, -inf, f"the model can't be read: {error}")
            if looked.open:  # problems hold weights, and those of smaller batches are seldom asked for again
                self.known = {other: one for other, one in self.known.items() if other > batch or not one.open}
            self.known[batch] = looked
        return self.known[batch]

    def _tell(self, batch: int) -> None:
        if self.options.listener is not None:
            took_s = time.monotonic() - self.begin
            self.options.listener(Progress(took_s, f"looking at a batch of {batch:,}", "", None, None))

    def _looked(self, batch: int) -> Looked:
        room, why = -inf, ""
        for problem in _problems_at(self.given, self.options, batch, roomiest=self.roomiest):
            options = engine_options(problem, self.options)
            self.limit_s = options.time_limit_s
            mine, refusal = _room(problem, options)
            if not refusal:
                return Looked(batch, mine, open=(problem,))
            if mine > room:
                room, why = mine, refusal
        return Looked(batch, room, why)

    def scheduled(self, batch: int, *, search: bool = True) -> Looked:
        """The same with a schedule: one of heuristics or, while it is early, of a search, which may prove otherwise."""
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
                looked = _searched(looked, problem, options)
        self.known[batch] = looked
        return looked


def _searched(looked: Looked, problem: Problem, options: Options) -> Looked:
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


def _bracketed(batches: _Batches, low: Looked) -> Looked | None:
    """The smallest batch that sums refuse, where `low` isn't refused; None where none is."""
    other, high = None, None
    guesses = 0
    while high is None or high.batch > low.batch + 1:
        most = batches.most if high is None else high.batch - 1
        if low.batch == most:
            return None
        guesses += 1
        # so many guesses by the secant, then halves
        guess = _guess(low, other, most) if guesses <= 8 else (low.batch + most + 1) // 2
        looked = batches.look(guess)
        other = looked if looked.room < 0 else low
        if looked.room < 0:
            high = looked
        else:
            low = looked
    return high


def _guess(low: Looked, other: Looked | None, most: int) -> int:
    """The batch at which the room of two would end if it went on evenly, above `low` and up to `most`."""
    if other is None:
        # factor to the next batch, where two don't say
        return min(most, 16 * low.batch)
    if not isfinite(other.room):
        return (low.batch + most + 1) // 2
    shrinks = (low.room - other.room) / (other.batch - low.batch)
    if shrinks <= 0:  # parameters went from RAM to storage
        return min(most, low.batch + max(1, low.batch // 4))
    return max(low.batch + 1, min(most, floor(low.batch + low.room / shrinks)))


def _with_schedule(batches: _Batches, refused: Looked | None) -> tuple[Looked | None, Looked | None]:
    """The largest batch with a schedule, and the smallest one above that is proven to have none."""
    best: Looked | None = None
    beyond = refused.batch if refused else batches.most + 1
    trial = beyond - 1
    while (best.batch if best else 0) < beyond - 1:
        looked = batches.scheduled(trial)
        if looked.known is not None:
            best = looked
        else:
            beyond = trial
            refused = refused if looked.open else looked
        trial = ((best.batch if best else 0) + beyond) // 2
    return best, refused


def _room(problem: Problem, options: Options) -> tuple[float, str]:
    """The rest that the least need leaves of RAM or deadline, the smaller share; the reason where negative."""
    rule = formulation(options.formulation).impossible(problem)
    if rule is not None:
        return -inf, rule
    need = max(problem.least_ram_bytes, hardest_step(problem, options).nbytes, placed_bytes(problem))
    whole = options.ram_bytes + problem.beside_bytes
    room, why = (options.ram_bytes - need) / max(whole, 1), ""
    if room < 0:
        beside = f", {need + problem.beside_bytes:,} with all beside it" if problem.beside_bytes else ""
        why = f"any {kind(problem)} needs {need:,} bytes{beside} ({binds(problem)})"
    if options.deadline_s is not None:
        spare = 1 - problem.baseline_time_s / options.deadline_s
        if spare < -1e-9:
            one_pass = show_seconds(problem.baseline_time_s)
            why = f"one pass takes {one_pass}, and a step has {show_seconds(options.deadline_s)}"
        room = min(room, spare if abs(spare) > 1e-9 else 0.0)
    return room, why


def least_energy(given: Solvable, options: SolveOptions, begin: float) -> Report:
    """The report of the number of parts with the least energy, the fewest parts where several have it.

    begin
        The moment at which the time limit of all together begins. Half of it is shared out; then the best number,
        where its proof is open, has what is left. All of it is for one part where nothing can be cut.

    Where none has a schedule, the last one's report. Raises ModelError where the first number can't be read,
    OptionError where there is no batch.
    """
    if options.batch == MAX:
        raise OptionError(f"--batch {MAX}: --micro-batch cuts a batch of a known size; give a number")
    whole = step_of(given, replace(options, micro_batch=1))
    limit_s = parse_time(options.time_limit, option="--time-limit")
    tried: dict[int, PartsTried] = {}
    numbers = [1]
    for parts in divisors(_batch_of(whole, given))[1:]:
        try:
            step_of(given, replace(options, micro_batch=parts))
            numbers.append(parts)
        except (ModelError, OptionError) as error:
            tried[parts] = PartsTried(parts=parts, why=str(error))
    left = begin + limit_s - time.monotonic()
    # each number is searched for so long at least
    first_s = max(1.0, left if len(numbers) == 1 else EARLY_SHARE * left / len(numbers))
    answered: tuple[int, Report] | None = None
    least: float | None = None
    for parts in numbers:
        step = whole if parts == 1 else step_of(given, replace(options, micro_batch=parts))
        limited = replace(options, time_limit=first_s, begin=time.monotonic())
        try:
            report = search(_below(costed(step, options), least), limited)
        except _TooDearError:
            tried[parts] = PartsTried(parts=parts, why="one compute of each operator takes more than the best step")
            continue
        tried[parts] = _figures(parts, report)
        energy_j = tried[parts].energy_j
        if least is None or (energy_j is not None and energy_j < least):
            least, answered = energy_j, (parts, report)
        if report.solution.interrupted:
            break
    assert answered is not None  # the first number of parts has an answer
    parts, report = answered
    left = begin + limit_s - time.monotonic()
    if report.status in ("feasible", "unknown") and not report.solution.interrupted and left > 0:
        step = whole if parts == 1 else step_of(given, replace(options, micro_batch=parts))
        limited = replace(options, time_limit=left, begin=time.monotonic())
        known = () if report.plan is None else (schedule_of(report.plan),)
        report = search(costed(step, options), limited, known)
        tried[parts] = _figures(parts, report)
    return replace(report, tried=tuple(tried[parts] for parts in sorted(tried)))


class _TooDearError(Exception):
    """One compute of each operator takes more than is known to do."""


def _below(problems: Iterator[Problem], joules: float | None) -> Iterator[Problem]:
    for problem in problems:
        if joules is not None and problem.baseline_energy_j >= joules:
            raise _TooDearError
        yield problem


def _batch_of(step: Problem | Training | TrainingFile, given: Solvable) -> int:
    """The batch to cut into parts. Raises OptionError where there is none."""
    graph = step.graph if isinstance(step, Training) else None
    shape = graph.tensors[graph.inputs[0]].shape if graph is not None and graph.inputs else ()
    if not shape:
        raise OptionError(f"{given}: --micro-batch {AUTO}: there is no batch to cut into parts")
    return shape[0]


def _figures(parts: int, report: Report) -> PartsTried:
    said = report.to_dict()
    if report.plan is None:
        return PartsTried(parts=parts, why=report.solution.reason or f"no schedule was found ({report.status})")
    figures = {name: said[name] for name in ("energy_j", "energy_bound_j", "total_ram_bytes")}
    return PartsTried(parts=parts, time_s=said["makespan_s"], **figures)  # type: ignore[arg-type]


def known_schedule(problem: Problem, options: Options) -> Candidate | None:
    """A schedule that heuristics find, laid out, or None. They count their work: the answer is the same each time."""
    chosen = formulation(options.formulation)
    if not (chosen.judged and chosen.plans_count) or impossible(problem, options) or chosen.impossible(problem):
        return None
    trial = Incumbent(problem, options)
    if trial.offer(everything(problem), quick=True):
        return trial.best
    for found in greedy_schedules(problem, options, options.ram_bytes, Work(WORK)):
        trial.offer(found, quick=True)
    return trial.best
