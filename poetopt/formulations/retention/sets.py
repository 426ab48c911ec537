"""The Sets of a `retention` model: the decisions that its space has, by name and stage."""

from __future__ import annotations

from poetopt.formulations.retention.space import RetentionSpace
from poetopt.formulations.sets import IndexSet


def _recomputations(space: RetentionSpace) -> list[tuple[str, int]]:
    return space.recomputations


def _points(space: RetentionSpace) -> list[tuple[str, int]]:
    return space.points


def _page_ins(space: RetentionSpace) -> list[tuple[str, int]]:
    return space.page_ins


def _page_outs(space: RetentionSpace) -> list[str]:
    return space.page_outs


SETS = {
    "recomputations": IndexSet(_recomputations, 2, "(operator, stage): the operator may run again there"),
    "points": IndexSet(_points, 2, "(tensor, stage): the tensor may be read or made there"),
    "page_ins": IndexSet(_page_ins, 2, "(tensor, stage): the tensor may be paged in there"),
    "page_outs": IndexSet(_page_outs, 1, "tensors that may be written to storage"),
}
