"""Constructive heuristics: schedules with which a search begins, from replays and from plainer problems."""

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
"""Targets at which all streaming variants are tried; at the others only the first."""


def first_schedules(run: Run, *, strict: bool, starts: Sequence[Schedule] = ()) -> None:
    """Offer heuristic plans for several targets, since a replay is a little optimistic about memory.

    Parameters
    ----------
    run
        Run whose incumbent and starts receive the schedules, in a part of its time limit; in all of it as long as
        there is no plan.
    strict
        Whether plans are warm starts only, and the solver has to accept them.
    starts
        Schedules from elsewhere, which are offered first.
    """
    trial = Incumbent(run.problem, run.options) if strict else run.incumbent
    for schedule in starts:
        _offer(run, trial, schedule, "start", strict)
    options = run.options
    improved = _offer_replays(run, trial, strict)
    if trial.best is None and options.deadline_s is None and run.elapsed_s < options.time_limit_s:
        for schedule in greedy_schedules(run.problem, options, options.ram_bytes, Work(WORK)):  # promised by remedies
            improved |= _offer(run, trial, schedule, "heuristic", strict)
    if not improved and options.deadline_s is not None:
        _offer_quick_schedules(run, trial, strict)
    if run.chosen.plain and not strict and run.work.clock_s > 0 and _uses_profile(run):
        _offer_profile_schedules(run)


def _offer_replays(run: Run, trial: Incumbent, strict: bool) -> bool:
    """Offer greedy replays for several targets and variants; return whether one was an improvement."""
    options = run.options
    modes = [(options.paging, False), (options.paging, options.remat), (False, options.remat)]
    ranking, counts_energy = Ways(run.problem), run.chosen.plain
    improved = False  # schedules from elsewhere don't count, so that quick ones are still tried
    for paging, remat in dict.fromkeys(modes):
        if not paging and not remat:
            continue
        for share in (1.0, 0.97, 0.93, 0.88, 0.8, 0.7):
            if (
                trial.best and run.work.seconds > HEURISTICS_SHARE * run.budget.effort_s
            ) or run.work.clock_s < -GRACE_S:
                return improved
            target_bytes = int(options.ram_bytes * share)
            for index, variants in enumerate(ranking.within(target_bytes) if paging else (ALL_PLAIN,)):
                if index and share not in STREAMING_SHARES:
                    break
                if variants and counts_energy and trial.value is not None and ranking.more_j(variants) >= trial.value:
                    continue
                for lasting in lasting_sets(run.problem, target_bytes, streamed_out(run.problem, variants)):
                    schedule = greedy(lasting, target_bytes, paging=paging, remat=remat, ways=variants, work=run.work)
                    run.work.done += OFFER_WORK * len(run.problem.operators)
                    improved |= _offer(run, trial, schedule, "heuristic", strict)
    return improved


def plain_schedules(run: Run, solve: Callable[..., Solution]) -> None:
    """Offer the solutions of plainer problems: without paging, and without recomputation.

    They help if waking the storage costs energy. Wakes are counted by stages, and a relaxation pays for a small part of
    one in each. So it says little, and a search that it guides may end above an immediate solution of either plainer
    problem.

    Parameters
    ----------
    solve
        Solver of these problems (`search`), in a part of the run's effort each; an interrupt of it is one of the run.
    """
    options, problem = run.options, run.problem
    if not (problem.wake_j and problem.paging and options.paging and options.remat):
        return
    for paging, remat, share in PLAIN:
        with run.timed("plain schedules"):
            solution = solve(problem, replace(options, paging=paging, remat=remat), whole=run, share=share)
        if solution.plan is not None:
            schedule = schedule_of(solution.plan, page_outs=run.chosen.transfer_times)
            _offer(run, run.incumbent, schedule, "start", strict=False)
        if solution.interrupted:
            raise KeyboardInterrupt


def _uses_profile(run: Run) -> bool:
    """Return whether to make schedules along the memory profile.

    All their runs are plain, on a storage that is large enough. They have no price of a second: with transfers to hide,
    a deadline is for the replays. For a small step, models achieve more in the same time.
    """
    problem, options = run.problem, run.options
    blocks, capacity = sum(map(problem.blocks, range(len(problem.tensors)))), problem.storage_blocks
    is_short = problem.paging and options.paging and capacity is not None and blocks > capacity
    is_plain = all(problem.fits_plain(k, options.ram_bytes) for k in range(len(problem.operators)))
    is_replayed = problem.has_backward and (options.deadline_s is not None or len(problem.operators) < PROFILE_STEPS)
    return (
        is_plain
        and not is_short
        and not is_replayed
        and not problem.at_end
        and (options.remat or (options.paging and problem.paging))
    )


