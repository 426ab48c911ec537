"""A plan prepared for drawing: its simulation, the stage of each instruction, and readable names.

Page, picture and text are drawn from it, so that they can't disagree. It lists the recomputed operators and the paged
tensors with their costs, and the work of the CPU and of the transfer channel as slices that never overlap.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Any

from poetopt.graph.problem import Problem, Variant
from poetopt.plan.assemble import store_all
from poetopt.plan.codec import PlanFile
from poetopt.plan.effects import effects
from poetopt.plan.instructions import Action, Plan
from poetopt.plan.layout import Buffer, arena_bytes, buffers
from poetopt.plan.simulate import Simulation, simulate
from poetopt.util.text import shown


@dataclass(frozen=True, slots=True)
class Recomputed:
    """An operator that runs more than once.

    Attributes
    ----------
    operator
        Index of the operator.
    steps
        The instructions that run it again, in order.
    energy_j
        Joules of these.
    """

    operator: int
    steps: tuple[int, ...]
    energy_j: float


@dataclass(frozen=True, slots=True)
class Paged:
    """A tensor that is written to storage or read from it.

    Attributes
    ----------
    tensor
        Index of the tensor.
    outs, ins
        The instructions that write and read it, in order.
    energy_j
        Joules of all of them.
    """

    tensor: int
    outs: tuple[int, ...]
    ins: tuple[int, ...]
    energy_j: float


def recomputed(view: View) -> tuple[Recomputed, ...]:
    """Return the operators that run more than once, in their order."""
    steps_of_operator: dict[int, list[int]] = {}
    for index, (step, again) in enumerate(zip(view.plan.instructions, view.again, strict=True)):
        if again:
            steps_of_operator.setdefault(step.target, []).append(index)
    runs = view.plan.instructions
    operators = view.problem.operators
    return tuple(
        Recomputed(k, tuple(steps), sum(operators[k].variant(runs[step].variant).energy_j for step in steps))
        for k, steps in sorted(steps_of_operator.items())
    )


def streamed(view: View) -> dict[int, Variant]:
    """Return the variants that stream operands, by their instruction."""
    operators = view.problem.operators
    variants = {
        k: operators[run.target].variant(run.variant) for k, run in enumerate(view.plan.instructions) if run.variant
    }
    return {k: way for k, way in variants.items() if way.streams}


def paged(view: View) -> tuple[Paged, ...]:
    """Return the tensors that are paged, in their order."""
    outs: dict[int, list[int]] = {}
    ins: dict[int, list[int]] = {}
    for index, step in enumerate(view.plan.instructions):
        if step.action is Action.PAGE_OUT:
            outs.setdefault(step.target, []).append(index)
        elif step.action is Action.PAGE_IN:
            ins.setdefault(step.target, []).append(index)
    tensors = []
    for i in sorted(outs.keys() | ins.keys()):
        tensor = view.problem.tensors[i]
        out_steps, in_steps = tuple(outs.get(i, ())), tuple(ins.get(i, ()))
        joules = len(out_steps) * tensor.page_out_j + len(in_steps) * tensor.page_in_j
        tensors.append(Paged(i, out_steps, in_steps, joules))
    return tuple(tensors)


class Lane(StrEnum):
    """The CPU, or the transfer channel."""

    CPU = "cpu"
    CHANNEL = "channel"
    """Transfers; on a device without DMA the CPU makes them, and computes nothing meanwhile."""


class SliceKind(StrEnum):
    """Kinds of work."""

    FORWARD = "forward"
    BACKWARD = "backward"
    RECOMPUTE = "recompute"
    PAGE_OUT = "page_out"
    PAGE_IN = "page_in"
    WAIT = "wait"
    """The CPU waits for the end of a transfer or, without DMA, is busy with one."""


@dataclass(frozen=True, slots=True)
class Slice:
    """A stretch of time on one lane.

    Attributes
    ----------
    step
        The instruction that runs; for a WAIT the one that waits.
    cause
        The instruction of the transfer that a WAIT is for; `step` for other kinds.
    start_s, end_s
        Seconds from the start of the training step; equal for work that takes no time.
    """

    lane: Lane
    kind: SliceKind
    step: int
    cause: int
    start_s: float
    end_s: float


def timeline(view: View) -> tuple[Slice, ...]:
    """Return all slices, in the order of instructions; on each lane they never overlap.

    A FREE has no slice, unless it waits: it takes no time.
    """
    return tuple(_slices(view))


def _slices(view: View) -> Iterator[Slice]:
    problem, simulation, table = view.problem, view.simulation, effects(view.problem)
    last_transfer: dict[int, int] = {}
    last_page_in: dict[int, int] = {}
    for index, step in enumerate(view.plan.instructions):
        reached, start, end = view.reached_s[index], simulation.start_s[index], simulation.end_s[index]
        if step.action in (Action.PAGE_IN, Action.PAGE_OUT):
            paging_in = step.action is Action.PAGE_IN
            last_transfer[step.target] = index
            if paging_in:
                last_page_in[step.target] = index
            yield Slice(Lane.CHANNEL, SliceKind.PAGE_IN if paging_in else SliceKind.PAGE_OUT, index, index, start, end)
            if not problem.dma and end > start:
                yield Slice(Lane.CPU, SliceKind.WAIT, index, index, start, end)
            continue
        if start > reached:
            effect = table.of(step)
            awaited = [last_page_in[i] for i in effect.reads if i in last_page_in]
            awaited += [last_transfer[i] for i in effect.settles if i in last_transfer]
            if effect.streams:
                awaited += last_transfer.values()
            cause = max(awaited, key=lambda k: (simulation.end_s[k], k))
            yield Slice(Lane.CPU, SliceKind.WAIT, index, cause, reached, start)
        if step.action is Action.COMPUTE:
            backward = problem.operators[step.target].backward
            kind = SliceKind.RECOMPUTE if view.again[index] else SliceKind.BACKWARD if backward else SliceKind.FORWARD
            yield Slice(Lane.CPU, kind, index, index, start, end)
            variant = problem.operators[step.target].variant(step.variant)
            if variant.streams:  # it has the channel to itself
                moves = SliceKind.PAGE_IN if variant.streamed_in else SliceKind.PAGE_OUT
                yield Slice(Lane.CHANNEL, moves, index, index, start, end)


@dataclass(frozen=True)
class View:
    """A plan, with its budgets and the report on it.

    Attributes
    ----------
    plan
        A valid plan, laid out or not.
    ram_bytes, deadline_s
        Its budgets, if there were any.
    report
        The report of the solve (`solve --json`); empty if unknown.
    """

    plan: Plan
    ram_bytes: int | None = None
    deadline_s: float | None = None
    report: Mapping[str, object] = field(default_factory=dict)

    @classmethod
    def of(cls, file: PlanFile) -> View:
        """Return the view of a plan file."""
        return cls(file.plan, file.ram_bytes, file.deadline_s, file.report)

    @cached_property
    def document(self) -> Mapping[str, Any]:
        """The figures of the answer, recomputed from the plan; the report adds what can't be recomputed.

        A report of another schedule is ignored, with its claims.
        """
        from poetopt.report.verification import TOLD, compared, recounted

        file = PlanFile(self.plan, self.ram_bytes, self.deadline_s, self.report)
        differs = compared(file, self.simulation)[0]
        if differs or not self.report:
            why = f"its report has other figures than its plan: {differs[0]}" if differs else "no report of a solver"
            recomputed = recounted(replace(file, report={}), self.simulation)
            return {**recomputed, "backend": None, "gap_tolerance": None, "reason": f"nothing is proven: {why}"}
        claims = {key: self.report[key] for key in (*TOLD, "notes", "important") if key in self.report}
        recomputed = {**recounted(file, self.simulation), **claims}
        if (
            "scope_bound_j" not in self.report
            and recomputed["scope"] != "store-all"
            and recomputed["overhead_gap"] is not None
        ):
            recomputed |= {"overhead_gap": 1.0 if self.simulation.overhead_j else 0.0}
        return recomputed

    @property
    def title(self) -> str:
        """Network and device."""
        return f"{self.name} on {self.device}"

    @property
    def problem(self) -> Problem:
        """The problem that the plan schedules."""
        return self.plan.problem

    @cached_property
    def simulation(self) -> Simulation:
        """Bytes, seconds and joules of the plan. Raises PlanError if the plan is not valid."""
        return simulate(self.plan, ram_bytes=self.ram_bytes)

    @cached_property
    def store_all_live_bytes(self) -> tuple[int, ...]:
        """Bytes of store-all in RAM while each operator runs."""
        ordinary = store_all(self.problem)
        live = simulate(ordinary).live_bytes
        found = [0] * len(self.problem.operators)
        for step, held in zip(ordinary.instructions, live, strict=True):
            if step.action is Action.COMPUTE:
                found[step.target] = held
        return tuple(found)

    @cached_property
    def buffers(self) -> tuple[Buffer, ...]:
        """Every allocation, in the order of `Plan.offsets`."""
        return tuple(buffers(self.plan))

    @cached_property
    def arena_bytes(self) -> int | None:
        """Size of the arena, or None if the plan isn't laid out."""
        return arena_bytes(self.plan) if self.plan.offsets else None

    @cached_property
    def again(self) -> tuple[bool, ...]:
        """For each instruction, whether it computes an operator that has run before."""
        seen: set[int] = set()
        is_again = []
        for step in self.plan.instructions:
            compute = step.action is Action.COMPUTE
            is_again.append(compute and step.target in seen)
            if compute:
                seen.add(step.target)
        return tuple(is_again)

    @cached_property
    def stages(self) -> tuple[int, ...]:
        """The stage of each instruction, never decreasing.

        Stage t ends with the first compute of operator t. A FREE or PAGE_OUT after a compute belongs to that compute's
        stage,
        not to the next one, which it only makes room for.
        """
        coming: list[int] = []
        ahead = max(len(self.problem.operators) - 1, 0)
        for step, again in zip(reversed(self.plan.instructions), reversed(self.again), strict=True):
            if step.action is Action.COMPUTE and not again:
                ahead = step.target
            coming.append(ahead)
        stages: list[int] = []
        for step, stage in zip(self.plan.instructions, reversed(coming), strict=True):
            tidying = step.action in (Action.FREE, Action.PAGE_OUT)
            stages.append((stages[-1] if stages else 0) if tidying else stage)
        return tuple(stages)

    @cached_property
    def reached_s(self) -> tuple[float, ...]:
        """Moments at which the CPU reaches each instruction; its allocations are in RAM from then on."""
        cpu, moments = 0.0, []
        for index, step in enumerate(self.plan.instructions):
            moments.append(cpu)
            if not self.beside(step.action):
                cpu = self.simulation.end_s[index]
        return tuple(moments)

    @cached_property
    def left_s(self) -> tuple[float, ...]:
        """Moments at which the CPU leaves each instruction for the next one."""
        cpu = self.reached_s[1:]
        makespan = self.simulation.makespan_s
        return (*cpu, makespan) if self.plan.instructions else ()

    def beside(self, action: Action) -> bool:
        """Return whether instructions of that kind run on the transfer channel, beside the CPU."""
        return self.problem.dma and action in (Action.PAGE_IN, Action.PAGE_OUT)

    @cached_property
    def operator_names(self) -> tuple[str, ...]:
        """Names of the operators: unique, and without control characters."""
        return _readable(operator.name for operator in self.problem.operators)

    @cached_property
    def tensor_names(self) -> tuple[str, ...]:
        """Names of the tensors: unique, and without control characters."""
        return _readable(tensor.name for tensor in self.problem.tensors)

    @property
    def name(self) -> str:
        """The model's name."""
        return shown(self.problem.name) or "a model without a name"

    @property
    def device(self) -> str:
        """The device's name."""
        return shown(self.problem.device)


def _readable(names: Iterable[str]) -> tuple[str, ...]:
    """Return names for people; a name of several entries, or an empty one, gets the index."""
    clean = [shown(name) for name in names]
    count = Counter(clean)
    return tuple(
        name if name and count[name] == 1 else f"{name or 'unnamed'} #{index}" for index, name in enumerate(clean)
    )
