r"""Block `chain_cuts`: valid inequalities that strengthen the relaxation. No variables, only a separator.

For a real use (i, b), a stage s with g(i) <= s < b, and a path of tensors v0 -> ... -> vq = i in which
each is an input of the operator that writes the next:

$$ \sum_{t \in (s,b]} r_{g(v_0),t} + \sum_{v \text{ on the path}} ( c_v(s) + w_v ) \ge 1,
   \qquad w_v = \min( \sum_{t \in (s,b]} p_{v,t},\ o_v ) $$

where $c_v(s)$ is the k whose interval crosses from s to s+1 (0 if there is none). *Proof.* At b, i is in RAM. If it
neither crossed from s nor was paged in since, it was recomputed in (s, b], so the tensor before it on the path was in
RAM then. The same argument applies to that tensor, and so on down to v0, which must have been recomputed in (s, b]. If
v0 is a graph input, or its operator can't be recomputed in (s, b], the r term is 0. Either term of the minimum is valid
by itself.

If runs may stream (`streaming`), the tensor before may have been streamed in instead. Let $Y_v$ be the streamed runs in
(s, b] that read v for the next tensor on the path (for i the run of b itself). Then
$w_v = \min( \sum_{t \in (s,b]} p_{v,t} + Y_v,\ o_v + Y^{out}_v )$.

*Separation* is a shortest path over the ancestors of i, for all (s, b) at once: with D_v(s, b) the least
left-hand side over the paths that end in v,

$$ D_v = c_v + w_v + \min( \sum_{t \in (s,b]} r_{g(v),t},\ \min_{u \in in(g(v))} D_u ). $$
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poetopt.formulations.block import Block, PyomoBlock
from poetopt.formulations.retention.chain_rows import Chain, ChainRows
from poetopt.formulations.retention.memory import stage_bytes
from poetopt.formulations.retention.space import RetentionSpace, ordinary_bytes
from poetopt.formulations.rows import Floats, PointLike, Row

# Memory pressure: weights of the stages at which windows of chain cuts should begin.
#
# Of two windows that a point violates equally, the better one is the one on which the final relaxation will rest. It
# begins where keeping a tensor is most expensive. A single point doesn't show that, because a point whose recomputes
# still cost nothing keeps little. So the weight of a stage is a count times the bytes live there in ordinary training.
# The count is how often memory was full there so far, or an inner scope had a binding cut that begins there.

MAX_FREE_SHARE = 1e-4
"""Memory counts as full if less than this share of it is free."""


class Pressure:
    """Weights of memory pressure by stage, learned from a model's points. N stages.

    Attributes
    ----------
    by_stage
        (N,) weight between each stage and the next; 0 if memory was never full there.
    """

    def __init__(self, space: RetentionSpace) -> None:
        self._space = space
        self._kept_bytes = ordinary_bytes(space.problem)
        self.by_stage: Floats = np.zeros(len(self._kept_bytes))

    def learn_from_cut(self, stage: int) -> None:
        """Learn from a cut of another scope's bound, whose window begins at `stage`."""
        self.by_stage[stage] += self._kept_bytes[stage]

    def learn_from_point(self, kept: Floats, streamed: Floats | None = None) -> None:
        """Learn from a point: `kept` (n_points,) are its values of k, `streamed` (n_streams,) those of y."""
        is_full = stage_bytes(self._space, kept, streamed) >= (1 - MAX_FREE_SHARE) * self._space.room_bytes
        self.by_stage += (is_full | np.append(is_full[1:], False)) * self._kept_bytes


Floats32 = NDArray[np.float32]

MIN_VIOLATION = 0.02
"""Smallest violation for which a cut is added."""
CUTS_PER_USE = 3
"""Largest number of cuts in a round for one use of a tensor, each for a window that is a local maximum."""
MANY_POINTS = 5_000
"""Number of points from which on a use has at most two cuts: one for the most violated window, and one for the window
with the highest memory pressure. In smaller spaces rounds are fast."""
SECOND_WINDOW_SHARE = 0.5
"""Least violation of the second window, as a share of that of the first."""
MIN_SHARE = 1e-6
"""Shares of streamed runs below this count as 0."""
CUTS_PER_ROUND = 1500
"""Largest number of cuts in a round, the most violated first."""
FULL_CROSSING = np.float32(1)
"""Crossing value of a tensor without bytes: it crosses every window, so no path through it is violated."""


