"""A second clock, written the other way round: an event queue. `three_steps` has the memory."""

from __future__ import annotations

import heapq
from collections import Counter, deque
from dataclasses import dataclass

from poetopt.plan.instructions import Action, Plan


@dataclass(frozen=True)
class Reference:
    energy_j: float
    makespan_s: float
    start_s: list[float]
    end_s: list[float]
    """When each instruction runs; both are when the CPU passes it for a FREE."""


def reference(plan: Plan) -> Reference:
    """What a valid plan needs."""
    return Reference(_energy(plan), *_clock(plan))


def _energy(plan: Plan) -> float:
    problem = plan.problem
    joules = {
        Action.COMPUTE: lambda k: problem.operators[k].energy_j,
        Action.PAGE_OUT: lambda k: problem.tensors[k].page_out_j,
        Action.PAGE_IN: lambda k: problem.tensors[k].page_in_j,
        Action.FREE: lambda k: 0.0,
    }
    return sum(joules[step.action](step.target) for step in plan.instructions)


def _clock(plan: Plan) -> tuple[float, list[float], list[float]]:
    """CPU and channel as two processes; nothing is computed ahead, each waits until it is woken."""
    problem = plan.problem
    start, end = ([0.0] * len(plan.instructions) for _ in range(2))
    if not problem.dma:
        seconds = 0.0
        for place, step in enumerate(plan.instructions):
            start[place] = seconds
            if step.action is Action.COMPUTE:
                seconds += problem.operators[step.target].time_s
            elif step.action is Action.PAGE_OUT:
                seconds += problem.tensors[step.target].page_out_s
            elif step.action is Action.PAGE_IN:
                seconds += problem.tensors[step.target].page_in_s
            end[place] = seconds
        return seconds, start, end
    program = deque(enumerate(plan.instructions))
    channel: deque[tuple[Action, int, int]] = deque()
    pending: Counter[tuple[Action, int]] = Counter()
    events: list[tuple[float, int, str]] = [(0.0, 0, "cpu")]
    cpu_idle, channel_idle = False, True
    ticket, now = 0, 0.0

    def at(time: float, who: str) -> None:
        nonlocal ticket
        ticket += 1
        heapq.heappush(events, (time, ticket, who))

    def blocked(action: Action, target: int) -> bool:
        if action is Action.COMPUTE:
            operator = problem.operators[target]
            arriving = any(pending[Action.PAGE_IN, i] for i in operator.inputs)
            moving = any(pending[way, i] for i in operator.outputs for way in (Action.PAGE_IN, Action.PAGE_OUT))
            return arriving or moving
        if action is Action.FREE:
            return bool(pending[Action.PAGE_IN, target] or pending[Action.PAGE_OUT, target])
        return False

    while events:
        now, _, who = heapq.heappop(events)
        if who == "cpu":
            cpu_idle = True
        else:
            done, tensor, _ = channel.popleft()
            pending[done, tensor] -= 1
            channel_idle = True
        while cpu_idle and program and not blocked(program[0][1].action, program[0][1].target):
            place, step = program.popleft()
            start[place] = end[place] = now
            if step.action is Action.COMPUTE:
                cpu_idle = False
                end[place] = now + problem.operators[step.target].time_s
                at(end[place], "cpu")
            elif step.action is not Action.FREE:
                channel.append((step.action, step.target, place))
                pending[step.action, step.target] += 1
        if channel_idle and channel:
            action, tensor, place = channel[0]
            channel_idle = False
            entry = problem.tensors[tensor]
            start[place] = now
            end[place] = now + (entry.page_out_s if action is Action.PAGE_OUT else entry.page_in_s)
            at(end[place], "channel")
    return now, start, end
