"""By which way each operator runs in a replay: plain below a threshold, above it by the cheapest variant that fits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from poetopt.graph.problem import Problem
from poetopt.plan.schedule import FractionalSchedule

THRESHOLDS = (1.0, 0.8, 0.6, 0.4, 0.25, 0.12)
"""Of the budget: what a run may take for itself."""
ALL_PLAIN: Mapping[int, int] = {}


class Ways:
    """The ways of a problem's operators, each operator's ranked by what it costs."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._streams = problem.paging and any(operator.variants for operator in problem.operators)
        self._ranked = [
            sorted(problem.ways(k), key=lambda way: (_cost_j(problem, k, way), way))
            for k in range(len(problem.operators) if self._streams else 0)
        ]

    def within(self, ram_bytes: int) -> Iterator[Mapping[int, int]]:
        """Ways for all operators, the variant of each that isn't plain; for one threshold after the other, each once.

        ram_bytes
            The budget without what kernels are reserved.
        """
        if not self._streams:
            yield ALL_PLAIN
            return
        known: list[Mapping[int, int]] = []
        for share in THRESHOLDS:
            ways = {k: self._cheapest(k, int(share * ram_bytes)) for k in range(len(self._ranked))}
            ways = {k: way for k, way in ways.items() if way}
            if ways not in known:
                known.append(ways)
                yield ways

    def _cheapest(self, k: int, room: int) -> int:
        """The way of operator k that costs least within so many bytes; the leanest one where none is within."""
        nbytes, ranked = self.problem.working_set_bytes, self._ranked[k]
        within = (way for way in ranked if nbytes(k, way) <= room)
        found = next(within, None)
        return min(ranked, key=lambda way: (nbytes(k, way), way)) if found is None else found

    def more_j(self, ways: Mapping[int, int]) -> float:
        """The cost of first runs by these ways above plain ones."""
        operators = self.problem.operators
        return sum(operators[k].variant(way).energy_j - operators[k].energy_j for k, way in ways.items())


def ways_of(problem: Problem, shares: FractionalSchedule) -> Mapping[int, int]:
    """The way of each operator's first run that a relaxation has most of."""
    most: dict[int, tuple[float, int]] = {}
    left: dict[int, float] = {}
    for (stage, operator, variant), share in sorted(shares.variants.items()):
        if stage == operator:
            left[operator] = left.get(operator, 1.0) - share
            most[operator] = max(most.get(operator, (0.0, 0)), (share, variant))
    return {operator: variant for operator, (share, variant) in most.items() if share > left[operator]}


def streamed_out(problem: Problem, ways: Mapping[int, int]) -> frozenset[int]:
    """The tensors that first runs leave on storage and not in RAM."""
    return frozenset(i for k, way in ways.items() for i in problem.operators[k].variant(way).streamed_out)


def whole_readers(problem: Problem, ways: Mapping[int, int]) -> Sequence[Sequence[int]]:
    """For each tensor, the operators that read it from RAM when they first run, ascending."""
    streamed = {(k, i) for k, way in ways.items() for i in problem.operators[k].variant(way).streamed_in}
    return [[k for k in readers if (k, i) not in streamed] for i, readers in enumerate(problem.readers)]


def _cost_j(problem: Problem, k: int, way: int) -> float:
    """The cost of a run with the transfers around it, if parameters come and go for it alone."""
    operator, tensors = problem.operators[k], problem.tensors
    variant = operator.variant(way)
    cost = variant.energy_j
    for i in operator.inputs:
        streamed = i in variant.streamed_in
        if tensors[i].stored:
            cost += 0.0 if streamed else tensors[i].page_in_j
            cost += tensors[i].page_out_j if tensors[i].updated_by == k and i not in variant.streamed_out else 0.0
        elif streamed:
            cost += tensors[i].page_out_j
    return cost + sum(tensors[i].page_in_j for i in variant.streamed_out if i in operator.outputs)


# Which parameters stay in RAM from one step to the next: sets to begin a replay with.
#
# A replay evicts and brings back, but what is there when the step begins, and has to be there when it ends, is chosen
# before. Keeping a parameter saves its page-in and its write-back in each step, for its bytes in all of the step.

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
