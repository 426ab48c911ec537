"""The place of each buffer of a plan in the arena.

Lifetimes are instruction indices: the graph inputs live from -1, before the first instruction; a buffer that
is freed lives through its FREE, one that never is through the last instruction; a workspace lives during
its COMPUTE alone. Buffers come in the order that `Plan.offsets` fixes. What is in RAM as the step begins and as it ends
lies at one offset then, as the next step finds it there. So does what a COMPUTE takes over, and its output: the one
lives to the instruction before, the other from the COMPUTE on.
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

    index
        The tensor's index; the operator's for a workspace.
    workspace
        Whether it is an operator's workspace.
    offset
        Its first byte in the arena, or -1 where the plan has not been laid out.
    nbytes
        Its size; may be 0.
    first, last
        The instructions that it lives through, both included; `first` is -1 for a graph input.
    """

    index: int
    workspace: bool
    offset: int
    nbytes: int
    first: int
    last: int


def buffers(plan: Plan) -> Iterator[Buffer]:
    """Every allocation of a valid plan, in the order of `Plan.offsets`.

    Raises PlanError where the plan has offsets, but not one for each allocation.
    """
    lives = _lifetimes(plan)
    if plan.offsets and len(plan.offsets) != len(lives):
        raise PlanError(f"the plan makes {len(lives)} buffers but has {len(plan.offsets)} offsets; lay it out again")
    offsets = plan.offsets or (-1,) * len(lives)
    for (index, workspace, nbytes, first, last), offset in zip(lives, offsets, strict=True):
        yield Buffer(index, workspace, offset, nbytes, first, last)


def lay_out(plan: Plan, *, ram_bytes: int | None = None, quick: bool = False, until: float = inf) -> Plan:
    """The same plan with an offset for each buffer; the arena is as small as `pack` can make it, `quick` or not.

    The plan must be one that `simulate` passes. With `ram_bytes`, packing stops at the first arena that fits it;
    at the moment `until` (of `time.monotonic`), at the best that it has. Where nothing shares an arena
    (`Problem.placed`), the plan as it is.
    """
    if not plan.problem.placed:
        return plan
    lives = _lifetimes(plan)
    after = closing_lives(plan)
    end = max((last for _, _, last in after), default=-1)
    lasting = set(plan.problem.lasting) if after else set()
    whole = len(plan.instructions) - 1
    ends = [
        end if not workspace and index in lasting and last == whole else last for index, workspace, _, _, last in lives
    ]
    spans = [(index, workspace, first, last) for index, workspace, _, first, last in lives]
    before = {made: given for given, made in _taken(plan, spans)}
    kept = [k for k in range(len(lives)) if k not in before]
    number = {k: place for place, k in enumerate(kept)}
    for made, given in before.items():  # a buffer that is taken over goes on as the one that takes it
        number[made] = number[given]
        ends[kept[number[made]]] = ends[made]
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
    mine = [lives[k] for k in kept]
    placed = _standing_first(offsets[: len(kept)], mine, [ends[k] for k in kept], end if after else whole, plan)
    return replace(plan, offsets=tuple(placed[number[k]] for k in range(len(lives))))


def _standing_first(
    offsets: Sequence[int], lives: Sequence[tuple[int, bool, int, int, int]], ends: Sequence[int], end: int, plan: Plan
) -> list[int]:
    """The same layout with what is there all the time at the bottom, so that all else has one piece of room.

    Whatever lies below such a buffer lies all below it, and can go up by its size.
    """
    unit = plan.problem.alignment
    standing = {k for k, life in enumerate(lives) if life[3] < 0 and ends[k] == end and life[2] and not life[2] % unit}
    places = sorted((offsets[k], lives[k][2]) for k in standing)
    above = [*accumulate((nbytes for _, nbytes in reversed(places)), initial=0)][::-1]
    pushed = [above[bisect_right(places, (at, inf))] if life[2] else 0 for at, life in zip(offsets, lives, strict=True)]
    return [up + (0 if k in standing else offset) for k, (offset, up) in enumerate(zip(offsets, pushed, strict=True))]


def lay_out_within(plan: Plan, ram_bytes: int) -> Plan:
    """The layout that every plan is given out with.

    plan
        One that `simulate` passes, with offsets or without.
    ram_bytes
        The arena that is there. What is found in a moment doesn't look at it, so that a plan has one layout for all
        budgets; only where that is larger (it may be, by a hair, where the budget is the plan's very peak) one for this
        budget is looked for, which takes seconds and may be too large as well.
    """
    found = lay_out(plan, quick=True)
    return found if arena_bytes(found) <= ram_bytes else lay_out(plan, ram_bytes=ram_bytes)


