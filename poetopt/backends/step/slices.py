"""An operator that runs slice by slice, bound to memory: its nodes, and the copies between slices and whole tensors."""

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
    """Actions of a sliced run of `operator` by the variant of `moment`, to be added to `program`.

    Raise `PlanError` where the runtime has no such variant.
    """

    def __init__(self, program: Program, operator: Operator, moment: Moment) -> None:
        self.program, self.operator, self.moment = program, operator, moment
        self.places, self.tensors = program.places, program.graph.tensors
        self.sliced = self.places.sliced(operator, moment.instruction)

    def bind(self) -> None:
        """Bind the nodes that run once before the loop, those of each slice, and those after it."""
        sliced, needs = self.sliced, self.sliced.layout.kernel_bytes
        first, end = len(sliced.before), len(sliced.before) + len(sliced.each)
        self._bind_once(sliced.before, needs[:first])
        for begin, count in sliced.chunks():
            for node, need in zip(sliced.each, needs[first:end], strict=True):
                if node.op_type in (FETCH, STORE) and node.domain:
                    self._copy_slice(node, begin, count)
                elif node.op_type == PUT_ROWS and node.domain:
                    self._write_rows(node, begin, count)
                elif not is_inner_view(node, sliced.layout.storage):
                    run = sliced.further.get(node.outputs[0], node) if begin else node
                    self._run(run, sliced.shapes(run, self.tensors, count), need, begin)
        self._bind_once(sliced.behind, needs[end:])

    def _bind_once(self, nodes: tuple[Node, ...], needs: tuple[int, ...]) -> None:
        for node, need in zip(nodes, needs, strict=True):
            if node.op_type == FETCH_ROWS and node.domain:
                self._read_rows(node)
            elif not is_inner_view(node, self.sliced.layout.storage):
                self._run(node, {n: self.tensors[n] for n in (*node.inputs, *node.outputs) if n}, need, None)

    def _run(self, node: Node, shapes: Mapping[str, Tensor], need: int, begin: int | None) -> None:
        """Bind a node on the slice that begins at `begin`; None outside of the loop."""
        places = {name: self._place(name, begin or 0) for name in shapes}
        self.program.bind(node, f"a slice of operator {self.operator.name!r}", places, need, shapes)
        for name, copy in self.program.watched.of(node):
            computed = self.program.span(places[name], shapes[name].nbytes)
            to = copy.reshape(-1).view(np.uint8)
            if begin is not None and name in self.sliced.cuts:
                cut = self.sliced.cuts[name]
                count = shapes[name].shape[cut.axis] // cut.per
                to = pieces_of(to, self.sliced.window(self.tensors[name], begin, count))
            self.program.add(f"a copy of {name!r}", partial(np.copyto, to, computed.reshape(to.shape)))

    def _planned_tensor(self, name: str) -> ProblemTensor:
        """Return the planned tensor whose storage `name` shares."""
        return self.places.problem.tensors[self.places.index[self.places.graph.root(name)]]

    def _copy_slice(self, node: Node, begin: int, count: int) -> None:
        """Bind a copy between a slice's contiguous buffer and its tensor, on storage or in RAM."""
        program, is_store = self.program, node.op_type == STORE
        (name,) = node.inputs if is_store else node.outputs
        tensor, description = self.tensors[name], f"{'writing' if is_store else 'reading'} a slice of {name!r}"
        window = self.sliced.window(tensor, begin, count)
        buffer = program.span(self._place(name, 0), window.nbytes * window.pieces)
        program.room_for(0)
        if name in self.sliced.streamed:
            move = program.pages.write_slice if is_store else program.pages.read_slice
            program.add(description, partial(move, self._planned_tensor(name).name, window, buffer), moves=True)
            return
        address = self.places.root(self.places.graph.root(name), self.moment)
        strided = pieces_of(program.span(address, tensor.nbytes), window)
        packed = buffer.reshape(strided.shape)
        program.add(description, partial(np.copyto, *((strided, packed) if is_store else (packed, strided))))

    def _read_rows(self, node: Node) -> None:
        """Bind a read of rows of a table on storage: the rows of given numbers, or a range of them."""
        program, (rows,) = self.program, node.outputs
        table = str(node.attributes["table"])
        planned = self._planned_tensor(table)
        target = program.span(self._place(rows, 0), self.tensors[rows].nbytes)
        program.room_for(0)
        if not node.inputs:
            window, what = run_window(node, self.tensors), f"reading a slice of {table!r}"
            program.add(what, partial(program.pages.read_slice, planned.name, window, target), moves=True)
            return
        ids = self._row_numbers(node.inputs[0], 0)
        act = partial(program.pages.read_rows, planned.name, ids, planned.nbytes, target.reshape(ids.size, -1))
        program.add(f"reading rows of {planned.name!r}", act, moves=True)

    def _write_rows(self, node: Node, begin: int, count: int) -> None:
        """Bind a write of those rows that lie within a slice of a table."""
        program, (data, ids, rows), (output,) = self.program, node.inputs, node.outputs
        output_slice, numbers = (
            self.sliced.cuts[output].slice(self.tensors[output], count),
            self._row_numbers(ids, begin),
        )
        target, source = (
            program.span(self._place(name, begin), output_slice.nbytes).reshape(output_slice.shape[0], -1)
            for name in (output, data)
        )
        row_values = program.span(self._place(rows, begin), self.tensors[rows].nbytes).reshape(numbers.size, -1)
        program.room_for(0)
        table_rows = self.tensors[output].shape[0]
        program.add(
            "writing rows over a slice", partial(put_rows, target, source, numbers, row_values, begin, table_rows)
        )

    def _row_numbers(self, name: str, begin: int) -> Any:
        tensor = self.tensors[name]
        return self.program.span(self._place(name, begin), tensor.nbytes).view(tensor.dtype)

    def _place(self, name: str, begin: int) -> Place:
        layout = self.sliced.layout
        if name in layout.offsets:
            return Place(self.moment.workspace + layout.offsets[name])
        storage = layout.storage.get(name, name)
        start = self.places.root(self.places.graph.root(storage), self.moment)
        cut = self.sliced.cuts.get(storage)
        shift = begin * cut.unit_bytes(self.tensors[storage]) if cut is not None else 0
        return Place(start.offset + shift, start.root)
