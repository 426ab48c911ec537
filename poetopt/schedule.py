"""The decisions of a schedule, between a model's solution and a plan's instructions.

A *stage* t begins after the first compute of operator t-1 and ends with the first compute of
operator t.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """The decisions of a schedule.

    recomputes
        (stage, operator) pairs: the operator runs again in that stage.
    page_ins
        (stage, tensor) pairs: the tensor comes back from storage in that stage.
    """

    recomputes: frozenset[tuple[int, int]] = frozenset()
    page_ins: frozenset[tuple[int, int]] = frozenset()
