"""From decisions to instructions: what is recomputed and paged at which stage makes a plan.

Everything that a schedule leaves open follows from it: a tensor is paged out as a stage begins (where the schedule
names none, that of `Problem.written_in`), paged in just before the stage first reads it, and freed after its last
read.

That of ordinary training has nothing recomputed, nothing paged, everything freed after its last read.
"""

from __future__ import annotations

from collections.abc import Iterable
from weakref import WeakKeyDictionary

from poetopt.graph.problem import Home, Problem
from poetopt.plan.effects import Effect, effects
from poetopt.plan.instructions import Action, Instruction, Plan
from poetopt.plan.layout import arena_bytes, lay_out
from poetopt.plan.schedule import Schedule
from poetopt.plan.simulate import simulate


def plan_of(problem: Problem, schedule: Schedule) -> Plan:
    """The plan that carries out `schedule` with the least memory at every instant.

    Its problem says what stays in RAM from one step to the next (`kept`). The result isn't checked: a schedule that
    reads what is nowhere gives a plan that the simulator refuses.
    """
    lasting = problem.keeping(kept(problem, schedule))
    return Plan(lasting, tuple(with_frees(lasting, _events(lasting, schedule))))


def kept(problem: Problem, schedule: Schedule) -> tuple[int, ...]:
    """The tensors with their home on storage that are read before they are paged in: they stay from the step before.

    Ascending. A recompute never reads a tensor before its first reader does; what is streamed is read on storage.
    """
    first = schedule.first_page_ins
    end = len(problem.operators)
    reads = problem.first_reads if not schedule.variants else _first_whole_reads(problem, schedule)
    return tuple(
        i
        for i in problem.stored_at_start
        if problem.tensors[i].may_stay and problem.readers[i] and first.get(i, end) > reads[i]
    )


def _first_whole_reads(problem: Problem, schedule: Schedule) -> list[int]:
    """For each tensor, the first stage that reads it from RAM; the number of stages where none does."""
    end = len(problem.operators)
    found = [end] * len(problem.tensors)
    for stage, operator in (*((t, t) for t in range(end)), *schedule.recomputes):
        for i in _effect(problem, schedule, stage, operator).reads:
            found[i] = min(found[i], stage)
    return found


def _effect(problem: Problem, schedule: Schedule, stage: int, operator: int) -> Effect:
    """The effect of a run of `schedule`."""
    table, variant = effects(problem), schedule.variant_of.get((stage, operator), 0)
    return table.variants[operator, variant] if variant else table[Action.COMPUTE][operator]


def _events(problem: Problem, schedule: Schedule) -> list[Instruction]:
    """Computes and transfers in order, without frees."""
    recomputes = _by_stage(schedule.recomputes)
    page_ins = _by_stage(schedule.page_ins)
    page_outs = _by_stage(_page_outs(problem, schedule))
    events: list[Instruction] = []
    for stage in range(len(problem.operators)):
        events += [Instruction(Action.PAGE_OUT, i) for i in page_outs.get(stage, ())]
        arriving = set(page_ins.get(stage, ()))
        for operator in [*recomputes.get(stage, ()), stage]:
            effect = _effect(problem, schedule, stage, operator)
            needed = sorted(arriving.intersection(effect.reads))
            arriving.difference_update(needed)
            if operator == stage:
                needed = sorted({*needed, *arriving})
            events += [Instruction(Action.PAGE_IN, i) for i in needed]
            events.append(effect.step)
    return [*events, *(Instruction(Action.PAGE_OUT, i) for i in page_outs.get(len(problem.operators), ()))]


def _page_outs(problem: Problem, schedule: Schedule) -> set[tuple[int, int]]:
    """(stage, tensor) of all page-outs: those that the schedule names, and those that go without saying."""
    first = {i for _, i in schedule.page_ins if problem.written_first(i)}
    # after its update, if it has one: the next step reads the new value
    again = {i for i in problem.stored_at_start if problem.tensors[i].carried}
    told = {i for _, i in schedule.page_outs}
    if schedule.variants:
        _stream_page_outs(problem, schedule, first, again)
    left = {
        (stage + 1, i)
        for stage in range(-1, len(problem.operators))
        for i in problem.written_after(stage)
        if i not in told and i in (again if stage >= 0 and i in problem.updates[stage] else first)
    }
    return left | schedule.page_outs


