"""How much is live during each recomputation, for all of a point's at once.

The figures of the intra-stage rows (see `retention.memory`) without the rows: along a stage's recomputations each
tensor's share changes at its producer's and its readers' places only, so that sums of these steps give all of them.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from poetopt.formulations.retention.space import RetentionSpace
from poetopt.formulations.rows import Floats, Ints

SEGMENT = 4.0
"""More than any share: running maxima of one tensor don't reach into the next one's."""


class Instants:
    """The recomputations of a space and what of it lies around them.

    Points are those at stages with recomputations, of tensors that take room; a *read* is such a point, not of a real
    use, with one operator that reads it and may be recomputed there: by point, the latest operator first.
    """

    def __init__(self, space: RetentionSpace) -> None:
        self._space = space
        n = len(space.problem.operators)
        stages = np.unique(space.recompute_stage)
        row = np.full(n, -1)
        row[stages] = np.arange(len(stages))
        self._shape = len(stages), n + 1
        chosen = (row[space.point_stage] >= 0) & (space.tensor_bytes[space.point_tensor] > 0)
        stored = space.stored[space.point_tensor]
        self._stored = np.flatnonzero(chosen & stored)
        points = np.flatnonzero(chosen & ~stored)
        self._points = points
        tensors = space.point_tensor[points]
        self._bytes = space.tensor_bytes[tensors]
        self._real = space.point_real[points]
        self._start = row[space.point_stage[points]] * (n + 1)
        producers = np.array([tensor.producer for tensor in space.problem.tensors], dtype=np.int64)[tensors]
        self._made, self._producer = producers >= 0, producers
        self._again = space.point_recompute[points]
        self._kept_on = np.where(space.point_last[points], -1, points + 1)
        self._of_recompute = row[space.recompute_stage] * (n + 1) + space.recompute_operator

    @cached_property
    def _reads(self) -> tuple[Ints, Ints, NDArray[np.bool_], NDArray[np.bool_]]:
        """(n_reads,) the place of a read's point, its recomputation, whether it is its point's first, and its last."""
        space = self._space
        places: list[int] = []
        recomputes: list[int] = []
        for place, e in enumerate(self._points.tolist()):
            if not space.point_real[e]:
                t = int(space.point_stage[e])
                for h in sorted(space.problem.readers[int(space.point_tensor[e])], reverse=True):
                    y = space.recompute_of.get((h, t))
                    if y is not None:
                        places.append(place)
                        recomputes.append(y)
        found = np.array(places, dtype=np.int64)
        first, last = np.diff(found, prepend=-1) != 0, np.diff(found, append=-1) != 0
        return found, np.array(recomputes, dtype=np.int64), first, last

    @cached_property
    def _unpointed(self) -> tuple[Ints, Ints, Floats]:
        """What is written where it has no point: (m,) recomputation, the point whose keep spans it or -1, bytes."""
        space = self._space
        found: list[tuple[int, int, float]] = []
        made = zip(space.recompute_operator.tolist(), space.recompute_stage.tolist(), strict=True)
        for x, (j, t) in enumerate(made):
            for i in space.problem.operators[j].outputs:
                nbytes = float(space.tensor_bytes[i])
                if nbytes and (i, t) not in space.point_of:
                    first, last = space.tensor_range[i]
                    e = first + int(np.searchsorted(space.point_stage[first:last], t))
                    found.append((x, e if e < last else -1, nbytes))
        return (
            np.array([x for x, _, _ in found], dtype=np.int64),
            np.array([e for _, e, _ in found], dtype=np.int64),
            np.array([nbytes for _, _, nbytes in found]),
        )

    @cached_property
    def _homes(self) -> list[tuple[Ints, Ints, NDArray[np.bool_]]]:
        """Of each stage with tensors whose home is storage: m recomputations, n points, and who reads what, (n, m)."""
        space = self._space
        found = []
        stages = space.point_stage[self._stored]
        for t in np.unique(stages).tolist():
            points, which = self._stored[stages == t], np.flatnonzero(space.recompute_stage == t)
            operators = space.recompute_operator[which]
            readers = [space.problem.readers[i] for i in space.point_tensor[points].tolist()]
            found.append((which, points, np.array([np.isin(operators, of) for of in readers])))
        return found

    def _at_home(self, points: Ints, reads: NDArray[np.bool_], r: Floats, k: Floats, p: Floats) -> Floats:
        """(m,) bytes of the tensors of one stage whose home is storage, see `retention.memory`.

        points, reads, r
            (n,) points, (n, m) which of the stage's recomputations reads them, and (m,) their values.
        """
        space = self._space
        own = np.where(reads, r[None, :], 0.0)
        # a row's own recomputation counts on both sides: no term is more than its value then
        before = np.maximum.accumulate(own, axis=1)
        later = np.maximum.accumulate(own[:, ::-1], axis=1)[:, ::-1]
        after = space.point_after[points]
        on = np.where(after >= 0, k[after], 0.0)[:, None]
        later = np.maximum(later, on)
        real = np.maximum(k[points][:, None], before)
        unread = np.maximum.reduce([np.zeros_like(own), own, later - p[points][:, None], before + later - 1.0])
        here = np.where(space.point_real[points][:, None], real, unread)
        return np.asarray(space.tensor_bytes[space.point_tensor[points]] @ here)

    def nbytes(self, r: Floats, k: Floats, p: Floats, spanned: Floats) -> Floats:
        """(n_recomputes,) bytes live while each recomputation runs, by shares.

        r
            (n_recomputes,) values.
        k, p
            (n_points,) kept up to each point, and paged in there.
        spanned
            (n_stages or more,) bytes kept across each stage without a point there.
        """
        space, points = self._space, self._points
        before = k[points]
        during = before + p[points]
        during = np.where(self._again >= 0, np.maximum(during, r[self._again]), during)
        kept_on = np.where(self._kept_on >= 0, k[self._kept_on], 0.0)
        # reads: from the latest reader back to the producer, what any of those from there on needs
        place, again, first, last = self._reads
        needed = np.maximum(r[again], kept_on[place])
        offset = SEGMENT * np.arange(len(points))[place]
        needed = np.maximum.accumulate(needed + offset) - offset
        after = np.where(self._real, 1.0, kept_on)
        after[place[last]] = needed[last]
        earlier = np.where(first, kept_on[place], np.roll(needed, 1))
        made = self._made
        at_start = np.where(made, before, after)
        producer = self._start[made] + self._producer[made]
        where = np.concatenate(
            [
                self._start,
                producer,
                producer + 1,
                self._start[place] + space.recompute_operator[again] + 1,
            ]
        )
        steps = np.concatenate(
            [
                at_start * self._bytes,
                ((during - before) * self._bytes)[made],
                ((after - during) * self._bytes)[made],
                (earlier - needed) * self._bytes[place],
            ]
        )
        size = self._shape[0] * self._shape[1]
        live = np.cumsum(np.bincount(where, steps, minlength=size).reshape(self._shape), axis=1).reshape(-1)
        found = live[self._of_recompute] + spanned[space.recompute_stage]
        found += space.workspace_bytes[space.recompute_operator] * r
        for which, points, reads in self._homes:
            found[which] += self._at_home(points, reads, r[which], k, p)
        x, kept, nbytes = self._unpointed
        there = np.where(kept >= 0, k[kept], 0.0)
        np.add.at(found, x, nbytes * np.maximum(0.0, r[x] - there))
        return np.asarray(found)
