r"""Block `transfer_overlap`: how much of the transfers the CPU can hide at all, on a device with DMA. Only a separator.

The CPU stands still only while the channel is busy, so the makespan is $\Psi + C + X - H$: one pass, the recomputes,
the transfers, less the seconds H in which both are busy. With z a transfer that takes d seconds and moves m bytes,
$h_{z,t}$ the seconds of it during stage t's own operator, and $h'_{z,t}$ during stage t's recomputes,

$$ \begin{aligned}
   \sum_z h_{z,t} &\le \Psi_t                              && (\alpha_t) \quad \text{one channel} \\
   \sum_z h'_{z,t} &\le C_t                                && (\gamma_t) \\
   \sum_z m_z \tfrac{h_{z,t}}{\min(d_z, \Psi_t)} &\le B - U_t  && (\beta_t) \quad \text{its buffer is in RAM} \\
   \sum_t h_{z,t} + h'_{z,t} \le d_z z, \quad h_{z,t} &\le \min(d_z, \Psi_t)\, z
   \end{aligned} $$

where h is 0 where the buffer and what stage t's operator touches exceed the budget by themselves, U_t is what the stage
row of block `memory` counts, and t runs over the transfer's window: for a page-in at q of
tensor i, after the last real use of i before q (it was in RAM then, in a buffer that is gone) and before q; for a
page-out, after the operator that writes i and before its first page-in, or anywhere where i is written back. A page-out
of what is kept through stage t anyway takes no further room there.

For any multipliers $0 \le \alpha, \gamma \le 1$, $\beta \ge 0$, with $u_z$ the most that transfer z alone can make of
them (a fractional knapsack), every plan within the makespan $\mu$ satisfies

$$ \Psi + C + \sum_z (d_z - u_z)\, z
   - \sum_t ( \alpha_t \Psi_t + \gamma_t C_t + \beta_t (B - U_t) ) \le \mu. $$

*Proof.* The rows above hold of every plan: what overlaps a compute was queued before it and is freed after it, so its
whole buffer counts there, and $h / \min(d, \Psi_t) \le 1$. Weigh them with the multipliers; what is left of H is at
most $\sum_z u_z z$. The separator takes the multipliers from the linear program itself, so that no stronger row of this
form exists at the point.

Page-ins are taken at the stage where they are first read. What the row doesn't know (the order on the channel, whole
transfers) is left to the planner and to the solve loop.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from poetopt.formulations.block import Block, PyomoBlock, Space
from poetopt.formulations.retention.space import RetentionSpace
from poetopt.formulations.rows import Floats, Ints, PointLike, Row
from poetopt.util.sparse import coo_matrix, csr_matrix


@dataclass(frozen=True)
class Windows:
    """When each transfer can be under way, and what is kept meanwhile. N stages, P page-ins, Q page-outs.

    own_s
        (N,) seconds of each stage's own operator.
    kept, fixed
        (N, points) bytes in the stage row for each kept interval, and (N,) bytes that are there anyway.
    in_tensor, in_after, in_before, out_tensor, out_after, out_before
        Tensors, and the stages strictly between which each lies: (P,) and (Q,).
    """

    own_s: Floats
    kept: csr_matrix
    fixed: Floats
    in_tensor: Ints
    in_after: Ints
    in_before: Ints
    out_tensor: Ints
    out_after: Ints
    out_before: Ints

    @classmethod
    def of(cls, space: RetentionSpace) -> Windows:
        problem, count = space.problem, len(space.problem.operators)
        stages, tensors, bytes_kept = [], [], []
        size = space.tensor_bytes
        for e, i in enumerate(space.point_tensor.tolist()):
            covered = space.spanned(e)
            before = int(space.point_before[e])
            if before >= 0 and not space.point_real[before]:
                # kept on beyond a point that stage's operator doesn't read
                covered.append(int(space.point_stage[before]))
            stages += covered
            tensors += [e] * len(covered)
            bytes_kept += [size[i]] * len(covered)
        kept = coo_matrix((bytes_kept, (stages, tensors)), shape=(count, len(space.point_tensor))).tocsr()
        last_real = np.empty(len(space.point_tensor), dtype=np.int64)
        for i, (first, last) in enumerate(space.tensor_range):
            latest = problem.tensors[i].producer
            for e in range(first, last):
                last_real[e] = latest
                if space.point_real[e]:
                    latest = int(space.point_stage[e])
        paged = space.page_point
        moved = np.unique(space.point_tensor[paged]).tolist()
        outs = np.array([i for i in moved if problem.may_page_out(i)], dtype=np.int64)
        return cls(
            own_s=np.array([operator.time_s for operator in problem.operators]),
            kept=kept,
            fixed=space.working_set_bytes,
            in_tensor=space.point_tensor[paged],
            in_after=last_real[paged],
            in_before=space.point_stage[paged],
            out_tensor=outs,
            out_after=np.array([problem.tensors[i].producer for i in outs.tolist()], dtype=np.int64),
            out_before=np.array(
                [
                    count if space.stored[i] else int(space.point_stage[paged[space.point_tensor[paged] == i]].max())
                    for i in outs.tolist()
                ],
                dtype=np.int64,
            ),
        )


ACTIVE = 1e-6
"""A transfer below this value is not looked at."""
PRICED = 6000
"""At most this many page-ins get their own coefficient; further ones that are not at work get 0, which is valid."""
NEGLIGIBLE = 1e-9
"""Coefficients below this share of one pass are left out."""
LARGEST = 60_000
"""A linear program of more variables would take longer than its row is worth: a spread-out point of a large network."""
ALWAYS, NEVER = -2, -1


@dataclass
class Transfer:
    """One page-in or page-out: value at the point, seconds, bytes, and what each stage of its window offers.

    kept
        For a page-out, the point whose k keeps its tensor through each stage of the window (or `ALWAYS`, `NEVER`).
    charged
        Whether its buffer is charged to each stage's memory.
    """

    value: float
    seconds: float
    nbytes: float
    stages: Ints
    recompute_stages: Ints
    kept: Ints
    charged: NDArray[np.bool_]


@dataclass(frozen=True)
class Prices:
    """The multipliers, (N,) each: of the channel during own operators and during recomputes, and of a byte of RAM."""

    own: Floats
    again: Floats
    memory: Floats


class Overlap:
    """The linear program of `transfer_overlap`'s docstring at one point, and the row that its multipliers make."""

    def __init__(
        self,
        model: PyomoBlock,
        space: RetentionSpace,
        windows: Windows,
        point: PointLike,
    ) -> None:
        self.model, self.space, self.windows = model, space, windows
        self.r, self.k = point[model.recompute.r], point[model.residency.k]
        self.p, self.o = point[model.paging.p], point[model.paging.o]
        tensors, seconds = space.problem.tensors, windows.own_s[space.recompute_operator]
        self.again_s: Floats = np.zeros(len(windows.own_s))
        np.add.at(self.again_s, space.recompute_stage, self.r * seconds)
        self.in_s = np.array([tensors[i].page_in_s for i in windows.in_tensor.tolist()])
        self.out_s = np.array([tensors[i].page_out_s for i in windows.out_tensor.tolist()])
        self.transfer_s = float(self.in_s @ self.p + self.out_s @ self.o)
        self.room = space.room_bytes - windows.fixed - windows.kept @ self.k
        # the page-in that each page-out is taken to precede: the one of largest value
        self.first_in: dict[int, int] = {}
        for y in np.flatnonzero(self.p > ACTIVE).tolist():
            i = int(windows.in_tensor[y])
            best = self.first_in.get(i)
            if best is None or self.p[y] > self.p[best]:
                self.first_in[i] = y
        self.ins = {y: self._page_in(y) for y in np.flatnonzero((self.p > ACTIVE) & (self.in_s > 0)).tolist()}
        self.outs = {x: self._page_out(x) for x in np.flatnonzero((self.o > ACTIVE) & (self.out_s > 0)).tolist()}

    def _page_in(self, y: int) -> Transfer:
        w = self.windows
        stages = np.arange(int(w.in_after[y]) + 1, int(w.in_before[y]))
        nbytes = float(self.space.tensor_bytes[w.in_tensor[y]])
        stages = stages[(w.own_s[stages] > 0) & (w.fixed[stages] + nbytes <= self.space.room_bytes)]
        return Transfer(
            value=float(self.p[y]),
            seconds=float(self.in_s[y]),
            nbytes=nbytes,
            stages=stages,
            recompute_stages=np.arange(int(w.in_after[y]) + 1, int(w.in_before[y]) + 1),
            kept=np.full(len(stages), NEVER),
            charged=np.ones(len(stages), dtype=bool),
        )

    def _page_out(self, x: int, before: int | None = None) -> Transfer:
        w, space = self.windows, self.space
        i = int(w.out_tensor[x])
        end = int(w.out_before[x]) if before is None else before
        stages = np.arange(int(w.out_after[x]) + 1, end)
        stages = stages[w.own_s[stages] > 0]
        kept = np.full(len(stages), NEVER)
        first, last = space.tensor_range[i]
        e = first + np.searchsorted(space.point_stage[first:last], stages)
        for n, (t, at) in enumerate(zip(stages.tolist(), e.tolist(), strict=True)):
            if at == last:
                kept[n] = first if space.cyclic[i] else NEVER
            elif int(space.point_stage[at]) != t:
                kept[n] = at
            elif space.point_real[at]:
                kept[n] = ALWAYS
            elif space.point_after[at] >= 0:
                kept[n] = int(space.point_after[at])
        fits = (kept == ALWAYS) | (w.fixed[stages] + space.tensor_bytes[i] <= space.room_bytes)
        stages, kept = stages[fits], kept[fits]
        active = self.o[x] > ACTIVE
        held = (kept == ALWAYS) | ((kept >= 0) & (self.k[np.maximum(kept, 0)] >= 0.5))
        return Transfer(
            value=float(self.o[x]),
            seconds=float(self.out_s[x]),
            nbytes=float(space.tensor_bytes[i]),
            stages=stages,
            recompute_stages=np.arange(int(w.out_after[x]) + 1, min(end + 1, len(w.own_s))),
            kept=kept,
            charged=~held if active else np.zeros(len(stages), dtype=bool),
        )

    def _end_of(self, x: int) -> int | None:
        """The stage before which page-out x is taken to be over: that of the page-in it is paired with."""
        y = self._paired(x)
        return None if y is None else int(self.windows.in_before[y])

    def _paired(self, x: int) -> int | None:
        """The page-in that page-out x has to be over before: of what is on storage from the start, none."""
        i = int(self.windows.out_tensor[x])
        return None if self.space.stored[i] else self.first_in.get(i)

    def prices(self) -> Prices | None:
        """Multipliers of the most that can be hidden at the point, or None where the program is too large or fails."""
        from scipy.optimize import linprog  # few problems come here

        w, count = self.windows, len(self.windows.own_s)
        active = [*self.ins.values(), *(self._page_out(x, self._end_of(x)) for x in self.outs)]
        credit = np.zeros(count)
        rows: list[Ints] = []
        columns: list[Ints] = []
        values: list[Floats] = []
        upper: list[Floats] = []
        totals = np.array([z.seconds * z.value for z in active])
        base = 3 * count
        size = 0
        for n, z in enumerate(active):
            caps = np.minimum(z.seconds, w.own_s[z.stages])
            own = size + np.arange(len(z.stages))
            rows += [z.stages, 2 * count + z.stages[z.charged], np.full(len(own), base + n)]
            columns += [own, own[z.charged], own]
            values += [np.ones(len(own)), z.nbytes / caps[z.charged], np.ones(len(own))]
            upper.append(caps * z.value)
            size += len(own)
            stages = z.recompute_stages[self.again_s[z.recompute_stages] > 0]
            during = size + np.arange(len(stages))
            rows += [count + stages, np.full(len(during), base + n)]
            columns += [during, during]
            values += [np.ones(len(during)), np.ones(len(during))]
            upper.append(np.full(len(during), z.seconds * z.value))
            size += len(during)
            lent = z.charged & (z.kept >= 0)
            np.add.at(credit, z.stages[lent], z.nbytes * self.k[z.kept[lent]])
        if size > LARGEST:
            return None
        if not size:
            return Prices(np.zeros(count), np.zeros(count), np.zeros(count))
        byte = float(self.space.room_bytes) or 1.0
        scale = self.space.problem.baseline_time_s
        matrix = coo_matrix(
            (np.concatenate(values), (np.concatenate(rows), np.concatenate(columns))), shape=(base + len(active), size)
        ).tocsr()
        sides = np.concatenate([w.own_s, self.again_s, np.maximum(self.room + credit, 0.0), totals])
        weights = np.concatenate([np.full(2 * count, 1.0), np.full(count, scale / byte), np.full(len(active), 1.0)])
        solved = linprog(
            np.full(size, -1.0),
            A_ub=matrix.multiply(weights[:, None]).tocsr(),
            b_ub=sides * weights,
            bounds=np.column_stack([np.zeros(size), np.concatenate(upper)]),
            method="highs",
        )
        if solved.status != 0:
            return None
        duals = -np.asarray(solved.ineqlin.marginals) * weights
        touched: Floats = np.zeros(count)
        for z in active:
            touched[z.recompute_stages] = 1.0
        again = np.where(self.again_s > 0, np.clip(duals[count : 2 * count], 0.0, 1.0), touched)
        own, memory = np.clip(duals[:count], 0.0, 1.0), np.maximum(duals[2 * count : base], 0.0)
        return Prices(own, np.asarray(again, dtype=float), memory)

    def _worth(self, z: Transfer, prices: Prices) -> float:
        """u_z: the most that a whole transfer makes of the prices; a fractional knapsack over its window."""
        caps = np.minimum(z.seconds, self.windows.own_s[z.stages])
        values = 1.0 - prices.own[z.stages]
        values = values - np.where(z.charged, prices.memory[z.stages] * z.nbytes / caps, 0.0) if len(caps) else values
        best_again = float((1.0 - prices.again[z.recompute_stages]).max()) if len(z.recompute_stages) else 0.0
        order = np.argsort(-values, kind="stable")
        left, worth = z.seconds, 0.0
        for n in order.tolist():
            if left <= 0 or values[n] <= max(best_again, 0.0):
                break
            taken = min(left, float(caps[n]))
            worth += taken * float(values[n])
            left -= taken
        return worth + max(left, 0.0) * max(best_again, 0.0)

    def row(self, prices: Prices, limit: float, one_pass: float, integral: bool) -> Row:
        """The row of these multipliers, whatever they are; relative to one pass."""
        w, space, model = self.windows, self.space, self.model
        constant = one_pass - float(prices.own @ w.own_s) - float(prices.memory @ (space.room_bytes - w.fixed))
        k_cost = prices.memory @ w.kept
        r_cost = w.own_s[space.recompute_operator] * (1.0 - prices.again[space.recompute_stage])
        p_cost, o_cost = np.zeros(len(self.p)), np.zeros(len(self.o))
        chosen = range(len(self.p)) if len(self.p) <= PRICED else self.ins
        for y in chosen:
            if self.in_s[y] > 0:
                z = self.ins.get(y) or self._page_in(y)
                p_cost[y] = z.seconds - self._worth(z, prices)
        for x in range(len(self.o)):
            if self.out_s[x] <= 0:
                continue
            z = self.outs.get(x) or self._page_out(x)
            worth = self._worth(z, prices)
            o_cost[x] = z.seconds - worth
            if x not in self.outs:
                continue
            np.subtract.at(k_cost, z.kept[lent := z.charged & (z.kept >= 0)], prices.memory[z.stages[lent]] * z.nbytes)
            paired = self._paired(x)
            if paired is not None:
                # where this page-in is, the page-out is over before it: so much less of it can be hidden
                p_cost[paired] += worth - self._worth(self._page_out(x, int(w.in_before[paired])), prices)
        groups = [
            (model.recompute.r, r_cost, self.r),
            (model.residency.k, k_cost, self.k),
            (model.paging.p, p_cost, self.p),
            (model.paging.o, o_cost, self.o),
        ]
        variables: list[object] = []
        coefficients: list[float] = []
        value = constant - limit
        for variable, cost, at in groups:
            used = np.flatnonzero((cost > NEGLIGIBLE * one_pass) | (cost < 0))  # leaving out what adds is valid
            value += float(cost @ at)
            entries = list(variable.values())
            variables += [entries[n] for n in used.tolist()]
            coefficients += (cost[used] / one_pass).tolist()
        return Row(
            variables=variables,
            coefficients=coefficients,
            lower=-np.inf,
            upper=(limit - constant) / one_pass,
            violation=value / one_pass,
            kind="transfer_overlap",
            core=integral,
        )


