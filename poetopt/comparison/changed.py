"""A problem on a device with one figure changed: what `sensitivity` solves."""

from __future__ import annotations

from dataclasses import replace

from poetopt.problem import Problem, ProblemOperator

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
        operators = tuple(_quicker(operator, factor) for operator in problem.operators)
        return replace(problem, operators=operators)
    if parameter == "storage power":
        times = 1.0 + storage_share * (factor - 1.0)
        tensors = tuple(
            tensor.moved_for(page_in_j=tensor.page_in_j * times, page_out_j=tensor.page_out_j * times)
            for tensor in problem.tensors
        )
        return replace(problem, tensors=tensors, operators=tuple(_streamed(o, j=times) for o in problem.operators))
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
    # of the largest, whose last block is a small part of it
    large = max(problem.tensors, key=lambda tensor: tensor.nbytes)
    size = large.nbytes or 1
    byte_s = (large.page_in_s - in_latency) / size, (large.page_out_s - out_latency) / size
    operators = tuple(_streamed(operator, saved=1 - 1 / factor, byte_s=byte_s) for operator in problem.operators)
    return replace(problem, tensors=tuple(slower), operators=operators)


def _quicker(operator: ProblemOperator, factor: float) -> ProblemOperator:
    """The operator at so many times the CPU's rate; what its variants move takes what it took."""
    time_s, energy_j = operator.time_s / factor, operator.energy_j / factor
    variants = tuple(
        replace(way, time_s=way.time_s - operator.time_s + time_s, energy_j=way.energy_j - operator.energy_j + energy_j)
        for way in operator.variants
    )
    return replace(operator, time_s=time_s, energy_j=energy_j, variants=variants)


def _streamed(
    operator: ProblemOperator, *, j: float = 1.0, saved: float = 0.0, byte_s: tuple[float, float] = (0.0, 0.0)
) -> ProblemOperator:
    """The operator where what its variants move takes `j` times the joules, or saves a part of each byte's seconds.

    byte_s
        Seconds of a byte read and of one written, without the latencies of chunks.
    """
    variants = []
    for way in operator.variants:
        moves_s, moves_j = way.time_s - operator.time_s, way.energy_j - operator.energy_j
        less_s = saved * (way.read_bytes * byte_s[0] + way.written_bytes * byte_s[1])
        share = (moves_s - less_s) / moves_s if moves_s else 1.0
        variants.append(replace(way, time_s=way.time_s - less_s, energy_j=operator.energy_j + moves_j * share * j))
    return replace(operator, variants=tuple(variants))


def _latency(sizes: list[tuple[int, float]]) -> float:
    """Seconds of a transfer of nothing: where the line through the smallest and the largest transfer begins."""
    if not sizes:
        return 0.0
    (small, first), (large, last) = min(sizes), max(sizes)
    if large == small:
        return 0.0
    return min(max(first - small * (last - first) / (large - small), 0.0), min(seconds for _, seconds in sizes))
