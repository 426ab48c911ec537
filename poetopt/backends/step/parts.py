"""Describes what a step consists of, in order and as data: nodes to run and tensors to move, each with its places.

A place is an offset in the arena or a storage of the resident region, so that a step is the same wherever the two lie.
A view inside an operator is no part: its bytes are where they were.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from poetopt.backends.step.places import Moment, Place, Places, moments
from poetopt.graph import Node, Operator, Tensor
from poetopt.graph.problem import ProblemTensor
from poetopt.ops.nodes import is_inner_view
from poetopt.ops.runtimes.sliced import FETCH, FETCH_ROWS, PUT_ROWS, STORE, Sliced, SliceWindow, run_window
from poetopt.plan.instructions import Action, Plan


@dataclass(frozen=True, slots=True)
class RunSlice:
    """Run one node on a slice.

    places, shapes
        Where each tensor that it names lies, and what it is there.
    kernel_bytes
        What its kernel allocates.
    begin
        Where the slice begins in what goes through the loop; None outside of the loop.
    """

    node: Node
    operator: Operator
    places: Mapping[str, Place]
    shapes: Mapping[str, Tensor]
    kernel_bytes: int
    sliced: Sliced
    begin: int | None


@dataclass(frozen=True, slots=True)
class MoveSlice:
    """Move a slice between its buffer, where its pieces lie side by side, and its tensor.

    tensor
        What is on storage; None where it is in RAM, at `whole`.
    window
        Which bytes of the tensor.
    back
        Whether the buffer is read, and the tensor written.
    """

    name: str
    buffer: Place
    window: SliceWindow
    back: bool
    tensor: ProblemTensor | None = None
    whole: Place | None = None


@dataclass(frozen=True, slots=True)
class MoveRows:
    """Read rows of a table on storage, or write those within a slice over it.

    ids, rows
        Where their numbers and the rows lie.
    table
        What is on storage; None where the rows go to `made`: a slice of it that begins with the row `begin` of `count`,
        and is at `data` else.
    """

    ids: Place
    ids_as: Tensor
    rows: Place
    rows_as: Tensor
    table: ProblemTensor | None = None
    data: Place | None = None
    made: Place | None = None
    made_as: Tensor | None = None
    begin: int = 0
    count: int = 0


SlicePart = RunSlice | MoveSlice | MoveRows


def slice_parts(operator: Operator, moment: Moment, places: Places) -> Iterator[SlicePart]:
    """Lists the parts of a run of `operator` by the variant of `moment`. Raises PlanError where there is none."""
    sliced = places.sliced(operator, moment.instruction)
    return _SliceRun(operator, moment, places, sliced).parts()


def slice_nodes(plan: Plan, places: Places) -> Iterator[Node]:
    """The nodes that run on slices in a plan, some more than once."""
    for instruction in plan.instructions:
        if instruction.action is not Action.COMPUTE:
            continue
        costed = plan.problem.operators[instruction.target]
        if instruction.variant or costed.takes:
            operator = places.operators[costed.name]
            sliced = places.sliced(operator, instruction)
            yield from (node for node in (*sliced.each, *sliced.further.values()) if not node.domain)


class _SliceRun:
    def __init__(self, operator: Operator, moment: Moment, places: Places, sliced: Sliced) -> None:
        self.operator, self.moment, self.places, self.sliced = operator, moment, places, sliced
        self.tensors = places.graph.tensors

    def parts(self) -> Iterator[SlicePart]:
        sliced, needs = self.sliced, list(self.sliced.layout.kernel_bytes)
        first, last = len(sliced.before), len(sliced.before) + len(sliced.each)
        yield from self._once(sliced.before, needs[:first])
        for begin, count in sliced.chunks():
            for node, need in zip(sliced.each, needs[first:last], strict=True):
                if node.op_type in (FETCH, STORE) and node.domain:
                    yield self._move(node, begin, count)
                elif node.op_type == PUT_ROWS and node.domain:
                    yield self._put(node, begin, count)
                elif not is_inner_view(node, sliced.layout.storage):
                    written = node.outputs[0]
                    run = sliced.further[written] if begin and written in sliced.further else node
                    shapes = sliced.shapes(run, self.tensors, count)
                    yield self._run(run, shapes, need, begin)
        yield from self._once(sliced.behind, needs[last:])

    def _once(self, nodes: tuple[Node, ...], needs: list[int]) -> Iterator[SlicePart]:
        for node, need in zip(nodes, needs, strict=True):
            if node.op_type == FETCH_ROWS and node.domain:
                (rows,), table = node.outputs, str(node.attributes["table"])
                held = self.places.problem.tensors[self.places.index[self.places.graph.root(table)]]
                rows_at = self._place(rows, 0)
                if not node.inputs:
                    yield MoveSlice(table, rows_at, run_window(node, self.tensors), back=False, tensor=held)
                    continue
                (ids,) = node.inputs
                ids_at = self._place(ids, 0)
                yield MoveRows(ids_at, self.tensors[ids], rows_at, self.tensors[rows], held)
            elif not is_inner_view(node, self.sliced.layout.storage):
                names = (n for n in (*node.inputs, *node.outputs) if n)
                yield self._run(node, {n: self.tensors[n] for n in names}, need, None)

    def _run(self, node: Node, shapes: Mapping[str, Tensor], need: int, begin: int | None) -> RunSlice:
        at = {name: self._place(name, begin or 0) for name in shapes}
        return RunSlice(node, self.operator, at, shapes, need, self.sliced, begin)

    def _move(self, node: Node, begin: int, count: int) -> MoveSlice:
        back = node.op_type == STORE
        (name,) = node.inputs if back else node.outputs
        window = self.sliced.window(self.tensors[name], begin, count)
        buffer, root = self._place(name, 0), self.places.graph.root(name)
        if name in self.sliced.streamed:
            held = self.places.problem.tensors[self.places.index[root]]
            return MoveSlice(name, buffer, window, back, tensor=held)
        return MoveSlice(name, buffer, window, back, whole=self.places.root(root, self.moment))

    def _put(self, node: Node, begin: int, count: int) -> MoveRows:
        data, ids, rows = node.inputs
        (made,) = node.outputs
        made_as = self.sliced.cuts[made].slice(self.tensors[made], count)
        return MoveRows(
            self._place(ids, begin), self.tensors[ids], self._place(rows, begin), self.tensors[rows],
            None, self._place(data, begin), self._place(made, begin), made_as, begin,
            self.tensors[made].shape[0],
        )  # fmt: skip

    def _place(self, name: str, begin: int) -> Place:
        layout = self.sliced.layout
        if name in layout.offsets:
            return Place(self.moment.workspace + layout.offsets[name])
        held = layout.storage.get(name, name)
        whole = self.places.root(self.places.graph.root(held), self.moment)
        cut = self.sliced.cuts.get(held)
        shift = begin * cut.unit_bytes(self.tensors[held]) if cut is not None else 0
        return Place(whole.offset + shift, whole.root)


@dataclass(frozen=True, slots=True)
class RunNode:
    """Run one node of an operator; `places` has every tensor that the node names."""

    node: Node
    operator: Operator
    places: Mapping[str, Place]


@dataclass(frozen=True, slots=True)
class PageTransfer:
    """Move a tensor between the arena, where it lies at `offset`, and storage: `action` is a page-out or a page-in."""

    action: Action
    tensor: ProblemTensor
    offset: int


@dataclass(frozen=True, slots=True)
class GiveBack:
    """Return what kernels have freed to the system: the next kernel could take new pages beside that."""


Part = RunNode | PageTransfer | GiveBack | SlicePart


@dataclass(frozen=True, slots=True)
class Instructed:
    """Holds what one instruction of a plan comes to.

    number
        Its index in the plan.
    parts
        What is done, in order; nothing for a FREE.
    given_up
        Offset and bytes of what nobody reads afterwards.
    """

    number: int
    parts: tuple[Part, ...]
    given_up: tuple[tuple[int, int], ...]


def instructed(plan: Plan, places: Places) -> Iterator[Instructed]:
    """The step of a laid-out plan, instruction by instruction.

    Before a node whose kernel could bring what kernels took since memory was given back over the plan's reserve, by
    the runtime's own figures, there is a `GiveBack`.
    """
    problem = plan.problem
    room = problem.reserve_bytes - places.runtime.reserve_bytes(0)
    taken = 0
    for moment in moments(plan):
        action, target = moment.instruction.action, moment.instruction.target
        if action is not Action.COMPUTE:
            tensor = problem.tensors[target]
            if action is Action.FREE:  # of nothing where an output has taken it over
                freed = ((moment.at[target], tensor.nbytes),) if target in moment.at else ()
                yield Instructed(moment.number, (), freed)
            else:
                yield Instructed(moment.number, (PageTransfer(action, tensor, moment.at[target]),), ())
            continue
        operator = places.operators[problem.operators[target].name]
        parts: list[Part] = []
        sliced = bool(moment.instruction.variant or problem.operators[target].takes)
        for kernel, part in _run(operator, moment, places, sliced=sliced):
            if taken and taken + kernel > room:
                parts.append(GiveBack())
                taken = 0
            taken += kernel
            if part is not None:
                parts.append(part)
        workspaces = tuple((buffer.offset, buffer.nbytes) for buffer in moment.made if buffer.workspace)
        yield Instructed(moment.number, tuple(parts), workspaces)


def _run(operator: Operator, moment: Moment, places: Places, *, sliced: bool) -> Iterator[tuple[int, Part | None]]:
    """Gives what a COMPUTE comes to, each with what its kernel allocates."""
    if sliced:
        for part in slice_parts(operator, moment, places):
            yield part.kernel_bytes if isinstance(part, RunSlice) else 0, part
        return
    inner = places.inner(operator)
    for node, kernel in zip(operator.nodes, inner.kernel_bytes, strict=True):
        if is_inner_view(node, inner.storage):
            yield kernel, None
        else:
            names = dict.fromkeys(name for name in (*node.inputs, *node.outputs) if name)
            yield kernel, RunNode(node, operator, {name: places.of(name, operator, moment) for name in names})