VIOLATION = 1e-7
"""A row that a schedule exceeds by more than this share of one pass proves it late."""
CUT = 1e-4
"""The same for what is only a cut of the relaxation: less is not worth a row."""


def _build(block: PyomoBlock) -> None:
    """No variables; the index sets that every separation needs."""
    block.windows = Windows.of(block.model().space)


def _separate(block: PyomoBlock, point: PointLike) -> list[Row]:
    """The strongest row at `point`, where it is violated."""
    model = block.model()
    space: RetentionSpace = model.space
    problem, limit = space.problem, space.limits.makespan_s
    one_pass = problem.baseline_time_s
    if limit is None or not one_pass:
        return []
    row = Overlap(model, space, block.windows, point)
    need = one_pass + float(row.again_s.sum()) + row.transfer_s - limit
    if need <= VIOLATION * one_pass or row.transfer_s <= 0:
        return []  # nothing needs to be hidden
    prices = row.prices()
    if prices is None:
        return []
    found = row.row(prices, limit, one_pass, point.integral)
    return [found] if found.violation > (VIOLATION if point.integral else CUT) else []


def _needed(space: Space) -> bool:
    # what streams takes other room than the rows count, and the channel for itself
    streams = isinstance(space, RetentionSpace) and bool(space.streams)
    return space.paging and space.problem.dma and space.limits.makespan_s is not None and not streams


transfer_overlap = Block(
    "transfer_overlap",
    _build,
    requires=("recompute", "paging", "residency", "memory"),
    separator=_separate,
    when=_needed,
)
