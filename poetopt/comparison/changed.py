"""A problem on a device with one figure changed: what `sensitivity` solves."""

from __future__ import annotations

from dataclasses import replace

from poetopt.problem import Problem

PARAMETERS = ("storage throughput", "storage power", "CPU rate")
Latencies = tuple[float, float]
"""Seconds before the first byte of a page-in, and of a page-out."""


def changed(
    problem: Problem,
    parameter: str,
    factor: float,
    *,
    storage_share: float = 1.0,
    latencies_s: Latencies | None = None,
) -> Problem:
    """`problem` on a device with one figure multiplied by `factor`.

    parameter
        One of `PARAMETERS`.
    storage_share
        The part of a transfer's power that is the storage's; the rest is the CPU's.
    latencies_s
        What throughput doesn't change: the device's own. None where they aren't known (a problem file): the line
        through the smallest and the largest transfer tells them then.
    """
    if parameter == "CPU rate":
        operators = tuple(
            replace(operator, time_s=operator.time_s / factor, energy_j=operator.energy_j / factor)
            for operator in problem.operators
        )
        return replace(problem, operators=operators)
    if parameter == "storage power":
        times = 1.0 + storage_share * (factor - 1.0)
        tensors = tuple(
            tensor.moved_for(page_in_j=tensor.page_in_j * times, page_out_j=tensor.page_out_j * times)
            for tensor in problem.tensors
        )
        return replace(problem, tensors=tensors)
    if parameter != "storage throughput":
        raise ValueError(f"unknown parameter {parameter!r}: there are {', '.join(PARAMETERS)}")
    in_latency, out_latency = latencies_s or (
        _latency([(tensor.nbytes, tensor.page_in_s) for tensor in problem.tensors]),
        _latency([(tensor.nbytes, tensor.page_out_s) for tensor in problem.tensors]),
    )
    slower = []
    for tensor in problem.tensors:
        in_s = in_latency + (tensor.page_in_s - in_latency) / factor
        out_s = out_latency + (tensor.page_out_s - out_latency) / factor
        slower.append(
            tensor.moved_for(
                page_in_s=in_s,
                page_out_s=out_s,
                page_in_j=tensor.page_in_j * (in_s / tensor.page_in_s if tensor.page_in_s else 1.0),
                page_out_j=tensor.page_out_j * (out_s / tensor.page_out_s if tensor.page_out_s else 1.0),
            )
        )
    return replace(problem, tensors=tuple(slower))


def _latency(sizes: list[tuple[int, float]]) -> float:
    """Seconds of a transfer of nothing: where the line through the smallest and the largest transfer begins."""
    if not sizes:
        return 0.0
    (small, first), (large, last) = min(sizes), max(sizes)
    if large == small:
        return 0.0
    return min(max(first - small * (last - first) / (large - small), 0.0), min(seconds for _, seconds in sizes))