def lasting_at(plan: Plan) -> dict[str, tuple[int, int]]:
    """Offset and size of what a laid-out plan has in RAM as its step begins and as it ends, by name."""
    tensors, lasting = plan.problem.tensors, {*plan.problem.lasting}
    first = (b for b in buffers(plan) if b.first < 0 and not b.workspace and b.index in lasting)
    return {tensors[b.index].name: (b.offset, b.nbytes) for b in first}


def lay_out_around(plan: Plan, lasting: Mapping[str, tuple[int, int]]) -> Plan:
    """The same plan laid out around what another one leaves in the arena: the largest first, each as low as it can.

    lasting
        Offset and size, by name. What the plan begins with of these stays where it is, and so do all others.
    """
    every, alignment = list(buffers(plan)), plan.problem.alignment
    spans = [(one.index, one.workspace, one.first, one.last) for one in every]
    first = list(range(len(every)))
    for given, made in sorted((*_taken(plan, spans), *_lasting(plan, spans)), key=lambda pair: pair[1]):
        first[made] = first[given]  # one place for both
    together: dict[int, list[int]] = {}
    for k, root in enumerate(first):
        together.setdefault(root, []).append(k)
    tensors = plan.problem.tensors
    fixed = {tensors[one.index].name: k for k, one in enumerate(every) if one.first < 0 and not one.workspace}
    offsets = [-1] * len(every)
    placed: list[tuple[int, int, int, int]] = []
    for name, (at, nbytes) in lasting.items():
        if name in fixed:
            offsets[fixed[name]] = at
            placed += [(every[k].first, every[k].last, at, nbytes) for k in together[fixed[name]]]
        else:
            placed.append((-1, len(plan.instructions), at, nbytes))
    for root in sorted(together, key=lambda root: (-every[root].nbytes, root)):
        lives = [(every[k].first, every[k].last) for k in together[root]]
        if offsets[root] < 0:
            beside = [
                (at, nbytes)
                for begin, end, at, nbytes in placed
                if any(begin <= last and first <= end for first, last in lives)
            ]
            offsets[root] = _gap(beside, every[root].nbytes, alignment)
            placed += [(*life, offsets[root], every[root].nbytes) for life in lives]
        for k in together[root]:
            offsets[k] = offsets[root]
    return replace(plan, offsets=tuple(offsets))


