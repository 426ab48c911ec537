"""The resident region of a step, random seeds, and carried tensors.

A training that is resumed goes on with the same random numbers. A runtime's generator can't be read or set, only
seeded when its node is prepared. So each random node gets a new seed every `WINDOW` steps: to go on after any number
of steps takes at most `WINDOW` draws.

Carried tensors are the parameters, optimizer states and constants that a plan schedules. Their storage is one file.
Before the first step, each tensor with its home on storage is written to its slot, and each that stays in RAM is put
where the plan expects it. A step leaves all of them where the next one reads them.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from poetopt.autodiff.passes.rows import taken
from poetopt.backends.step.memory import MappedBlock, aligned_copy, bytes_of, copy_mapped, pack_apart
from poetopt.backends.step.places import input_offsets
from poetopt.backends.step.storage import PageFile
from poetopt.graph import Node, TrainingGraph
from poetopt.graph.problem import Home
from poetopt.ops.nodes import resident_storages
from poetopt.plan.instructions import Action, Plan

if TYPE_CHECKING:
    from poetopt.graph import Array


@dataclass(frozen=True)
class ResidentRegion:
    """Resident region of a step.

    Attributes
    ----------
    given
        Parameters and constants that the step reads, by name. Read-only, except those that it updates.
    written
        Gradients, statistics and the loss that the step leaves behind, by name of their storage.
    block
        Memory of `written`.
    first
        Values before the first step of the tensors that the step updates in place.
    """

    given: Mapping[str, Array]
    written: Mapping[str, Array]
    block: MappedBlock
    first: Mapping[str, Array] = field(default_factory=dict)

    @classmethod
    def of(
        cls, graph: TrainingGraph, scheduled: Collection[str] = (), first: Mapping[str, Array] | None = None
    ) -> ResidentRegion:
        """Return the region of `graph`: changing tensors lie side by side, others are copied only to align them.

        Parameters
        ----------
        scheduled
            Names of the tensors that a plan schedules; the region leaves them out.
        first
            Values before the first step; by default the graph's.
        """
        first = graph.values if first is None else first
        changing = {*graph.lasting, *graph.hyperparameters.values()}
        roots = [root for root in resident_storages(graph) if root not in scheduled]
        variable, _ = pack_apart(graph.tensors[root] for root in roots if root in graph.values and root in changing)
        for name, array in variable.items():
            copy_mapped(array, first[name])
        fixed = {root: aligned_copy(first[root]) for root in roots if root in graph.values and root not in variable}
        written, block = pack_apart(graph.tensors[root] for root in roots if root not in graph.values)
        updated = {name: first[name] for name in graph.updaters if name in variable}
        return cls({**fixed, **variable}, written, block, updated)

    @property
    def begun(self) -> Mapping[str, Array]:
        """Values that the first step reads, without later updates. Read-only."""
        return {**self.given, **{name: aligned_copy(array) for name, array in self.first.items()}}

    def reset(self) -> None:
        """Undo all updates in place."""
        for name, array in self.first.items():
            np.copyto(self.given[name], array)

    def address(self, root: str) -> int:
        """Return the address of the storage `root`."""
        array = self.given[root] if root in self.given else self.written[root]
        return int(array.ctypes.data)

    def value(self, graph: TrainingGraph, name: str) -> Array:
        """Return a resident tensor that the step has written, as a view of its storage."""
        root = graph.root(name)
        return (self.written if root in self.written else self.given)[root].reshape(graph.tensors[name].shape)


WINDOW = 256
"""Number of steps with one seed."""


def reseeded(node: Node, window: int) -> Node:
    """Return a random node with the seed of a window of steps; window 0 keeps the node's own seed."""
    if not window:
        return node
    own_seed = node.attributes.get("seed", node.name)
    seed = 1 + zlib.crc32(f"{own_seed} {window}".encode()) % 2**20
    return replace(node, attributes={**node.attributes, "seed": seed if node.op_type == "Dropout" else float(seed)})


