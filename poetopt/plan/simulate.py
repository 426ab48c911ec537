"""The exact simulator: what a list of instructions needs in bytes, joules and seconds, and whether it is valid.

It knows problems and instructions, and nothing of solvers or formulations, so that what it passes is
right whoever made it.

It walks `poetopt.plan.machine` for the bytes, which decide validity, and then its clock for the seconds.
Bytes are a matter of the order of instructions alone: a FREE waits for the transfers of its tensor, so the clock can't
raise the peak.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from poetopt.graph.problem import Feature, Problem, check_supported
from poetopt.plan.closing import ClosingPlan, closing_of
from poetopt.plan.effects import Effect, effects
from poetopt.plan.instructions import Action, Instruction, Plan
from poetopt.plan.machine import Clock, Machine
from poetopt.util.errors import PlanError

SUPPORTS = frozenset(Feature)
"""Features of problems that the machine runs."""

RELATIVE_TOLERANCE = 1e-9
"""A makespan may exceed the deadline by this fraction: sums of floats depend on their order."""


SIMULATED = (
    "energy_j", "overhead_j", "peak_bytes", "makespan_s", "recomputes", "page_ins", "page_outs", "bytes_paged",
)  # fmt: skip
"""Columns that a simulation gives."""


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """The course of a plan's step, exactly. All tuples have one entry an instruction.

    Of a batch in parts, all figures are those of the whole step: each part by the plan's instructions, and the updates
    that follow; the tuples are of the instructions, with the seconds of all parts.

    peak_bytes
        The highest sum of live bytes, the graph inputs before the first instruction included.
    energy_j, overhead_j
        Joules of all computes and transfers; the same less one plain compute of each operator.
    compute_s, transfer_s
        Sums of the seconds of all computes, streamed ones with their transfers, and of all transfers beside them.
    waits_s
        Seconds that the CPU stood still for a transfer.
    makespan_s
        When the last compute or transfer ends.
    recomputes, page_ins, page_outs
        How many there are; a recompute is any compute of an operator but its first.
    wakes
        How often the storage is powered on: runs of transfers without a pause.
    bytes_paged
        Bytes moved to and from storage by page-outs and page-ins.
    streamed_runs
        How many computes stream an operand or an output.
    bytes_streamed, bytes_streamed_out
        Bytes of all their chunks, and of those that they write.
    bytes_written
        Bytes that page-outs and streamed computes write to storage.
    stored_bytes
        What all tensors written out take on storage, in whole blocks.
    live_bytes
        Live bytes during the instruction: what it makes and what it frees included.
    start_s, end_s
        When it runs: on the channel for a transfer beside the CPU, on the CPU for all others.
    """

    peak_bytes: int
    energy_j: float
    overhead_j: float
    compute_s: float
    transfer_s: float
    waits_s: float
    makespan_s: float
    recomputes: int
    page_ins: int
    page_outs: int
    wakes: int
    bytes_paged: int
    streamed_runs: int
    bytes_streamed: int
    bytes_streamed_out: int
    bytes_written: int
    stored_bytes: int
    live_bytes: tuple[int, ...] = field(repr=False)
    start_s: tuple[float, ...] = field(repr=False)
    end_s: tuple[float, ...] = field(repr=False)


def simulate(
    plan: Plan | Problem,
    instructions: Sequence[Instruction] | None = None,
    *,
    ram_bytes: int | None = None,
    deadline_s: float | None = None,
) -> Simulation:
    """Run a plan on paper.

    plan, instructions
        A plan; or a problem, and the instructions to try on it.
    ram_bytes, deadline_s
        The budgets that the peak and the makespan must keep, where there are any.

    Raises PlanError, naming the instruction, for a plan that is not valid: it reads or frees what is not
    in RAM, pages or streams in what was never written out, streams out what is in RAM, pages on a device without
    storage or more than it holds, computes an operator too early, never, or again though it can't be recomputed, reads
    what an update has replaced, ends without what the next step needs, or exceeds a budget.
    """
    if isinstance(plan, Problem):
        if instructions is None:
            raise TypeError("simulate(problem) needs the instructions as its second argument")
        problem, steps = plan, instructions
    else:
        if instructions is not None:
            raise TypeError("simulate(plan) takes no second list of instructions")
        problem, steps = plan.problem, plan.instructions
    check_supported(problem, "the simulator", SUPPORTS)
    machine = Machine(problem)
    initial_bytes = machine.live
    if ram_bytes is not None and initial_bytes > ram_bytes:
        raise PlanError(
            f"the graph inputs alone take {initial_bytes} bytes, more than the RAM budget of {ram_bytes} bytes; "
            "give more RAM or a smaller batch"
        )
    done: list[Effect] = []
    live: list[int] = []
    try:
        for effect in effects(problem).each(steps):
            done.append(effect)
            now = machine.apply(effect)
            if ram_bytes is not None and now > ram_bytes:
                over = now - ram_bytes
                raise PlanError(f"{now} bytes are live, {over} more than the RAM budget of {ram_bytes} bytes")
            live.append(now)
    except PlanError as error:
        raise PlanError(f"{_named(problem, steps, len(live))}: {error}") from None
    try:
        machine.finish()
    except PlanError as error:
        raise PlanError(f"the plan ends after {len(live)} instructions {error}") from None
    closing = closing_of(problem, steps)
    if closing is not None and ram_bytes is not None and closing.peak_bytes > ram_bytes:
        raise PlanError(
            f"the updates behind the last part take {closing.peak_bytes} bytes, more than the RAM budget of "
            f"{ram_bytes} bytes; give more RAM, or leave out --micro-batch"
        )
    found = _timed(machine, done, live, initial_bytes)
    if problem.parts > 1:
        found = _of_all_parts(found, problem, steps, closing)
    if deadline_s is not None and found.makespan_s > deadline_s * (1 + RELATIVE_TOLERANCE):
        raise PlanError(
            f"the plan takes {found.makespan_s:.9g} s, {found.makespan_s - deadline_s:.3g} s more than "
            f"the deadline of {deadline_s:.9g} s"
        )
    return found


COUNTED = (
    "recomputes", "page_ins", "page_outs", "wakes", "bytes_paged", "streamed_runs", "bytes_streamed",
    "bytes_streamed_out", "bytes_written",
)  # fmt: skip
"""Counts that add up over the parts of a batch."""


def _of_all_parts(
    part: Simulation, problem: Problem, steps: Sequence[Instruction], closing: ClosingPlan | None
) -> Simulation:
    """The whole step, where `part` has the seconds and joules of all parts, and the rest of one."""
    counts = {name: problem.parts * getattr(part, name) for name in COUNTED}
    unread = [
        step.target for step in steps if step.action is Action.PAGE_IN and problem.tensors[step.target].zero_first
    ]
    counts["page_ins"] -= len(unread)
    counts["bytes_paged"] -= problem.nbytes(unread)
    ways = (problem.operators[step.target].variant(step.variant) for step in steps if step.variant)
    counts["bytes_streamed"] -= sum(way.zero_first_bytes for way in ways)
    if closing is None:
        return replace(part, **counts)
    last = closing.simulation
    summed = ("overhead_j", "compute_s", "transfer_s", "waits_s", "makespan_s")
    known = {held.name for held in problem.tensors}
    theirs = closing.problem
    more = sum(theirs.blocks(i) for i in theirs.stored_at_start if theirs.tensors[i].name not in known)
    return replace(
        part,
        **{name: count + getattr(last, name) for name, count in counts.items()},
        **{name: getattr(part, name) + getattr(last, name) for name in summed},
        energy_j=part.energy_j + last.overhead_j,
        peak_bytes=max(part.peak_bytes, closing.peak_bytes),
        stored_bytes=part.stored_bytes + more * problem.storage_block_bytes,
    )


def _timed(machine: Machine, done: Sequence[Effect], live: Sequence[int], initial_bytes: int) -> Simulation:
    """Seconds and joules of instructions that the machine has passed."""
    problem, clock = machine.problem, Clock(machine.problem)
    starts: list[float] = []
    ends: list[float] = []
    waits = compute_s = transfer_s = overhead_j = 0.0
    ahead = recomputes = page_ins = page_outs = wakes = moved = written = 0
    streamed_runs = streamed = streamed_out = 0
    for effect in done:
        cpu = clock.cpu
        start = clock.advance(effect)
        starts.append(start)
        ends.append(start + effect.seconds)
        if clock.wakes > wakes:
            wakes = clock.wakes
            overhead_j += problem.wake_j
        if effect.fetches or effect.stores:
            transfer_s += effect.seconds
            overhead_j += effect.joules
            page_ins += len(effect.fetches)
            page_outs += len(effect.stores)
            moved += problem.nbytes(effect.fetches or effect.stores)
            written += problem.nbytes(effect.stores)
            continue
        waits += start - cpu
        compute_s += effect.seconds
        if effect.operator >= 0:
            if effect.operator == ahead:
                ahead += 1
                if effect.step.variant:
                    overhead_j += effect.joules - problem.operators[effect.operator].energy_j
            else:
                recomputes += 1
                overhead_j += effect.joules
            if effect.streams:
                variant = problem.operators[effect.operator].variant(effect.step.variant)
                streamed_runs += 1
                streamed += variant.read_bytes + variant.written_bytes
                streamed_out += variant.written_bytes
    return Simulation(
        peak_bytes=max(max(live, default=0), initial_bytes),
        energy_j=problem.baseline_energy_j + overhead_j,
        overhead_j=overhead_j,
        compute_s=compute_s,
        transfer_s=transfer_s,
        waits_s=waits,
        makespan_s=clock.makespan_s,
        recomputes=recomputes,
        page_ins=page_ins,
        page_outs=page_outs,
        wakes=wakes,
        bytes_paged=moved,
        streamed_runs=streamed_runs,
        bytes_streamed=streamed,
        bytes_streamed_out=streamed_out,
        bytes_written=written + streamed_out,
        stored_bytes=machine.blocks * problem.storage_block_bytes,
        live_bytes=tuple(live),
        start_s=tuple(starts),
        end_s=tuple(ends),
    )


def _named(problem: Problem, steps: Sequence[Instruction], index: int) -> str:
    """Instruction `index` in words."""
    step = steps[index]
    entries = problem.operators if step.action is Action.COMPUTE else problem.tensors
    name = repr(entries[step.target].name) if 0 <= step.target < len(entries) else f"number {step.target}"
    way = f", variant {step.variant}" if step.variant else ""
    return f"instruction {index} ({step.action} {name}{way})"
