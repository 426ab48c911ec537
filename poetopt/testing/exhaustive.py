"""All schedules of a small space, simulated: the optimum that a formulation is held against."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TypeAlias

from poetopt.formulations.goal import Trial
from poetopt.formulations.language import Formulation
from poetopt.formulations.poet.space import PoetSpace
from poetopt.formulations.retention.space import RetentionSpace
from poetopt.graph.problem import Problem
from poetopt.plan.assemble import plan_of
from poetopt.plan.instructions import Plan
from poetopt.plan.schedule import Schedule
from poetopt.plan.simulate import Simulation, simulate
from poetopt.util.errors import PlanError

MOST_DECISIONS = 13
"""2 to the power of it is how many schedules are simulated for one problem."""
FEW_DECISIONS = 10
"""The same of most problems: a second's worth of simulations is for few."""

Tried = list[tuple[Schedule, Plan, Simulation]]
"""Schedules whose plans the simulator passed."""
Pairs: TypeAlias = list[tuple[int, int]]


def decisions(space: RetentionSpace | PoetSpace) -> tuple[Pairs, Pairs]:
    """(stage, operator) that may run again, and (stage, tensor) that may be paged in."""
    if isinstance(space, PoetSpace):
        back = [(t + 1, i) for t, i in space.residences if space.paging and t + 1 < len(space.problem.operators)]
        return [(t, j) for t, j in space.computes if t != j], back
    again = list(zip(space.recompute_stage.tolist(), space.recompute_operator.tolist(), strict=True))
    points = space.page_point if space.paging else space.page_point[:0]
    back = list(zip(space.point_stage[points].tolist(), space.point_tensor[points].tolist(), strict=True))
    return again, back


def schedules(space: RetentionSpace | PoetSpace) -> Iterator[Schedule]:
    """Every schedule of the space: sensible or not, or where transfers have stages those that waste nothing."""
    again, back = decisions(space)
    if isinstance(space, PoetSpace) or space.transfer_times:
        yield from (schedule for _, schedule in thrifty(space.problem, again, back))
        return
    for chosen in itertools.product((False, True), repeat=len(again) + len(back)):
        recomputes = itertools.compress(again, chosen[: len(again)])
        plain = Schedule(frozenset(recomputes), frozenset(itertools.compress(back, chosen[len(again) :])))
        yield from _by_all_ways(space, plain) if space.streams else (plain,)


def _by_all_ways(space: RetentionSpace, plain: Schedule) -> Iterator[Schedule]:
    """The schedule with each of its runs by each of the ways that the space has.

    What could stay for the next stage comes in there only where it was streamed.
    """
    runs: list[list[tuple[int, int, int] | None]] = [
        [None, *((t, j, int(space.streams.variant[n])) for n in own)]
        for (j, t), own in space.streams_of.items()
        if j == t or (t, j) in plain.recomputes
    ]
    gates = []
    for e, own in space.gated.items():
        if (int(space.point_stage[e]), int(space.point_tensor[e])) in plain.page_ins:
            gates.append({(int(space.point_stage[e]) - 1, int(space.streams.variant[n])) for n in own})
    for ways in itertools.product(*runs):
        first = {(t, v) for t, j, v in filter(None, ways) if t == j}
        if all(gate & first for gate in gates):
            yield replace(plain, variants=frozenset(way for way in ways if way is not None))


def valid(space: RetentionSpace | PoetSpace, ram_bytes: int) -> Tried:
    """Every schedule whose plan the simulator passes within `ram_bytes`, and with `poet` Algorithm 1 as well."""
    found = []
    for schedule in schedules(space):
        plan = plan_of(space.problem.within(ram_bytes), schedule)
        try:
            simulation = simulate(plan, ram_bytes=ram_bytes)
        except PlanError:
            continue
        if isinstance(space, RetentionSpace) or keeps_stage_rules(space.problem, schedule, ram_bytes):
            found.append((schedule, plan, simulation))
    return found


def best(formulation: Formulation, tried: Tried, ram_bytes: int) -> tuple[float, Schedule] | None:
    """The least value of any schedule that fits and that every block accepts, and the schedule; None: there is none."""
    found: tuple[float, Schedule] | None = None
    for schedule, trial in accepted(formulation, tried, ram_bytes):
        value = formulation.goal.value(trial)
        if found is None or value < found[0]:
            found = value, schedule
    return found


def accepted(formulation: Formulation, tried: Tried, ram_bytes: int) -> Iterator[tuple[Schedule, Trial]]:
    """Every schedule that fits and that every block accepts, as blocks judge it."""
    for schedule, plan, simulation in tried:
        if simulation.peak_bytes <= ram_bytes - formulation.reserve_bytes(plan.problem):
            trial = formulation.trial(plan, simulation)
            if formulation.refusal(trial) is None:
                yield schedule, trial


# Schedules in which every transfer has its stage.