class Carried:
    """Scheduled tensors that neither an operator of `plan` computes nor a batch contains.

    Attributes
    ----------
    first
        Values before the first step, by name. Read-only. Tables by rows have only a shape here.
    in_ram
        Views of those that begin a step in RAM, by name.
    used
        Rows that the batch uses of each table.
    """

    def __init__(self, plan: Plan, graph: TrainingGraph, arena: MappedBlock, pages: PageFile) -> None:
        self._graph, self._pages = graph, pages
        tensors = plan.problem.tensors
        self.first: Mapping[str, Array] = {
            tensor.name: graph.values[tensor.name]
            for tensor in tensors
            if not tensor.computed and tensor.name in graph.values
        }
        offsets = input_offsets(plan)
        self.in_ram: dict[str, Array] = {}
        self._stored: list[str] = []
        self.used: Mapping[str, tuple[int, ...]] = {}
        for i, tensor in enumerate(tensors):
            if tensor.name not in self.first:
                continue
            if tensor.home is Home.RAM:
                self.in_ram[tensor.name] = arena.view(offsets[i], graph.tensors[tensor.name])
            if tensor.stored:
                self._stored.append(tensor.name)

    def begin(self) -> None:
        """Put every value where the first step reads it. Raise `ExecutionError` where the storage fails."""
        for name, array in self.first.items():
            table = self._graph.rows.get(name)
            self.put(name, array if table is None else table.values)

    def put(self, name: str, array: Array) -> None:
        """Put a value where a step reads it; of a table, all rows. Raise `ExecutionError` where the storage fails."""
        if name in self._graph.rows:
            self._pages.choose_all(name)
        elif name in self.in_ram:
            copy_mapped(self.in_ram[name], array)
        if name in self._stored:
            self._pages.write(name, bytes_of(array))

    def take(self, batch: Mapping[str, Array]) -> Mapping[str, Array]:
        """Return a batch as the graph reads it, and select the rows that it uses of each table."""
        read, used = taken(self._graph, batch)
        self.used = {name: tuple(rows.tolist()) for name, rows in used.items() if name in self.first}
        return read

    def follow(self, used: Mapping[str, tuple[int, ...]]) -> None:
        """Select these rows of the tables and of their states."""
        tables = {name: rows.of or name for name, rows in self._graph.rows.items()}
        self.used = {name: used[table] for name, table in tables.items() if name in self.first}
        self.choose()

    @property
    def begun(self) -> Mapping[str, Array]:
        """Values that the first step reads: of tables, the rows that the batch uses, padded with zeros."""
        values = dict(self.first)
        for name, rows in self.used.items():
            values[name] = np.zeros_like(self.first[name])
            values[name][: len(rows)] = self._graph.rows[name].values[list(rows)]
        return values

    def choose(self) -> None:
        """Map each table's tensor to the rows that the batch uses."""
        for name, rows in self.used.items():
            self._pages.choose(name, rows, self._graph.tensors[name].nbytes // self._graph.tensors[name].shape[0])

    def table(self, name: str) -> Array:
        """Return all rows of a table, as the last step left it."""
        rows = np.array(self._graph.rows[name].values, order="C")
        self._select_all_rows(name)
        self._pages.read(name, bytes_of(rows))
        self.choose()
        return rows

    def _select_all_rows(self, name: str) -> None:
        values = self._graph.rows[name].values
        self._pages.choose(name, range(len(values)), values.nbytes // len(values))

    def value(self, name: str) -> Array:
        """Return the value that a step has left. Raise `ExecutionError` where the storage fails."""
        if name in self.in_ram:
            return self.in_ram[name]
        copy = np.array(self.first[name], order="C")
        if name in self._stored:
            self._pages.read(name, bytes_of(copy))
        return copy

    def pieces(self, name: str) -> Iterator[NDArray[np.uint8]]:
        """Yield the bytes of `value(name)` in order, some at a time; each piece is valid until the next."""
        if name in self.in_ram or name not in self._stored or name in self._graph.rows:
            yield bytes_of(self.value(name))
        else:
            yield from self._pages.pieces(name, self.first[name].nbytes)


def slots(plan: Plan, graph: TrainingGraph | None = None) -> Mapping[str, int]:
    """Return the bytes of each tensor that needs a slot on storage, by name; of tables, all rows."""
    tensors = plan.problem.tensors
    moved = {step.target for step in plan.instructions if step.action is Action.PAGE_OUT}
    for step in plan.instructions:
        if step.variant:
            moved.update(plan.problem.operators[step.target].variant(step.variant).streamed_out)
    graph = plan.problem.graph if graph is None else graph
    rows = graph.rows if graph is not None else {}
    return {
        tensors[i].name: rows[tensors[i].name].values.nbytes if tensors[i].name in rows else tensors[i].nbytes
        for i in sorted(moved.union(plan.problem.stored_at_start))
    }
