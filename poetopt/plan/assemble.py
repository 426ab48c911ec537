"""Plans from schedules: instructions for the recomputations and transfers that a schedule decides on.

A schedule leaves open what follows from it. A tensor is paged out as a stage begins (in the stage of
`Problem.written_in` unless the schedule names one), paged in just before the stage first reads it, and freed after its
last read.

The schedule of ordinary training recomputes and pages nothing; each tensor is freed after its last read.
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
    """Return the plan that carries out `schedule` with the least memory at every instant.

    The plan's problem records which tensors stay in RAM from one step to the next (`kept`). The plan isn't checked: if
    the schedule reads a tensor that is neither in RAM nor on storage, the simulator rejects its plan.
    """
    lasting = problem.keeping(kept(problem, schedule))
    return Plan(lasting, tuple(with_frees(lasting, _events(lasting, schedule))))


def kept(problem: Problem, schedule: Schedule) -> tuple[int, ...]:
    """Return the tensors with their home on storage that are read before they are paged in, ascending.

    These stay in RAM from one step to the next. A recompute never reads a tensor before its first reader does; streamed
    operands are read on storage.
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
    """Return, for each tensor, the first stage that reads it from RAM, or the number of stages if none does."""
    end = len(problem.operators)
    first_reads = [end] * len(problem.tensors)
    for stage, operator in (*((t, t) for t in range(end)), *schedule.recomputes):
        for i in _effect(problem, schedule, stage, operator).reads:
            first_reads[i] = min(first_reads[i], stage)
    return first_reads


def _effect(problem: Problem, schedule: Schedule, stage: int, operator: int) -> Effect:
    """Return the effect of the run of `operator` in `stage` under `schedule`."""
    all_effects, variant = effects(problem), schedule.variant_of.get((stage, operator), 0)
    return all_effects.variants[operator, variant] if variant else all_effects[Action.COMPUTE][operator]


def _events(problem: Problem, schedule: Schedule) -> list[Instruction]:
    """Return the computes and transfers in order, without frees."""
    recomputes = _by_stage(schedule.recomputes)
    page_ins = _by_stage(schedule.page_ins)
    page_outs = _by_stage(_page_outs(problem, schedule))
    events: list[Instruction] = []
    for stage in range(len(problem.operators)):
        events += [Instruction(Action.PAGE_OUT, i) for i in page_outs.get(stage, ())]
        pending = set(page_ins.get(stage, ()))
        for operator in [*recomputes.get(stage, ()), stage]:
            effect = _effect(problem, schedule, stage, operator)
            arriving_now = sorted(pending.intersection(effect.reads))
            pending.difference_update(arriving_now)
            if operator == stage:
                arriving_now = sorted({*arriving_now, *pending})
            events += [Instruction(Action.PAGE_IN, i) for i in arriving_now]
            events.append(effect.step)
    return [*events, *(Instruction(Action.PAGE_OUT, i) for i in page_outs.get(len(problem.operators), ()))]


def _page_outs(problem: Problem, schedule: Schedule) -> set[tuple[int, int]]:
    """Return (stage, tensor) of all page-outs: those of the schedule and those that follow from it."""
    first_written = {i for _, i in schedule.page_ins if problem.written_first(i)}
    # An updated tensor is written after its update: the next step reads the new value.
    rewritten = {i for i in problem.stored_at_start if problem.tensors[i].carried}
    scheduled = {i for _, i in schedule.page_outs}
    if schedule.variants:
        _stream_page_outs(problem, schedule, first_written, rewritten)
    implied = {
        (stage + 1, i)
        for stage in range(-1, len(problem.operators))
        for i in problem.written_after(stage)
        if i not in scheduled and i in (rewritten if stage >= 0 and i in problem.updates[stage] else first_written)
    }
    return implied | schedule.page_outs


