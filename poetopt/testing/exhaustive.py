"""Simulation of all schedules of a small space, whose optimum a formulation must find."""

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
"""Most decisions of a problem, of which 2^13 schedules are simulated."""
FEW_DECISIONS = 10
"""Decisions of an ordinary problem: 2^10 schedules take an eighth of the time of `MOST_DECISIONS`."""

Tried = list[tuple[Schedule, Plan, Simulation]]
"""Schedules whose plans the simulator accepted."""
Pairs: TypeAlias = list[tuple[int, int]]


def decisions(space: RetentionSpace | PoetSpace) -> tuple[Pairs, Pairs]:
    """Return the pairs (stage, operator) that may be recomputed, and (stage, tensor) that may be paged in."""
    if isinstance(space, PoetSpace):
        page_ins = [(t + 1, i) for t, i in space.residences if space.paging and t + 1 < len(space.problem.operators)]
        return [(t, j) for t, j in space.computes if t != j], page_ins
    recomputes = list(zip(space.recompute_stage.tolist(), space.recompute_operator.tolist(), strict=True))
    points = space.page_point if space.paging else space.page_point[:0]
    page_ins = list(zip(space.point_stage[points].tolist(), space.point_tensor[points].tolist(), strict=True))
    return recomputes, page_ins


def schedules(space: RetentionSpace | PoetSpace) -> Iterator[Schedule]:
    """Yield every schedule of the space; where transfers have stages, only those without waste (`thrifty`)."""
    recompute_pairs, page_in_pairs = decisions(space)
    if isinstance(space, PoetSpace) or space.transfer_times:
        yield from (schedule for _, schedule in thrifty(space.problem, recompute_pairs, page_in_pairs))
        return
    for chosen in itertools.product((False, True), repeat=len(recompute_pairs) + len(page_in_pairs)):
        recomputes = itertools.compress(recompute_pairs, chosen[: len(recompute_pairs)])
        page_ins = itertools.compress(page_in_pairs, chosen[len(recompute_pairs) :])
        plain = Schedule(frozenset(recomputes), frozenset(page_ins))
        yield from _with_all_variants(space, plain) if space.streams else (plain,)


def _with_all_variants(space: RetentionSpace, schedule: Schedule) -> Iterator[Schedule]:
    """Yield the schedule with each combination of the space's variants of its runs.

    A tensor that could stay in RAM for the next stage is paged in there only if it was streamed before.
    """
    runs: list[list[tuple[int, int, int] | None]] = [
        [None, *((t, j, int(space.streams.variant[n])) for n in variants)]
        for (j, t), variants in space.streams_of.items()
        if j == t or (t, j) in schedule.recomputes
    ]
    gates = []
    for e, variants in space.gated.items():
        if (int(space.point_stage[e]), int(space.point_tensor[e])) in schedule.page_ins:
            gates.append({(int(space.point_stage[e]) - 1, int(space.streams.variant[n])) for n in variants})
    for choices in itertools.product(*runs):
        first = {(t, v) for t, j, v in filter(None, choices) if t == j}
        if all(gate & first for gate in gates):
            yield replace(schedule, variants=frozenset(choice for choice in choices if choice is not None))


def valid(space: RetentionSpace | PoetSpace, ram_bytes: int) -> Tried:
    """Return every schedule that the simulator accepts within `ram_bytes`; with `poet`, Algorithm 1 must too."""
    passed = []
    for schedule in schedules(space):
        plan = plan_of(space.problem.within(ram_bytes), schedule)
        try:
            simulation = simulate(plan, ram_bytes=ram_bytes)
        except PlanError:
            continue
        if isinstance(space, RetentionSpace) or keeps_stage_rules(space.problem, schedule, ram_bytes):
            passed.append((schedule, plan, simulation))
    return passed


def best(formulation: Formulation, tried: Tried, ram_bytes: int) -> tuple[float, Schedule] | None:
    """Return the least value of all schedules that fit and that every block accepts, and its schedule, or None."""
    least: tuple[float, Schedule] | None = None
    for schedule, trial in accepted(formulation, tried, ram_bytes):
        value = formulation.goal.value(trial)
        if least is None or value < least[0]:
            least = value, schedule
    return least


def accepted(formulation: Formulation, tried: Tried, ram_bytes: int) -> Iterator[tuple[Schedule, Trial]]:
    """Yield every schedule that fits and that every block accepts, with its trial."""
    for schedule, plan, simulation in tried:
        if simulation.peak_bytes <= ram_bytes - formulation.reserve_bytes(plan.problem):
            trial = formulation.trial(plan, simulation)
            if formulation.refusal(trial) is None:
                yield schedule, trial


# Schedules in which every transfer has a stage.


def thrifty(
    problem: Problem, again: Pairs, back: Iterable[tuple[int, int]], limit: Callable[[], float] = lambda: math.inf
) -> Iterator[tuple[float, Schedule]]:
    """Yield each schedule without waste of less than `limit()` joules above one pass, with its joules.

    Some operator reads an output of each recompute. Between two stages that read or write a tensor, it is paged in at
    most once: after the first and up to the second. It is paged out once, at the beginning of a stage after its first
    compute and before its first page-in.

    Parameters
    ----------
    again, back
        Pairs (stage, operator) that may be recomputed, and (stage, tensor) that may be paged in.
    """
    page_in_stages: dict[int, list[int]] = {}
    for stage, i in sorted(back):
        if problem.tensors[i].nbytes and stage >= problem.tensors[i].producer + 2:
            page_in_stages.setdefault(i, []).append(stage)
    for size in range(len(again) + 1):
        for chosen in itertools.combinations(again, size):
            joules = sum(problem.operators[j].energy_j for _, j in chosen)
            if joules < limit() and _are_recomputes_read(problem, chosen):
                yield from _with_transfers(problem, chosen, joules, page_in_stages, limit)


