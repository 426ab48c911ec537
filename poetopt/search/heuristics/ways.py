"""Variants of runs in a replay, and parameters that stay in RAM.

An operator runs plain below a threshold, and above it in the cheapest variant that fits.

A replay evicts and brings back tensors, but the parameters that are in RAM at the start and the end of a step are
chosen before. Keeping a parameter saves its page-in and its write-back in each step, for its bytes during all of the
step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from poetopt.graph.problem import Problem
from poetopt.plan.schedule import FractionalSchedule

THRESHOLDS = (1.0, 0.8, 0.6, 0.4, 0.25, 0.12)
"""Shares of the budget that a run may take for itself."""
ALL_PLAIN: Mapping[int, int] = {}


class Ways:
    """Variants of a problem's operators, each operator's ranked by its cost."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._streams = problem.paging and any(operator.variants for operator in problem.operators)
        self._ranked = [
            sorted(problem.ways(k), key=lambda variant: (_cost_j(problem, k, variant), variant))
            for k in range(len(problem.operators) if self._streams else 0)
        ]

    def within(self, ram_bytes: int) -> Iterator[Mapping[int, int]]:
        """Yield the variant of each operator that isn't plain, for one threshold after the other, without repetition.

        Parameters
        ----------
        ram_bytes
            Budget without the kernels' reserve.
        """
        if not self._streams:
            yield ALL_PLAIN
            return
        yielded: list[Mapping[int, int]] = []
        for share in THRESHOLDS:
            variants = {k: self._cheapest(k, int(share * ram_bytes)) for k in range(len(self._ranked))}
            variants = {k: variant for k, variant in variants.items() if variant}
            if variants not in yielded:
                yielded.append(variants)
                yield variants

    def _cheapest(self, k: int, room: int) -> int:
        """Return the cheapest variant of operator k within `room` bytes, or the smallest if none fits."""
        nbytes, ranked = self.problem.working_set_bytes, self._ranked[k]
        fitting = (variant for variant in ranked if nbytes(k, variant) <= room)
        cheapest = next(fitting, None)
        return min(ranked, key=lambda variant: (nbytes(k, variant), variant)) if cheapest is None else cheapest

    def more_j(self, variants: Mapping[int, int]) -> float:
        """Return the cost of first runs in these variants above plain ones."""
        operators = self.problem.operators
        return sum(operators[k].variant(variant).energy_j - operators[k].energy_j for k, variant in variants.items())


def ways_of(problem: Problem, shares: FractionalSchedule) -> Mapping[int, int]:
    """Return the variant of each operator's first run with the largest share in a relaxation."""
    largest: dict[int, tuple[float, int]] = {}
    plain_share: dict[int, float] = {}
    for (stage, operator, variant), share in sorted(shares.variants.items()):
        if stage == operator:
            plain_share[operator] = plain_share.get(operator, 1.0) - share
            largest[operator] = max(largest.get(operator, (0.0, 0)), (share, variant))
    return {operator: variant for operator, (share, variant) in largest.items() if share > plain_share[operator]}


def streamed_out(problem: Problem, ways: Mapping[int, int]) -> frozenset[int]:
    """Return the tensors that first runs leave on storage and not in RAM."""
    return frozenset(i for k, v in ways.items() for i in problem.operators[k].variant(v).streamed_out)


def whole_readers(problem: Problem, ways: Mapping[int, int]) -> Sequence[Sequence[int]]:
    """Return for each tensor the operators that read it from RAM when they first run, ascending."""
    streamed = {(k, i) for k, v in ways.items() for i in problem.operators[k].variant(v).streamed_in}
    return [[k for k in readers if (k, i) not in streamed] for i, readers in enumerate(problem.readers)]


def _cost_j(problem: Problem, k: int, v: int) -> float:
    """Return the cost of a run with its transfers, if parameters are paged for it alone."""
    operator, tensors = problem.operators[k], problem.tensors
    variant = operator.variant(v)
    cost = variant.energy_j
    for i in operator.inputs:
        streamed = i in variant.streamed_in
        if tensors[i].stored:
            cost += 0.0 if streamed else tensors[i].page_in_j
            cost += tensors[i].page_out_j if tensors[i].updated_by == k and i not in variant.streamed_out else 0.0
        elif streamed:
            cost += tensors[i].page_out_j
    return cost + sum(tensors[i].page_in_j for i in variant.streamed_out if i in operator.outputs)


LASTING_SHARES = (0.0, 0.9, 0.6, 0.3)
"""Shares of the room beside the largest working set for parameters that stay."""
MIN_KEPT_SHARE = 0.5
"""Share from step to step above which a parameter of a relaxation stays."""


def may_last(problem: Problem, away: frozenset[int] = frozenset()) -> list[int]:
    """Return the tensors on storage that may stay in RAM from step to step, unless each step brings them anew.

    Parameters
    ----------
    away
        Tensors that a run leaves on storage alone.
    """
    tensors = problem.tensors
    return [i for i in problem.stored_at_start if tensors[i].may_stay and problem.readers[i] and i not in away]


def lasting_sets(problem: Problem, ram_bytes: int, away: frozenset[int] = frozenset()) -> Iterator[Problem]:
    """Yield `problem` with more or fewer of its parameters in RAM from step to step.

    It is yielded unchanged if it has none on storage.

    Parameters
    ----------
    ram_bytes
        Budget without the kernels' reserve.
    away
        Tensors that runs leave on storage alone.
    """
    may_stay = may_last(problem, away)
    room = ram_bytes + problem.reserve_bytes - problem.least_ram_bytes

    def saved_j(i: int) -> float:
        tensor = problem.tensors[i]
        return tensor.page_in_j + (tensor.page_out_j if tensor.updated else 0.0)

    order = sorted(may_stay, key=lambda i: (-saved_j(i) / max(problem.tensors[i].nbytes, 1), i))
    for share in LASTING_SHARES if may_stay else LASTING_SHARES[:1]:
        kept, bytes_left = [], int(share * room)
        for i in order:
            if problem.tensors[i].nbytes <= bytes_left:
                kept.append(i)
                bytes_left -= problem.tensors[i].nbytes
        yield problem.keeping(kept)


def lasting_of(problem: Problem, shares: FractionalSchedule, away: frozenset[int] = frozenset()) -> Problem:
    """Return `problem` with those parameters, not `away`, in RAM from step to step that a relaxation keeps there."""
    last = len(problem.operators) - 1
    return problem.keeping(i for i in may_last(problem, away) if shares.kept[i, last] > MIN_KEPT_SHARE)
