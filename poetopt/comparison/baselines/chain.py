"""A general graph as a chain of segments, for the methods that know only chains.

The forward order is cut after each operator through which all that flows on passes: beyond it, forward operators
read nothing from before it but its own outputs and graph inputs. These are the articulation points of the forward graph
that lie on every path, and its first operator. Between two cuts lies a *segment*, one unit
of a chain; the tensors that cross a cut are the *boundary* of the segment behind it. The backward operators follow in
contiguous runs, each run the backward pass of one segment.

A small tensor that many segments read (an attention mask) would tie them all into one. Such *shared* tensors do not
count as flow: they stay in RAM from their making to their last read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from poetopt.comparison.baselines.keeping import forward_operators
from poetopt.graph.problem import Problem


@dataclass(frozen=True)
class ForwardChain:
    """A problem's segments, numbered from 0 in forward order.

    segments
        The forward operators of each.
    shared
        Tensors that are held throughout.
    """

    problem: Problem
    segments: tuple[tuple[int, ...], ...]
    shared: frozenset[int] = frozenset()

    def __len__(self) -> int:
        return len(self.segments)

    @cached_property
    def segment_of(self) -> dict[int, int]:
        """The segment of each forward operator."""
        return {operator: k for k, segment in enumerate(self.segments) for operator in segment}

    @cached_property
    def boundary(self) -> tuple[tuple[int, ...], ...]:
        """For each segment, the tensors that it reads from the one before it; the first reads graph inputs.

        One more entry at the end is empty.
        """
        found: list[set[int]] = [set() for _ in range(len(self) + 1)]
        for operator, k in self.segment_of.items():
            for i in self.problem.operators[operator].inputs:
                tensor = self.problem.tensors[i]
                if i in self.shared:
                    continue
                if not tensor.computed and k == 0:
                    found[0].add(i)
                elif tensor.computed and self.segment_of.get(tensor.producer, k) < k:
                    found[k].add(i)
        return tuple(tuple(sorted(tensors)) for tensors in found)

    @cached_property
    def backward_start(self) -> tuple[int, ...]:
        """For each segment, the stage in which its backward pass begins.

        A backward operator belongs to the segment whose inner activations it reads; one that reads only boundaries,
        to the segment behind the first of them; one that reads neither (or only what the loss wrote), to the segment
        of the operator before it.
        """
        problem, last = self.problem, self.problem.last_forward
        behind = {i: k for k, tensors in enumerate(self.boundary) for i in tensors if k}
        current = len(self) - 1
        starts = [len(problem.operators)] * len(self)
        for index, operator in enumerate(problem.operators):
            if index <= last:
                continue
            inner, edges = [], []
            for i in operator.inputs:
                producer = problem.tensors[i].producer
                if i in self.shared:
                    continue
                if i in behind:
                    edges.append(behind[i])
                elif producer in self.segment_of and producer != last:
                    inner.append(self.segment_of[producer])
            if inner:
                current = min(current, max(inner))
            elif edges:
                current = min(current, min(edges))
            starts[current] = min(starts[current], index)
        for k in range(len(self) - 1, -1, -1):
            # A segment without a backward pass of its own is dealt with as the next one's begins.
            if starts[k] == len(problem.operators):
                later = [starts[h] for h in range(k) if starts[h] < len(problem.operators)]
                starts[k] = min(later, default=len(problem.operators) - 1)
        return tuple(min(start, len(problem.operators) - 1) for start in starts)

    def cost(self, values: Iterable[float]) -> list[float]:
        """Sums over each segment of a value an operator (joules, seconds)."""
        each = list(values)
        return [sum(each[operator] for operator in segment) for segment in self.segments]

    def again(
        self, first: int, end: int, *, stage: int | None = None, hold_last: bool = False
    ) -> list[tuple[int, int]]:
        """The recomputes of segments first..end-1 in a stage, by default as the backward pass of segment end-1 begins.

        hold_last
            Leave out the operator that writes the boundary behind them, which is still in RAM from
            its last read.
        """
        stage = self.backward_start[end - 1] if stage is None else stage
        held = self.shared.union(self.boundary[end] if hold_last else ())
        return [
            (stage, operator)
            for segment in self.segments[first:end]
            for operator in segment
            if self.problem.operators[operator].recomputable
            and operator < stage
            and not held.intersection(self.problem.operators[operator].outputs)
        ]


def shared_tensors(problem: Problem) -> frozenset[int]:
    """The small tensors that the whole forward graph reads."""
    forward = forward_operators(problem)
    able = set(forward)
    total = sum(tensor.nbytes for tensor in problem.tensors if tensor.producer in able)
    found = set()
    for i, (tensor, readers) in enumerate(zip(problem.tensors, problem.readers, strict=True)):
        reads = [reader for reader in readers if reader in able]
        # A tensor is shared that has so many forward readers, over such a share of the forward operators, and no more
        # than such a share of all activations' bytes
        if tensor.producer not in able or len(reads) < 4 or tensor.nbytes > total / 64:
            continue
        if reads[-1] - tensor.producer >= 0.25 * len(forward):
            found.add(i)
    return frozenset(found)


def chain_of(problem: Problem) -> ForwardChain:
    """Cut the forward graph. A graph with no place to cut is one segment."""
    forward = forward_operators(problem)
    place = {operator: position for position, operator in enumerate(forward)}
    # For each position, the last forward position that reads something from before or at it, from another operator.
    reach = [0] * len(forward)
    shared = shared_tensors(problem)
    for i, (tensor, readers) in enumerate(zip(problem.tensors, problem.readers, strict=True)):
        if tensor.producer in place and i not in shared:
            ends = [place[reader] for reader in readers if reader in place]
            at = place[tensor.producer]
            reach[at] = max(reach[at], max(ends, default=at))
    segments: list[tuple[int, ...]] = []
    current: list[int] = []
    furthest = -1
    for position, operator in enumerate(forward):
        current.append(operator)
        if furthest <= position:
            segments.append(tuple(current))
            current = []
        furthest = max(furthest, reach[position])
    if current:
        segments.append(tuple(current))
    return ForwardChain(problem, tuple(segments), shared)