def _are_recomputes_read(problem: Problem, chosen: tuple[tuple[int, int], ...]) -> bool:
    """Return whether an operator reads an output of each recompute afterwards, in its stage or later."""
    runs = [*chosen, *((t, t) for t in range(len(problem.operators)))]
    return all(
        any(
            run > (t, j) and i in problem.operators[run[1]].inputs for run in runs for i in problem.operators[j].outputs
        )
        for t, j in chosen
    )


_TensorTransfers = tuple[tuple[tuple[int, int], ...], tuple[int, int] | None]
"""The page-ins of a tensor, and its page-out."""


def _with_transfers(
    problem: Problem,
    chosen: tuple[tuple[int, int], ...],
    joules: float,
    pages: dict[int, list[int]],
    limit: Callable[[], float],
) -> Iterator[tuple[float, Schedule]]:
    """Yield the schedules with these recomputes, which cost `joules`."""
    runs = sorted([*chosen, *((t, t) for t in range(len(problem.operators)))])
    options = [(i, _tensor_transfers(problem, i, runs, stages)) for i, stages in sorted(pages.items())]

    def choose(position: int, spent: float, moves: tuple[_TensorTransfers, ...]) -> Iterator[tuple[float, Schedule]]:
        if spent >= limit():
            return
        if position == len(options):
            page_ins = [pair for ins, _ in moves for pair in ins]
            page_outs = [out for _, out in moves if out is not None]
            yield spent, Schedule.written(problem, chosen, page_ins, page_outs)
            return
        i, tensor_options = options[position]
        tensor = problem.tensors[i]
        for option in tensor_options:
            transfer_j = len(option[0]) * tensor.page_in_j + (tensor.page_out_j if option[1] else 0.0)
            yield from choose(position + 1, spent + transfer_j, (*moves, option))

    return choose(0, joules, ())


def _tensor_transfers(problem: Problem, i: int, runs: Pairs, stages: list[int]) -> list[_TensorTransfers]:
    """Return all transfers of tensor i where operators run as in `runs` and page-ins may be in `stages`."""
    reads = {t for t, j in runs if i in problem.operators[j].inputs}
    written = {t for t, j in runs if i in problem.operators[j].outputs} or {-1}
    gaps: list[list[int | None]] = []
    for before, after in itertools.pairwise(sorted(reads | written)):
        if after not in written:
            gaps.append([None, *(stage for stage in stages if before < stage <= after)])
    options: list[_TensorTransfers] = []
    for ins in itertools.product(*gaps):
        page_ins = tuple((stage, i) for stage in ins if stage is not None)
        if page_ins:
            options += [(page_ins, (stage, i)) for stage in range(problem.tensors[i].producer + 1, page_ins[0][0])]
        else:
            options.append((page_ins, None))
    return options


def keeps_stage_rules(problem: Problem, schedule: Schedule, ram_bytes: int) -> bool:
    """Return whether Algorithm 1 has the schedule, by rows 1b to 1f and U with the least tensors kept between stages.

    A page-in of stage t is M_in of t - 1: the tensor is on storage when t - 1 begins. A page-out of stage t needs the
    tensor in RAM when t begins (1f); it takes RAM until the end of t, unless t frees it.
    """
    count, tensors = len(problem.operators), problem.tensors
    written = {i: problem.written_in(i) for _, i in schedule.page_ins} | {i: t for t, i in schedule.page_outs}
    if any(written[i] > stage - 2 for stage, i in schedule.page_ins):
        return False
    runs = [sorted({j for stage, j in schedule.recomputes if stage == t} | {t}) for t in range(count)]
    ram: list[set[int]] = [set() for _ in range(count + 1)]
    for t in reversed(range(count)):
        computed = {i for j in runs[t] for i in problem.operators[j].outputs}
        read = {i for j in runs[t] for i in problem.operators[j].inputs}
        kept_after = {i for i in ram[t + 1] if (t + 1, i) not in schedule.page_ins}
        ram[t] = ((read | kept_after) - computed) | {i for i, stage in written.items() if stage == t}
        if any(tensors[i].producer >= t for i in ram[t]):
            return False
    ram[0] |= set(problem.at_start)
    for t in range(count):
        live = problem.nbytes(sorted(ram[t])) + problem.reserve_bytes
        for position, j in enumerate(runs[t]):
            operator = problem.operators[j]
            live += problem.nbytes([i for i in operator.outputs if i not in ram[t]])
            if live + problem.extra_bytes[j] > ram_bytes:
                return False
            still_needed = {i for h in runs[t][position + 1 :] for i in problem.operators[h].inputs} | ram[t + 1]
            live -= problem.nbytes([i for i in {*operator.inputs, *operator.outputs} if i not in still_needed])
    return True
