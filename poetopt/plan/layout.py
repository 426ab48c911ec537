"""Offsets of a plan's buffers in the arena.

Lifetimes are instruction indices. The graph inputs live from -1, before the first instruction. A buffer that is freed
lives through its FREE, one that is never freed through the last instruction, and a workspace only during its COMPUTE.
Buffers come in the order of `Plan.offsets`. A tensor that is in RAM when the step begins and when it ends has the same
offset at both times, because the next step expects it there. An input that a COMPUTE overwrites and the output that
replaces it also share one offset: the input lives to the instruction before, the output from the COMPUTE on.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import inf

from poetopt.graph.arena import pack
from poetopt.graph.problem import Home
from poetopt.plan.closing import closing_lives, closing_plan
from poetopt.plan.effects import effects
from poetopt.plan.instructions import Plan
from poetopt.util.errors import PlanError


@dataclass(frozen=True, slots=True)
class Buffer:
    """One allocation of a plan.

    Attributes
    ----------
    index
        Index of the tensor, or of the operator for a workspace.
    workspace
        Whether it is an operator's workspace.
    offset
        First byte in the arena, or -1 if the plan has not been laid out.
    nbytes
        Size; may be 0.
    first, last
        First and last instruction of its life, inclusive; `first` is -1 for a graph input.
    """

    index: int
    workspace: bool
    offset: int
    nbytes: int
    first: int
    last: int


def buffers(plan: Plan) -> Iterator[Buffer]:
    """Yield every allocation of a valid plan, in the order of `Plan.offsets`.

    Raises
    ------
    PlanError
        If the plan has offsets, but not one for each allocation.
    """
    lives = _lifetimes(plan)
    if plan.offsets and len(plan.offsets) != len(lives):
        raise PlanError(f"the plan makes {len(lives)} buffers but has {len(plan.offsets)} offsets. Lay it out again")
    offsets = plan.offsets or (-1,) * len(lives)
    for (index, workspace, nbytes, first, last), offset in zip(lives, offsets, strict=True):
        yield Buffer(index, workspace, offset, nbytes, first, last)


def lay_out(plan: Plan, *, ram_bytes: int | None = None, quick: bool = False, until: float = inf) -> Plan:
    """Return the plan with an offset for each buffer, in the smallest arena that `pack` finds.

    A plan whose tensors share no arena (`Problem.placed` is False) is returned unchanged.

    Parameters
    ----------
    plan
        Plan that `simulate` accepts.
    ram_bytes
        Size of an arena that is small enough: packing stops at the first one that fits.
    quick
        Option of `pack`.
    until
        Moment (of `time.monotonic`) at which packing stops with its best arena.
    """
    if not plan.problem.placed:
        return plan
    lives = _lifetimes(plan)
    after = closing_lives(plan)
    end = max((last for _, _, last in after), default=-1)
    lasting = set(plan.problem.lasting) if after else set()
    last_index = len(plan.instructions) - 1
    ends = [
        end if not workspace and index in lasting and last == last_index else last
        for index, workspace, _, _, last in lives
    ]
    spans = [(index, workspace, first, last) for index, workspace, _, first, last in lives]
    overwritten_by = {output: overwritten for overwritten, output in _overwrites(plan, spans)}
    kept = [k for k in range(len(lives)) if k not in overwritten_by]
    number = {k: place for place, k in enumerate(kept)}
    for output, overwritten in overwritten_by.items():  # an overwritten buffer continues as its successor
        number[output] = number[overwritten]
        ends[kept[number[output]]] = ends[output]
    offsets, _ = pack(
        [*(lives[k][2] for k in kept), *(nbytes for nbytes, _, _ in after)],
        [*(lives[k][3] for k in kept), *(first for _, first, _ in after)],
        [last + 1 for last in (*(ends[k] for k in kept), *(last for _, _, last in after))],
        plan.problem.alignment,
        target=ram_bytes,
        quick=quick,
        until=until,
        shared=[(number[a], number[b]) for a, b in _lasting(plan, spans)],
    )
    kept_lives = [lives[k] for k in kept]
    placed = _permanent_first(
        offsets[: len(kept)], kept_lives, [ends[k] for k in kept], end if after else last_index, plan
    )
    return replace(plan, offsets=tuple(placed[number[k]] for k in range(len(lives))))


def _permanent_first(
    offsets: Sequence[int], lives: Sequence[tuple[int, bool, int, int, int]], ends: Sequence[int], end: int, plan: Plan
) -> list[int]:
    """Return the layout with the buffers that live throughout at the bottom, so that the other bytes are contiguous.

    Buffers below such a buffer lie entirely below it, so they can move up by its size.
    """
    unit = plan.problem.alignment
    fixed = {k for k, life in enumerate(lives) if life[3] < 0 and ends[k] == end and life[2] and not life[2] % unit}
    places = sorted((offsets[k], lives[k][2]) for k in fixed)
    above = [*accumulate((nbytes for _, nbytes in reversed(places)), initial=0)][::-1]
    moves = [above[bisect_right(places, (at, inf))] if life[2] else 0 for at, life in zip(offsets, lives, strict=True)]
    return [up + (0 if k in fixed else offset) for k, (offset, up) in enumerate(zip(offsets, moves, strict=True))]


def lay_out_within(plan: Plan, ram_bytes: int) -> Plan:
    """Return the layout that every plan is published with.

    Parameters
    ----------
    plan
        Plan that `simulate` accepts, with offsets or without.
    ram_bytes
        Size of the arena. The quick layout ignores it, so a plan has one layout for all budgets. Only if that layout is
        larger (slightly, if the budget is the plan's peak), a layout for this budget is searched for, which takes
        seconds and may be too large as well.
    """
    quick_plan = lay_out(plan, quick=True)
    return quick_plan if arena_bytes(quick_plan) <= ram_bytes else lay_out(plan, ram_bytes=ram_bytes)


def lasting_at(plan: Plan) -> dict[str, tuple[int, int]]:
    """Return (offset, size), by name, of the tensors in RAM at both start and end of a laid-out plan."""
    tensors, lasting = plan.problem.tensors, {*plan.problem.lasting}
    first = (b for b in buffers(plan) if b.first < 0 and not b.workspace and b.index in lasting)
    return {tensors[b.index].name: (b.offset, b.nbytes) for b in first}


def lay_out_around(plan: Plan, lasting: Mapping[str, tuple[int, int]]) -> Plan:
    """Return the plan laid out around what another plan leaves in the arena: largest first, each as low as possible.

    Parameters
    ----------
    lasting
        (offset, size) by name. All of these stay where they are, including those that the plan begins with.
    """
    allocations, alignment = list(buffers(plan)), plan.problem.alignment
    spans = [(one.index, one.workspace, one.first, one.last) for one in allocations]
    first = list(range(len(allocations)))
    for overwritten, output in sorted((*_overwrites(plan, spans), *_lasting(plan, spans)), key=lambda pair: pair[1]):
        first[output] = first[overwritten]  # both share one offset
    groups: dict[int, list[int]] = {}
    for k, root in enumerate(first):
        groups.setdefault(root, []).append(k)
    tensors = plan.problem.tensors
    fixed = {tensors[one.index].name: k for k, one in enumerate(allocations) if one.first < 0 and not one.workspace}
    offsets = [-1] * len(allocations)
    placed: list[tuple[int, int, int, int]] = []
    for name, (offset, nbytes) in lasting.items():
        if name in fixed:
            offsets[fixed[name]] = offset
            placed += [(allocations[k].first, allocations[k].last, offset, nbytes) for k in groups[fixed[name]]]
        else:
            placed.append((-1, len(plan.instructions), offset, nbytes))
    for root in sorted(groups, key=lambda root: (-allocations[root].nbytes, root)):
        lives = [(allocations[k].first, allocations[k].last) for k in groups[root]]
        if offsets[root] < 0:
            occupied = [
                (offset, nbytes)
                for begin, end, offset, nbytes in placed
                if any(begin <= last and first <= end for first, last in lives)
            ]
            offsets[root] = _first_gap(occupied, allocations[root].nbytes, alignment)
            placed += [(*life, offsets[root], allocations[root].nbytes) for life in lives]
        for k in groups[root]:
            offsets[k] = offsets[root]
    return replace(plan, offsets=tuple(offsets))


def _first_gap(occupied: Sequence[tuple[int, int]], nbytes: int, alignment: int) -> int:
    """Return the lowest offset with `nbytes` free bytes between the occupied (offset, size) ranges."""
    offset = 0
    for begin, size in sorted(occupied):
        if offset + nbytes <= begin:
            break
        offset = max(offset, -(-(begin + size) // alignment) * alignment)
    return offset


def taken_bytes(plan: Plan, peak_bytes: int) -> int:
    """Return the bytes that the plan needs; gaps from alignment in the arena are not part of the sum of live bytes.

    Parameters
    ----------
    peak_bytes
        Peak of the simulation.
    """
    return max(peak_bytes, arena_bytes(plan) + plan.problem.reserve_bytes)


def arena_bytes(plan: Plan) -> int:
    """Return the arena size of a laid-out plan and its updates: the largest offset + size."""
    plan_bytes = max((buffer.offset + buffer.nbytes for buffer in buffers(plan)), default=0)
    updates = closing_plan(plan)
    return plan_bytes if updates is None else max(plan_bytes, arena_bytes(updates))


def check_layout(plan: Plan, ram_bytes: int | None = None) -> None:
    """Check the offsets without trusting the packer.

    Raises
    ------
    PlanError
        If buffers that live together overlap, if one is misaligned or outside the arena of `ram_bytes`, or if offsets
        are missing.
    """
    alignment = plan.problem.alignment
    if not plan.offsets and (plan.instructions or plan.problem.at_start):
        raise PlanError("the plan has no offsets. Lay it out first")
    occupied = [buffer for buffer in buffers(plan) if buffer.nbytes > 0]
    for buffer in occupied:
        if buffer.offset < 0 or buffer.offset % alignment:
            raise PlanError(
                f"{_describe(plan, buffer)} starts at byte {buffer.offset}, which is no multiple of {alignment}"
            )
        if ram_bytes is not None and buffer.offset + buffer.nbytes > ram_bytes:
            end = buffer.offset + buffer.nbytes
            raise PlanError(f"{_describe(plan, buffer)} ends at byte {end} of an arena of {ram_bytes} bytes")
    allocations = list(buffers(plan))
    spans = [(buffer.index, buffer.workspace, buffer.first, buffer.last) for buffer in allocations]
    for a, b in _lasting(plan, spans):
        if allocations[a].nbytes and allocations[a].offset != allocations[b].offset:
            raise PlanError(
                f"{_describe(plan, allocations[b])} ends the step at byte {allocations[b].offset}, but the next step "
                f"expects it at byte {allocations[a].offset}"
            )
    for a, b in _overwrites(plan, spans):
        if allocations[a].nbytes and allocations[a].offset != allocations[b].offset:
            raise PlanError(
                f"{_describe(plan, allocations[b])} starts at byte {allocations[b].offset}, but overwrites "
                f"{_describe(plan, allocations[a])}, which starts at byte {allocations[a].offset}"
            )
    # Walk the instructions with the live buffers sorted by offset: only neighbours can be the first to overlap.
    events = sorted(
        [(buffer.first, 1, k) for k, buffer in enumerate(occupied)]
        + [(buffer.last + 1, 0, k) for k, buffer in enumerate(occupied)]
    )
    live: list[tuple[int, int]] = []
    for _, begins, k in events:
        buffer = occupied[k]
        position = bisect_left(live, (buffer.offset, k))
        if not begins:
            del live[position]
            continue
        for other in live[max(position - 1, 0) : position + 1]:
            neighbour = occupied[other[1]]
            if neighbour.offset < buffer.offset + buffer.nbytes and buffer.offset < neighbour.offset + neighbour.nbytes:
                raise PlanError(
                    f"{_describe(plan, buffer)} and {_describe(plan, neighbour)} overlap at instruction {buffer.first}"
                )
        live.insert(position, (buffer.offset, k))


def _lifetimes(plan: Plan) -> list[tuple[int, bool, int, int, int]]:
    """Return (index, is a workspace, bytes, first, last instruction) of each allocation, in order."""
    problem = plan.problem
    lives: list[tuple[int, bool, int, int, int]] = []
    last = len(plan.instructions) - 1
    live: dict[int, int] = {}
    overwritten: set[int] = set()

    def allocate(tensor: int, first: int) -> None:
        live[tensor] = len(lives)
        lives.append((tensor, False, problem.tensors[tensor].nbytes, first, last))

    for tensor in problem.at_start:
        allocate(tensor, -1)
    for index, effect in enumerate(effects(problem).each(plan.instructions)):
        for tensor in effect.makes:
            if tensor not in live:
                overwritten.discard(tensor)
                allocate(tensor, index)
        if effect.operator >= 0:
            workspace = effect.extra_bytes + problem.nbytes(effect.takes)
            lives.append((effect.operator, True, workspace, index, index))
        for tensor in effect.takes:
            overwritten.add(tensor)
            k = live.pop(tensor, -1)
            if k < 0:
                raise PlanError(f"instruction {index} overwrites {problem.tensors[tensor].name!r}, which is not in RAM")
            lives[k] = (*lives[k][:4], index - 1)
        for tensor in effect.frees:
            if tensor in overwritten:
                overwritten.remove(tensor)
                continue
            k = live.pop(tensor, -1)
            if k < 0:
                raise PlanError(f"instruction {index} frees {problem.tensors[tensor].name!r}, which is not in RAM")
            lives[k] = (*lives[k][:4], index)
    return lives


def _lasting(plan: Plan, lives: Sequence[tuple[int, bool, int, int]]) -> list[tuple[int, int]]:
    """Return pairs of buffers of tensors that are in RAM at the start and the end of a step, but leave in between.

    Parameters
    ----------
    lives
        (index, is a workspace, first, last instruction) of each buffer.
    """
    lasting = {i for i in plan.problem.at_end if plan.problem.tensors[i].home is Home.RAM}
    end = len(plan.instructions) - 1
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for k, (index, workspace, begins, ends) in enumerate(lives):
        if not workspace and index in lasting:
            if begins < 0:
                first[index] = k
            if ends == end:
                last[index] = k
    return [(k, last[i]) for i, k in first.items() if i in last and last[i] != k]


def _overwrites(plan: Plan, lives: Sequence[tuple[int, bool, int, int]]) -> list[tuple[int, int]]:
    """Return pairs of buffers with one offset, in the order of the plan: an overwritten input and the output.

    Parameters
    ----------
    lives
        (index, is a workspace, first, last instruction) of each buffer.
    """
    operators = plan.problem.operators
    if not any(operator.takes for operator in operators):
        return []
    begins = {(index, first): k for k, (index, workspace, first, _) in enumerate(lives) if not workspace}
    ends = {(index, last): k for k, (index, workspace, _, last) in enumerate(lives) if not workspace}
    pairs: list[tuple[int, int]] = []
    for place, effect in enumerate(effects(plan.problem).each(plan.instructions)):
        for overwritten in effect.takes:
            output = operators[effect.operator].takes[1]
            pairs.append((ends[overwritten, place - 1], begins[output, place]))
    return pairs


def _describe(plan: Plan, buffer: Buffer) -> str:
    entries = plan.problem.operators if buffer.workspace else plan.problem.tensors
    name = repr(entries[buffer.index].name)
    return f"the workspace of {name}" if buffer.workspace else f"the buffer of {name}"