def thrifty(
    problem: Problem, again: Pairs, back: Iterable[tuple[int, int]], limit: Callable[[], float] = lambda: math.inf
) -> Iterator[tuple[float, Schedule]]:
    """Every schedule of less than `limit()` joules above one pass that wastes nothing, and its joules.

    Something reads an output of each recompute. Between two stages that read or make a tensor it comes back at most
    once, after the first and up to the second. It is written once, as any stage begins that is after its first compute
    and before the one in which it first comes back.

    again, back
        (stage, operator) that may run again, and (stage, tensor) that may be paged in.
    """
    pages: dict[int, list[int]] = {}
    for stage, i in sorted(back):
        if problem.tensors[i].nbytes and stage >= problem.tensors[i].producer + 2:
            pages.setdefault(i, []).append(stage)
    for size in range(len(again) + 1):
        for chosen in itertools.combinations(again, size):
            joules = sum(problem.operators[j].energy_j for _, j in chosen)
            if joules < limit() and _read(problem, chosen):
                yield from _moved(problem, chosen, joules, pages, limit)


def _read(problem: Problem, chosen: tuple[tuple[int, int], ...]) -> bool:
    """Whether something reads an output of each recompute afterwards, in its stage or later."""
    runs = [*chosen, *((t, t) for t in range(len(problem.operators)))]
    return all(
        any(
            run > (t, j) and i in problem.operators[run[1]].inputs for run in runs for i in problem.operators[j].outputs
        )
        for t, j in chosen
    )


_Way = tuple[tuple[tuple[int, int], ...], tuple[int, int] | None]
"""The page-ins of a tensor, and its page-out."""


def _moved(
    problem: Problem,
    chosen: tuple[tuple[int, int], ...],
    joules: float,
    pages: dict[int, list[int]],
    limit: Callable[[], float],
) -> Iterator[tuple[float, Schedule]]:
    """The schedules with these recomputes, which cost `joules`."""
    runs = sorted([*chosen, *((t, t) for t in range(len(problem.operators)))])
    ways = [(i, _ways(problem, i, runs, stages)) for i, stages in sorted(pages.items())]

    def choose(place: int, spent: float, moves: tuple[_Way, ...]) -> Iterator[tuple[float, Schedule]]:
        if spent >= limit():
            return
        if place == len(ways):
            page_ins = [pair for ins, _ in moves for pair in ins]
            page_outs = [out for _, out in moves if out is not None]
            yield spent, Schedule.written(problem, chosen, page_ins, page_outs)
            return
        i, found = ways[place]
        tensor = problem.tensors[i]
        for way in found:
            more = len(way[0]) * tensor.page_in_j + (tensor.page_out_j if way[1] else 0.0)
            yield from choose(place + 1, spent + more, (*moves, way))

    return choose(0, joules, ())


def _ways(problem: Problem, i: int, runs: Pairs, stages: list[int]) -> list[_Way]:
    """How tensor i may be moved, where operators run as in `runs` and it may come back in `stages`."""
    reads = {t for t, j in runs if i in problem.operators[j].inputs}
    made = {t for t, j in runs if i in problem.operators[j].outputs} or {-1}
    gaps: list[list[int | None]] = []
    for before, after in itertools.pairwise(sorted(reads | made)):
        if after not in made:
            gaps.append([None, *(stage for stage in stages if before < stage <= after)])
    found: list[_Way] = []
    for ins in itertools.product(*gaps):
        moves = tuple((stage, i) for stage in ins if stage is not None)
        if moves:
            found += [(moves, (stage, i)) for stage in range(problem.tensors[i].producer + 1, moves[0][0])]
        else:
            found.append((moves, None))
    return found


def keeps_stage_rules(problem: Problem, schedule: Schedule, ram_bytes: int) -> bool:
    """Whether Algorithm 1 has the schedule: rows 1b to 1f and U, with the least that it may keep from stage to stage.

    A page-in of stage t is M_in of t - 1: the tensor is on storage as that begins. A page-out of stage t needs the
    tensor in RAM as t begins (1f), where it then counts as long as t lasts, unless t frees it.
    """
    count, tensors = len(problem.operators), problem.tensors
    written = {i: problem.written_in(i) for _, i in schedule.page_ins} | {i: t for t, i in schedule.page_outs}
    if any(written[i] > stage - 2 for stage, i in schedule.page_ins):
        return False
    runs = [sorted({j for stage, j in schedule.recomputes if stage == t} | {t}) for t in range(count)]
    ram: list[set[int]] = [set() for _ in range(count + 1)]
    for t in reversed(range(count)):
        made = {i for j in runs[t] for i in problem.operators[j].outputs}
        read = {i for j in runs[t] for i in problem.operators[j].inputs}
        later = {i for i in ram[t + 1] if (t + 1, i) not in schedule.page_ins}
        ram[t] = ((read | later) - made) | {i for i, stage in written.items() if stage == t}
        if any(tensors[i].producer >= t for i in ram[t]):
            return False
    ram[0] |= set(problem.at_start)
    for t in range(count):
        live = problem.nbytes(sorted(ram[t])) + problem.reserve_bytes
        for place, j in enumerate(runs[t]):
            operator = problem.operators[j]
            live += problem.nbytes([i for i in operator.outputs if i not in ram[t]])
            if live + problem.extra_bytes[j] > ram_bytes:
                return False
            kept = {i for h in runs[t][place + 1 :] for i in problem.operators[h].inputs} | ram[t + 1]
            live -= problem.nbytes([i for i in {*operator.inputs, *operator.outputs} if i not in kept])
    return True
