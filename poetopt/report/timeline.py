"""Who does what when: the CPU and the transfer channel, each as slices that never overlap."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from poetopt.plan.effects import effects
from poetopt.plan.instructions import Action

if TYPE_CHECKING:
    from poetopt.report.view import View


class Lane(StrEnum):
    """What works."""

    CPU = "cpu"
    CHANNEL = "channel"
    """Transfers; on a device without DMA the CPU itself, which computes nothing meanwhile."""


class Kind(StrEnum):
    """What it does."""

    FORWARD = "forward"
    BACKWARD = "backward"
    RECOMPUTE = "recompute"
    PAGE_OUT = "page_out"
    PAGE_IN = "page_in"
    WAIT = "wait"
    """The CPU stands still until a transfer ends; or, without DMA, is busy with one."""


@dataclass(frozen=True, slots=True)
class Slice:
    """A stretch of time on one lane.

    step
        The instruction that runs; for a WAIT the one that waits.
    cause
        The instruction of the transfer that a WAIT is for; for other kinds `step` itself.
    start_s, end_s
        Seconds from the start of the training step; equal for work that takes no time.
    """

    lane: Lane
    kind: Kind
    step: int
    cause: int
    start_s: float
    end_s: float


def timeline(view: View) -> tuple[Slice, ...]:
    """All slices, in the order of instructions; on each lane one begins no earlier than the last one ended.

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
            yield Slice(Lane.CHANNEL, Kind.PAGE_IN if paging_in else Kind.PAGE_OUT, index, index, start, end)
            if not problem.dma and end > start:
                yield Slice(Lane.CPU, Kind.WAIT, index, index, start, end)
            continue
        if start > reached:
            effect = table.of(step)
            awaited = [last_page_in[i] for i in effect.reads if i in last_page_in]
            awaited += [last_transfer[i] for i in effect.settles if i in last_transfer]
            if effect.streams:
                awaited += last_transfer.values()
            cause = max(awaited, key=lambda k: (simulation.end_s[k], k))
            yield Slice(Lane.CPU, Kind.WAIT, index, cause, reached, start)
        if step.action is Action.COMPUTE:
            backward = problem.operators[step.target].backward
            kind = Kind.RECOMPUTE if view.again[index] else Kind.BACKWARD if backward else Kind.FORWARD
            yield Slice(Lane.CPU, kind, index, index, start, end)
            way = problem.operators[step.target].variant(step.variant)
            if way.streams:  # the channel is its own meanwhile
                moves = Kind.PAGE_IN if way.streamed_in else Kind.PAGE_OUT
                yield Slice(Lane.CHANNEL, moves, index, index, start, end)
