"""Decisions of a model by the symbols of the mathematics, indexed by operator j, tensor i and stage t."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from poetopt.formulations.block import OrZero
from poetopt.formulations.retention.space import RetentionSpace


class Symbols:
    """Variables `r[j, t]`, `k[i, t]`, `p[i, t]`, `o[i]`, `y_in[i, j, t]` and `y_out[i]` of the blocks of a model."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.space: RetentionSpace = model.space
        self.producer = [tensor.producer for tensor in self.space.problem.tensors]
        self.y: Sequence[Any] = list(model.streaming.y.values()) if self.space.streams else []

    @cached_property
    def r(self) -> OrZero:
        """Recomputes, by operator and stage."""
        return OrZero(zip(self.space.recompute_of, self._model.recompute.r.values(), strict=True))

    @cached_property
    def k(self) -> OrZero:
        """Kept tensors, by tensor and stage."""
        return OrZero(zip(self.space.point_of, self._model.residency.k.values(), strict=True))

    @cached_property
    def p(self) -> OrZero:
        """Page-ins, by tensor and stage."""
        points = list(self.space.point_of)
        paged = [points[e] for e in self.space.page_point.tolist()] if self.space.paging else []
        return OrZero(zip(paged, self._model.paging.p.values() if paged else (), strict=True))

    @cached_property
    def o(self) -> OrZero:
        """Page-outs, by tensor."""
        return OrZero(zip(self.space.written.tolist(), self._model.paging.o.values(), strict=True))

    @cached_property
    def y_in(self) -> OrZero:
        """Sums of runs that stream a tensor in, by tensor, operator and stage."""
        return OrZero((run, sum(self.y[n] for n in numbers)) for run, numbers in self.space.streamed_in.items())

    @cached_property
    def y_out(self) -> OrZero:
        """Sums of runs that stream a tensor out, by tensor."""
        return OrZero((i, sum(self.y[n] for n in numbers)) for i, numbers in self.space.streamed_out.items())

    @cached_property
    def before(self) -> dict[tuple[int, int], tuple[int, int]]:
        """Map from (i, q) to (i, q^-), if there is one."""
        return self._neighbours(self.space.point_before.tolist())

    @cached_property
    def after(self) -> dict[tuple[int, int], tuple[int, int]]:
        """Map from (i, q) to (i, q^+), if there is one."""
        return self._neighbours(self.space.point_after.tolist())

    def _neighbours(self, others: list[int]) -> dict[tuple[int, int], tuple[int, int]]:
        points = list(self.space.point_of)
        return {point: points[e] for point, e in zip(points, others, strict=True) if e >= 0}

    def a(self, i: int, q: int) -> Any:
        """Return the availability of tensor i at its point in stage q: kept, made again or paged in."""
        return self.k[i, q] + self.r[self.producer[i], q] + self.p[i, q]