def _stream_page_outs(problem: Problem, schedule: Schedule, first_written: set[int], rewritten: set[int]) -> None:
    """Correct both sets for streamed operands.

    A tensor that is streamed in must be written after its first run. A tensor that the first run streams out is written
    by that run.
    """
    table = effects(problem)
    for _, operator, variant in schedule.variants:
        first_written.update(i for i in table.variants[operator, variant].streams_in if problem.written_first(i))
    for stage, operator, variant in schedule.variants:
        if stage == operator:
            streamed = table.variants[operator, variant].streams_out
            first_written.difference_update(streamed)
            rewritten.difference_update(set(streamed).intersection(problem.updates[operator]))


def _by_stage(pairs: Iterable[tuple[int, int]]) -> dict[int, list[int]]:
    stages: dict[int, list[int]] = {}
    for stage, target in sorted(pairs):
        stages.setdefault(stage, []).append(target)
    return stages


def with_frees(problem: Problem, events: list[Instruction]) -> list[Instruction]:
    """Return `events` with a FREE for each tensor as soon as no event reads its value any more.

    Parameters
    ----------
    events
        Computes and transfers in order, without frees.
    """
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
    """Return the decisions that `plan` carries out: the inverse of `plan_of`, for plans of any origin.

    Parameters
    ----------
    page_outs
        Whether the stages of page-outs are decisions. If not, each tensor is written in its default stage, so that
        plans that move the same tensors have one schedule. That also holds for a tensor that is written within a stage,
        after a recompute.
    """
    stage, at_stage_start = 0, True
    recomputes: set[tuple[int, int]] = set()
    variants: set[tuple[int, int, int]] = set()
    page_ins: set[tuple[int, int]] = set()
    written: set[tuple[int, int]] = set()
    within_stage: set[int] = set()
    for instruction in plan.instructions:
        if instruction.action is Action.COMPUTE:
            at_stage_start = instruction.target == stage
            if instruction.variant:
                variants.add((stage, instruction.target, instruction.variant))
            if at_stage_start:
                stage += 1
            else:
                recomputes.add((stage, instruction.target))
        elif instruction.action is Action.PAGE_IN:
            page_ins.add((stage, instruction.target))
        elif instruction.action is Action.PAGE_OUT:
            written.add((stage, instruction.target))
            if not at_stage_start:
                within_stage.add(instruction.target)
    scheduled = [(stage, i) for stage, i in written if page_outs and i not in within_stage]
    return Schedule.written(plan.problem, recomputes, page_ins, scheduled, variants)


def everything(problem: Problem) -> Schedule:
    """Return the schedule that recomputes nothing and pages only the inputs that each batch replaces."""
    moved = (
        i
        for i in problem.stored_at_start
        if problem.tensors[i].home is Home.STORAGE and not problem.tensors[i].may_stay and problem.readers[i]
    )
    return Schedule(page_ins=frozenset((problem.first_reads[i], i) for i in moved))


def store_all(problem: Problem) -> Plan:
    """Return ordinary training as a plan without offsets."""
    return plan_of(problem, everything(problem))


def store_all_bytes(problem: Problem) -> int:
    """Return the least budget, in bytes, of ordinary training; percentages of RAM refer to it.

    The budget is the peak of the live bytes or, if alignment or gaps make it larger, the arena plus the reserve.
    """
    if problem not in _store_all_bytes_of:
        plan = store_all(problem.on_any_storage())  # only RAM counts, however large the storage is
        peak = simulate(plan).peak_bytes
        laid_out = lay_out(plan, ram_bytes=peak - problem.reserve_bytes, quick=True)
        _store_all_bytes_of[problem] = max(peak, arena_bytes(laid_out) + problem.reserve_bytes)
    return _store_all_bytes_of[problem]


_store_all_bytes_of: WeakKeyDictionary[Problem, int] = WeakKeyDictionary()
"""Store-all bytes by problem: several callers need the figure, and a layout may take seconds."""
