"""Which parameters stay in RAM from one step to the next: sets to begin a replay with.

A replay evicts and brings back, but what is there when the step begins, and has to be there when it ends, is chosen
before. Keeping a parameter saves its page-in and its write-back in each step, for its bytes in all of the step.
"""

from __future__ import annotations

from collections.abc import Iterator

from poetopt.graph.problem import Problem
from poetopt.plan.schedule import FractionalSchedule

SHARES = (0.0, 0.9, 0.6, 0.3)
"""Of the room beside the largest working set, how much is given to parameters that stay."""
MOSTLY = 0.5
"""A relaxation that keeps more than this share of a parameter from step to step keeps it."""


def able(problem: Problem, away: frozenset[int] = frozenset()) -> list[int]:
    """The tensors whose home is storage and that may stay in RAM: what storage holds, unless a new step brings it.

    away
        Those that a run leaves on storage alone.
    """
    held = problem.tensors
    return [i for i in problem.stored_at_start if held[i].may_stay and problem.readers[i] and i not in away]


def lasting_sets(problem: Problem, ram_bytes: int, away: frozenset[int] = frozenset()) -> Iterator[Problem]:
    """`problem` with more or fewer of its parameters in RAM from step to step; itself where it has none on storage.

    ram_bytes
        The budget without what kernels are reserved.
    away
        The tensors that runs leave on storage alone.
    """
    stored = able(problem, away)
    room = ram_bytes + problem.reserve_bytes - problem.least_ram_bytes

    def saved_j(i: int) -> float:
        held = problem.tensors[i]
        return held.page_in_j + (held.page_out_j if held.updated else 0.0)

    order = sorted(stored, key=lambda i: (-saved_j(i) / max(problem.tensors[i].nbytes, 1), i))
    for share in SHARES if stored else SHARES[:1]:
        kept, left = [], int(share * room)
        for i in order:
            if problem.tensors[i].nbytes <= left:
                kept.append(i)
                left -= problem.tensors[i].nbytes
        yield problem.keeping(kept)


def lasting_of(problem: Problem, shares: FractionalSchedule, away: frozenset[int] = frozenset()) -> Problem:
    """`problem` with those parameters in RAM from step to step that a relaxation keeps there, none of them `away`."""
    last = len(problem.operators) - 1
    return problem.keeping(i for i in able(problem, away) if shares.kept[i, last] > MOSTLY)
