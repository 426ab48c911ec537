"""A problem on a device with one figure changed: what `sensitivity` solves.

A figure stands for all that follows from it: the storage's power for what waking it takes, too, as that is power for a
while; the CPU's rate for that of its memory. Costs are then those of a device file with these figures changed.

A bound that was proven for one device, and what it proves of another.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from poetopt.devices.cost import zero_first
from poetopt.graph.problem import Problem, ProblemOperator, ProblemTensor


@dataclass(frozen=True)
class Bound:
    """A bound on the overhead that was proven on a device."""

    problem: Problem
    deadline_s: float | None
    overhead_j: float | None

    def there(self, problem: Problem, deadline_s: float | None) -> float:
        """The bound that it proves of another device; 0 where a schedule may be in time there that isn't here.

        A schedule's overhead is a sum of its computes', transfers' and wakes' joules. Where each of them is at least
        c times what it is here, so is every schedule's overhead, and the least of all.
        """
        if self.overhead_j is None or deadline_s != self.deadline_s:
            return 0.0
        if _seconds(problem) != _seconds(self.problem) and (deadline_s is not None or problem.wake_j):
            return 0.0  # when transfers happen decides what is in time, and how often the storage wakes
        pairs = zip(_joules(problem), _joules(self.problem), strict=True)
        return self.overhead_j * min((there / here for there, here in pairs if here), default=0.0)


def _seconds(problem: Problem) -> list[float]:
    transfers = [seconds for tensor in problem.tensors for seconds in (tensor.page_in_s, tensor.page_out_s)]
    return [operator.time_s for operator in problem.operators] + transfers


def _joules(problem: Problem) -> list[float]:
    transfers = [joules for tensor in problem.tensors for joules in (tensor.page_in_j, tensor.page_out_j)]
    return [problem.wake_j, *(operator.energy_j for operator in problem.operators), *transfers]


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
    by_time: bool = True,
) -> Problem:
    """`problem` on a device with one figure multiplied by `factor`.

    parameter
        One of `PARAMETERS`.
    storage_share
        The part of a transfer's power that is the storage's; the rest is the CPU's.
    latencies_s
        What throughput doesn't change: the device's own. None where they aren't known (a problem file): the line
        through the smallest and the largest transfer tells them then.
    by_time
        Whether an operator's joules are its seconds times a power; else they are so many for a FLOP, whatever the rate.
    """
    if parameter == "CPU rate":
        operators = tuple(_quicker(operator, factor, by_time) for operator in problem.operators)
        return replace(problem, operators=operators)
    if parameter == "storage power":
        times = 1.0 + storage_share * (factor - 1.0)
        tensors = tuple(
            tensor.moved_for(page_in_j=tensor.page_in_j * times, page_out_j=tensor.page_out_j * times)
            for tensor in problem.tensors
        )
        operators = tuple(_streamed(operator, j=times) for operator in problem.operators)
        return replace(problem, tensors=tensors, operators=operators, wake_j=problem.wake_j * factor)
    if parameter != "storage throughput":
        raise ValueError(f"unknown parameter {parameter!r}: there are {', '.join(PARAMETERS)}")
    in_latency, out_latency = latencies_s or (
        _latency([(tensor.nbytes, tensor.page_in_s) for tensor in problem.tensors]),
        _latency([(tensor.nbytes, tensor.page_out_s) for tensor in problem.tensors]),
    )
    slower = []
    for tensor in problem.tensors:
        ins, outs = _transfers(problem, tensor) if latencies_s else (1.0, 1.0)
        in_s = ins * in_latency + (tensor.page_in_s - ins * in_latency) / factor
        out_s = outs * out_latency + (tensor.page_out_s - outs * out_latency) / factor
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


def labels(problem: Problem) -> dict[str, str]:
    """The name of each of `PARAMETERS` where something else changes with it."""
    return {"storage power": "storage power, with waking"} if problem.wake_j else {}


def _transfers(problem: Problem, tensor: ProblemTensor) -> tuple[float, float]:
    """Numbers of transfers in the seconds of a page-in, and of a page-out: of each part, and of each row of a table."""
    graph, count = problem.graph, float(problem.parts)
    if graph is None or tensor.name not in graph.tensors:
        return count, count
    if tensor.name in zero_first(graph):
        return count - 1, count
    rows = graph.tensors[tensor.name].shape[0] if tensor.name in graph.rows else 1
    return rows * count, rows * count


def _quicker(operator: ProblemOperator, factor: float, by_time: bool) -> ProblemOperator:
    """The operator at so many times the CPU's rate; what its variants move takes what it took."""
    time_s = operator.time_s / factor
    energy_j = operator.energy_j / factor if by_time else operator.energy_j
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
