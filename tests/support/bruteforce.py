"""Optima of tiny problems by exhaustive search: no solver, no formulation, no code of the package but its nouns.

`stage_optimum` searches the stages of Algorithm 1 in the paper, uniformly by the overhead (joules beyond one compute of
each operator), so that the first goal it reaches is optimal. Sets of tensors or operators are bit masks.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from poetopt.graph.problem import Problem
from poetopt.plan.schedule import Schedule


def _mask(indices: tuple[int, ...]) -> int:
    return sum(1 << i for i in indices)


def _members(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def _subsets(mask: int) -> Iterator[int]:
    """All subsets of `mask`, the empty one last."""
    subset = mask
    while True:
        yield subset
        if not subset:
            return
        subset = (subset - 1) & mask


class _Tables:
    """Masks and sums of one problem."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.count = len(problem.operators)
        self.reads = [_mask(operator.inputs) for operator in problem.operators]
        self.writes = [_mask(operator.outputs) for operator in problem.operators]
        self.sizes = [tensor.nbytes for tensor in problem.tensors]
        # an output that takes over an input needs no bytes of its own
        self.beside = [o.workspace_bytes - sum(self.sizes[i] for i in o.takes[:1]) for o in problem.operators]
        self.updates = [
            _mask(tuple(i for i, tensor in enumerate(problem.tensors) if tensor.updated_by == index))
            for index in range(self.count)
        ]
        self.lasting = _mask(tuple(i for i, tensor in enumerate(problem.tensors) if tensor.carried or tensor.result))
        self.useful = [self._useful(stage) for stage in range(self.count + 1)]

    def bytes_of(self, mask: int) -> int:
        return sum(self.sizes[i] for i in _members(mask))

    def _useful(self, stage: int) -> int:
        """Tensors that an operator still to be computed may need, itself or through recomputes."""
        useful = self.lasting
        for index in range(self.count - 1, -1, -1):
            again = self.problem.operators[index].recomputable and self.writes[index] & useful
            if index >= stage or again:
                useful |= self.reads[index]
        return useful


@dataclass(frozen=True)
class StageRules:
    """Which decisions Algorithm 1 may take.

    remat, paging
        Whether operators may run again, and whether tensors may go to storage.
    forward_only
        Only forward operators run again, only in stages of backward operators: the scope `forward`.
    """

    remat: bool = True
    paging: bool = True
    forward_only: bool = False


@dataclass(frozen=True)
class StageOptimum:
    """The least overhead under Algorithm 1's rules, and decisions that have it."""

    overhead_j: float
    schedule: Schedule


_StageState = tuple[int, int, int, int, int]
"""The stage, what is in RAM as it begins, what may be on storage (was in RAM as an earlier stage began), what has been
paid for, and, where the storage's room is known, what has blocks there."""


def stage_optimum(problem: Problem, ram_bytes: int, rules: StageRules | None = None) -> StageOptimum | None:
    """The least overhead of Algorithm 1 at `ram_bytes`, or None where it has no solution.

    Stage t computes operator t and, before it in index order, any earlier ones (R). What is in RAM as a stage
    begins (S_ram) was there a stage earlier, was computed in that stage, or was paged in during it (1c); a page-in
    needs the tensor on storage as its stage begins (1e), where a page-out of an earlier stage has brought it (1d),
    in which it was in RAM at the beginning (1f). Memory is the recursion U of Checkmate (equations 2 and 3): all of
    S_ram at the start of the stage, plus the outputs of each operator that runs (resident ones are overwritten) and
    its workspace while it runs, less what FREE releases: after operator k, what k reads or writes, unless it is in
    the next S_ram or a later operator of the stage reads it.

    Graph inputs are in S_ram of the first stage; they have no operator that could run again.

    What is carried and has its home on storage is in S_ram, in S_aux or in both of the first stage, and in the same
    ones as the step ends: all ways are tried. A page-in during the last stage is for the next step. The update u of a
    tensor makes its copy old; then M_out of stage u or later brings another, and no page-in of stage u is of any use,
    as u holds the tensor. What is never updated is in S_aux for good.
    """
    rules = rules or StageRules()
    paging = rules.paging and problem.paging
    able = [i for i in problem.stored_at_start if problem.tensors[i].carried]
    assert len(able) == len(problem.stored_at_start)
    ways = [
        [(False, True), (True, True)]
        if not problem.tensors[i].updated
        else [(False, True), (True, False), (True, True)]
        for i in able
    ]
    found: list[StageOptimum] = []
    for chosen in itertools.product(*ways):
        in_ram = _mask(tuple(i for i, (ram, _) in zip(able, chosen, strict=True) if ram))
        on_storage = _mask(tuple(i for i, (_, aux) in zip(able, chosen, strict=True) if aux))
        if on_storage and not paging and any(not ram for ram, _ in chosen):
            continue
        best = _stage_optimum(problem, ram_bytes, rules, in_ram, on_storage if paging else 0)
        if best is not None:
            found.append(best)
    return min(found, key=lambda one: one.overhead_j, default=None)


