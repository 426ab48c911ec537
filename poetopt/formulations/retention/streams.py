"""Streamed runs: which runs of a space may go by which variants, and what each of them streams.

A run is the first one of an operator, in its own stage, or a recompute. Left out is what some optimal schedule does
without:

- A variant that takes more room than there is.
- A variant that is no better than another one which streams the same: in workspace, joules, seconds and bytes written.
- A variant that costs more than the ceiling of `Limits`, with what first runs cost that don't fit plain.
- Of first runs, where joules alone count, a variant that costs no less than moving whole what it streams, and takes no
  less room than the plain run does: then it pages in before, and writes out afterwards.

Left out as well, so that plans with them lie outside of the space: recomputes that stream an output to storage (its
first run could have), and variants that stream what takes no room.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from poetopt.formulations.block import Limits
from poetopt.formulations.rows import Ints
from poetopt.graph.problem import Problem, ProblemOperator, Variant
from poetopt.graph.problem.problem import run_bytes

ROUNDED = 1e-9
"""Sums of joules are rounded by less than this share."""


def _none() -> Ints:
    return np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Streams:
    """Streamed runs as parallel arrays, by stage, operator and variant.

    operator, stage, variant
        (n_streams,) whose run, in which stage, by which variant as an `Instruction` numbers them.
    """

    operator: Ints = field(default_factory=_none)
    stage: Ints = field(default_factory=_none)
    variant: Ints = field(default_factory=_none)

    def __bool__(self) -> bool:
        return len(self.operator) > 0


def streamed_runs(
    problem: Problem, limits: Limits, recomputes: Iterator[tuple[int, int]], paging: bool, *, lean: bool
) -> Streams:
    """The streamed runs of a space.

    recomputes
        (operator, stage) of each recompute, by stage.
    lean
        Whether joules alone count.
    """
    if not paging or not any(operator.variants for operator in problem.operators):
        return Streams()
    room = limits.ram_bytes - problem.reserve_bytes
    simple = lean and not limits.open and limits.compute_s is None and limits.makespan_s is None and not problem.wake_j
    first, again = [], []
    forced = _forced_j(problem, room)
    # what some run costs in any case counts for all others
    left = limits.ceiling_j * (1 + ROUNDED) - sum(forced)
    for k, operator in enumerate(problem.operators):
        fits = [
            v
            for v, way in enumerate(operator.variants, 1)
            if all(problem.tensors[i].nbytes for i in (*way.streamed_in, *way.streamed_out))
            and (limits.open or run_bytes(problem, k, v) <= room)
        ]
        best = _undominated(operator, fits) if not limits.open else fits
        own = [v for v in best if operator.variants[v - 1].energy_j - operator.energy_j <= left + forced[k]]
        first.append([v for v in own if not (simple and _whole_is_better(problem, k, v))])
        ways = [v for v in best if not operator.variants[v - 1].streamed_out]
        again.append([v for v in ways if operator.variants[v - 1].energy_j <= left])
    runs = [(t, t, v) for t, variants in enumerate(first) for v in variants]
    runs += [(t, k, v) for k, t in recomputes for v in again[k]]
    stage, operators, variant = np.array(sorted(runs), dtype=np.int64).reshape(-1, 3).T
    return Streams(operators, stage, variant)


def _forced_j(problem: Problem, room: int) -> list[float]:
    """For each operator, what its first run costs above a plain one at least, as that doesn't fit; 0 where it does."""
    found = []
    for k, operator in enumerate(problem.operators):
        ways = (v for v in problem.ways(k) if run_bytes(problem, k, v) <= room)
        found.append(min((operator.variant(v).energy_j - operator.energy_j for v in ways), default=0.0))
    return found


def _undominated(operator: ProblemOperator, variants: list[int]) -> list[int]:
    """Those of some variants than which no other streams the same and is no worse; of equal ones the first."""

    def figures(v: int) -> tuple[float, ...]:
        way = operator.variants[v - 1]
        return way.workspace_bytes, way.energy_j, way.time_s, way.written_bytes

    def streams(v: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        way = operator.variants[v - 1]
        return way.streamed_in, way.streamed_out

    def beaten(v: int, other: int) -> bool:
        if other == v or streams(other) != streams(v):
            return False
        a, b = figures(other), figures(v)
        return all(x <= y for x, y in zip(a, b, strict=True)) and (a != b or other < v)

    return [v for v in variants if not any(beaten(v, other) for other in variants)]


def _whole_is_better(problem: Problem, k: int, v: int) -> bool:
    """Say whether the plain run with transfers around it costs no more than the variant, and takes no more room."""
    operator, tensors = problem.operators[k], problem.tensors
    way: Variant = operator.variants[v - 1]
    moved = sum(tensors[i].page_in_j for i in way.streamed_in) + sum(tensors[i].page_out_j for i in way.streamed_out)
    return operator.energy_j + moved <= way.energy_j and run_bytes(problem, k) <= run_bytes(problem, k, v)
