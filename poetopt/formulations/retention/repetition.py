"""Equal blocks, one after another: what holds of one, said of all of them.

A network of twelve equal layers has its operators at a fixed distance from layer to layer, forward; and its
backward operators at another, in reverse. Both distances are found from the operators' figures. A chain cut is then
moved along: its path and its use by so many blocks. Whether the moved path is one, and ends in a real use, is looked
up in the graph, so that a cut never rests on the blocks being equal; only its usefulness does.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from poetopt.formulations.retention.chain_rows import Chain
from poetopt.graph.problem import Problem

LEAST_SHARE = 0.25
"""Operators must recur in at least this share, or the direction counts as without blocks."""


@dataclass(frozen=True, eq=False)
class Repetition:
    """The distances at which the operators of a problem recur."""

    problem: Problem

    @cached_property
    def kinds(self) -> list[int]:
        """For each operator, a number that it shares with those of equal figures."""
        known: dict[object, int] = {}
        size = [tensor.nbytes for tensor in self.problem.tensors]
        found = []
        for operator in self.problem.operators:
            key = (
                operator.energy_j,
                operator.workspace_bytes,
                bool(operator.takes),
                operator.recomputable,
                operator.backward,
                tuple(size[i] for i in operator.inputs),
                tuple(size[i] for i in operator.outputs),
            )
            found.append(known.setdefault(key, len(known)))
        return found

    @cached_property
    def periods(self) -> tuple[int, int]:
        """Operators from a block to the next, forward and backward; 0: no blocks."""
        middle = self.problem.last_forward + 1
        return _period(self.kinds[:middle]), _period(self.kinds[middle:])

    def _operator(self, j: int, blocks: int) -> int | None:
        """Operator j moved by so many blocks, or None where there is none of its kind."""
        middle = self.problem.last_forward + 1
        forward, backward = self.periods
        low, high = (0, middle) if j < middle else (middle, len(self.kinds))
        moved = j + blocks * forward if j < middle else j - blocks * backward
        return moved if low <= moved < high and self.kinds[moved] == self.kinds[j] else None

    def _tensor(self, i: int, blocks: int) -> int | None:
        tensor = self.problem.tensors[i]
        moved = self._operator(tensor.producer, blocks) if tensor.computed else None
        if moved is None:
            return None
        return self.problem.operators[moved].outputs[self.problem.operators[tensor.producer].outputs.index(i)]

    def _path(self, path: Sequence[int], blocks: int) -> tuple[int, ...] | None:
        """The tensors of `path` moved by so many blocks, or None where one of them can't be."""
        moved = []
        for i in path:
            image = self._tensor(i, blocks)
            if image is None:
                return None
            moved.append(image)
        return tuple(moved)

    def images(self, chain: Chain) -> Iterator[Chain]:
        """`chain` in all other blocks: the windows and paths there that make a chain cut as well.

        The window begins as far from its end as it did, and also where it did: memory is full at one stage for all.
        """
        problem = self.problem
        if 0 in self.periods:
            return
        middle = problem.last_forward + 1
        forward, backward = self.periods
        most = max(middle // forward, (len(self.kinds) - middle) // backward)
        for blocks in (sign * distance for distance in range(1, most + 1) for sign in (1, -1)):
            b = self._operator(chain.b, blocks)
            if b is None:
                continue
            moved = self._path(chain.path, blocks)
            if moved is None:
                continue
            if not all(problem.tensors[i].nbytes for i in moved):
                continue
            if b not in problem.readers[moved[0]] or any(
                earlier not in problem.operators[problem.tensors[later].producer].inputs
                for later, earlier in itertools.pairwise(moved)
            ):
                continue
            away = chain.s + blocks * forward if chain.s < middle else chain.s - blocks * backward
            for s in (away, chain.s):
                if problem.tensors[moved[0]].producer <= s < b:
                    yield Chain(s, b, moved, chain.by_page)


def _period(kinds: Sequence[int]) -> int:
    """The least distance at which most of `kinds` recur; 0 where too few do at any."""
    best, most = 0, LEAST_SHARE * len(kinds)
    for distance in range(2, len(kinds) // 2 + 1):
        equal = sum(a == b for a, b in zip(kinds, kinds[distance:], strict=False))
        if equal > most:
            best, most = distance, equal
    return best
