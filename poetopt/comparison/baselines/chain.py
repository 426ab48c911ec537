"""Conversion of a general graph into a chain of segments, for methods that handle only chains.

The forward order is cut after each operator that all further flow passes through: later forward operators read only its
outputs and graph inputs. These operators are the articulation points of the forward graph that lie on every path, and
its first operator. Between two cuts lies a *segment*, one unit of a chain. The tensors that cross a cut are the
*boundary* of the following segment. The backward operators follow in contiguous runs, each run the backward pass of one
segment.

A small tensor that many segments read (an attention mask) would join them all into one. Such *shared* tensors don't
count as flow: they stay in RAM from their compute to their last read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from poetopt.comparison.baselines.keeping import forward_operators
from poetopt.graph.problem import Problem


@dataclass(frozen=True)
class ForwardChain:
    """Segments of a problem, numbered from 0 in forward order.

    Attributes
    ----------
    segments
        Forward operators of each segment.
    shared
        Tensors that always stay in RAM.
    """

    problem: Problem
    segments: tuple[tuple[int, ...], ...]
    shared: frozenset[int] = frozenset()

    def __len__(self) -> int:
        return len(self.segments)

    @cached_property
    def segment_of(self) -> dict[int, int]:
        """Segment of each forward operator."""
        return {operator: k for k, segment in enumerate(self.segments) for operator in segment}

    @cached_property
    def boundary(self) -> tuple[tuple[int, ...], ...]:
        """Tensors that each segment reads from the one before it; the first segment reads graph inputs.

        One more entry at the end is empty.
        """
        boundaries: list[set[int]] = [set() for _ in range(len(self) + 1)]
        for operator, k in self.segment_of.items():
            for i in self.problem.operators[operator].inputs:
                tensor = self.problem.tensors[i]
                if i in self.shared:
                    continue
                if not tensor.computed and k == 0:
                    boundaries[0].add(i)
                elif tensor.computed and self.segment_of.get(tensor.producer, k) < k:
                    boundaries[k].add(i)
        return tuple(tuple(sorted(tensors)) for tensors in boundaries)

    @cached_property
    def backward_start(self) -> tuple[int, ...]:
        """Stage in which the backward pass of each segment begins.

        A backward operator belongs to the segment whose inner activations it reads. If it reads only boundaries, it
        belongs to the segment behind the first of them. If it reads neither (or only outputs of the loss), it belongs
        to the segment of the operator before it.
        """
        problem, last = self.problem, self.problem.last_forward
        segment_behind = {i: k for k, tensors in enumerate(self.boundary) for i in tensors if k}
        segment = len(self) - 1
        starts = [len(problem.operators)] * len(self)
        for index, operator in enumerate(problem.operators):
            if index <= last:
                continue
            inner_segments, boundary_segments = [], []
            for i in operator.inputs:
                producer = problem.tensors[i].producer
                if i in self.shared:
                    continue
                if i in segment_behind:
                    boundary_segments.append(segment_behind[i])
                elif producer in self.segment_of and producer != last:
                    inner_segments.append(self.segment_of[producer])
            if inner_segments:
                segment = min(segment, max(inner_segments))
            elif boundary_segments:
                segment = min(segment, min(boundary_segments))
            starts[segment] = min(starts[segment], index)
        for k in range(len(self) - 1, -1, -1):
            # A segment without a backward pass of its own begins with that of the next segment.
            if starts[k] == len(problem.operators):
                later = [starts[h] for h in range(k) if starts[h] < len(problem.operators)]
                starts[k] = min(later, default=len(problem.operators) - 1)
        return tuple(min(start, len(problem.operators) - 1) for start in starts)

    def cost(self, values: Iterable[float]) -> list[float]:
        """Return the sum over each segment of one value for each operator (joules, seconds)."""
        value_list = list(values)
        return [sum(value_list[operator] for operator in segment) for segment in self.segments]

    def again(
        self, first: int, end: int, *, stage: int | None = None, hold_last: bool = False
    ) -> list[tuple[int, int]]:
        """Return the recomputes of segments first..end-1 in a stage.

        By default the stage is that in which the backward pass of segment end-1 begins.

        Parameters
        ----------
        hold_last
            Omit the operator that writes the boundary behind the segments, which is still in RAM from its last read.
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
    """Return the small tensors that the whole forward graph reads."""
    forward = forward_operators(problem)
    forward_set = set(forward)
    total_bytes = sum(tensor.nbytes for tensor in problem.tensors if tensor.producer in forward_set)
    shared = set()
    for i, (tensor, readers) in enumerate(zip(problem.tensors, problem.readers, strict=True)):
        reads = [reader for reader in readers if reader in forward_set]
        # A shared tensor has at least four forward readers, over a quarter of the forward operators, and at most 1/64
        # of all activations' bytes.
        if tensor.producer not in forward_set or len(reads) < 4 or tensor.nbytes > total_bytes / 64:
            continue
        if reads[-1] - tensor.producer >= 0.25 * len(forward):
            shared.add(i)
    return frozenset(shared)


def chain_of(problem: Problem) -> ForwardChain:
    """Cut the forward graph into segments; a graph without a cut is one segment."""
    forward = forward_operators(problem)
    position_of = {operator: position for position, operator in enumerate(forward)}
    # reach[p]: last forward position that reads an output of position p
    reach = [0] * len(forward)
    shared = shared_tensors(problem)
    for i, (tensor, readers) in enumerate(zip(problem.tensors, problem.readers, strict=True)):
        if tensor.producer in position_of and i not in shared:
            ends = [position_of[reader] for reader in readers if reader in position_of]
            producer_position = position_of[tensor.producer]
            reach[producer_position] = max(reach[producer_position], max(ends, default=producer_position))
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
