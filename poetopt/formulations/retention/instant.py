"""Intra-stage row of one recomputation at one point; `retention.memory` has the mathematics."""

from __future__ import annotations

from typing import Any

import numpy as np

from poetopt.formulations.block import PyomoBlock
from poetopt.formulations.retention.space import RetentionSpace
from poetopt.formulations.rows import Row

ShareTerms = list[tuple[list[Any], int, float]]
"""Terms whose sum is the share of a tensor in RAM for one reason: (entries of a variable, index of one, its value).

A negative index n means that the entry -1 - n is subtracted. Without entries the term is a constant, the value.
"""


class Instant:
    """Bytes live while operator j is recomputed in stage t: terms besides those of tensors that span the stage."""

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
        """Bytes at the point."""
        self.terms: list[tuple[float, list[Any], int]] = []
        """Terms (bytes, entries of a variable, index of one of them)."""
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
                self._add_constant(m)
            elif space.transfer_times:
                again_here = space.point_recompute[e]
                came = [(block.back, page, p[e])] if page >= 0 else []
                if producer > j and again_here >= 0:
                    came.append((again, int(again_here), r[again_here]))
                after = int(space.point_after[e])
                onward = [] if after < 0 else [(keep, after, k[after])]
                reads = [(h, space.recompute_of[h, t]) for h in space.problem.readers[i] if h in allowed]
                self._add_movable(m, onward, came, [(h, y, r[y]) for h, y in reads], j if producer < j else -1)
            else:
                candidates = []
                if not space.point_last[e]:
                    next_point = int(space.point_after[e])
                    candidates.append([(keep, next_point, k[next_point])])
                for h in space.problem.readers[i]:
                    if h >= j and h in allowed:
                        candidates.append(self._read(i, h, r))
                if space.point_real[e]:
                    candidates.append(self._own_read(i))
                if candidates:
                    self._add(m, max(candidates, key=_total))
        for i in sorted(outputs):
            # the tensor has no point at this stage: nothing needs it, or it is kept across and overwritten in place
            kept = next((e for e in block.spanning[t] if space.point_tensor[e] == i), None)
            if kept is None:
                self._add(float(size[i]), [(again, x, r[x])])
            elif r[x] > k[kept]:
                self._add(float(size[i]), [(again, x, r[x])])
                self._add(-float(size[i]), [(keep, kept, k[kept])])

    def _add_stored(
        self, i: int, e: int, m: float, page: int, j: int, x: int, r: list[float], k: list[float], p: list[float]
    ) -> None:
        """Add the terms of a tensor whose home is storage: it comes in right before its first reader of the stage.

        If runs stream, this also holds for a tensor whose operator comes before j, and may run again in this stage.
        """
        space, block = self.space, self.block
        keep = block.keep
        earlier: list[ShareTerms] = []
        later: list[ShareTerms] = []
        candidates: list[tuple[float, list[tuple[float, ShareTerms]], float]] = []
        for h in space.problem.readers[i]:
            recomputation = space.recompute_of.get((h, self.t))
            if recomputation == x:
                read = self._read(i, h, r)
                candidates.append((_total(read), [(1.0, read)], 0.0))
            elif recomputation is not None:
                (earlier if h < j else later).append(self._read(i, h, r))
        if space.point_real[e] and (i, self.t, self.t) in space.streamed_in:
            later.append(self._own_read(i))
        elif space.point_real[e]:
            shares = [[(keep, e, k[e])], *earlier, *(candidate[1][0][1] for candidate in candidates)]
            own_recompute = int(space.point_recompute[e])
            if own_recompute >= 0:
                shares.append([(block.again, own_recompute, r[own_recompute])])
            self._add(m, max(shares, key=_total))
            return
        next_point = int(space.point_after[e])
        if next_point >= 0:
            later.append([(keep, next_point, k[next_point])])
        if later:
            last = max(later, key=_total)
            # without a page-in it was kept for the last reader, or an earlier reader had it already
            paged = [(-1.0, [(block.back, page, p[e])])] if page >= 0 else []
            candidates.append((_total(last) - p[e], [(1.0, last), *paged], 0.0))
            if earlier:
                first = max(earlier, key=_total)
                candidates.append((_total(first) + _total(last) - 1.0, [(1.0, first), (1.0, last)], -1.0))
        value, parts, constant = max(candidates, key=lambda candidate: candidate[0], default=(0.0, [], 0.0))
        if value > 0:
            self._add_constant(m * constant)
            for sign, candidate in parts:
                self._add(sign * m, candidate)

    def _read(self, i: int, h: int, r: list[float]) -> ShareTerms:
        """Return the share of operator h that runs again in the stage with tensor i in RAM."""
        x = self.space.recompute_of[h, self.t]
        streamed = self.space.streamed_in.get((i, h, self.t), ())
        return [(self.block.again, x, r[x]), *((self.block.streamed, -1 - n, -self.y[n]) for n in streamed)]

    def _own_read(self, i: int) -> ShareTerms:
        """Return the share of the stage's own operator that runs with tensor i in RAM, if it may stream it."""
        streamed = self.space.streamed_in[i, self.t, self.t]
        return [([], 0, 1.0), *((self.block.streamed, -1 - n, -self.y[n]) for n in streamed)]

    def _add_movable(
        self, m: float, onward: ShareTerms, came: ShareTerms, reads: list[tuple[int, int, float]], j: int
    ) -> None:
        """Add the terms of a tensor that the stage's own operator doesn't read and that may be moved in any stage.

        The terms are those that attain the maximum at the point.

        Parameters
        ----------
        onward
            Terms of its being kept beyond the stage, if possible.
        came
            Terms of its having come in this stage.
        reads
            (operator, recomputation, value) of the recomputes that may read it in this stage.
        j
            The recomputed operator if the tensor's operator comes before it; else -1.
        """
        again = self.block.again
        candidates: list[tuple[float, ShareTerms, ShareTerms]] = [(0.0, [], [])]
        if onward:
            candidates.append((_total(onward) - _total(came), onward, came))
        for h, y, value in reads:
            read = [(again, y, value)]
            if j < 0:
                candidates.append((value - _total(came), read, came))
            elif h >= j:
                candidates.append((value, read, []))
            elif onward:
                candidates.append((value + _total(onward) - 1, [*onward, *read], []))
        _, plus, minus = max(candidates, key=lambda candidate: candidate[0])
        self._add(m, plus)
        self._add(-m, minus)
        if len(plus) > 1:
            self._add_constant(-m)

    def _add_constant(self, nbytes: float) -> None:
        self.constant += nbytes
        self.nbytes += nbytes

    def _add(self, nbytes: float, share: ShareTerms) -> None:
        for variables, place, value in share:
            if not variables:
                self.constant += nbytes * value
            elif place < 0:
                self.terms.append((-nbytes, variables, -1 - place))
            else:
                self.terms.append((nbytes, variables, place))
        self.nbytes += nbytes * _total(share)

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
    """Return (point, tensor, bytes, page-in or -1, producer) of each tensor with bytes and a point at stage t."""
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
    sized: list[tuple[int, int, float, int, int]] = block.sized[t]
    return sized


def _total(share: ShareTerms) -> float:
    return sum(value for _, _, value in share)
