"""Exact simulator: bytes, joules and seconds of a list of instructions, and whether the list is valid.

The simulator depends on problems and instructions only, not on solvers or formulations, so its verdict holds for a
plan of any origin.

It steps `poetopt.plan.machine` for the bytes, which decide validity, and then the machine's clock for the seconds.
Bytes depend only on the order of instructions: a FREE waits for the transfers of its tensor, so the clock can't raise
the peak.
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
"""Features of problems that the machine supports."""

RELATIVE_TOLERANCE = 1e-9
"""A makespan may exceed the deadline by this fraction: sums of floats depend on their order."""


SIMULATED = (
    "energy_j", "overhead_j", "peak_bytes", "makespan_s", "recomputes", "page_ins", "page_outs", "bytes_paged",
)  # fmt: skip
"""Columns with figures of a simulation."""


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """Exact course of a plan's step. All tuples have one entry per instruction.

    For a batch in parts, all figures are those of the whole step: the plan's instructions for each part, then the
    updates. The tuples refer to the plan's instructions, with the seconds of all parts.

    Attributes
    ----------
    peak_bytes
        Highest sum of live bytes, including the graph inputs before the first instruction.
    energy_j, overhead_j
        Joules of all computes and transfers; the same minus one compute of each operator without streaming.
    compute_s, transfer_s
        Total seconds of all computes (streaming ones with their transfers), and of all other transfers.
    waits_s
        Seconds that the CPU waited for a transfer.
    makespan_s
        End of the last compute or transfer.
    recomputes, page_ins, page_outs
        Their numbers; a recompute is any compute of an operator after its first.
    wakes
        How often the storage is powered on: runs of transfers without a pause.
    bytes_paged
        Bytes that page-outs and page-ins move.
    streamed_runs
        Number of computes that stream an operand or an output.
    bytes_streamed, bytes_streamed_out
        Bytes of all their chunks, and of the chunks that they write.
    bytes_written
        Bytes that page-outs and streamed computes write to storage.
    stored_bytes
        Bytes of storage that the written tensors occupy, in whole blocks.
    live_bytes
        Live bytes during each instruction, including the tensors that it makes and frees.
    start_s, end_s
        When it runs: on the channel for a transfer beside the CPU, otherwise on the CPU.
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
    """Simulate a plan.

    Parameters
    ----------
    plan, instructions
        A plan; or a problem and the instructions to try on it.
    ram_bytes, deadline_s
        Budgets for the peak and the makespan, if any.

    Returns
    -------
    Simulation
        Exact figures of the step.

    Raises
    ------
    PlanError
        For an invalid plan; the message names the instruction. A plan is invalid if it reads or frees a tensor that is
        not in RAM, pages or streams in a tensor that was never written out, streams out a tensor that is in RAM, pages
        on a device without storage or more than it holds, or computes an operator too early, never, or again although
        it can't be recomputed. It is also invalid if it reads the old value of an updated tensor, ends without a tensor
        that the next step needs, or exceeds a budget.
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
            f"the graph inputs alone take {initial_bytes} bytes, more than the RAM budget of {ram_bytes} bytes. "
            "Give more RAM or a smaller batch"
        )
    executed: list[Effect] = []
    live: list[int] = []
    try:
        for effect in effects(problem).each(steps):
            executed.append(effect)
            live_bytes = machine.apply(effect)
            if ram_bytes is not None and live_bytes > ram_bytes:
                excess = live_bytes - ram_bytes
                raise PlanError(f"{live_bytes} bytes are live, {excess} more than the RAM budget of {ram_bytes} bytes")
            live.append(live_bytes)
    except PlanError as error:
        raise PlanError(f"{_describe_instruction(problem, steps, len(live))}: {error}") from None
    try:
        machine.finish()
    except PlanError as error:
        raise PlanError(f"the plan ends after {len(live)} instructions {error}") from None
    updates = closing_of(problem, steps)
    if updates is not None and ram_bytes is not None and updates.peak_bytes > ram_bytes:
        raise PlanError(
            f"the updates after the last part take {updates.peak_bytes} bytes, more than the RAM budget of "
            f"{ram_bytes} bytes. Give more RAM, or leave out micro_batch"
        )
    simulation = _time(machine, executed, live, initial_bytes)
    if problem.parts > 1:
        simulation = _whole_step(simulation, problem, steps, updates)
    if deadline_s is not None and simulation.makespan_s > deadline_s * (1 + RELATIVE_TOLERANCE):
        raise PlanError(
            f"the plan takes {simulation.makespan_s:.9g} s, {simulation.makespan_s - deadline_s:.3g} s more than "
            f"the deadline of {deadline_s:.9g} s"
        )
    return simulation


COUNTED = (
    "recomputes", "page_ins", "page_outs", "wakes", "bytes_paged", "streamed_runs", "bytes_streamed",
    "bytes_streamed_out", "bytes_written",
)  # fmt: skip
"""Counts that are summed over the parts of a batch."""


def _whole_step(
    part: Simulation, problem: Problem, steps: Sequence[Instruction], updates: ClosingPlan | None
) -> Simulation:
    """Return the figures of the whole step. `part` has seconds and joules of all parts, and other figures of one."""
    counts = {name: problem.parts * getattr(part, name) for name in COUNTED}
    unread_tensors = [
        step.target for step in steps if step.action is Action.PAGE_IN and problem.tensors[step.target].zero_first
    ]
    counts["page_ins"] -= len(unread_tensors)
    counts["bytes_paged"] -= problem.nbytes(unread_tensors)
    variants = (problem.operators[step.target].variant(step.variant) for step in steps if step.variant)
    counts["bytes_streamed"] -= sum(variant.zero_first_bytes for variant in variants)
    if updates is None:
        return replace(part, **counts)
    update_figures = updates.simulation
    summed = ("overhead_j", "compute_s", "transfer_s", "waits_s", "makespan_s")
    names = {tensor.name for tensor in problem.tensors}
    later = updates.problem
    more = sum(later.blocks(i) for i in later.stored_at_start if later.tensors[i].name not in names)
    return replace(
        part,
        **{name: count + getattr(update_figures, name) for name, count in counts.items()},
        **{name: getattr(part, name) + getattr(update_figures, name) for name in summed},
        energy_j=part.energy_j + update_figures.overhead_j,
        peak_bytes=max(part.peak_bytes, updates.peak_bytes),
        stored_bytes=part.stored_bytes + more * problem.storage_block_bytes,
    )


def _time(machine: Machine, executed: Sequence[Effect], live: Sequence[int], initial_bytes: int) -> Simulation:
    """Return seconds and joules of instructions that the machine has accepted."""
    problem, clock = machine.problem, Clock(machine.problem)
    starts: list[float] = []
    ends: list[float] = []
    waits = compute_s = transfer_s = overhead_j = 0.0
    next_operator = recomputes = page_ins = page_outs = wakes = paged = paged_out = 0
    streamed_runs = streamed = streamed_out = 0
    for effect in executed:
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
            paged += problem.nbytes(effect.fetches or effect.stores)
            paged_out += problem.nbytes(effect.stores)
            continue
        waits += start - cpu
        compute_s += effect.seconds
        if effect.operator >= 0:
            if effect.operator == next_operator:
                next_operator += 1
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
        bytes_paged=paged,
        streamed_runs=streamed_runs,
        bytes_streamed=streamed,
        bytes_streamed_out=streamed_out,
        bytes_written=paged_out + streamed_out,
        stored_bytes=machine.blocks * problem.storage_block_bytes,
        live_bytes=tuple(live),
        start_s=tuple(starts),
        end_s=tuple(ends),
    )


def _describe_instruction(problem: Problem, steps: Sequence[Instruction], index: int) -> str:
    """Return the description of instruction `index` for messages."""
    step = steps[index]
    entries = problem.operators if step.action is Action.COMPUTE else problem.tensors
    name = repr(entries[step.target].name) if 0 <= step.target < len(entries) else f"number {step.target}"
    variant = f", variant {step.variant}" if step.variant else ""
    return f"instruction {index} ({step.action} {name}{variant})"
