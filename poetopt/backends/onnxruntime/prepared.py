"""A step made ready by one process and taken by another, which neither reads the model nor imports what reads it.

A folder holds all of it: the values that training begins with, side by side in one file that is mapped, and everything
else, pickled. It is for the processes of one run, on one machine: nobody else can read or write it.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
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
        graph = replace(self.graph)  # without what was worked out of it
        plan = replace(self.plan, problem=replace(self.plan.problem, graph=graph))
        with (folder / STEP).open("wb") as file:
            _Pickler(file, pickle.HIGHEST_PROTOCOL).dump((plan, self.ram_bytes, graph, mapped.places, fed, self.models))

    @classmethod
    def load(cls, folder: Path) -> Prepared:
        """Read what `save` wrote."""
        with (folder / STEP).open("rb") as file:
            plan, ram_bytes, graph, places, given, models = pickle.load(file)
        fed = None if given is None else Mapped(folder / FED, given)
        return cls(plan, graph, Mapped(folder / VALUES, places), models, ram_bytes, fed, folder)


class _Pickler(pickle.Pickler):
    """Writes of an array without memory its shape and type."""

    def reducer_override(self, obj: object) -> Any:
        if isinstance(obj, np.ndarray) and obj.strides and not any(obj.strides):
            return _shape, (obj.shape, obj.dtype)
        return NotImplemented


def _bare(graph: TrainingGraph) -> TrainingGraph:
    """`graph` with arrays that have shape and type alone, and no memory, but where sessions read their values."""
    sessions = Sessions(graph)
    values = {
        name: np.array(array) if sessions.embeds(name) else _shape(array.shape, array.dtype)
        for name, array in graph.values.items()
    }
    rows = {
        name: replace(table, values=_shape(table.values.shape, table.values.dtype))
        for name, table in graph.rows.items()
    }
    closing = None if graph.closing is None else _bare(graph.closing)
    return replace(graph, values=values, rows=rows, closing=closing)


def _shape(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """An array of that shape without memory."""
    return np.broadcast_to(np.zeros((), dtype), shape)
