"""Streamed runs: the variants by which each run of a space may stream.

A run is the first one of an operator, in its own stage, or a recompute. The space leaves out variants that some optimal
schedule doesn't need:

- A variant that takes more RAM than the budget.
- A variant that is no better than another one with the same streamed tensors: in workspace, joules, seconds and bytes
  written.
- A variant whose cost, plus the least cost of first runs that must stream, exceeds the ceiling of `Limits`.
- For first runs, if only joules count: a variant that costs no less than paging its streamed tensors in before and out
  afterwards, and takes no less RAM than the plain run.

The space also leaves out two kinds of variants that a plan may use: recomputes that stream an output to storage (its
first run could have), and variants that stream tensors without bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from poetopt.formulations.block import Limits
from poetopt.formulations.rows import Ints
from poetopt.graph.problem import Problem, ProblemOperator, Variant
from poetopt.graph.problem.problem import run_bytes

ROUNDING_ERROR = 1e-9
"""Upper bound of the relative rounding error of sums of joules."""


def _empty() -> Ints:
    return np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Streams:
    """Streamed runs as parallel arrays, sorted by stage, operator and variant.

    Attributes
    ----------
    operator, stage, variant
        (n_streams,) operator and stage of each run, and its variant as an `Instruction` numbers them.
    """

    operator: Ints = field(default_factory=_empty)
    stage: Ints = field(default_factory=_empty)
    variant: Ints = field(default_factory=_empty)

    def __bool__(self) -> bool:
        return len(self.operator) > 0


def streamed_runs(
    problem: Problem, limits: Limits, recomputes: Iterator[tuple[int, int]], paging: bool, *, lean: bool
) -> Streams:
    """Return the streamed runs of a space.

    Parameters
    ----------
    recomputes
        (operator, stage) of each recompute, by stage.
    lean
        Whether only joules count.
    """
    if not paging or not any(operator.variants for operator in problem.operators):
        return Streams()
    room = limits.ram_bytes - problem.reserve_bytes
    simple = lean and not limits.open and limits.compute_s is None and limits.makespan_s is None and not problem.wake_j
    first, again = [], []
    forced = _forced_j(problem, room)
    # the least cost of runs that must stream reduces the ceiling of all others
    remaining_j = limits.ceiling_j * (1 + ROUNDING_ERROR) - sum(forced)
    for k, operator in enumerate(problem.operators):
        fits = [
            v
            for v, variant in enumerate(operator.variants, 1)
            if all(problem.tensors[i].nbytes for i in (*variant.streamed_in, *variant.streamed_out))
            and (limits.open or run_bytes(problem, k, v) <= room)
        ]
        best = _undominated(operator, fits) if not limits.open else fits
        affordable = [
            v for v in best if operator.variants[v - 1].energy_j - operator.energy_j <= remaining_j + forced[k]
        ]
        first.append([v for v in affordable if not (simple and _paging_is_better(problem, k, v))])
        recompute_variants = [v for v in best if not operator.variants[v - 1].streamed_out]
        again.append([v for v in recompute_variants if operator.variants[v - 1].energy_j <= remaining_j])
    runs = [(t, t, v) for t, variants in enumerate(first) for v in variants]
    runs += [(t, k, v) for k, t in recomputes for v in again[k]]
    stage, operators, variant = np.array(sorted(runs), dtype=np.int64).reshape(-1, 3).T
    return Streams(operators, stage, variant)


def _forced_j(problem: Problem, room: int) -> list[float]:
    """Return for each operator the least cost of its first run above a plain one; 0 if the plain one fits."""
    costs_j = []
    for k, operator in enumerate(problem.operators):
        fitting = (v for v in problem.ways(k) if run_bytes(problem, k, v) <= room)
        costs_j.append(min((operator.variant(v).energy_j - operator.energy_j for v in fitting), default=0.0))
    return costs_j


def _undominated(operator: ProblemOperator, variants: list[int]) -> list[int]:
    """Return the variants that no other one with the same streamed tensors dominates; of equal ones the first."""

    def figures(v: int) -> tuple[float, ...]:
        variant = operator.variants[v - 1]
        return variant.workspace_bytes, variant.energy_j, variant.time_s, variant.written_bytes

    def streams(v: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        variant = operator.variants[v - 1]
        return variant.streamed_in, variant.streamed_out

    def is_dominated(v: int, other: int) -> bool:
        if other == v or streams(other) != streams(v):
            return False
        a, b = figures(other), figures(v)
        return all(x <= y for x, y in zip(a, b, strict=True)) and (a != b or other < v)

    return [v for v in variants if not any(is_dominated(v, other) for other in variants)]


def _paging_is_better(problem: Problem, k: int, v: int) -> bool:
    """Return whether the plain run with transfers around it costs and takes no more than the variant."""
    operator, tensors = problem.operators[k], problem.tensors
    variant: Variant = operator.variants[v - 1]
    moved = sum(tensors[i].page_in_j for i in variant.streamed_in) + sum(
        tensors[i].page_out_j for i in variant.streamed_out
    )
    return operator.energy_j + moved <= variant.energy_j and run_bytes(problem, k) <= run_bytes(problem, k, v)