def _stream_page_outs(problem: Problem, schedule: Schedule, first: set[int], again: set[int]) -> None:
    """Add to what is written out after its first run what is streamed in; take out what first runs stream out."""
    table = effects(problem)
    for _, operator, variant in schedule.variants:
        first.update(i for i in table.variants[operator, variant].streams_in if problem.written_first(i))
    for stage, operator, variant in schedule.variants:
        if stage == operator:
            streamed = table.variants[operator, variant].streams_out
            first.difference_update(streamed)
            again.difference_update(set(streamed).intersection(problem.updates[operator]))


def _by_stage(pairs: Iterable[tuple[int, int]]) -> dict[int, list[int]]:
    stages: dict[int, list[int]] = {}
    for stage, target in sorted(pairs):
        stages.setdefault(stage, []).append(target)
    return stages


def with_frees(problem: Problem, events: list[Instruction]) -> list[Instruction]:
    """`events` with every tensor freed as soon as nothing reads it before it is made again."""
    table = effects(problem)
    free = table[Action.FREE]
    needed = [False] * len(problem.tensors)
    for i in problem.at_end:
        needed[i] = True
    frees: list[list[int]] = []
    for effect in reversed([*table.each(events)]):
        frees.append([i for i in (*effect.makes, *effect.reads) if not needed[i]])
        for i in effect.makes:
            needed[i] = False
        for i in effect.reads:
            needed[i] = True
    result = [free[i].step for i in problem.at_start if not needed[i]]
    for event, freed in zip(events, reversed(frees), strict=True):
        result.append(event)
        result += [free[i].step for i in sorted(set(freed))]
    return result


def schedule_of(plan: Plan, *, page_outs: bool = False) -> Schedule:
    """The decisions that `plan` carries out: the inverse of `plan_of`, for plans of any origin.

    page_outs
        Whether the stages of page-outs are decisions; else every tensor is written where that goes without saying, and
        plans that move the same are one. A tensor that is written amid a stage, after a recompute, is so in any case.
    """
    stage, begins = 0, True
    recomputes: set[tuple[int, int]] = set()
    variants: set[tuple[int, int, int]] = set()
    page_ins: set[tuple[int, int]] = set()
    written: set[tuple[int, int]] = set()
    amid: set[int] = set()
    for instruction in plan.instructions:
        if instruction.action is Action.COMPUTE:
            begins = instruction.target == stage
            if instruction.variant:
                variants.add((stage, instruction.target, instruction.variant))
            if begins:
                stage += 1
            else:
                recomputes.add((stage, instruction.target))
        elif instruction.action is Action.PAGE_IN:
            page_ins.add((stage, instruction.target))
        elif instruction.action is Action.PAGE_OUT:
            written.add((stage, instruction.target))
            if not begins:
                amid.add(instruction.target)
    told = [(stage, i) for stage, i in written if page_outs and i not in amid]
    return Schedule.written(plan.problem, recomputes, page_ins, told, variants)


def everything(problem: Problem) -> Schedule:
    """Nothing recomputed, and nothing paged but what comes anew with each batch."""
    moved = (
        i
        for i in problem.stored_at_start
        if problem.tensors[i].home is Home.STORAGE and not problem.tensors[i].may_stay and problem.readers[i]
    )
    return Schedule(page_ins=frozenset((problem.first_reads[i], i) for i in moved))


def store_all(problem: Problem) -> Plan:
    """Ordinary training as a plan, not laid out."""
    return plan_of(problem, everything(problem))


def store_all_bytes(problem: Problem) -> int:
    """The least budget in bytes that ordinary training keeps to: what a RAM percentage refers to.

    The peak of the live bytes or, where alignment or gaps make it the larger, the arena with the reserve beside it.
    """
    if problem not in _known:
        plan = store_all(problem.on_any_storage())  # RAM alone counts, whatever storage holds
        peak = simulate(plan).peak_bytes
        laid_out = lay_out(plan, ram_bytes=peak - problem.reserve_bytes, quick=True)
        _known[problem] = max(peak, arena_bytes(laid_out) + problem.reserve_bytes)
    return _known[problem]


_known: WeakKeyDictionary[Problem, int] = WeakKeyDictionary()
"""A percentage, the search and the report ask for the same figure, and a layout may take seconds."""
