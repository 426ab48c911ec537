"""An operator that runs slice by slice, bound to memory: its nodes, and what goes between buffers and whole tensors."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from poetopt.backends.step.places import Moment, Place
from poetopt.backends.step.storage import pieces_of, put_rows
from poetopt.graph import Node, Operator, Tensor
from poetopt.graph.problem import ProblemTensor
from poetopt.ops.nodes import is_inner_view
from poetopt.ops.runtimes.sliced import FETCH, FETCH_ROWS, PUT_ROWS, STORE, run_window

if TYPE_CHECKING:
    from poetopt.backends.step.program import Program


class BoundSlices:
    """The acts of a run of `operator` by the variant of `moment`, which are added to those of `program`.

    Raises `PlanError` where the runtime has no such variant.
    """

    def __init__(self, program: Program, operator: Operator, moment: Moment) -> None:
        self.program, self.operator, self.moment = program, operator, moment
        self.places, self.tensors = program.places, program.graph.tensors
        self.sliced = self.places.sliced(operator, moment.instruction)

    def bind(self) -> None:
        """Bind what runs once before, for each slice, and once behind."""
        sliced, needs = self.sliced, self.sliced.layout.kernel_bytes
        first, last = len(sliced.before), len(sliced.before) + len(sliced.each)
        self._once(sliced.before, needs[:first])
        for begin, count in sliced.chunks():
            for node, need in zip(sliced.each, needs[first:last], strict=True):
                if node.op_type in (FETCH, STORE) and node.domain:
                    self._move(node, begin, count)
                elif node.op_type == PUT_ROWS and node.domain:
                    self._put(node, begin, count)
                elif not is_inner_view(node, sliced.layout.storage):
                    run = sliced.further.get(node.outputs[0], node) if begin else node
                    self._run(run, sliced.shapes(run, self.tensors, count), need, begin)
        self._once(sliced.behind, needs[last:])

    def _once(self, nodes: tuple[Node, ...], needs: tuple[int, ...]) -> None:
        for node, need in zip(nodes, needs, strict=True):
            if node.op_type == FETCH_ROWS and node.domain:
                self._fetch(node)
            elif not is_inner_view(node, self.sliced.layout.storage):
                self._run(node, {n: self.tensors[n] for n in (*node.inputs, *node.outputs) if n}, need, None)

    def _run(self, node: Node, shapes: Mapping[str, Tensor], need: int, begin: int | None) -> None:
        """A node on a slice that begins at `begin`; None outside of the loop."""
        places = {name: self._place(name, begin or 0) for name in shapes}
        self.program.bind(node, f"a slice of operator {self.operator.name!r}", places, need, shapes)
        for name, copy in self.program.watched.of(node):
            shown = self.program.span(places[name], shapes[name].nbytes)
            to = copy.reshape(-1).view(np.uint8)
            if begin is not None and name in self.sliced.cuts:
                cut = self.sliced.cuts[name]
                count = shapes[name].shape[cut.axis] // cut.per
                to = pieces_of(to, self.sliced.window(self.tensors[name], begin, count))
            self.program.add(f"a copy of {name!r}", partial(np.copyto, to, shown.reshape(to.shape)))

    def _held(self, name: str) -> ProblemTensor:
        """The planned tensor whose storage a name has."""
        return self.places.problem.tensors[self.places.index[self.places.graph.root(name)]]

    def _move(self, node: Node, begin: int, count: int) -> None:
        """A slice between its buffer, where its pieces lie side by side, and its tensor, on storage or in RAM."""
        program, back = self.program, node.op_type == STORE
        (name,) = node.inputs if back else node.outputs
        tensor, what = self.tensors[name], f"{'writing' if back else 'reading'} a slice of {name!r}"
        window = self.sliced.window(tensor, begin, count)
        buffer = program.span(self._place(name, 0), window.nbytes * window.pieces)
        program.room_for(0)
        if name in self.sliced.streamed:
            move = program.pages.write_slice if back else program.pages.read_slice
            program.add(what, partial(move, self._held(name).name, window, buffer), moves=True)
            return
        whole = self.places.root(self.places.graph.root(name), self.moment)
        lying = pieces_of(program.span(whole, tensor.nbytes), window)
        side_by_side = buffer.reshape(lying.shape)
        program.add(what, partial(np.copyto, *((lying, side_by_side) if back else (side_by_side, lying))))

    def _fetch(self, node: Node) -> None:
        """Rows of a table on storage: those of some numbers, or a run of them."""
        program, (rows,) = self.program, node.outputs
        table = str(node.attributes["table"])
        held = self._held(table)
        to = program.span(self._place(rows, 0), self.tensors[rows].nbytes)
        program.room_for(0)
        if not node.inputs:
            window, what = run_window(node, self.tensors), f"reading a slice of {table!r}"
            program.add(what, partial(program.pages.read_slice, held.name, window, to), moves=True)
            return
        ids = self._ids(node.inputs[0], 0)
        act = partial(program.pages.read_rows, held.name, ids, held.nbytes, to.reshape(ids.size, -1))
        program.add(f"reading rows of {held.name!r}", act, moves=True)

    def _put(self, node: Node, begin: int, count: int) -> None:
        """Rows that lie within a slice of a table of rows, over those of it."""
        program, (data, ids, rows), (made,) = self.program, node.inputs, node.outputs
        made_as, numbers = self.sliced.cuts[made].slice(self.tensors[made], count), self._ids(ids, begin)
        to, of = (
            program.span(self._place(name, begin), made_as.nbytes).reshape(made_as.shape[0], -1)
            for name in (made, data)
        )
        new = program.span(self._place(rows, begin), self.tensors[rows].nbytes).reshape(numbers.size, -1)
        program.room_for(0)
        whole = self.tensors[made].shape[0]
        program.add("writing rows over a slice", partial(put_rows, to, of, numbers, new, begin, whole))

    def _ids(self, name: str, begin: int) -> Any:
        tensor = self.tensors[name]
        return self.program.span(self._place(name, begin), tensor.nbytes).view(tensor.dtype)

    def _place(self, name: str, begin: int) -> Place:
        layout = self.sliced.layout
        if name in layout.offsets:
            return Place(self.moment.workspace + layout.offsets[name])
        held = layout.storage.get(name, name)
        whole = self.places.root(self.places.graph.root(held), self.moment)
        cut = self.sliced.cuts.get(held)
        shift = begin * cut.unit_bytes(self.tensors[held]) if cut is not None else 0
        return Place(whole.offset + shift, whole.root)