def _stage_optimum(
    problem: Problem, ram_bytes: int, rules: StageRules, in_ram: int, on_storage: int
) -> StageOptimum | None:
    """The same, with what is carried in RAM and on storage (masks) as the step begins and as it ends."""
    tables = _Tables(problem)
    count, sizes = tables.count, tables.sizes
    paging = rules.paging and problem.paging
    if count == 0:
        return StageOptimum(0.0, Schedule()) if tables.bytes_of(_mask(problem.at_start)) <= ram_bytes else None
    carried = _mask(problem.stored_at_start)
    room = None if problem.storage_bytes is None else problem.storage_bytes // problem.storage_block_bytes
    blocks = [-(-size // problem.storage_block_bytes) for size in sizes]

    def fits(taken: int) -> bool:
        return room is None or sum(blocks[i] for i in _members(taken)) <= room

    if not fits(on_storage):
        return None
    origin: _StageState = (
        0,
        _mask(problem.at_start) | in_ram,
        on_storage,
        on_storage,
        on_storage if room is not None else 0,
    )
    best: dict[_StageState, float] = {origin: 0.0}
    trace: dict[_StageState, tuple[_StageState, int]] = {}
    closed: set[_StageState] = set()
    ticket = itertools.count()
    queue = [(0.0, 0, next(ticket), origin)]

    def runs(stage: int, ram: int) -> Iterator[tuple[int, int]]:
        """The sets of operators that may run in a stage, each with what they write."""
        allowed = 0
        for index in range(stage):
            operator = problem.operators[index]
            in_scope = not rules.forward_only or (problem.operators[stage].backward and not operator.backward)
            if rules.remat and operator.recomputable and in_scope:
                allowed |= 1 << index
        for again in _subsets(allowed):
            chosen = again | 1 << stage
            written = 0
            for index in _members(chosen):
                if tables.reads[index] & ~(ram | written):
                    break
                written |= tables.writes[index]
            else:
                yield chosen, written

    def slack_of(ram: int, chosen: int) -> tuple[list[int], dict[int, int]]:
        """Bytes left at each operator that runs if nothing is kept afterwards; after which one each tensor is freed."""
        freed_after: dict[int, int] = {}
        order = list(_members(chosen))
        for place, index in enumerate(order):
            for i in _members(tables.reads[index] | tables.writes[index]):
                freed_after[i] = place
        slack = []
        level = tables.bytes_of(ram)
        for place, index in enumerate(order):
            level += tables.bytes_of(tables.writes[index] & ~ram)
            slack.append(ram_bytes - level - tables.beside[index])
            level -= sum(sizes[i] for i, after in freed_after.items() if after == place)
        return slack, freed_after

    def keeps(candidates: list[int], slack: list[int], freed_after: dict[int, int], room: int) -> Iterator[int]:
        """Every subset of `candidates` whose keeping through the stage leaves no slack negative."""
        if not candidates:
            yield 0
            return
        i, rest = candidates[0], candidates[1:]
        yield from keeps(rest, slack, freed_after, room)
        if sizes[i] > room:
            return
        place = freed_after.get(i)
        if place is not None and sizes[i]:
            tail = [left - sizes[i] for left in slack[place + 1 :]]
            if any(left < 0 for left in tail):
                return
            slack = slack[: place + 1] + tail
        for others in keeps(rest, slack, freed_after, room - sizes[i]):
            yield others | 1 << i

    while queue:
        cost, _, _, state = heapq.heappop(queue)
        if state in closed:
            continue
        closed.add(state)
        stage, ram, storable, paid, taken = state
        if stage == count:
            return _stage_solution(cost, state, trace, tables)
        useful = tables.useful[stage + 1]
        for chosen, written in runs(stage, ram):
            slack, freed_after = slack_of(ram, chosen)
            if min(slack) < 0:
                continue
            again = sum(problem.operators[index].energy_j for index in _members(chosen ^ 1 << stage))
            here = ram | written
            candidates = list(_members((here | storable if paging else here) & useful))
            for kept in keeps(candidates, slack, freed_after, ram_bytes):
                if stage + 1 == count and kept & carried != in_ram:
                    continue
                arriving = kept & ~here
                written = taken | arriving if room is not None else 0
                if not fits(written):
                    continue
                total = cost + again
                for i in _members(arriving):
                    tensor = problem.tensors[i]
                    total += tensor.page_in_j + (0.0 if paid >> i & 1 else tensor.page_out_j)
                settled = (paid | arriving) & ~tables.updates[stage]
                if stage + 1 == count:
                    back = on_storage & ~settled
                    total += sum(problem.tensors[i].page_out_j for i in _members(back))
                    settled |= back
                after = (stage + 1, kept, (storable | ram) & useful, settled & useful, written)
                if after not in closed and total < best.get(after, float("inf")):
                    best[after] = total
                    trace[after] = (state, chosen)
                    heapq.heappush(queue, (total, -after[0], next(ticket), after))
    return None


def _stage_solution(
    cost: float, state: _StageState, trace: dict[_StageState, tuple[_StageState, int]], tables: _Tables
) -> StageOptimum:
    """Walk back from the last stage."""
    recomputes: set[tuple[int, int]] = set()
    page_ins: set[tuple[int, int]] = set()
    while state in trace:
        before, chosen = trace[state]
        stage, ram = before[0], before[1]
        here = ram
        for index in _members(chosen):
            here |= tables.writes[index]
            if index != stage:
                recomputes.add((stage, index))
        page_ins.update((state[0] % tables.count, i) for i in _members(state[1] & ~here))
        state = before
    return StageOptimum(cost, Schedule(frozenset(recomputes), frozenset(page_ins)))
