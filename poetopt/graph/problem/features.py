"""What a problem may hold that not everybody can plan for yet, and who says so.

Whoever takes a problem names the features that it supports; what goes beyond them is refused in one sentence, instead
of being answered wrongly.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from enum import StrEnum
from typing import TYPE_CHECKING

from poetopt.graph.problem.home import Home
from poetopt.util.errors import ProblemError

if TYPE_CHECKING:
    from poetopt.graph.problem.problem import Problem


class Feature(StrEnum):
    """What the tensors and operators of a problem may have, beside being computed or given in RAM."""

    STORED = "lies on storage when the step begins"
    MAPPED = "lies in mapped flash"
    CARRIED = "has to be in RAM, where it began, when the step ends"
    RESULT = "has to be in RAM when the step ends"
    UPDATED = "is written anew over itself"
    STREAMED = "has variants with streamed operands"
    OVERTAKEN = "may not run after an update of what it reads"
    TAKEN = "writes its output over what it reads"


COMPUTES = frozenset({Feature.OVERTAKEN})
"""What matters to those alone who compute operators again."""


PLAINLY = frozenset({Feature.STREAMED, Feature.TAKEN})
"""What takes no care: variants needn't be used, and `Problem.extra_bytes` says what taking over an input spares."""


def features(problem: Problem) -> Iterator[tuple[Feature, str]]:
    """Each feature of each tensor and operator, and whose it is."""
    for tensor in problem.tensors:
        named = f"tensor {tensor.name!r}"
        if tensor.home is Home.STORAGE or tensor.backed:
            yield Feature.STORED, named
        if tensor.home is Home.FLASH:
            yield Feature.MAPPED, named
        if tensor.carried and tensor.home is Home.RAM:
            yield Feature.CARRIED, named
        if tensor.result:
            yield Feature.RESULT, named
        if tensor.updated:
            yield Feature.UPDATED, named
    for operator in problem.operators:
        if operator.variants:
            yield Feature.STREAMED, f"operator {operator.name!r}"
        if operator.updaters:
            yield Feature.OVERTAKEN, f"operator {operator.name!r}"
        if operator.takes:
            yield Feature.TAKEN, f"operator {operator.name!r}"


def check_supported(problem: Problem, who: str, supports: Set[Feature] = frozenset()) -> None:
    """Raise ProblemError where a problem holds what `who` (the subject of the message) can't plan for."""
    beyond = problem.beyond(supports)
    if beyond is not None:
        raise ProblemError(f"{who} can't take this problem yet: {beyond}; leave that out of the problem")