def _build(block: PyomoBlock) -> None:
    """Prepare the state of the separator; the block has no variables and no rows."""
    space: RetentionSpace = block.model().space
    block.pressure = Pressure(space) if len(space.point_tensor) >= MANY_POINTS else None
    block.rows = None


def _separate(block: PyomoBlock, point: PointLike) -> list[Row]:
    if point.integral:
        return []
    model = block.model()
    space: RetentionSpace = model.space
    if not len(space.recompute_stage) and not space.paging:
        return []
    values = _Values.at(model, space, point)
    pressed: Floats | None = None
    if block.pressure is not None:
        block.pressure.learn_from_point(point[model.residency.k], point[model.streaming.y] if space.streams else None)
        pressed = block.pressure.by_stage
    worst = sorted(_violated(space, values, pressed), key=lambda cut: (-cut[0], cut[1:]))[:CUTS_PER_ROUND]
    chains = [_chain(space, values, i, s, b) for _, i, s, b in worst]
    chain_rows = _rows(block)
    rows = [chain_rows.row(chain, violation) for chain, (violation, *_) in zip(chains, worst, strict=True)]
    return rows


def _rows(block: PyomoBlock) -> ChainRows:
    if block.rows is None:
        block.rows = ChainRows(block.model())
    rows: ChainRows = block.rows
    return rows


@dataclass(frozen=True)
class _Values:
    """A point, arranged for the recursion. N stages, n tensors.

    Attributes
    ----------
    crossing
        (n, N) value of the k that crosses from stage s to s+1.
    recomputed
        (N operators, N+1) cumulative r over stages t < column.
    paged
        (n, N+1) cumulative p.
    written
        (n,) o plus the runs that stream the tensor out.
    streamed
        (tensor, reader) -> (N+1,) cumulative y of the reader's runs that stream the tensor in, if there are any.
    """

    crossing: Floats32
    recomputed: Floats32
    paged: Floats32
    written: Floats32
    streamed: dict[tuple[int, int], Floats32]

    @classmethod
    def at(cls, model: PyomoBlock, space: RetentionSpace, point: PointLike) -> _Values:
        n, stages = len(space.problem.tensors), len(space.problem.operators)
        recomputed = np.zeros((stages, stages + 1))
        recomputed[space.recompute_operator, space.recompute_stage + 1] = point[model.recompute.r]
        paged = np.zeros((n, stages + 1))
        written = np.zeros(n)
        if space.paging:
            pages = space.page_point
            paged[space.point_tensor[pages], space.point_stage[pages] + 1] = point[model.paging.p]
            written[model.paging.o_tensor] = point[model.paging.o]
            # a tensor that is always on storage is never written, so only page-ins count
            written[space.stored & (np.bincount(model.paging.o_tensor, minlength=n) == 0)] = np.inf
        streamed: dict[tuple[int, int], Floats] = {}
        if space.streams:
            y = point[model.streaming.y]
            for (i, j, t), runs in space.streamed_in.items():
                if (share := float(y[runs].sum())) > MIN_SHARE:
                    streamed.setdefault((i, j), np.zeros(stages + 1))[t + 1] += share
            for i, runs in space.streamed_out.items():
                written[i] += y[runs].sum()
        # float32 halves the bytes and doubles the speed; a cut's violation is far above the rounding error
        return cls(
            crossing=space.crossing(point[model.residency.k]).astype(np.float32),
            recomputed=np.cumsum(recomputed, axis=1).astype(np.float32),
            paged=np.cumsum(paged, axis=1).astype(np.float32),
            written=written.astype(np.float32),
            streamed={run: np.cumsum(shares).astype(np.float32) for run, shares in streamed.items()},
        )


