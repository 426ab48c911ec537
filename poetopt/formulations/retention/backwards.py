r"""An exact search without a relaxation: stage by stage, from the step's end to its beginning.

A *label* at the beginning of a stage is $(N, W, c)$: what the rest of the step needs in RAM, which tensors it pages in
(so that they are written out once), and what its recomputes and transfers cost. At the end it is
$(\emptyset, \emptyset, 0)$. Through stage t, backwards,

- t's own operator: $N := N \setminus out(t) \cup in(t)$, if $N$, its inputs, outputs and workspace fit;
- each operator j that may run again in t, the last first: not, or $N := N \setminus out(j) \cup in(j)$ for its cost, if
  $N \cap out(j) \ne \emptyset$ and $N$, its inputs, outputs and workspace fit (the intra-stage rows of `memory`);
- the tensors of $N$ that are read in t: kept, or paged in (and written out, where they aren't in $W$). A page-in at a
  stage that doesn't read it can wait for one that does.

What is needed is little where memory is tight, so labels are few where a relaxation mixes many schedules. Two things
keep them few. *Dominance*: of two labels one is left out whose $N$ holds the other's, and which costs no less than the
other with the page-outs that only it has paid. *Completion*: what is alive at an earlier stage s, and needed after it
(N, and real uses between s and t), is in RAM there or had again at a price of $\rho_i$ a byte at least (its operator
run again, or a page-in, with a page-out where it isn't in $W$). With $a_i$ the bytes of each and E what the room lacks,

$$ \min \Big\{ \sum_i \rho_i d_i : \sum_i d_i \ge E,\ 0 \le d_i \le a_i \Big\}
   = \max_\theta\ \theta E - \sum_i \max(0, \theta - \rho_i) a_i ; $$

any s and θ bound what the stages before t cost, and a label that comes to the limit so is left out.

A search below a limit ends with the least cost and its schedule, or proves that nothing costs less than the limit.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from poetopt import interrupts
from poetopt.formulations.block import Limits
from poetopt.formulations.retention.space import RetentionSpace, retention_space
from poetopt.formulations.rows import Floats, Ints
from poetopt.problem import Problem
from poetopt.schedule import Schedule

Bits = NDArray[np.uint8]
Key = tuple[int, int]
"""N and W, a bit for each tensor."""
Decisions = tuple[tuple[bool, int], ...]
"""What is done in a stage: (True, an operator that runs again) and (False, a tensor's bit that is paged in)."""
Step = tuple[float, int, Key, Decisions]
"""A label's cost, what is read in its stage so far, the label of the next stage, and what is done in between."""

CHUNK = 14
"""Bits that one table of sums covers."""
PEAKS, PRICES = 8, 8
"""How many earlier stages, and prices θ, are looked at for what completes a label, at most."""
SAFE = 1e-9
"""What completes a label is rounded down by this share."""
BLOCK, KEPT_BLOCK = 128, 8192
"""Labels that are compared at once."""
FEW, GROWN = 50, 1.05
"""More labels than FEW are compared only where they are GROWN times those of the stage before."""
MOST_WRITTEN = 1500
"""Where there are more different W, only labels with the same one are compared."""
WIDEST = 150_000
"""A search with more labels in a stage is given up."""


class Backwards:
    """The search over the labels of one space."""

    def __init__(self, space: RetentionSpace) -> None:
        self.space = space
        problem = space.problem
        operators, n = problem.operators, len(problem.operators)
        self._order = sorted(range(len(problem.tensors)), key=lambda i: (problem.tensors[i].producer, i))
        """By bit, the tensor: what is made later has a higher bit."""
        bit = {i: x for x, i in enumerate(self._order)}
        self._m, self._n = len(bit), n
        self._ins = [_mask(bit[i] for i in operator.inputs) for operator in operators]
        self._outs = [_mask(bit[i] for i in operator.outputs) for operator in operators]
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
        sized = [x for x in range(self._m) if self._size[x] > 0 and space.paging]
        self._back = [_mask(x for x in sized if self._producer[x] <= t - 2) for t in range(n)]
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

    @property
    def least_j(self) -> float:
        """What is plain of any schedule before a search."""
        nothing = np.zeros((1, self._m), dtype=np.uint8)
        return max(0.0, float(self._completion(nothing, nothing, self._n)[0]))

    def below(self, limit_j: float, until: float, seed: int | None = None) -> tuple[float, Schedule] | bool:
        """The cheapest schedule, if it costs less than `limit_j`; True: there is none; False: it was given up.

        until
            The moment (of `time.monotonic`) at which it is given up.
        seed
            Of what decides between schedules that cost the same.
        """
        draw = None if seed is None else np.random.default_rng(seed)
        labels: dict[Key, float] = {(0, 0): 0.0}
        history: list[dict[Key, Step]] = []
        room = self.space.room_bytes
        few = 0
        for t in range(self._n - 1, -1, -1):
            interrupts.check()
            out, into, work = self._outs[t], self._ins[t], self._work[t]
            steps: dict[Key, Step] = {}
            for key, cost in labels.items():
                if self._bytes(key[0] | out | into) + work <= room:
                    _put(steps, ((key[0] & ~out) | into, key[1]), (cost, into, key, ()))
            done = self._run_again(t, steps, limit_j, until) if self._again[t] else steps
            paged = None if done is None else self._paged(t, done, limit_j, until)
            if paged is None:
                return False
            keys = list(paged)
            costs = np.array([paged[key][0] for key in keys])
            if not keys:
                return True
            kept = self._bits([key[0] for key in keys]), self._bits([key[1] for key in keys])
            left = np.flatnonzero(costs + self._completion(*kept, t) < limit_j)
            if not len(left):
                return True
            if len(left) < FEW or len(left) > GROWN * few:
                chosen = self._undominated([keys[x] for x in left], costs[left], until, draw)
                if chosen is None:
                    return False
                left = left[chosen]
                few = len(left)
            labels = {keys[x]: float(costs[x]) for x in left}
            history.append({key: paged[key] for key in labels})
        best = min(labels, key=lambda key: labels[key])
        return labels[best], self._schedule(history, best)

    def _schedule(self, history: list[dict[Key, Step]], key: Key) -> Schedule:
        recomputes, page_ins = set[tuple[int, int]](), set[tuple[int, int]]()
        for stage, labels in enumerate(reversed(history)):
            _, _, following, decisions = labels[key]
            for again, x in decisions:
                (recomputes if again else page_ins).add((stage, x if again else self._order[x]))
            key = following
        return Schedule(frozenset(recomputes), frozenset(page_ins))

    def _run_again(self, t: int, steps: dict[Key, Step], limit: float, until: float) -> dict[Key, Step] | None:
        """Each label of stage t with whatever may run again, the last operator first; None where it is given up."""
        waiting: dict[int, dict[Key, Step]] = {}
        done: dict[Key, Step] = {}
        allowed, room = self._again[t], self.space.room_bytes

        def put(key: Key, step: Step, before: int) -> None:
            """To the next operator of which something is needed that may be had within the limit."""
            wanted = key[0] & allowed & self._below[before] & self._cheaper[bisect_left(self._costs, limit - step[0])]
            place = waiting.setdefault(self._producer[wanted.bit_length() - 1], {}) if wanted else done
            _put(place, key, step)

        for key, step in steps.items():
            put(key, step, self._n)
        for j in range(self._n - 1, -1, -1):
            here = waiting.pop(j, None)
            if here is None:
                continue
            if time.monotonic() > until or len(done) + len(here) > WIDEST:
                return None
            out, into, cost, work = self._outs[j], self._ins[j], self._cost[j], self._work[j]
            for key, step in here.items():
                put(key, step, j)
                if self._bytes(key[0] | out | into) + work <= room:
                    made = step[0] + cost, step[1] | into, step[2], (*step[3], (True, j))
                    put(((key[0] & ~out) | into, key[1]), made, j)
        return done

    def _paged(self, t: int, steps: dict[Key, Step], limit: float, until: float) -> dict[Key, Step] | None:
        """Each label with whatever is paged in of what is read in stage t; None where it is given up."""
        found: dict[Key, Step] = {}
        for key, (cost, read, following, decisions) in steps.items():
            ways = [(key, cost, decisions)]
            left = read & key[0] & self._back[t]
            while left:
                one = left & -left
                left ^= one
                x = one.bit_length() - 1
                for (needed, written), spent, told in list(ways):
                    more = spent + self._page_in[x] + (0.0 if written & one else self._page_out[x])
                    if more < limit:
                        ways.append(((needed & ~one, written | one), more, (*told, (False, x))))
            for label, spent, told in ways:
                _put(found, label, (spent, 0, following, told))
            if len(found) > WIDEST or time.monotonic() > until:
                return None
        return found

    def _completion(self, needed: Bits, written: Bits, t: int) -> Floats:
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
                best = np.maximum(best, (typical[peaks] + sums).max(axis=1))
        scale = float(max(self._cost, default=0.0)) + 1e-300
        return np.asarray(np.maximum(best * (1 - SAFE) - SAFE * scale, 0.0))

    def _undominated(
        self, keys: list[Key], costs: Floats, until: float, draw: np.random.Generator | None
    ) -> Ints | None:
        """The labels of which no other one makes a better or equal one; None where it is given up."""
        if draw is None:
            order = np.argsort(costs, kind="stable")
        else:
            order = np.lexsort((draw.random(len(costs)), np.round(costs / (max(self._costs) or 1.0), 9)))
        keys, costs = [keys[x] for x in order], costs[order]
        needs = self._words([key[0] for key in keys])
        different = sorted({key[1] for key in keys})
        place = {written: x for x, written in enumerate(different)}
        writes = np.array([place[key[1]] for key in keys])
        pays = self._pays(different)
        kept = np.zeros(0, dtype=np.int64)
        for first in range(0, len(keys), BLOCK):
            if time.monotonic() > until:
                return None
            block = np.arange(first, min(first + BLOCK, len(keys)))
            for start in range(0, len(kept), KEPT_BLOCK):
                _, worse = _dominates(needs, writes, costs, pays, kept[start : start + KEPT_BLOCK], block)
                block = np.delete(block, worse)
            better, worse = _dominates(needs, writes, costs, pays, block, block)
            kept = np.append(kept, np.delete(block, worse[better < worse]))
        return np.asarray(order[kept])

    def _pays(self, written: list[int]) -> Floats | None:
        """[a, b]: what it costs to write what b has written and a hasn't."""
        if len(written) > MOST_WRITTEN:
            return None
        bits = self._bits(written).astype(float)
        return np.asarray((1 - bits) @ (np.array(self._page_out)[:, None] * bits.T))

    def _words(self, masks: list[int]) -> NDArray[np.uint64]:
        """(labels, words) of those bits that aren't the same in all."""
        all_, any_ = masks[0], 0
        for mask in masks:
            all_, any_ = all_ & mask, any_ | mask
        vary = np.flatnonzero(self._bits([any_ & ~all_])[0])
        bits = self._bits(masks)[:, vary].astype(np.uint64)
        words = np.zeros((len(masks), max(1, -(-len(vary) // 64))), dtype=np.uint64)
        for x in range(len(vary)):
            words[:, x // 64] |= bits[:, x] << np.uint64(x % 64)
        return words

    def _bits(self, masks: Sequence[int]) -> Bits:
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


def _put(place: dict[Key, Step], key: Key, step: Step) -> None:
    """The cheaper of two ways to one label, the first of equal ones; either may have read what can be paged in."""
    other = place.get(key)
    if other is None:
        place[key] = step
        return
    cost, _, following, decisions = min(other, step, key=_cost)
    place[key] = cost, other[1] | step[1], following, decisions


def _cost(step: Step) -> float:
    return step[0]


def _dominates(
    needs: NDArray[np.uint64], writes: Ints, costs: Floats, pays: Floats | None, some: Ints, others: Ints
) -> tuple[Ints, Ints]:
    """The pairs, by their places in `some` and `others`, of which the first makes the second."""
    inside = np.ones((len(some), len(others)), dtype=bool)
    for word in range(needs.shape[1]):
        inside &= (needs[some, word][:, None] & ~needs[others, word][None, :]) == 0
    if pays is None:
        inside &= writes[some][:, None] == writes[others][None, :]
    a, b = np.nonzero(inside)
    cost = costs[some[a]]
    if pays is not None:
        cost = cost + pays[writes[some[a]], writes[others[b]]]
    cheaper = cost <= costs[others[b]] * (1 + 1e-12)
    return a[cheaper], b[cheaper]


def backwards(problem: Problem, limits: Limits, scope: str, paging: bool, remat: bool) -> Backwards | None:
    """The search over a scope; None where more counts than bytes and joules, or a label would be more than it is."""
    if limits.compute_s is not None or limits.makespan_s is not None or problem.wake_j:
        return None
    capacity = problem.storage_blocks
    if paging and capacity is not None and sum(map(problem.blocks, range(len(problem.tensors)))) > capacity:
        return None
    if any(not math.isfinite(tensor.page_in_j + tensor.page_out_j) for tensor in problem.tensors):
        return None
    return Backwards(retention_space(problem, limits, scope, paging, remat))
