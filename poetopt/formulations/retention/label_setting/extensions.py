r"""What a label may be extended to in one stage, and the least that completes it; see `search`."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from poetopt.formulations.retention.space import RetentionSpace
from poetopt.formulations.rows import Floats
from poetopt.util.work import Work

Bits = NDArray[np.uint8]
Key = tuple[int, int]
"""N and W, a bit for each tensor."""
Decisions = tuple[tuple[bool, int], ...]
"""What is done in a stage: (True, an operator that runs again) and (False, a tensor that is paged in)."""
Step = tuple[float, int, Key, Decisions]
"""A label's cost, what is read in its stage so far, the label of the next stage, and what is done in between."""

CHUNK = 14
"""Bits that one table of sums covers."""
PEAKS, PRICES = 8, 8
"""How many earlier stages, and prices θ, are looked at for what completes a label, at most."""
SAFE = 1e-9
"""What completes a label is rounded down by this share, and by what its sums may be off."""
LABEL_WORK = 2
"""Units of work of a label that is looked at. Measured on exact_resnet18_cifar m4 40 %: with twice as
many its optimum seems out of reach."""
WIDEST = 150_000
"""A search with more labels in a stage is given up."""


class Extensions:
    """Labels of one space, a stage at a time."""

    def __init__(self, space: RetentionSpace) -> None:
        self.space = space
        problem = space.problem
        operators, n = problem.operators, len(problem.operators)
        self._order = sorted(range(len(problem.tensors)), key=lambda i: (problem.tensors[i].producer, i))
        """By bit, the tensor: what is made later has a higher bit."""
        bit = {i: x for x, i in enumerate(self._order)}
        self._m, self._n = len(bit), n
        sized = {i for i, tensor in enumerate(problem.tensors) if tensor.nbytes}  # the others are always there
        self._ins = [_mask(bit[i] for i in sized.intersection(operator.inputs)) for operator in operators]
        self._outs = [_mask(bit[i] for i in sized.intersection(operator.outputs)) for operator in operators]
        self._size = [int(space.tensor_bytes[i]) for i in self._order]
        self._producer = [problem.tensors[i].producer for i in self._order]
        self._cost = [operator.energy_j for operator in operators]
        self._work = [int(nbytes) for nbytes in space.workspace_bytes]
        self._page_in = [problem.tensors[i].page_in_j for i in self._order]
        self._page_out = [problem.tensors[i].page_out_j for i in self._order]
        self._again = [0] * n
        for j, t in zip(space.recompute_operator.tolist(), space.recompute_stage.tolist(), strict=True):
            self._again[t] |= self._outs[j]
        self._below = [_mask(x for x in range(self._m) if self._producer[x] < j) for j in range(n + 1)]
        self._back = [0] * n
        if space.paging:
            pages = space.page_point
            for i, t in zip(space.point_tensor[pages].tolist(), space.point_stage[pages].tolist(), strict=True):
                self._back[t] |= 1 << bit[i]
        self._costs = sorted(set(self._cost))
        self._cheaper = [
            _mask(x for x in range(self._m) if self._producer[x] >= 0 and self._cost[self._producer[x]] < cost)
            for cost in [*self._costs, math.inf]
        ]
        self._tables = [_sums(self._size[first : first + CHUNK]) for first in range(0, self._m, CHUNK)]
        self._prices()
        self._stays(bit)

    def _prices(self) -> None:
        """What it costs at least to have a tensor again: not written, and written."""
        size = np.array(self._size, dtype=float)
        made = np.full(self._m, math.inf)
        bit = {i: x for x, i in enumerate(self._order)}
        for j in set(self.space.recompute_operator.tolist()):
            outs = [bit[i] for i in self.space.problem.operators[j].outputs]
            together = size[outs].sum()
            for x in outs:  # one run brings them all
                made[x] = self._cost[j] * size[x] / together if together else 0.0
        page_in = np.array(self._page_in) if self.space.paging else np.full(self._m, math.inf)
        self._fresh = np.minimum(made, page_in + np.array(self._page_out))
        self._written = np.minimum(made, page_in)
        prices = np.unique((self._fresh / np.maximum(size, 1.0))[size > 0])
        prices = prices[np.isfinite(prices) & (prices > 0)]
        if len(prices) > PRICES:
            prices = np.unique(np.quantile(prices, np.linspace(0, 1, PRICES + 1)[1:]))
        self._thetas = [
            (float(theta), theta * size, np.minimum(theta * size, self._fresh), np.minimum(theta * size, self._written))
            for theta in prices
        ]

    def _stays(self, bit: dict[int, int]) -> None:
        """Where each tensor is at hand for a stage's own operator, is there at all, and is read next."""
        shape = self._m, self._n
        self._used = np.zeros(shape, dtype=bool)
        self._born = np.array(self._producer)[:, None] < np.arange(self._n)[None, :]
        self._next = np.full((self._m, self._n + 1), self._n + 1)
        for s in range(self._n - 1, -1, -1):
            operator = self.space.problem.operators[s]
            self._next[:, s] = self._next[:, s + 1]
            for i in operator.inputs:
                self._next[bit[i], s] = s
            self._used[[bit[i] for i in {*operator.inputs, *operator.outputs}], s] = True
        self._room = self.space.room_bytes - np.array(self._work, dtype=float)
        # a small tensor that is dear makes θE the difference of sums that are far larger than it
        self._off = 4 * np.finfo(float).eps * (self._m + 8) * float(self._room.max() + sum(self._size))

    @property
    def stages(self) -> int:
        """How many."""
        return self._n

    @property
    def cost_scale(self) -> float:
        """What the dearest operator costs to run again, or 1 where all are free (joules)."""
        return max(self._costs, default=0.0) or 1.0

    @property
    def page_out_j(self) -> Floats:
        """(m,) by bit, what it costs to write each tensor."""
        return np.array(self._page_out)

    @property
    def least_j(self) -> float:
        """What is plain of any schedule before a search."""
        nothing = np.zeros((1, self._m), dtype=np.uint8)
        return max(0.0, float(self.completion(nothing, nothing, self._n)[0]))

    def before(self, t: int, labels: Mapping[Key, float], ceiling: float, work: Work) -> dict[Key, Step] | None:
        """What labels at the end of stage t become at its beginning, for less than `ceiling`; None: it was given up."""
        out, into, workspace, room = self._outs[t], self._ins[t], self._work[t], self.space.room_bytes
        steps: dict[Key, Step] = {}
        work.done += LABEL_WORK * len(labels)
        for key, cost in labels.items():
            if self._bytes(key[0] | out | into) + workspace <= room:
                put(steps, ((key[0] & ~out) | into, key[1]), (cost, into, key, ()))
        done = self._run_again(t, steps, ceiling, work) if self._again[t] else steps
        return None if done is None else self._come_back(t, done, ceiling, work)

    def _run_again(self, t: int, steps: dict[Key, Step], ceiling: float, work: Work) -> dict[Key, Step] | None:
        """Each label of stage t with whatever may run again, the last operator first; None where it is given up."""
        waiting: dict[int, dict[Key, Step]] = {}
        done: dict[Key, Step] = {}
        allowed, back, room = self._again[t], self._back[t], self.space.room_bytes

        def on(key: Key, step: Step, before: int) -> None:
            """To the next operator of which something is needed that may be had below the ceiling."""
            wanted = key[0] & allowed & self._below[before] & self._cheaper[bisect_left(self._costs, ceiling - step[0])]
            place = waiting.setdefault(self._producer[wanted.bit_length() - 1], {}) if wanted else done
            put(place, key, step)

        for key, step in steps.items():
            on(key, step, self._n)
        for j in range(self._n - 1, -1, -1):
            here = waiting.pop(j, None)
            if here is None:
                continue
            work.done += LABEL_WORK * len(here)
            if work.over or len(done) + len(here) > WIDEST:
                return None
            out, into, cost, free = self._outs[j], self._ins[j], self._cost[j], room - self._work[j]
            touched, coming = out | into, back & ~self._below[j + 1]
            for key, step in here.items():
                on(key, step, j)
                if self._bytes(key[0] | touched) <= free:
                    made = step[0] + cost, step[1] | into, step[2], (*step[3], (True, j))
                    on(((key[0] & ~out) | into, key[1]), made, j)
                    continue
                # what comes in only after j has run takes none of its room
                later = key[0] & step[1] & coming
                paged = self._paged(key, step, later, ceiling - cost, work) if later else []
                if paged is None:
                    return None
                for label, way in paged:
                    if self._just_fits(key[0], label[0], touched, free):
                        made = way[0] + cost, way[1] | into, way[2], (*way[3], (True, j))
                        on(((label[0] & ~out) | into, label[1]), made, j)
        return done

    def _just_fits(self, before: int, after: int, touched: int, room: int) -> bool:
        """Whether what is needed `after` some was paged in fits, and would not with any of that left there."""
        if self._bytes(after | touched) > room:
            return False
        gone = before & ~after
        while gone:
            one = gone & -gone
            gone ^= one
            if self._bytes(after | one | touched) <= room:
                return False
        return True

    def _come_back(self, t: int, steps: dict[Key, Step], ceiling: float, work: Work) -> dict[Key, Step] | None:
        """Each label with whatever is paged in of what is read in stage t; None where it is given up."""
        found: dict[Key, Step] = {}
        for key, step in steps.items():
            ways = self._paged(key, step, step[1] & key[0] & self._back[t], ceiling, work)
            if ways is None:
                return None
            for label, (spent, _, following, told) in ways:
                put(found, label, (spent, 0, following, told))
            if len(found) > WIDEST or work.over:
                return None
        return found

    def _paged(self, key: Key, step: Step, left: int, ceiling: float, work: Work) -> list[tuple[Key, Step]] | None:
        """A label with any of the tensors `left` paged in; None where it is given up."""
        ways = [(key, step)]
        while left:
            one = left & -left
            left ^= one
            x = one.bit_length() - 1
            work.done += len(ways)
            for (needed, written), (spent, read, following, told) in list(ways):
                more = spent + self._page_in[x] + (0.0 if written & one else self._page_out[x])
                if more < ceiling:
                    label = needed & ~one, written | one
                    ways.append((label, (more, read, following, (*told, (False, self._order[x])))))
            if len(ways) > WIDEST or work.over:
                return None
        return ways

    def completion(self, needed: Bits, written: Bits, t: int) -> Floats:
        """(labels,) what the stages before t cost at least, of labels (labels, m) each."""
        best = np.zeros(len(needed))
        used, born = self._used[:, :t], self._born[:, :t]
        read = born & (self._next[:, :t] < t) & ~used
        free = (born & ~used & ~read).astype(float)
        there = (born & ~used).astype(float)
        at_hand, between = used.astype(float), read.astype(float)
        mean = needed.mean(axis=0), written.mean(axis=0)
        # what all labels have alike is in the means; no BLAS, whose threads would wait for those of others
        vary = [np.flatnonzero((share > 0) & (share < 1)) for share in mean]
        labels = needed[:, vary[0]] - mean[0][vary[0]], written[:, vary[1]] - mean[1][vary[1]]
        for theta, full, fresh, again in self._thetas if t else ():
            fixed = full @ at_hand + fresh @ between - theta * self._room[:t]
            typical = fixed + (mean[0] * fresh) @ free - (mean[1] * (fresh - again)) @ there
            peaks = np.argsort(-typical)[:PEAKS]
            peaks = peaks[fixed[peaks] + fresh @ free[:, peaks] > 0]
            if len(peaks):
                worth = fresh[vary[0], None] * free[np.ix_(vary[0], peaks)]
                saved = (fresh - again)[vary[1], None] * there[np.ix_(vary[1], peaks)]
                sums = np.einsum("lx,xs->ls", labels[0], worth) - np.einsum("lx,xs->ls", labels[1], saved)
                best = np.maximum(best, (typical[peaks] + sums).max(axis=1) - self._off * theta)
        scale = float(max(self._cost, default=0.0)) + 1e-300
        return np.asarray(np.maximum(best * (1 - SAFE) - SAFE * scale, 0.0))

    def bits(self, masks: Sequence[int]) -> Bits:
        """(masks, m)"""
        width = (self._m + 7) // 8
        packed = np.frombuffer(b"".join(mask.to_bytes(width, "little") for mask in masks), dtype=np.uint8)
        return np.unpackbits(packed.reshape(len(masks), width), axis=1, bitorder="little")[:, : self._m]

    def _bytes(self, mask: int) -> int:
        total = 0
        for table in self._tables:
            total += table[mask & ((1 << CHUNK) - 1)]
            mask >>= CHUNK
        return total


def _mask(bits: Iterable[int]) -> int:
    mask = 0
    for x in bits:
        mask |= 1 << x
    return mask


def _sums(sizes: list[int]) -> list[int]:
    """By mask, what these take together."""
    sums = [0]
    for size in sizes:
        sums += [size + other for other in sums]
    return sums


def put(place: dict[Key, Step], key: Key, step: Step) -> None:
    """The cheaper of two ways to one label, the first of equal ones; either may have read what can be paged in."""
    other = place.get(key)
    if other is None:
        place[key] = step
        return
    cost, _, following, decisions = min(other, step, key=_cost)
    place[key] = cost, other[1] | step[1], following, decisions


def _cost(step: Step) -> float:
    return step[0]
