"""Chain cuts in the variables of one model, also those that were found in another scope."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from poetopt.formulations.block import PyomoBlock
from poetopt.formulations.retention.space import RetentionSpace
from poetopt.formulations.rows import Row


class Chain(NamedTuple):
    """Key of a cut in every scope: the window (s, b], and the path from its last tensor to its first.

    Attributes
    ----------
    by_page
        For each tensor of the path, whether the cut has its page-ins (True) or its one page-out.
    """

    s: int
    b: int
    path: tuple[int, ...]
    by_page: tuple[bool, ...]


Timed = tuple[list[int], list[Any]]
"""Stages in ascending order, with a variable of each."""


class ChainRows:
    """Variables of a model by tensor and stage, from which it makes rows.

    They are in lists because rows are made by the thousand, and Pyomo's lookups take a microsecond an entry.
    """

    def __init__(self, model: PyomoBlock) -> None:
        space: RetentionSpace = model.space
        n, stages = len(space.problem.tensors), space.point_stage.tolist()
        self._space = space
        self._producers = [tensor.producer for tensor in space.problem.tensors]
        again = zip(space.recompute_operator.tolist(), space.recompute_stage.tolist(), strict=True)
        self._again = _timed(again, model.recompute.r.values(), len(space.problem.operators))
        kept = list(model.residency.k.values())
        self._points = [stages[first:last] for first, last in space.tensor_range]
        self._before = [space.point_previous[first:last].tolist() for first, last in space.tensor_range]
        self._kept = [kept[first:last] for first, last in space.tensor_range]
        self._circle = space.cyclic.tolist()
        self._pages: list[Timed] = _timed((), (), n)
        self._written: list[Any] = [None] * n
        if space.paging:
            pages = zip(
                space.point_tensor[space.page_point].tolist(),
                space.point_stage[space.page_point].tolist(),
                strict=True,
            )
            self._pages = _timed(pages, model.paging.p.values(), n)
            written = list(model.paging.o.values())
            for i, place in model.paging.o_index.items():
                self._written[i] = written[place]
        self._streamed_in: dict[tuple[int, int], Timed] = {}
        self._streamed_out: dict[int, list[Any]] = {}
        if space.streams:
            streamed = list(model.streaming.y.values())
            for (i, j, t), runs in sorted(space.streamed_in.items(), key=lambda entry: entry[0][2]):
                times, variables = self._streamed_in.setdefault((i, j), ([], []))
                times += [t] * len(runs)
                variables += [streamed[n] for n in runs]
            self._streamed_out = {i: [streamed[n] for n in runs] for i, runs in space.streamed_out.items()}

    def row(self, chain: Chain, violation: float) -> Row:
        """Return the cut of `chain`, which a point violates by `violation`."""
        s, b, path, by_page = chain
        variables: list[object] = []
        producer = self._producers[path[-1]]
        if producer >= 0:
            variables += _between(self._again[producer], s, b)
        readers = (b, *(self._producers[v] for v in path))
        for v, reader, paged in zip(path, readers, by_page, strict=False):
            crossing = bisect_right(self._points[v], s)
            if crossing < len(self._points[v]) and (self._before[v][crossing] <= s or self._circle[v]):
                variables.append(self._kept[v][crossing])
            elif crossing == len(self._points[v]) and self._circle[v]:
                variables.append(self._kept[v][0])
            if paged:
                variables += _between(self._pages[v], s, b)
                if (v, reader) in self._streamed_in:
                    variables += _between(self._streamed_in[v, reader], s, b)
            elif self._written[v] is not None:
                variables += [self._written[v], *self._streamed_out.get(v, ())]
        return Row(variables, [1.0] * len(variables), 1.0, np.inf, violation, "chain cut", key=self._key(chain))

    def _key(self, chain: Chain) -> Chain:
        """Return `chain` with stages that mean the same in scopes that decide stages separately.

        The window begins where a group of stages that are decided together ends, and ends at a read after that.
        """
        return chain._replace(s=self._space.decided[chain.s], b=self._space.uses[chain.path[0]][chain.b])


def _timed(places: Iterable[tuple[int, int]], variables: Iterable[Any], count: int) -> list[Timed]:
    """Return the variables of each of `count` owners; `places` has owner and stage of each variable."""
    by_owner: list[Timed] = [([], []) for _ in range(count)]
    for (owner, stage), variable in zip(places, variables, strict=True):
        stages, owned = by_owner[owner]
        stages.append(stage)
        owned.append(variable)
    return by_owner


def _between(timed: Timed, s: int, b: int) -> list[Any]:
    """Return the variables of the stages in (s, b]."""
    stages, variables = timed
    return variables[bisect_right(stages, s) : bisect_right(stages, b)]
