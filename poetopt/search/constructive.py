"""Constructive heuristics: schedules that a search begins with, of replays and of plainer problems."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from poetopt.formulations import formulation
from poetopt.graph.problem import Problem
from poetopt.plan.assemble import schedule_of
from poetopt.plan.schedule import Schedule
from poetopt.search.heuristics.greedy import greedy
from poetopt.search.heuristics.profile import ProfileSearch
from poetopt.search.heuristics.ways import ALL_PLAIN, Ways, lasting_sets, streamed_out
from poetopt.search.incumbent import Incumbent
from poetopt.search.run import Run
from poetopt.search.solution import Options, Solution
from poetopt.search.tuning import (
    GRACE_S,
    HEURISTICS_SHARE,
    LAYOUT_WORK,
    OFFER_WORK,
    PLAIN,
    PROFILE_LAST,
    PROFILE_LAYOUTS,
    PROFILE_LEAST,
    PROFILE_MOST,
    PROFILE_NEAR,
    PROFILE_PART,
    PROFILE_SEEDS,
    PROFILE_STEP,
    PROFILE_STEPS,
    PROFILE_WORK,
    QUICK_PRICES,
    QUICK_SHARE,
    WORK,
)
from poetopt.util.work import OutOfWorkError, Work

STREAMING_SHARES = (1.0, 0.88)
"""The targets at which all ways to stream are tried; at the others only the first."""


def first_schedules(run: Run, *, strict: bool, given: Sequence[Schedule] = ()) -> None:
    """Heuristic plans at several targets: the replay is a little optimistic about memory.

    run
        Its incumbent and its starts take what is found, in a part of its time limit; all of it where there is none yet.
    strict
        Whether plans are warm starts only: what the solver accepts of them counts.
    given
        Schedules found elsewhere, taken first.
    """
    trial = Incumbent(run.problem, run.options) if strict else run.incumbent
    for known in given:
        _taken(run, trial, known, "start", strict)
    options = run.options
    found = _replayed(run, trial, strict)
    if trial.best is None and options.deadline_s is None and run.elapsed_s < options.time_limit_s:
        for schedule in greedy_schedules(run.problem, options, options.ram_bytes, Work(WORK)):  # what remedies promise
            found |= _taken(run, trial, schedule, "heuristic", strict)
    if not found and options.deadline_s is not None:
        _quick_schedules(run, trial, strict)
    if run.chosen.plain and not strict and run.work.clock_s > 0 and _profiled(run):
        _profile_schedules(run)


def _replayed(run: Run, trial: Incumbent, strict: bool) -> bool:
    """Say whether greedy replays found a schedule, at several targets and in several ways."""
    options = run.options
    modes = [(options.paging, False), (options.paging, options.remat), (False, options.remat)]
    all_ways, joules = Ways(run.problem), run.chosen.plain
    found = False  # a given schedule is no reason to look for quick ones any less
    for paging, remat in dict.fromkeys(modes):
        if not paging and not remat:
            continue
        for share in (1.0, 0.97, 0.93, 0.88, 0.8, 0.7):
            if (
                trial.best and run.work.seconds > HEURISTICS_SHARE * run.budget.effort_s
            ) or run.work.clock_s < -GRACE_S:
                return found
            aim = int(options.ram_bytes * share)
            for place, ways in enumerate(all_ways.within(aim) if paging else (ALL_PLAIN,)):
                if place and share not in STREAMING_SHARES:
                    break
                if ways and joules and trial.value is not None and all_ways.more_j(ways) >= trial.value:
                    continue
                for lasting in lasting_sets(run.problem, aim, streamed_out(run.problem, ways)):
                    schedule = greedy(lasting, aim, paging=paging, remat=remat, ways=ways, work=run.work)
                    run.work.done += OFFER_WORK * len(run.problem.operators)
                    found |= _taken(run, trial, schedule, "heuristic", strict)
    return found


def plain_schedules(run: Run, solve: Callable[..., Solution]) -> None:
    """Solutions of plainer problems.

    Without paging, and without recomputation, where waking the storage costs energy: wakes are counted by stages, and a
    relaxation pays for a small part of one in each. It tells little, and a search guided by it may end above what
    either of the two finds at once.

    solve
        What solves them (`search`), in a part of the run's effort each; an interrupt of it is one of the run.
    """
    options, problem = run.options, run.problem
    if not (problem.wake_j and problem.paging and options.paging and options.remat):
        return
    for paging, remat, share in PLAIN:
        with run.timed("plain schedules"):
            found = solve(problem, replace(options, paging=paging, remat=remat), whole=run, share=share)
        if found.plan is not None:
            known = schedule_of(found.plan, page_outs=run.chosen.transfer_times)
            _taken(run, run.incumbent, known, "start", strict=False)
        if found.interrupted:
            raise KeyboardInterrupt


def _profiled(run: Run) -> bool:
    """Say whether schedules are made along the memory profile.

    Their runs are all plain, on a storage that suffices. Seconds have no price there: with transfers to hide, a
    deadline is for the replays. And of a step that isn't large models tell more in the time that it takes.
    """
    problem, options = run.problem, run.options
    blocks, capacity = sum(map(problem.blocks, range(len(problem.tensors)))), problem.storage_blocks
    short = problem.paging and options.paging and capacity is not None and blocks > capacity
    plain = all(problem.fits_plain(k, options.ram_bytes) for k in range(len(problem.operators)))
    quick = problem.has_backward and (options.deadline_s is not None or len(problem.operators) < PROFILE_STEPS)
    return (
        plain
        and not short
        and not quick
        and not problem.at_end
        and (options.remat or (options.paging and problem.paging))
    )


def _profile_schedules(run: Run) -> None:
    """Schedules along the memory profile, for budgets below the room, as a layout takes more than the live bytes.

    One near to the room that has a layout at once is looked for by halves. The best is made cheaper by parts that leave
    it a layout. In the end those without one are laid out at length, the dearest first, as long as some have one then.
    """
    problem, trial, options = run.problem, run.incumbent, run.options
    room, steps = trial.room_bytes, problem.has_backward
    most = min(PROFILE_WORK * len(problem.operators), PROFILE_MOST)
    refused: list[Schedule] = []

    def searched(aim: float, work: Work, seed: int = 0) -> ProfileSearch:
        return ProfileSearch(problem, int(room * aim), work, seed, paging=options.paging, remat=options.remat)

    def laid_out(schedule: Schedule) -> bool:
        taken = _taken(run, trial, schedule, "heuristic", strict=False, quick=True)
        if not taken:
            refused.append(schedule)
        run.work.done += (OFFER_WORK if taken else LAYOUT_WORK) * len(problem.operators)
        return taken

    ended = False

    def fits(share: float) -> bool:
        nonlocal ended
        for seed in range(PROFILE_SEEDS):
            work, last = Work(most, until=run.work.until), None
            for found in searched(share, work, seed).schedules():
                last = found
                work.limit = min(most, work.done + PROFILE_PART * most)
            run.work.done += work.done
            if last is not None and laid_out(last):
                return True
            ended = last is None and work.done >= most
            if last is None or trial.best is None or steps or run.work.clock_s < 0:
                break
        return False

    def accept(schedule: Schedule) -> bool:
        done = run.work.done
        taken = laid_out(schedule)
        work.done += run.work.done - done
        return taken

    share, step = 1.0, PROFILE_STEP
    while not fits(share) and not ended and share > PROFILE_LEAST and run.work.clock_s > 0:
        share -= step
    while not steps and share < 1.0 and step > PROFILE_NEAR and run.work.clock_s > 0:
        step /= 2
        share += step if fits(share + step) else 0.0
    best = trial.best
    if best is None or best.schedule.variants or best.schedule.page_outs:
        return
    work = Work(PROFILE_LAST[steps] * most, until=run.work.until)
    searched(1.0, work).improve(best.schedule, max(share, PROFILE_LEAST) - PROFILE_NEAR, accept)
    run.work.done += work.done
    lost = PROFILE_LAYOUTS if steps else 0
    for schedule in sorted(dict.fromkeys(refused), key=trial.weigh, reverse=True):
        if trial.best and trial.weigh(schedule) < trial.best.value and lost < PROFILE_LAYOUTS and run.work.clock_s > 0:
            run.work.done += LAYOUT_WORK * len(problem.operators)
            lost = 0 if _taken(run, trial, schedule, "heuristic", strict=False) else lost + 1


def _taken(
    run: Run, trial: Incumbent, schedule: Schedule | None, phase: str, strict: bool, *, quick: bool = False
) -> bool:
    """Say whether a schedule is the best so far; it is a start then, and told where plans count."""
    if schedule is None or not trial.offer(schedule, quick=quick):
        return False
    run.starts.insert(0, schedule)
    if not strict:
        run.say(phase)
    return True


def _quick_schedules(run: Run, trial: Incumbent, strict: bool) -> None:
    """Heuristic plans where those of least energy come late: a second has a price, and targets lie closer together.

    All targets of one price are tried, since the best plan counts; dearer seconds only where there is none.
    """
    options = run.options
    found = False
    until = run.budget.part(QUICK_SHARE)
    modes = [(options.paging, options.remat, second_j) for second_j in quick_prices(run.problem)]
    modes += [(False, options.remat, 0.0), (options.paging, False, 0.0)]
    for paging, remat, second_j in modes:
        if not (paging or remat):
            continue
        for percent in range(100, 50, -2):
            if run.remaining_s(until) <= 0:
                return
            ram_bytes = options.ram_bytes * percent // 100
            schedule = greedy(run.problem, ram_bytes, paging=paging, remat=remat, second_j=second_j, work=run.work)
            found |= _taken(run, trial, schedule, "heuristic", strict)
        if found:
            return


def quick_prices(problem: Problem) -> list[float]:
    """The prices of a second in replays that hurry, in joules, ascending."""
    watts = problem.baseline_energy_j / (problem.baseline_time_s or 1.0)
    return [times * watts for times in QUICK_PRICES]


def greedy_schedules(
    problem: Problem, options: Options, ram_bytes: int, work: Work, second_j: float = 0.0
) -> Iterator[Schedule]:
    """A few schedules that may fit `ram_bytes`, by greedy rules, until the work is done.

    second_j
        What a second counts for beside its energy, in joules.
    """
    room = ram_bytes - problem.reserve_bytes - formulation(options.formulation).reserve_bytes(problem)
    all_ways = Ways(problem)
    for paging, remat in dict.fromkeys([(options.paging, False), (options.paging, options.remat)]):
        for share, rounded in ((1.0, False), (1.0, True), (0.95, False), (0.88, False)):
            if rounded and not any(tensor.nbytes % problem.alignment for tensor in problem.tensors):
                continue
            aim = int(room * share)
            for place, ways in enumerate(all_ways.within(aim) if paging else (ALL_PLAIN,)):
                if place and share < 1.0:
                    break
                try:
                    schedule = greedy(
                        problem,
                        aim,
                        paging=paging,
                        remat=remat,
                        second_j=second_j,
                        work=work,
                        rounded=rounded,
                        ways=ways,
                    )
                    work.spend(OFFER_WORK * len(problem.operators) if schedule is not None else 0)
                except OutOfWorkError:
                    return
                if schedule is not None:
                    yield schedule
