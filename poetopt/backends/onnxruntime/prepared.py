"""A prepared step, which another process loads without reading the model or importing what reads it.

A folder has all of it: one file with the values that training begins with, side by side, which is mapped; and
everything else, pickled. It is for the processes of one run, on one machine: nobody else can read or write it.
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
    """Arrays in a file by name, each mapped on access: read-only, aligned, and unmapped with the last view.

    Parameters
    ----------
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
        """Write arrays one after another. Raise `OSError` where the disk is full."""
        places: dict[str, tuple[int, str, tuple[int, ...]]] = {}
        with path.open("wb") as file:
            for name, array in arrays.items():
                file.seek(-(-file.tell() // ALIGNMENT) * ALIGNMENT)
                places[name] = (file.tell(), str(array.dtype), array.shape)
                file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        return cls(path, places)


@dataclass(frozen=True)
class Prepared:
    """Prepared step.

    Attributes
    ----------
    plan
        Plan of a problem with `graph`.
    graph
        Graph whose arrays have only shape and type.
    first
        Values that training begins with; of tables by rows, all rows.
    models
        ONNX models of the sessions, as in `Sessions`.
    ram_bytes
        Budget of the plan, where it is known.
    fed
        Batch, or data set, by the graph's input names, where one was prepared, too.
    folder
        Folder from which the step was loaded.
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
        """Return the step of a plan in this process.

        Parameters
        ----------
        written
            Whether to write the sessions' models now, and not one by one as they are needed.
        """
        bare = _bare(graph)
        bare_plan = replace(plan, problem=replace(plan.problem, graph=bare))
        first = {**graph.joint.values, **{name: table.values for name, table in graph.joint.rows.items()}}
        models: Mapping[tuple[str, ...], bytes] = {}
        if written:
            models = Sessions(graph.joint).written(slice_nodes(plan, Places(graph, plan.problem, Sessions.runtime)))
        return cls(bare_plan, bare, first, models, ram_bytes, fed)

    def save(self, folder: Path) -> None:
        """Write the step for another process. Raise `OSError` where it can't be written."""
        mapped = Mapped.write(folder / VALUES, self.first)
        fed_places = None if self.fed is None else Mapped.write(folder / FED, self.fed).places
        graph = replace(self.graph)  # without cached properties
        plan = replace(self.plan, problem=replace(self.plan.problem, graph=graph))
        with (folder / STEP).open("wb") as file:
            _Pickler(file, pickle.HIGHEST_PROTOCOL).dump(
                (plan, self.ram_bytes, graph, mapped.places, fed_places, self.models)
            )

    @classmethod
    def load(cls, folder: Path) -> Prepared:
        """Read what `save` wrote."""
        with (folder / STEP).open("rb") as file:
            plan, ram_bytes, graph, places, fed_places, models = pickle.load(file)
        fed = None if fed_places is None else Mapped(folder / FED, fed_places)
        return cls(plan, graph, Mapped(folder / VALUES, places), models, ram_bytes, fed, folder)


class _Pickler(pickle.Pickler):
    """Pickler that writes only shape and type of an array without memory."""

    def reducer_override(self, obj: object) -> Any:
        if isinstance(obj, np.ndarray) and obj.strides and not any(obj.strides):
            return _array_without_memory, (obj.shape, obj.dtype)
        return NotImplemented


def _bare(graph: TrainingGraph) -> TrainingGraph:
    """Return `graph` with arrays without memory, except values that sessions read."""
    sessions = Sessions(graph)
    values = {
        name: np.array(array) if sessions.embeds(name) else _array_without_memory(array.shape, array.dtype)
        for name, array in graph.values.items()
    }
    rows = {
        name: replace(table, values=_array_without_memory(table.values.shape, table.values.dtype))
        for name, table in graph.rows.items()
    }
    closing = None if graph.closing is None else _bare(graph.closing)
    return replace(graph, values=values, rows=rows, closing=closing)


def _array_without_memory(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return an array of that shape that takes no memory."""
    return np.broadcast_to(np.zeros((), dtype), shape)