def _offer_profile_schedules(run: Run) -> None:
    """Offer schedules along the memory profile, for budgets below the room, since a layout takes more than live bytes.

    A bisection finds a budget near the room whose schedule has an immediate layout. Changes of parts that keep a layout
    make the best schedule cheaper. At the end the schedules without one get a long search for a layout, the most
    expensive first, until several in a row have none.
    """
    problem, trial, options = run.problem, run.incumbent, run.options
    room_bytes, has_backward = trial.room_bytes, problem.has_backward
    max_work = min(PROFILE_WORK * len(problem.operators), PROFILE_MOST)
    rejected: list[Schedule] = []

    def profile_search(share: float, work: Work, seed: int = 0) -> ProfileSearch:
        return ProfileSearch(problem, int(room_bytes * share), work, seed, paging=options.paging, remat=options.remat)

    def laid_out(schedule: Schedule) -> bool:
        improved = _offer(run, trial, schedule, "heuristic", strict=False, quick=True)
        if not improved:
            rejected.append(schedule)
        run.work.done += (OFFER_WORK if improved else LAYOUT_WORK) * len(problem.operators)
        return improved

    has_ended = False

    def fits(share: float) -> bool:
        nonlocal has_ended
        for seed in range(PROFILE_SEEDS):
            work, last_schedule = Work(max_work, until=run.work.until), None
            for schedule in profile_search(share, work, seed).schedules():
                last_schedule = schedule
                work.limit = min(max_work, work.done + PROFILE_PART * max_work)
            run.work.done += work.done
            if last_schedule is not None and laid_out(last_schedule):
                return True
            has_ended = last_schedule is None and work.done >= max_work
            if last_schedule is None or trial.best is None or has_backward or run.work.clock_s < 0:
                break
        return False

    def accept(schedule: Schedule) -> bool:
        done = run.work.done
        improved = laid_out(schedule)
        work.done += run.work.done - done
        return improved

    share, step = 1.0, PROFILE_STEP
    while not fits(share) and not has_ended and share > PROFILE_LEAST and run.work.clock_s > 0:
        share -= step
    while not has_backward and share < 1.0 and step > PROFILE_NEAR and run.work.clock_s > 0:
        step /= 2
        share += step if fits(share + step) else 0.0
    best = trial.best
    if best is None or best.schedule.variants or best.schedule.page_outs:
        return
    work = Work(PROFILE_LAST[has_backward] * max_work, until=run.work.until)
    profile_search(1.0, work).improve(best.schedule, max(share, PROFILE_LEAST) - PROFILE_NEAR, accept)
    run.work.done += work.done
    failed = PROFILE_LAYOUTS if has_backward else 0
    for schedule in sorted(dict.fromkeys(rejected), key=trial.weigh, reverse=True):
        if (
            trial.best
            and trial.weigh(schedule) < trial.best.value
            and failed < PROFILE_LAYOUTS
            and run.work.clock_s > 0
        ):
            run.work.done += LAYOUT_WORK * len(problem.operators)
            failed = 0 if _offer(run, trial, schedule, "heuristic", strict=False) else failed + 1


def _offer(
    run: Run, trial: Incumbent, schedule: Schedule | None, phase: str, strict: bool, *, quick: bool = False
) -> bool:
    """Offer a schedule as a start, and report it if plans count; return whether it is the best so far."""
    if schedule is None or not trial.offer(schedule, quick=quick):
        return False
    run.starts.insert(0, schedule)
    if not strict:
        run.report_progress(phase)
    return True


def _offer_quick_schedules(run: Run, trial: Incumbent, strict: bool) -> None:
    """Offer heuristic plans for a deadline that those of least energy miss.

    A second has a price, and targets are closer together. All targets of one price are tried, since the best plan
    counts. Higher prices follow only while there is no plan.
    """
    options = run.options
    improved = False
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
            improved |= _offer(run, trial, schedule, "heuristic", strict)
        if improved:
            return


def quick_prices(problem: Problem) -> list[float]:
    """Return the prices of a second in replays that hurry, in joules, ascending."""
    watts = problem.baseline_energy_j / (problem.baseline_time_s or 1.0)
    return [times * watts for times in QUICK_PRICES]


def greedy_schedules(
    problem: Problem, options: Options, ram_bytes: int, work: Work, second_j: float = 0.0
) -> Iterator[Schedule]:
    """Yield a small number of schedules that may fit `ram_bytes`, by greedy rules, until the work is done.

    Parameters
    ----------
    second_j
        Price of a second beside its energy, in joules.
    """
    room_bytes = ram_bytes - problem.reserve_bytes - formulation(options.formulation).reserve_bytes(problem)
    ranking = Ways(problem)
    for paging, remat in dict.fromkeys([(options.paging, False), (options.paging, options.remat)]):
        for share, rounded in ((1.0, False), (1.0, True), (0.95, False), (0.88, False)):
            if rounded and not any(tensor.nbytes % problem.alignment for tensor in problem.tensors):
                continue
            target_bytes = int(room_bytes * share)
            for index, variants in enumerate(ranking.within(target_bytes) if paging else (ALL_PLAIN,)):
                if index and share < 1.0:
                    break
                try:
                    schedule = greedy(
                        problem,
                        target_bytes,
                        paging=paging,
                        remat=remat,
                        second_j=second_j,
                        work=work,
                        rounded=rounded,
                        ways=variants,
                    )
                    work.spend(OFFER_WORK * len(problem.operators) if schedule is not None else 0)
                except OutOfWorkError:
                    return
                if schedule is not None:
                    yield schedule