def _violated(space: RetentionSpace, values: _Values, pressed: Floats | None) -> list[tuple[float, int, int, int]]:
    """Return (violation, tensor, s, b) of the most violated cuts for each real use."""
    problem = space.problem
    stages = len(problem.operators)
    again = np.zeros(stages, dtype=bool)
    again[space.recompute_operator] = True
    first_recompute = int(space.recompute_stage.min()) if len(space.recompute_stage) else stages
    # the stages at whose real uses a path may end
    columns = np.unique([b for j in np.flatnonzero(again) for i in problem.operators[j].outputs for b in space.uses[i]])
    columns = columns[columns >= first_recompute].astype(np.int64)
    column_of = {b: x for x, b in enumerate(columns.tolist())}
    pending = _pending(space, again)
    distance: dict[int, Floats32] = {}
    cuts: list[tuple[float, int, int, int]] = []
    for i in _by_producer(space):
        producer, sized = problem.tensors[i].producer, problem.tensors[i].nbytes > 0
        uses = tuple(space.uses[i]) if sized else ()
        early_uses = np.array([b for b in uses if b < first_recompute], dtype=np.int64)
        if producer >= 0 and again[producer]:
            distance[i] = _stay(values, i, columns, stages)
            if values.recomputed[producer, -1] > 0:  # otherwise the path may begin here at no cost
                tail = _window(values.recomputed[producer], columns, stages)
                for u in problem.operators[producer].inputs:
                    if (u, producer) in values.streamed:
                        read = _streamed(values, u, producer, columns, stages, distance[u], space)
                        np.minimum(tail, read, out=tail)
                    else:
                        np.minimum(tail, distance[u], out=tail)
                distance[i] = np.add(tail, distance[i], out=tail)
            _collect(
                cuts,
                _used(values, i, columns, distance[i], leaf=False) if values.streamed else distance[i],
                pressed,
                i,
                space.first_stages[i],
                [(b, column_of[b]) for b in uses if b >= first_recompute],
            )
            for u in problem.operators[producer].inputs:
                pending[u] -= 1
                if not pending[u]:
                    del distance[u]
        else:
            early_uses = np.array(uses, dtype=np.int64)
            if pending[i]:
                distance[i] = _stay(values, i, columns, stages)
        if not sized:
            distance[i] = np.broadcast_to(FULL_CROSSING, (stages, len(columns)))
        if len(early_uses):
            single = _stay(values, i, early_uses, stages)
            if values.streamed and (producer < 0 or not again[producer]):
                single = _used(values, i, early_uses, single, leaf=True)
            elif values.streamed:
                single = _used(values, i, early_uses, single, leaf=False)
            _collect(cuts, single, pressed, i, space.first_stages[i], [(int(b), x) for x, b in enumerate(early_uses)])
        if not pending[i]:
            distance.pop(i, None)
    return cuts


def _by_producer(space: RetentionSpace) -> list[int]:
    tensors = space.problem.tensors
    return sorted(range(len(tensors)), key=lambda i: (tensors[i].producer, i))


def _pending(space: RetentionSpace, again: np.ndarray) -> list[int]:
    """Return for each tensor how many outputs of recomputable readers still need its distance."""
    count = [0] * len(space.problem.tensors)
    for j, operator in enumerate(space.problem.operators):
        if again[j]:
            for i in operator.inputs:
                count[i] += len(operator.outputs)
    return count


def _window(cumulative: Floats32, columns: np.ndarray, stages: int) -> Floats32:
    """Return the (s, b) array of sums over t in (s, b]."""
    return np.asarray(cumulative[columns + 1][None, :] - cumulative[1 : stages + 1][:, None])


def _stay(values: _Values, i: int, columns: np.ndarray, stages: int) -> Floats32:
    """Return the (s, b) array of c_i(s) + w_i(s, b)."""
    crossing = values.crossing[i][:, None]
    if values.written[i] > 0 and values.paged[i, -1] > 0:
        result = _window(values.paged[i], columns, stages)
        np.minimum(result, values.written[i], out=result)
        result += crossing
        return result
    return np.broadcast_to(crossing, (stages, len(columns)))


def _streamed(
    values: _Values, u: int, reader: int, columns: np.ndarray, stages: int, distance: Floats32, space: RetentionSpace
) -> Floats32:
    """Return the (s, b) array of D_u for recomputes of `reader`, some of which read u from storage."""
    more = _window(values.streamed[u, reader], columns, stages)
    if space.problem.tensors[u].computed:
        return np.asarray(distance + more)
    return np.asarray(np.minimum(distance + more, values.crossing[u][:, None] + values.written[u]))