def _gap(taken: Sequence[tuple[int, int]], nbytes: int, alignment: int) -> int:
    """The first place for so many bytes beside what is taken, by offset and size."""
    at = 0
    for begin, size in sorted(taken):
        if at + nbytes <= begin:
            break
        at = max(at, -(-(begin + size) // alignment) * alignment)
    return at


def taken_bytes(plan: Plan, peak_bytes: int) -> int:
    """Bytes that the plan takes: gaps that alignment leaves in the arena are not in the sum of live bytes.

    peak_bytes
        The simulator's.
    """
    return max(peak_bytes, arena_bytes(plan) + plan.problem.reserve_bytes)


def arena_bytes(plan: Plan) -> int:
    """Size of the arena of a plan that has been laid out: the largest offset + size, of what follows it too."""
    own = max((buffer.offset + buffer.nbytes for buffer in buffers(plan)), default=0)
    closing = closing_plan(plan)
    return own if closing is None else max(own, arena_bytes(closing))


def check_layout(plan: Plan, ram_bytes: int | None = None) -> None:
    """Check the offsets without trusting the packer.

    Raises PlanError where buffers that live together overlap, where one is misaligned or lies outside
    the arena of `ram_bytes`, or where offsets are missing.
    """
    alignment = plan.problem.alignment
    if not plan.offsets and (plan.instructions or plan.problem.at_start):
        raise PlanError("the plan has no offsets; lay it out first")
    found = [buffer for buffer in buffers(plan) if buffer.nbytes > 0]
    for buffer in found:
        if buffer.offset < 0 or buffer.offset % alignment:
            raise PlanError(f"{_shown(plan, buffer)} starts at byte {buffer.offset}, no multiple of {alignment}")
        if ram_bytes is not None and buffer.offset + buffer.nbytes > ram_bytes:
            end = buffer.offset + buffer.nbytes
            raise PlanError(f"{_shown(plan, buffer)} ends at byte {end} of an arena of {ram_bytes} bytes")
    every = list(buffers(plan))
    spans = [(one.index, one.workspace, one.first, one.last) for one in every]
    for a, b in _lasting(plan, spans):
        if every[a].nbytes and every[a].offset != every[b].offset:
            raise PlanError(
                f"{_shown(plan, every[b])} ends the step at byte {every[b].offset}, and the next one begins with it at "
                f"byte {every[a].offset}"
            )
    for a, b in _taken(plan, spans):
        if every[a].nbytes and every[a].offset != every[b].offset:
            raise PlanError(
                f"{_shown(plan, every[b])} starts at byte {every[b].offset}, and takes over "
                f"{_shown(plan, every[a])}, which starts at byte {every[a].offset}"
            )
    # Walk the instructions with the live buffers sorted by offset: only neighbours can be the first to overlap.
    events = sorted(
        [(buffer.first, 1, k) for k, buffer in enumerate(found)]
        + [(buffer.last + 1, 0, k) for k, buffer in enumerate(found)]
    )
    live: list[tuple[int, int]] = []
    for _, begins, k in events:
        buffer = found[k]
        place = bisect_left(live, (buffer.offset, k))
        if not begins:
            del live[place]
            continue
        for other in live[max(place - 1, 0) : place + 1]:
            neighbour = found[other[1]]
            if neighbour.offset < buffer.offset + buffer.nbytes and buffer.offset < neighbour.offset + neighbour.nbytes:
                raise PlanError(
                    f"{_shown(plan, buffer)} and {_shown(plan, neighbour)} overlap at instruction {buffer.first}"
                )
        live.insert(place, (buffer.offset, k))


def _lifetimes(plan: Plan) -> list[tuple[int, bool, int, int, int]]:
    """Index, whether a workspace, bytes, first and last instruction of each allocation, in order."""
    problem = plan.problem
    lives: list[tuple[int, bool, int, int, int]] = []
    last = len(plan.instructions) - 1
    where: dict[int, int] = {}
    taken: set[int] = set()

    def allocate(tensor: int, first: int) -> None:
        where[tensor] = len(lives)
        lives.append((tensor, False, problem.tensors[tensor].nbytes, first, last))

    for tensor in problem.at_start:
        allocate(tensor, -1)
    for index, effect in enumerate(effects(problem).each(plan.instructions)):
        for tensor in effect.makes:
            if tensor not in where:
                taken.discard(tensor)
                allocate(tensor, index)
        if effect.operator >= 0:
            workspace = effect.extra_bytes + problem.nbytes(effect.takes)
            lives.append((effect.operator, True, workspace, index, index))
        for tensor in effect.takes:
            taken.add(tensor)
            k = where.pop(tensor, -1)
            if k < 0:
                raise PlanError(f"instruction {index} takes over {problem.tensors[tensor].name!r}, not in RAM")
            lives[k] = (*lives[k][:4], index - 1)
        for tensor in effect.frees:
            if tensor in taken:
                taken.remove(tensor)
                continue
            k = where.pop(tensor, -1)
            if k < 0:
                raise PlanError(f"instruction {index} frees {problem.tensors[tensor].name!r}, not in RAM")
            lives[k] = (*lives[k][:4], index)
    return lives


def _lasting(plan: Plan, lives: Sequence[tuple[int, bool, int, int]]) -> list[tuple[int, int]]:
    """Pairs of buffers of tensors that are in RAM as the step begins and as it ends, and leave in between.

    lives
        Index, whether a workspace, first and last instruction of each buffer.
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


def _taken(plan: Plan, lives: Sequence[tuple[int, bool, int, int]]) -> list[tuple[int, int]]:
    """The buffer of what an operator takes over, and that of its output: one offset. In the order of the plan.

    lives
        Index, whether a workspace, first and last instruction of each buffer.
    """
    operators = plan.problem.operators
    if not any(operator.takes for operator in operators):
        return []
    begins = {(index, first): k for k, (index, workspace, first, _) in enumerate(lives) if not workspace}
    ends = {(index, last): k for k, (index, workspace, _, last) in enumerate(lives) if not workspace}
    found: list[tuple[int, int]] = []
    for place, effect in enumerate(effects(plan.problem).each(plan.instructions)):
        for given in effect.takes:
            made = operators[effect.operator].takes[1]
            found.append((ends[given, place - 1], begins[made, place]))
    return found


def _shown(plan: Plan, buffer: Buffer) -> str:
    entries = plan.problem.operators if buffer.workspace else plan.problem.tensors
    name = repr(entries[buffer.index].name)
    return f"the workspace of {name}" if buffer.workspace else f"the buffer of {name}"
