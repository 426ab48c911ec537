"""Decisions of a model stage by stage, in one form for all formulations, so that a block can read them in each.

`recomputes(model)`, `page_ins(model)` and `page_outs(model)` return a `Decision` for each binary of a stage. The pairs
of a `Schedule` have the same meaning, and so do `Trial.recomputes`, `Trial.page_ins` and `Trial.page_outs` of a
simulated plan. A page-out of stage t is queued when t begins, before anything that t computes.

A block that reads them depends on the stages of transfers: `Block.transfer_times`. A block that makes such decisions
offers them as attributes of these names, each of type `Decisions`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from poetopt.formulations.rows import Ints
from poetopt.util.errors import FormulationError


class Decision(NamedTuple):
    """A binary that is 1 if `target` (an operator or a tensor) is recomputed or moved in `stage`."""

    stage: int
    target: int
    variable: Any


@dataclass(frozen=True, eq=False)
class Decisions:
    """Entries of a variable as decisions, in parallel arrays (n,): entries, stages, and operators or tensors."""

    variable: Any
    entries: Ints
    stages: Ints
    targets: Ints

    def __iter__(self) -> Iterator[Decision]:
        variables = list(self.variable.values())
        rows = zip(self.stages.tolist(), self.targets.tolist(), self.entries.tolist(), strict=True)
        return (Decision(stage, target, variables[entry]) for stage, target, entry in rows)


def recomputes(model: Any) -> list[Decision]:
    """Return the recomputes of operators, each with its stage."""
    return _collect(model, "recomputes")


def page_ins(model: Any) -> list[Decision]:
    """Return the page-ins of tensors, each with its stage; none without paging."""
    return _collect(model, "page_ins")


def page_outs(model: Any) -> list[Decision]:
    """Return the page-outs of tensors, each with its stage; none without paging.

    Raises
    ------
    FormulationError
        All blocks of the model have `transfer_times=False`, so that it has no such decisions.
    """
    space = model.space
    if space.paging and not getattr(space, "transfer_times", True):
        raise FormulationError(
            "this model has no decisions on page-out stages, because all its blocks have transfer_times=False. The "
            "block that reads page_outs must not set transfer_times=False"
        )
    return _collect(model, "page_outs")


def _collect(model: Any, attribute: str) -> list[Decision]:
    decisions: list[Decision] = []
    for name in model.block_names:
        offered = getattr(model.component(name), attribute, None)
        if isinstance(offered, Decisions):
            decisions += offered
    return decisions
