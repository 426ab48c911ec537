"""A step made ready by one process and taken by another, which neither reads the model nor imports what reads it.

A folder holds all of it: the values that training begins with, side by side in one file that is mapped, and everything
else, pickled. It is for the processes of one run, on one machine: nobody else can read or write it.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from poetopt.backends.onnxruntime.sessions import Sessions
from poetopt.backends.step.memory import ALIGNMENT, numpy_dtype
from poetopt.backends.step.places import Places, slice_nodes
from poetopt.graph import TrainingGraph
from poetopt.plan.instructions import Plan

if TYPE_CHECKING:
    from poetopt.graph import Array

VALUES, FED, STEP = "values.bin", "fed.bin", "step.pickle"


class Mapped(Mapping[str, "Array"]):
    """Arrays in a file by name, each mapped when it is asked for: read-only, aligned, and gone with the last view.

    places
        Offset in the file, numpy's name of the type, and shape.
    """

    def __init__(self, path: Path, places: Mapping[str, tuple[int, str, tuple[int, ...]]]) -> None:
        self.path, self.places = path, places

    def __getitem__(self, name: str) -> Array:
        offset, dtype, shape = self.places[name]
        if 0 in shape:
            return np.empty(shape, numpy_dtype(dtype))
        return np.asarray(np.memmap(self.path, numpy_dtype(dtype), "r", offset, shape))

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)

    @classmethod
    def write(cls, path: Path, arrays: Mapping[str, Array]) -> Mapped:
        """Write arrays one after another. Raises OSError where the disk is full."""
        places: dict[str, tuple[int, str, tuple[int, ...]]] = {}
        with path.open("wb") as file:
            for name, array in arrays.items():
                file.seek(-(-file.tell() // ALIGNMENT) * ALIGNMENT)
                places[name] = (file.tell(), str(array.dtype), array.shape)
                file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        return cls(path, places)


@dataclass(frozen=True)
class Prepared:
    """Holds what a step is made of.

    plan
        Of a problem with that graph.
    graph
        With arrays that have shape and type alone.
    first
        The values that training begins with; of tables by rows, all rows.
    models
        See `Sessions`.
    ram_bytes
        The budget that the plan was made for, where that is known.
    fed
        A batch, or a data set, by the names of the graph's inputs, where it was made ready, too.
    folder
        Where it lies, where it was read from a folder.
    """

    plan: Plan
    graph: TrainingGraph
    first: Mapping[str, Array]
    models: Mapping[tuple[str, ...], bytes]
    ram_bytes: int | None = None
    fed: Mapping[str, Array] | None = None
    folder: Path | None = None

    @classmethod
    def of(
        cls,
        plan: Plan,
        graph: TrainingGraph,
        *,
        ram_bytes: int | None = None,
        fed: Mapping[str, Array] | None = None,
        written: bool = False,
    ) -> Prepared:
        """The step of a plan in this process.

        written
            Whether the models of sessions are written now, and not one by one as they are needed.
        """
        bare = _bare(graph)
        alone = replace(plan, problem=replace(plan.problem, graph=bare))
        first = {**graph.joint.values, **{name: table.values for name, table in graph.joint.rows.items()}}
        models: Mapping[tuple[str, ...], bytes] = {}
        if written:
            models = Sessions(graph.joint).written(slice_nodes(plan, Places(graph, plan.problem, Sessions.runtime)))
        return cls(alone, bare, first, models, ram_bytes, fed)

    def save(self, folder: Path) -> None:
        """Write it for another process. Raises OSError where that can't be done."""
        mapped = Mapped.write(folder / VALUES, self.first)
        fed = None if self.fed is None else Mapped.write(folder / FED, self.fed).places
        whole = {name: table.values.shape for name, table in self.graph.joint.rows.items()}
        graph, names = _small(self.graph), tuple(self.graph.joint.values)
        with (folder / STEP).open("wb") as file:
            plan = replace(self.plan, problem=replace(self.plan.problem, graph=None))
            held = (plan, self.ram_bytes, graph, names, whole, mapped.places, fed, self.models)
            pickle.dump(held, file, pickle.HIGHEST_PROTOCOL)

    @classmethod
    def load(cls, folder: Path) -> Prepared:
        """Read what `save` wrote."""
        with (folder / STEP).open("rb") as file:
            plan, ram_bytes, graph, names, whole, places, given, models = pickle.load(file)
        first, graph = Mapped(folder / VALUES, places), _shaped(graph, names, whole)
        plan = replace(plan, problem=replace(plan.problem, graph=graph))
        fed = None if given is None else Mapped(folder / FED, given)
        return cls(plan, graph, first, models, ram_bytes, fed, folder)


def _bare(graph: TrainingGraph) -> TrainingGraph:
    """`graph` with arrays that have shape and type alone, and no memory, but where sessions read their values."""
    sessions = Sessions(graph)
    values = {
        name: array if sessions.embeds(name) else _shape(array.shape, array.dtype)
        for name, array in graph.values.items()
    }
    rows = {
        name: replace(table, values=_shape(table.values.shape, table.values.dtype))
        for name, table in graph.rows.items()
    }
    closing = None if graph.closing is None else _bare(graph.closing)
    return replace(graph, values=values, rows=rows, closing=closing)


def _small(graph: TrainingGraph) -> TrainingGraph:
    """`graph` with the values alone that sessions read."""
    sessions = Sessions(graph)
    small = {name: np.array(array) for name, array in graph.values.items() if sessions.embeds(name)}
    rows = {name: replace(table, values=np.empty(0)) for name, table in graph.rows.items()}
    closing = None if graph.closing is None else _small(graph.closing)
    return replace(graph, values=small, rows=rows, closing=closing)


def _shaped(graph: TrainingGraph, names: Iterable[str], whole: Mapping[str, tuple[int, ...]]) -> TrainingGraph:
    """`graph`, as `_small` left it, with arrays that have shape and type alone for all other values.

    whole
        The shapes of tables, all rows.
    """
    there = (name for name in names if name in graph.tensors)
    values = {
        n: graph.values.get(n, _shape(graph.tensors[n].array_shape, numpy_dtype(graph.tensors[n].dtype))) for n in there
    }
    rows = {
        name: replace(table, values=_shape(whole[name], numpy_dtype(graph.tensors[name].dtype)))
        for name, table in graph.rows.items()
    }
    closing = None if graph.closing is None else _shaped(graph.closing, names, whole)
    return replace(graph, values=values, rows=rows, closing=closing)


def _shape(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """An array of that shape without memory."""
    return np.broadcast_to(np.zeros((), dtype), shape)
