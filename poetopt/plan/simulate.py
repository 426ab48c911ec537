"""The exact simulator: what a list of instructions needs in bytes, joules and seconds, and whether it is valid.

It knows problems and instructions, and nothing of solvers or formulations, so that what it passes is
right whoever made it.

Memory. A buffer counts from the instruction that makes it to the FREE that releases it, both
included; a workspace counts during its COMPUTE. That is a matter of the order of instructions alone:
a FREE waits for the transfers of its tensor, so the clock can't raise the peak.

Time. Without DMA every instruction follows the one before. With DMA the CPU walks the list and one
transfer channel works beside it, first in, first out: a PAGE_OUT or PAGE_IN is queued when the CPU
reaches it, which takes no CPU time. A COMPUTE waits for its inputs to arrive, and for transfers of
outputs that it overwrites; a FREE waits for the transfers of its tensor.

Storage. A tensor takes its whole blocks of the storage from its first PAGE_OUT to the end of the step: its copy stays,
and one written again takes the same place. Together they take at most `Problem.storage_bytes`, where that is known.

Waking. Transfers that follow each other without a pause are one run: the storage is powered on before it and off after
it, which takes `Problem.wake_j` joules each time. Any compute that takes time ends a run, unless a transfer goes on
beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from poetopt.errors import PlanError
from poetopt.plan.instructions import Action, Instruction, Plan
from poetopt.problem import Problem, check_supported

RELATIVE_TOLERANCE = 1e-9
"""A makespan may exceed the deadline by this fraction: sums of floats depend on their order."""


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """What a plan does, exactly. All tuples have one entry an instruction.

    peak_bytes
        The highest sum of live bytes, the graph inputs before the first instruction included.
    energy_j, overhead_j
        Joules of all computes and transfers; the same less one compute of each operator.
    compute_s, transfer_s
        Sums of the seconds of all computes and of all transfers.
    waits_s
        Seconds that the CPU stood still for a transfer.
    makespan_s
        When the last compute or transfer ends.
    recomputes, page_ins, page_outs
        How many there are; a recompute is any compute of an operator but its first.
    wakes
        How often the storage is powered on: runs of transfers without a pause.
    bytes_paged
        Bytes moved to and from storage.
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
    in RAM, pages in what was never written out, pages on a device without storage or more than it holds, computes an
    operator too early, never, or again though it can't be recomputed, or exceeds a budget.
    """
    if isinstance(plan, Problem):
        if instructions is None:
            raise TypeError("simulate(problem) needs the instructions as its second argument")
        run = _Run(plan, instructions)
    else:
        if instructions is not None:
            raise TypeError("simulate(plan) takes no second list of instructions")
        run = _Run(plan.problem, plan.instructions)
    check_supported(run.problem, "the simulator")
    live = run.memory(ram_bytes)
    return run.clock(live, deadline_s)


class _Run:
    """One simulation: first the bytes, which decide validity, then the clock."""

    def __init__(self, problem: Problem, instructions: Sequence[Instruction]) -> None:
        self.problem = problem
        self.instructions = instructions
        self.initial_bytes = problem.start_bytes
        self.stored_bytes = 0

    def memory(self, ram_bytes: int | None) -> tuple[int, ...]:
        """Check every rule but the deadline; the live bytes of each instruction."""
        problem, refuse = self.problem, self._refuse
        operators, tensors = problem.operators, problem.tensors
        budget = ram_bytes
        resident = [False] * len(tensors)
        stored = [False] * len(tensors)
        for i in problem.at_start:
            resident[i] = True
        live = self.initial_bytes
        if budget is not None and live > budget:
            raise PlanError(
                f"the graph inputs alone take {live} bytes, more than the RAM budget of {budget} bytes; "
                "give more RAM or a smaller batch"
            )
        next_operator = blocks = 0
        capacity = problem.storage_blocks
        during: list[int] = []
        for index, (action, target) in enumerate((step.action, step.target) for step in self.instructions):
            if not 0 <= target < (len(operators) if action is Action.COMPUTE else len(tensors)):
                refuse(index, "there is no operator or tensor of that index")
            now = live
            if action is Action.COMPUTE:
                operator = operators[target]
                if target == next_operator:
                    next_operator += 1
                elif target > next_operator:
                    refuse(index, f"its turn comes only after {operators[next_operator].name!r}, not computed yet")
                elif not operator.recomputable:
                    refuse(index, "it is computed a second time, and must not be")
                for i in operator.inputs:
                    if not resident[i]:
                        refuse(index, f"it reads {tensors[i].name!r}, which is not in RAM")
                for i in operator.outputs:
                    if not resident[i]:
                        resident[i] = True
                        live += tensors[i].nbytes
                now = live + operator.workspace_bytes
            elif action is Action.FREE:
                if not resident[target]:
                    refuse(index, "it is not in RAM")
                resident[target] = False
                live -= tensors[target].nbytes
            elif not problem.paging:
                refuse(index, f"device {problem.device!r} has no storage to page to")
            elif action is Action.PAGE_OUT:
                if not resident[target]:
                    refuse(index, "it is not in RAM")
                if not stored[target]:
                    stored[target] = True
                    blocks += problem.blocks(target)
                    if capacity is not None and blocks > capacity:
                        refuse(index, _full(problem, blocks))
            else:
                if not stored[target]:
                    refuse(index, "it was never written out")
                if resident[target]:
                    refuse(index, "it is in RAM already")
                resident[target] = True
                live += tensors[target].nbytes
                now = live
            if budget is not None and now > budget:
                refuse(index, f"{now} bytes are live, {now - budget} more than the RAM budget of {budget} bytes")
            during.append(now)
        if next_operator < len(operators):
            raise PlanError(
                f"the plan ends after {len(during)} instructions without operator {next_operator} "
                f"({operators[next_operator].name!r}); every operator must be computed"
            )
        self.stored_bytes = blocks * problem.storage_block_bytes
        return tuple(during)

    def clock(self, live: tuple[int, ...], deadline_s: float | None) -> Simulation:
        """Seconds and joules of instructions that `memory` has passed."""
        problem = self.problem
        operators, tensors, dma = problem.operators, problem.tensors, problem.dma
        computed = [False] * len(operators)
        # When the last queued page-in, and the last queued transfer, of each tensor ends.
        arrived = [0.0] * len(tensors)
        settled = [0.0] * len(tensors)
        starts: list[float] = []
        ends: list[float] = []
        cpu = channel = waits = compute_s = transfer_s = overhead_j = 0.0
        recomputes = page_ins = page_outs = wakes = moved = 0
        moved_until = 0.0  # when the last transfer ends
        for action, target in ((step.action, step.target) for step in self.instructions):
            if action is Action.COMPUTE:
                operator = operators[target]
                start = cpu
                for i in operator.inputs:
                    if arrived[i] > start:
                        start = arrived[i]
                for i in operator.outputs:
                    if settled[i] > start:
                        start = settled[i]
                end = start + operator.time_s
                waits += start - cpu
                cpu = end
                compute_s += operator.time_s
                if computed[target]:
                    recomputes += 1
                    overhead_j += operator.energy_j
                computed[target] = True
            elif action is Action.FREE:
                start = end = max(cpu, settled[target])
                waits += start - cpu
                cpu = end
            else:
                tensor = tensors[target]
                if action is Action.PAGE_OUT:
                    seconds, joules = tensor.page_out_s, tensor.page_out_j
                    page_outs += 1
                else:
                    seconds, joules = tensor.page_in_s, tensor.page_in_j
                    page_ins += 1
                start = max(cpu, channel) if dma else cpu
                end = start + seconds
                if start > moved_until or not wakes:
                    wakes += 1
                    overhead_j += problem.wake_j
                moved_until = end
                if dma:
                    channel = settled[target] = end
                    if action is Action.PAGE_IN:
                        arrived[target] = end
                else:
                    cpu = end
                transfer_s += seconds
                overhead_j += joules
                moved += tensor.nbytes
            starts.append(start)
            ends.append(end)
        makespan = max(cpu, channel)
        if deadline_s is not None and makespan > deadline_s * (1 + RELATIVE_TOLERANCE):
            raise PlanError(
                f"the plan takes {makespan:.9g} s, {makespan - deadline_s:.3g} s more than "
                f"the deadline of {deadline_s:.9g} s"
            )
        return Simulation(
            peak_bytes=max(max(live, default=0), self.initial_bytes),
            energy_j=problem.baseline_energy_j + overhead_j,
            overhead_j=overhead_j,
            compute_s=compute_s,
            transfer_s=transfer_s,
            waits_s=waits,
            makespan_s=makespan,
            recomputes=recomputes,
            page_ins=page_ins,
            page_outs=page_outs,
            wakes=wakes,
            bytes_paged=moved,
            stored_bytes=self.stored_bytes,
            live_bytes=live,
            start_s=tuple(starts),
            end_s=tuple(ends),
        )

    def _refuse(self, index: int, what: str) -> NoReturn:
        """Raise PlanError on instruction `index`."""
        step = self.instructions[index]
        entries = self.problem.operators if step.action is Action.COMPUTE else self.problem.tensors
        name = repr(entries[step.target].name) if 0 <= step.target < len(entries) else f"number {step.target}"
        raise PlanError(f"instruction {index} ({step.action} {name}): {what}")


def _full(problem: Problem, blocks: int) -> str:
    """What is wrong with so many blocks on storage."""
    unit = problem.storage_block_bytes
    rounded = f" in blocks of {unit}" if unit > 1 else ""
    return (
        f"what is written out takes {blocks * unit:,} bytes{rounded}, more than the storage of {problem.device!r} "
        f"holds, {problem.storage_bytes:,}"
    )
