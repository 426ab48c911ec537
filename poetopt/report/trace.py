"""A plan as a trace that chrome://tracing and ui.perfetto.dev open: two tracks, and the memory as a counter.

Times are whole nanoseconds, rounded once for each moment, so that slices that touch in the simulation touch
in the trace too and never overlap. Work that takes no time is an instant event.
"""

from __future__ import annotations

import json

from poetopt.plan.instructions import Action
from poetopt.report.timeline import Kind, Lane, timeline
from poetopt.report.view import View

_TRACKS = {Lane.CPU: 1, Lane.CHANNEL: 2}
_COLOURS = {
    Kind.FORWARD: "thread_state_running",
    Kind.BACKWARD: "thread_state_runnable",
    Kind.RECOMPUTE: "bad",
    Kind.PAGE_OUT: "thread_state_iowait",
    Kind.PAGE_IN: "good",
    Kind.WAIT: "grey",
}
"""Names of Chrome's palette; Perfetto colours by name and ignores them."""


def trace_document(view: View) -> dict[str, object]:
    """The object of the JSON Object Format of Chrome's trace events; `ts` and `dur` are in microseconds."""
    return {
        "displayTimeUnit": "ms",
        "otherData": {"model": view.name, "device": view.device, "budget_bytes": view.ram_bytes},
        "traceEvents": [*_headings(view), *_work(view), *_memory(view)],
    }


def trace_text(view: View) -> str:
    """The trace as a JSON text."""
    return json.dumps(trace_document(view), separators=(",", ":"), allow_nan=False) + "\n"


def _headings(view: View) -> list[dict[str, object]]:
    channel = "transfers (DMA)" if view.problem.dma else "transfers (by the CPU)"
    titles = {Lane.CPU: "CPU", Lane.CHANNEL: channel}
    process = {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": f"{view.name} on {view.device}"}}
    threads = [
        {"name": "thread_name", "ph": "M", "pid": 1, "tid": track, "args": {"name": titles[lane]}}
        for lane, track in _TRACKS.items()
    ]
    return [process, *threads]


def _work(view: View) -> list[dict[str, object]]:
    problem, instructions = view.problem, view.plan.instructions
    events: list[dict[str, object]] = []
    for piece in timeline(view):
        step = instructions[piece.step]
        compute = step.action is Action.COMPUTE
        target = (view.operator_names if compute else view.tensor_names)[step.target]
        arguments: dict[str, object] = {"instruction": piece.step, "stage": view.stages[piece.step]}
        if piece.kind is Kind.WAIT:
            name = f"wait for {view.tensor_names[instructions[piece.cause].target]}"
        elif compute:
            operator = problem.operators[step.target]
            way = operator.variant(step.variant)
            name = target if piece.lane is Lane.CPU else f"chunks for {target}"
            arguments |= {"kind": operator.kind, "energy_j": way.energy_j}
            if way.streams:
                arguments |= {"bytes_streamed": way.read_bytes + way.written_bytes}
        else:
            tensor = problem.tensors[step.target]
            paging_in = piece.kind is Kind.PAGE_IN
            name = f"page {'in' if paging_in else 'out'} {target}"
            joules = tensor.page_in_j if paging_in else tensor.page_out_j
            arguments |= {"bytes": tensor.nbytes, "energy_j": joules}
        start, end = _nanoseconds(piece.start_s), _nanoseconds(piece.end_s)
        event: dict[str, object] = {
            "name": name,
            "cat": str(piece.kind),
            "ph": "X" if end > start else "i",
            "pid": 1,
            "tid": _TRACKS[piece.lane],
            "ts": start / 1000,
        }
        event |= {"dur": (end - start) / 1000} if end > start else {"s": "t"}
        events.append({**event, "cname": _COLOURS[piece.kind], "args": arguments})
    return events


def _memory(view: View) -> list[dict[str, object]]:
    """Live bytes: for each moment the most that is live in it, and what stays until the next one."""
    moments: dict[int, tuple[int, int]] = {}
    for reached, live in zip(view.reached_s, view.simulation.live_bytes, strict=True):
        most, _ = moments.get(_nanoseconds(reached), (0, 0))
        moments[_nanoseconds(reached)] = (max(most, live), live)
    return [
        {"name": "memory", "ph": "C", "pid": 1, "ts": moment / 1000, "args": {"bytes": live}}
        for moment, (most, last) in moments.items()
        for live in ([most, last] if most > last else [last])
    ]


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
