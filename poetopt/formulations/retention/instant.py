"""The intra-stage row of one recomputation, at one point: see `retention.memory` for the mathematics."""

from __future__ import annotations

from typing import Any

import numpy as np

from poetopt.formulations.block import PyomoBlock
from poetopt.formulations.retention.space import RetentionSpace
from poetopt.formulations.rows import Row

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
