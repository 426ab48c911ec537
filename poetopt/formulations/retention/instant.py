"""The intra-stage row of one recomputation, at one point: see `retention.memory` for the mathematics."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poetopt.formulations.block import PyomoBlock
from poetopt.formulations.retention.space import RetentionSpace
from poetopt.formulations.rows import Floats, Ints, Row

# How much is live during each recomputation, for all of a point's at once.
#
# The figures of the intra-stage rows (see `retention.memory`) without the rows: along a stage's recomputations each
# tensor's share changes at its producer's and its readers' places only, so that sums of these steps give all of them.

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
        """The outputs without a point there: (m,) recomputation, the point that spans it or -1, bytes."""
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


Way = list[tuple[list[Any], int, float]]
"""A way for a tensor to be there: (the entries of a variable, the place of one of them, its value), to be added up.

A place below 0 is taken from the rest: -1 - place is the variable's. Without entries it is a constant, the value.
"""


class Instant:
    """The bytes that are live while operator j is recomputed in stage t: terms beside those that span the stage."""

    def __init__(
        self,
        block: PyomoBlock,
        j: int,
        t: int,
        x: int,
        r: list[float],
        k: list[float],
        p: list[float],
        y: list[float],
    ) -> None:
        space: RetentionSpace = block.model().space
        self.y = y
        self.block, self.space, self.t = block, space, t
        self.constant = 0.0
        self.nbytes = 0.0
        """The sum at the point."""
        self.terms: list[tuple[float, list[Any], int]] = []
        """(bytes, the entries of a variable, the place of one of them)"""
        keep, again = block.keep, block.again
        operator = space.problem.operators[j]
        size = space.tensor_bytes
        if space.workspace_bytes[j]:
            self._add(float(space.workspace_bytes[j]), [(again, x, r[x])])
        for n in space.streams_of.get((j, t), ()):
            self._add(space.stream_workspace_bytes[n] - float(space.workspace_bytes[j]), [(block.streamed, n, y[n])])
        allowed = space.recomputes_at[t]
        outputs = set(operator.outputs)
        for e, i, m, page, producer in _sized_points(block, t):
            stayed = [(keep, e, k[e])]
            if space.stored[i] or (space.streams and producer < j and i not in outputs):
                self._add_stored(i, e, m, page, j, x, r, k, p)
            elif i in outputs:
                outputs.discard(i)
                back = [(block.back, page, p[e])] if page >= 0 else []
                self._add(m, max([stayed + back, [(again, x, r[x])]], key=_total))
            elif producer > j and (space.point_real[e] or not space.transfer_times):
                self._add(m, stayed)
            elif space.point_real[e] and (i, t, t) not in space.streamed_in:
                self._fix(m)
            elif space.transfer_times:
                again_here = space.point_recompute[e]
                came = [(block.back, page, p[e])] if page >= 0 else []
                if producer > j and again_here >= 0:
                    came.append((again, int(again_here), r[again_here]))
                after = int(space.point_after[e])
                onward = [] if after < 0 else [(keep, after, k[after])]
                reads = [(h, space.recompute_of[h, t]) for h in space.problem.readers[i] if h in allowed]
                self._amid(m, onward, came, [(h, y, r[y]) for h, y in reads], j if producer < j else -1)
            else:
                ways = []
                if not space.point_last[e]:
                    on = int(space.point_after[e])
                    ways.append([(keep, on, k[on])])
                for h in space.problem.readers[i]:
                    if h >= j and h in allowed:
                        ways.append(self._read(i, h, r))
                if space.point_real[e]:
                    ways.append(self._own_read(i))
                if ways:
                    self._add(m, max(ways, key=_total))
        for i in sorted(outputs):
            # no point here: the tensor is unwanted now, or kept across the stage and overwritten in place
            kept = next((e for e in block.spanning[t] if space.point_tensor[e] == i), None)
            if kept is None:
                self._add(float(size[i]), [(again, x, r[x])])
            elif r[x] > k[kept]:
                self._add(float(size[i]), [(again, x, r[x])])
                self._add(-float(size[i]), [(keep, kept, k[kept])])

    def _add_stored(
        self, i: int, e: int, m: float, page: int, j: int, x: int, r: list[float], k: list[float], p: list[float]
    ) -> None:
        """The terms of a tensor whose home is storage: it comes in right before its first reader of the stage.

        Where runs stream, also of one whose operator stands before j: it may run again in this stage.
        """
        space, block = self.space, self.block
        keep = block.keep
        before: list[Way] = []
        later: list[Way] = []
        ways: list[tuple[float, list[tuple[float, Way]], float]] = []
        for h in space.problem.readers[i]:
            here = space.recompute_of.get((h, self.t))
            if here == x:
                own = self._read(i, h, r)
                ways.append((_total(own), [(1.0, own)], 0.0))
            elif here is not None:
                (before if h < j else later).append(self._read(i, h, r))
        if space.point_real[e] and (i, self.t, self.t) in space.streamed_in:
            later.append(self._own_read(i))
        elif space.point_real[e]:
            there = [[(keep, e, k[e])], *before, *(way[1][0][1] for way in ways)]
            made = int(space.point_recompute[e])
            if made >= 0:
                there.append([(block.again, made, r[made])])
            self._add(m, max(there, key=_total))
            return
        on = int(space.point_after[e])
        if on >= 0:
            later.append([(keep, on, k[on])])
        if later:
            last = max(later, key=_total)
            # it was kept for the last one, as it wasn't paged in; or an earlier one had it already
            paged = [(-1.0, [(block.back, page, p[e])])] if page >= 0 else []
            ways.append((_total(last) - p[e], [(1.0, last), *paged], 0.0))
            if before:
                first = max(before, key=_total)
                ways.append((_total(first) + _total(last) - 1.0, [(1.0, first), (1.0, last)], -1.0))
        value, parts, constant = max(ways, key=lambda way: way[0], default=(0.0, [], 0.0))
        if value > 0:
            self._fix(m * constant)
            for sign, way in parts:
                self._add(sign * m, way)

    def _read(self, i: int, h: int, r: list[float]) -> Way:
        """The share of operator h that runs again in the stage with tensor i in RAM."""
        x = self.space.recompute_of[h, self.t]
        streamed = self.space.streamed_in.get((i, h, self.t), ())
        return [(self.block.again, x, r[x]), *((self.block.streamed, -1 - n, -self.y[n]) for n in streamed)]

    def _own_read(self, i: int) -> Way:
        """The share of the stage's own operator that runs with tensor i in RAM, where it may stream it."""
        streamed = self.space.streamed_in[i, self.t, self.t]
        return [([], 0, 1.0), *((self.block.streamed, -1 - n, -self.y[n]) for n in streamed)]

    def _amid(self, m: float, onward: Way, came: Way, reads: list[tuple[int, int, float]], j: int) -> None:
        """A tensor that the stage's own operator doesn't read, where it may be moved in any stage: the largest of ways.

        onward
            How it may be kept beyond the stage, if at all.
        came
            How it may have come in this stage.
        reads
            (operator, recomputation, value) of what may read it in this stage.
        j
            The operator that is recomputed, where that of the tensor stands before it; else -1.
        """
        again = self.block.again
        ways: list[tuple[float, Way, Way]] = [(0.0, [], [])]
        if onward:
            ways.append((_total(onward) - _total(came), onward, came))
        for h, y, value in reads:
            read = [(again, y, value)]
            if j < 0:
                ways.append((value - _total(came), read, came))
            elif h >= j:
                ways.append((value, read, []))
            elif onward:
                ways.append((value + _total(onward) - 1, [*onward, *read], []))
        _, plus, minus = max(ways, key=lambda way: way[0])
        self._add(m, plus)
        self._add(-m, minus)
        if len(plus) > 1:
            self._fix(-m)

    def _fix(self, nbytes: float) -> None:
        self.constant += nbytes
        self.nbytes += nbytes

    def _add(self, nbytes: float, way: Way) -> None:
        for variables, place, value in way:
            if not variables:
                self.constant += nbytes * value
            elif place < 0:
                self.terms.append((-nbytes, variables, -1 - place))
            else:
                self.terms.append((nbytes, variables, place))
        self.nbytes += nbytes * _total(way)

    def row(self, violation: float) -> Row:
        unit = self.space.memory_unit
        keep = self.block.keep
        spanning = self.block.spanning[self.t]
        size = self.space.tensor_bytes[self.space.point_tensor[spanning]] if spanning else np.zeros(0)
        variables: dict[int, object] = {}
        weights: dict[int, float] = {}
        across = ((nbytes, keep, e) for nbytes, e in zip(size.tolist(), spanning, strict=True))
        for nbytes, entries, place in [*self.terms, *across]:
            variable = entries[place]
            variables[id(variable)] = variable
            weights[id(variable)] = weights.get(id(variable), 0.0) + nbytes / unit
        return Row(
            variables=list(variables.values()),
            coefficients=[weights[key] for key in variables],
            lower=-np.inf,
            upper=(self.space.room_bytes - self.constant) / unit,
            violation=violation,
            kind="intra-stage memory",
            core=True,
        )


def _sized_points(block: PyomoBlock, t: int) -> list[tuple[int, int, float, int, int]]:
    """(point, tensor, bytes, page-in or -1, producer) of each tensor that takes room and has a point at stage t."""
    if t not in block.sized:
        space: RetentionSpace = block.model().space
        points = np.array(space.points_at[t])
        tensors = space.point_tensor[points]
        rows = zip(
            points.tolist(),
            tensors.tolist(),
            space.tensor_bytes[tensors].tolist(),
            space.page_index[points].tolist(),
            strict=True,
        )
        block.sized[t] = [(e, i, m, page, space.problem.tensors[i].producer) for e, i, m, page in rows if m]
    found: list[tuple[int, int, float, int, int]] = block.sized[t]
    return found


def _total(way: Way) -> float:
    return sum(value for _, _, value in way)
