"""The decisions of a schedule, between a model's solution and a plan's instructions.

A *stage* t begins after the first compute of operator t-1 and ends with the first compute of
operator t.
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
    """The decisions of a schedule.

    recomputes
        (stage, operator) pairs: the operator runs again in that stage.
    page_ins
        (stage, tensor) pairs: the tensor comes back from storage in that stage.
    page_outs
        (stage, tensor) pairs: the tensor is written to storage as that stage begins, and stays in RAM until then; a
        stage after the last one is the step's end. A tensor that has none is written where it always may be
        (`Problem.written_in`), once, if it goes to storage at all.
    variants
        (stage, operator, variant): the operator's run in that stage is by one of its variants, numbered as in
        `Instruction`. Its first run is in the stage of its own number; all other runs are plain.
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
        """A schedule without the page-outs that go without saying: so equal decisions make equal schedules."""
        stages: dict[int, set[int]] = {}
        for stage, i in page_outs:
            stages.setdefault(i, set()).add(stage)
        told = [(stage, i) for i, found in stages.items() if found != {problem.written_in(i)} for stage in found]
        return cls(frozenset(recomputes), frozenset(page_ins), frozenset(told), frozenset(variants))

    @cached_property
    def variant_of(self) -> Mapping[tuple[int, int], int]:
        """(stage, operator) -> the variant of that run, of those that aren't plain."""
        return {(stage, operator): variant for stage, operator, variant in self.variants}

    @cached_property
    def first_page_ins(self) -> Mapping[int, int]:
        """Tensor -> the stage of its first page-in."""
        return {i: stage for stage, i in sorted(self.page_ins, reverse=True)}

    def writes_again(self, problem: Problem) -> bool:
        """Tell whether a paged tensor is recomputed before its first page-in: either copy may be written out."""
        return any(
            stage <= self.first_page_ins.get(i, -1)
            for stage, operator in self.recomputes
            for i in problem.operators[operator].outputs
        )


@dataclass(frozen=True, eq=False)
class FractionalSchedule:
    """The shares of a relaxation's point: each decision between 0 and 1.

    kept
        (n_tensors, n_stages): how much of a tensor stays from a stage to the next.
    recomputes
        (stage, operator) -> how much of the operator runs again there; pairs without any are left out.
    page_ins
        (stage, tensor) -> how much of the tensor comes back from storage there; pairs without any are left out.
    variants
        (stage, operator, variant) -> how much of the operator's run there is by the variant.
    """

    kept: NDArray[np.float64]
    recomputes: Mapping[tuple[int, int], float]
    page_ins: Mapping[tuple[int, int], float]
    variants: Mapping[tuple[int, int, int], float] = field(default_factory=dict)
