"""Decisions of a schedule, between a model's solution and a plan's instructions.

A *stage* t begins after the first compute of operator t-1 and ends with the first compute of operator t.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from poetopt.graph.problem import Problem


@dataclass(frozen=True)
class Schedule:
    """Decisions of a schedule.

    Attributes
    ----------
    recomputes
        (stage, operator) pairs: the operator runs again in that stage.
    page_ins
        (stage, tensor) pairs: the tensor is read from storage in that stage.
    page_outs
        (stage, tensor) pairs: the tensor is written to storage when that stage begins, and stays in RAM until then. The
        stage after the last one is the step's end. A tensor without a pair is written in its default stage
        (`Problem.written_in`), once, if it goes to storage at all.
    variants
        (stage, operator, variant): the operator runs in that stage as that variant, numbered as in `Instruction`. Its
        first run is in the stage of its own number. All other runs use variant 0.
    """

    recomputes: frozenset[tuple[int, int]] = frozenset()
    page_ins: frozenset[tuple[int, int]] = frozenset()
    page_outs: frozenset[tuple[int, int]] = frozenset()
    variants: frozenset[tuple[int, int, int]] = frozenset()

    @classmethod
    def written(
        cls,
        problem: Problem,
        recomputes: Iterable[tuple[int, int]],
        page_ins: Iterable[tuple[int, int]],
        page_outs: Iterable[tuple[int, int]],
        variants: Iterable[tuple[int, int, int]] = (),
    ) -> Schedule:
        """Return a schedule without page-outs in default stages, so that equal decisions make equal schedules."""
        stages: dict[int, set[int]] = {}
        for stage, i in page_outs:
            stages.setdefault(i, set()).add(stage)
        explicit = [(stage, i) for i, writes in stages.items() if writes != {problem.written_in(i)} for stage in writes]
        return cls(frozenset(recomputes), frozenset(page_ins), frozenset(explicit), frozenset(variants))

    @cached_property
    def variant_of(self) -> Mapping[tuple[int, int], int]:
        """Variant of each run, (stage, operator), that isn't variant 0."""
        return {(stage, operator): variant for stage, operator, variant in self.variants}

    @cached_property
    def first_page_ins(self) -> Mapping[int, int]:
        """Stage of the first page-in of each tensor."""
        return {i: stage for stage, i in sorted(self.page_ins, reverse=True)}

    def writes_again(self, problem: Problem) -> bool:
        """Return whether a paged tensor is recomputed before its first page-in: either copy may be written out."""
        return any(
            stage <= self.first_page_ins.get(i, -1)
            for stage, operator in self.recomputes
            for i in problem.operators[operator].outputs
        )


@dataclass(frozen=True, eq=False)
class FractionalSchedule:
    """Shares of a relaxation's solution: each decision is between 0 and 1.

    Attributes
    ----------
    kept
        (n_tensors, n_stages): share of each tensor that stays in RAM from a stage to the next.
    recomputes
        (stage, operator) -> share of the operator that runs again there; zero shares are left out.
    page_ins
        (stage, tensor) -> share of the tensor that is read from storage there; zero shares are left out.
    variants
        (stage, operator, variant) -> share of the operator's run there by that variant.
    """

    kept: NDArray[np.float64]
    recomputes: Mapping[tuple[int, int], float]
    page_ins: Mapping[tuple[int, int], float]
    variants: Mapping[tuple[int, int, int], float] = field(default_factory=dict)
