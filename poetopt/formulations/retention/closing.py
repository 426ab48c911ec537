"""What follows the last part of a batch, as the parts' schedule decides it.

An update reads its parameter and the gradient's sum from storage, and writes them back there, unless they stay in RAM
from one part to the next. They don't exactly where they are paged in, or streamed, at the first point of their life:
that decision bears the cost of the updates' transfers. Optimizer states, which no part reads, are moved in any case.
What stays in RAM and is let go within a part has to be written as well; the model leaves that out, and bounds plans.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from poetopt.formulations.retention.space import RetentionSpace
    from poetopt.formulations.rows import Floats
    from poetopt.problem import Problem


@dataclass(frozen=True)
class Moved:
    """What reading and writing back takes: joules, seconds, bytes written."""

    energy_j: float = 0.0
    time_s: float = 0.0
    written_bytes: float = 0.0

    def __add__(self, other: Moved) -> Moved:
        return Moved(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Moved)))


NOTHING = Moved()


def moved_if_away(problem: Problem) -> tuple[dict[int, Moved], Moved]:
    """For each tensor that an update reads: what moving it takes, unless it stays in RAM. And what is moved anyway."""
    closing = problem.closing
    if closing is None:
        return {}, NOTHING
    places = {held.name: i for i, held in enumerate(problem.tensors)}
    found: dict[int, Moved] = {}
    anyway = NOTHING
    for held in closing.tensors:
        if not held.stored:
            continue
        cost = Moved(held.page_in_j + held.page_out_j, held.page_in_s + held.page_out_s, float(held.nbytes))
        if held.name in places:
            found[places[held.name]] = cost
        else:
            anyway += cost
    return found, anyway


def of_page_ins(space: RetentionSpace, figure: str) -> Floats:
    """(n_pages,) a figure of `Moved` for each page-in: of those at the first point of what an update reads."""
    away, _ = moved_if_away(space.problem)
    first = (space.point_first & space.wrapped)[space.page_point].tolist()
    tensors = space.point_tensor[space.page_point].tolist()
    return np.array(
        [getattr(away.get(i, NOTHING), figure) if begins else 0.0 for i, begins in zip(tensors, first, strict=True)]
    )


def of_ways(space: RetentionSpace, figure: str) -> Floats:
    """(n_ways,) the same for each streamed run."""
    away, _ = moved_if_away(space.problem)
    found = np.zeros(len(space.stream_ways))
    for (i, j, t), own in space.streamed_in.items():
        e = space.point_of.get((i, t))
        if j == t and e is not None and space.point_first[e] and space.wrapped[e]:
            found[list(own)] += getattr(away.get(i, NOTHING), figure)
    return found
