"""The decisions of a model stage by stage, told alike by every formulation: a block that reads it works in all of them.

`recomputes(model)`, `page_ins(model)` and `page_outs(model)` give a `Decision` for each binary that says "in this
stage". They mean what the pairs of a `Schedule` do, and `Trial.recomputes` and its kin are the same of a simulated
plan: a page-out of stage t is queued as t begins, before anything that t computes.

A block that reads them cares when tensors are moved: `Block.transfer_times`. Blocks that decide such things say so with
attributes of these names, `Decisions` each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from poetopt.formulations.rows import Ints
from poetopt.util.errors import FormulationError


class Decision(NamedTuple):
    """A binary: what is recomputed (an operator) or moved (a tensor) in a stage, where it is 1."""

    stage: int
    target: int
    variable: Any


@dataclass(frozen=True, eq=False)
class Decisions:
    """Entries of a variable as decisions, in parallel arrays: (n,) its entries, their stages, operators or tensors."""

    variable: Any
    entries: Ints
    stages: Ints
    targets: Ints

    def __iter__(self) -> Iterator[Decision]:
        variables = list(self.variable.values())
        rows = zip(self.stages.tolist(), self.targets.tolist(), self.entries.tolist(), strict=True)
        return (Decision(stage, target, variables[entry]) for stage, target, entry in rows)


def recomputes(model: Any) -> list[Decision]:
    """The recomputes of operators, each with its stage."""
    return _told(model, "recomputes")


def page_ins(model: Any) -> list[Decision]:
    """The page-ins of tensors, each with its stage; none where nothing is paged."""
    return _told(model, "page_ins")


def page_outs(model: Any) -> list[Decision]:
    """The page-outs of tensors, each with its stage; none where nothing is paged.

    Raises FormulationError where the model's blocks all say that they don't care.
    """
    space = model.space
    if space.paging and not getattr(space, "transfer_times", True):
        raise FormulationError(
            "when tensors are written is no decision of this model, as all its blocks say transfer_times=False; the "
            "block that asks for it must not"
        )
    return _told(model, "page_outs")


def _told(model: Any, attribute: str) -> list[Decision]:
    found: list[Decision] = []
    for name in model.block_names:
        told = getattr(model.component(name), attribute, None)
        if isinstance(told, Decisions):
            found += told
    return found