def _used(values: _Values, i: int, columns: np.ndarray, distance: Floats32, *, leaf: bool) -> Floats32:
    """Return the (s, b) array of D_i if the operator of b may stream i in; `leaf`: no path continues from i."""
    more = np.zeros(len(columns), dtype=np.float32)
    for place, b in enumerate(columns.tolist()):
        if (i, b) in values.streamed:
            more[place] = values.streamed[i, b][b + 1] - values.streamed[i, b][b]
    if not more.any():
        return distance
    distances = np.asarray(distance + more[None, :])
    return np.minimum(distances, values.crossing[i][:, None] + values.written[i]) if leaf else distances


def _collect(
    cuts: list[tuple[float, int, int, int]],
    distance: Floats32,
    pressed: Floats | None,
    i: int,
    earliest: int,
    uses: list[tuple[int, int]],
) -> None:
    for b, column in uses:
        if b <= earliest:
            continue
        missing = 1.0 - distance[earliest:b, column]
        if missing.max() < MIN_VIOLATION:
            continue
        for s in _windows(missing, None if pressed is None else pressed[earliest:b]):
            if missing[s] > MIN_VIOLATION:
                cuts.append((float(missing[s]), i, s + earliest, b))


def _windows(missing: Floats32, pressed: Floats | None) -> list[int]:
    """Return the starts of a use's windows that deserve a cut, by violation and memory pressure."""
    if pressed is not None:
        worst = int(missing.argmax())
        others = np.where(missing > SECOND_WINDOW_SHARE * missing[worst], pressed, 0.0)
        others[worst] = 0.0
        shortest = int(others.argmax())
        return [worst, shortest] if others[shortest] else [worst]
    # one window for each local maximum, because its neighbours give nearly the same cut
    falls = np.diff(missing, append=-np.inf) < 0
    rises = np.diff(missing, prepend=-np.inf) > 0
    basins = np.flatnonzero(rises | falls)
    basins = basins[rises[basins]]
    chosen: list[int] = basins[np.argsort(-missing[basins], kind="stable")][:CUTS_PER_USE].tolist()
    return chosen


def _chain(space: RetentionSpace, values: _Values, i: int, s: int, b: int) -> Chain:
    """Return the chain of the shortest path that ends in tensor i, over (s, b]."""
    problem = space.problem
    memo: dict[int, tuple[Any, int]] = {}

    def moved_in(v: int, reader: int) -> Any:
        """Return the share of v that was paged in in (s, b] or streamed in by `reader`, written before or not."""
        share = values.paged[v, b + 1] - values.paged[v, s + 1]
        if (v, reader) in values.streamed:
            shares = values.streamed[v, reader]
            share += shares[b + 1] - shares[s + 1]
        return share

    def distance_of(v: int, reader: int) -> Any:
        """Return D_v with `reader` as the reader of v."""
        if not problem.tensors[v].nbytes:
            return float(FULL_CROSSING)
        return values.crossing[v, s] + min(moved_in(v, reader), values.written[v]) + recomputed_share(v)[0]

    def recomputed_share(v: int) -> tuple[Any, int]:
        """Return the share of v that was recomputed, and the tensor before v on the path or -1."""
        if v not in memo:
            producer = problem.tensors[v].producer
            best, before = 0.0, -1
            if producer >= 0 and problem.tensors[v].nbytes:
                best = values.recomputed[producer, b + 1] - values.recomputed[producer, s + 1]
                if best > 0:
                    for u in problem.operators[producer].inputs:
                        if distance_of(u, producer) < best:
                            best, before = distance_of(u, producer), u
            memo[v] = best, before
        return memo[v]

    path = [i]
    while recomputed_share(path[-1])[1] >= 0:
        path.append(recomputed_share(path[-1])[1])
    readers = (b, *(problem.tensors[v].producer for v in path))
    by_page = [moved_in(v, reader) <= values.written[v] for v, reader in zip(path, readers, strict=False)]
    return Chain(s, b, tuple(path), tuple(bool(x) for x in by_page))


def _revive(block: PyomoBlock, key: object) -> Row | None:
    """Return a cut of another scope in the variables of this one; None if its stages are decided together here."""
    assert isinstance(key, Chain)
    space: RetentionSpace = block.model().space
    chain = key._replace(b=int(space.ends[key.b]))
    if not space.first_stages[chain.path[0]] <= space.decided[chain.s] < chain.b:
        return None
    if block.pressure is not None:
        block.pressure.learn_from_cut(chain.s)
    return _rows(block).row(chain, 0.0)


chain_cuts = Block("chain_cuts", _build, requires=("recompute", "residency"), separator=_separate, revive=_revive)
