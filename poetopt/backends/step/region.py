"""The resident region of a step, in the memory of this machine.

What random nodes draw in a step, so that a training that is resumed goes on with the same numbers.

A runtime's generator can't be read or set, only seeded when its node is made ready. So it is seeded anew every `WINDOW`
steps: to go on behind any number of steps takes at most as many draws.

What is carried from step to step and scheduled: parameters, optimizer states and constants, in one file on storage.

Before the first step, what has its home on storage is written to its slot there, and what stays in RAM is put where the
plan begins with it. A step leaves all of it where the next one begins.
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
    """The resident region of a step.

    given
        Parameters and constants by name: what the step reads. Read-only, but for what it updates.
    written
        Gradients, statistics and the loss by name of their storage: what the step leaves behind.
    block
        The memory of `written`.
    first
        What the step updates in place, as it was before the first step.
    """

    given: Mapping[str, Array]
    written: Mapping[str, Array]
    block: MappedBlock
    first: Mapping[str, Array] = field(default_factory=dict)

    @classmethod
    def of(
        cls, graph: TrainingGraph, scheduled: Collection[str] = (), first: Mapping[str, Array] | None = None
    ) -> ResidentRegion:
        """The region of `graph`: what changes lies side by side, all else is copied where it isn't aligned.

        scheduled
            Names of the tensors that a plan schedules: they have no place here.
        first
            The values before the first step; by default the graph's.
        """
        first = graph.values if first is None else first
        changing = {*graph.lasting, *graph.hyperparameters.values()}
        roots = [root for root in resident_storages(graph) if root not in scheduled]
        held, _ = pack_apart(graph.tensors[root] for root in roots if root in graph.values and root in changing)
        for name, array in held.items():
            copy_mapped(array, first[name])
        fixed = {root: aligned_copy(first[root]) for root in roots if root in graph.values and root not in held}
        written, block = pack_apart(graph.tensors[root] for root in roots if root not in graph.values)
        updated = {name: first[name] for name in graph.updaters if name in held}
        return cls({**fixed, **held}, written, block, updated)

    @property
    def begun(self) -> Mapping[str, Array]:
        """Gives what the first step reads, whatever steps have updated since. Read-only."""
        return {**self.given, **{name: aligned_copy(array) for name, array in self.first.items()}}

    def reset(self) -> None:
        """Undo all updates in place."""
        for name, array in self.first.items():
            np.copyto(self.given[name], array)

    def address(self, root: str) -> int:
        """Says where the storage `root` starts."""
        array = self.given[root] if root in self.given else self.written[root]
        return int(array.ctypes.data)

    def value(self, graph: TrainingGraph, name: str) -> Array:
        """A resident tensor that the step has written, a view of its storage, without a copy."""
        root = graph.root(name)
        return (self.written if root in self.written else self.given)[root].reshape(graph.tensors[name].shape)


WINDOW = 256
"""Steps for which one seed lasts."""


def reseeded(node: Node, window: int) -> Node:
    """A random node as it draws in a window of steps; in the first one (0), by its own seed."""
    if not window:
        return node
    own = node.attributes.get("seed", node.name)
    seed = 1 + zlib.crc32(f"{own} {window}".encode()) % 2**20
    return replace(node, attributes={**node.attributes, "seed": seed if node.op_type == "Dropout" else float(seed)})


class Carried:
    """The scheduled tensors that no operator of `plan` computes and no batch brings.

    first
        Their values before the first step, by name. Read-only. Of tables by rows, only the shape counts.
    in_ram
        Where those that begin a step in RAM lie then, by name.
    used
        The rows that the batch uses of each table.
    """

    def __init__(self, plan: Plan, graph: TrainingGraph, arena: MappedBlock, pages: PageFile) -> None:
        self._graph, self._pages = graph, pages
        tensors = plan.problem.tensors
        self.first: Mapping[str, Array] = {
            held.name: graph.values[held.name] for held in tensors if not held.computed and held.name in graph.values
        }
        offsets = input_offsets(plan)
        self.in_ram: dict[str, Array] = {}
        self._stored: list[str] = []
        self.used: Mapping[str, tuple[int, ...]] = {}
        for i, held in enumerate(tensors):
            if held.name not in self.first:
                continue
            if held.home is Home.RAM:
                self.in_ram[held.name] = arena.view(offsets[i], graph.tensors[held.name])
            if held.stored:
                self._stored.append(held.name)

    def begin(self) -> None:
        """Put everything where the first step finds it. Raises ExecutionError where the storage fails."""
        for name, array in self.first.items():
            table = self._graph.rows.get(name)
            self.put(name, array if table is None else table.values)

    def put(self, name: str, array: Array) -> None:
        """Put a value where a step finds it: of a table, all rows. Raises ExecutionError where the storage fails."""
        if name in self._graph.rows:
            self._pages.choose_all(name)
        elif name in self.in_ram:
            copy_mapped(self.in_ram[name], array)
        if name in self._stored:
            self._pages.write(name, bytes_of(array))

    def take(self, batch: Mapping[str, Array]) -> Mapping[str, Array]:
        """A batch as the graph reads it; the rows that it uses of tables are those of their tensors from now on."""
        read, used = taken(self._graph, batch)
        self.used = {name: tuple(rows.tolist()) for name, rows in used.items() if name in self.first}
        return read

    def follow(self, used: Mapping[str, tuple[int, ...]]) -> None:
        """Let tables and their states be these rows of the tables from now on."""
        tables = {name: rows.of or name for name, rows in self._graph.rows.items()}
        self.used = {name: used[table] for name, table in tables.items() if name in self.first}
        self.choose()

    @property
    def begun(self) -> Mapping[str, Array]:
        """Gives what the first step reads: of tables, the rows that the batch uses, and zeros behind them."""
        found = dict(self.first)
        for name, rows in self.used.items():
            found[name] = np.zeros_like(self.first[name])
            found[name][: len(rows)] = self._graph.rows[name].values[list(rows)]
        return found

    def choose(self) -> None:
        """Let the tensors of tables be the rows that the batch uses."""
        for name, rows in self.used.items():
            self._pages.choose(name, rows, self._graph.tensors[name].nbytes // self._graph.tensors[name].shape[0])

    def table(self, name: str) -> Array:
        """All rows of a table, as the last step left it."""
        found = np.array(self._graph.rows[name].values, order="C")
        self._whole(name)
        self._pages.read(name, bytes_of(found))
        self.choose()
        return found

    def _whole(self, name: str) -> None:
        whole = self._graph.rows[name].values
        self._pages.choose(name, range(len(whole)), whole.nbytes // len(whole))

    def value(self, name: str) -> Array:
        """Gives what a step has left of one of them. Raises ExecutionError where the storage fails."""
        if name in self.in_ram:
            return self.in_ram[name]
        found = np.array(self.first[name], order="C")
        if name in self._stored:
            self._pages.read(name, bytes_of(found))
        return found

    def pieces(self, name: str) -> Iterator[NDArray[np.uint8]]:
        """The bytes of `value(name)` in order, some at a time; each is gone with the next."""
        if name in self.in_ram or name not in self._stored or name in self._graph.rows:
            yield bytes_of(self.value(name))
        else:
            yield from self._pages.pieces(name, self.first[name].nbytes)


def slots(plan: Plan, graph: TrainingGraph | None = None) -> Mapping[str, int]:
    """Bytes of each tensor that needs a slot on storage, by name; of tables, all rows."""
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
