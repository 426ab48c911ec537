"""Data sets in memory, and the contract that all keep: rows by the names of a network's inputs."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

import numpy as np

from poetopt.backends.onnxruntime.batch import as_array, check_names, check_values, misfit
from poetopt.backends.step.memory import aligned_empty
from poetopt.graph import TrainingGraph
from poetopt.util.errors import ModelError, OutputError
from poetopt.util.files import write_all
from poetopt.util.progress import Told, paced, silent

if TYPE_CHECKING:
    from poetopt.graph import Array


class DataSet(Protocol):
    """Rows, each of which has a part of every input.

    shown
        What messages call it.
    rows
        How many there are.
    """

    shown: str
    rows: int

    def take(self, rows: Array) -> Mapping[str, Array]:
        """Arrays by input name, of these rows (numbers from 0). Raises ModelError where they can't be read."""

    def where(self, row: int) -> str:
        """Gives what messages call a row: its file, and its number there."""

    def check(self, told: Told = silent) -> str:
        """Read all values once, and raise ModelError for the first that is none, or out of its range; their digest.

        Where that takes as long as training does (images), values are looked at when they are read, and the digest is
        of names and sizes of the files.
        """


class Digest:
    """Of arrays by name, which come in pieces, rows after rows."""

    def __init__(self) -> None:
        self._names: dict[str, hashlib.blake2b] = {}

    def add(self, name: str, rows: Array) -> None:
        """Take the next rows of an array."""
        if name not in self._names:
            self._names[name] = hashlib.blake2b(f"{rows.dtype} {rows.shape[1:]}".encode(), digest_size=16)
        self._names[name].update(np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data)

    @property
    def text(self) -> str:
        """That of all so far."""
        return Digest.of(f"{name} {self._names[name].hexdigest()}" for name in sorted(self._names))

    @staticmethod
    def of(parts: Iterable[str]) -> str:
        """Of texts, one after the other."""
        whole = hashlib.blake2b(digest_size=16)
        for part in parts:
            whole.update(f"{part}\n".encode(errors="surrogateescape"))  # names of files are any bytes
        return whole.hexdigest()


class Column(Protocol):
    """Rows of one shape and type."""

    @property
    def rows(self) -> int:
        """Says how many."""

    def take(self, rows: Array) -> Array:
        """These rows, in this order."""


@dataclass(frozen=True)
class InMemory:
    """Rows of an array."""

    array: Array

    @property
    def rows(self) -> int:
        return len(self.array)

    def take(self, rows: Array) -> Array:
        found: Array = self.array[rows]
        return found


@dataclass(frozen=True)
class InFile:
    """Rows in a file, one after the other from the byte `start` on.

    path
        Where the file is; it is opened for each batch. Where `file` is given, what messages call it.
    shape
        Of a row.
    file
        An open file without a name, which other columns may share.
    """

    path: str
    start: int
    rows: int
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    file: IO[bytes] | None = None

    def take(self, rows: Array) -> Array:
        found = aligned_empty((len(rows), *self.shape), np.dtype(self.dtype))
        row_bytes = found.nbytes // max(1, len(rows))
        if not row_bytes:
            return found
        flat = found.reshape(-1).view(np.uint8)
        try:
            if self.file is not None:
                self._read(self.file, rows, row_bytes, flat)
            else:
                with open(self.path, "rb", buffering=0) as file:
                    self._read(file, rows, row_bytes, flat)
        except OSError as error:
            raise ModelError(f"can't read {self.path}: {error.strerror or error}") from error
        return found

    def _read(
        self, file: IO[bytes], rows: Array, row_bytes: int, flat: np.ndarray[tuple[int], np.dtype[np.uint8]]
    ) -> None:
        done = 0
        for first, count in runs(rows.tolist()):
            file.seek(self.start + first * row_bytes)
            left = flat[done * row_bytes : (done + count) * row_bytes].data
            done += count
            while left:
                got = file.readinto(left)  # type: ignore[attr-defined]
                if not got:
                    raise ModelError(f"{self.path} is shorter than when training began; something else has changed it")
                left = left[got:]


def runs(rows: Sequence[int]) -> Iterator[tuple[int, int]]:
    """First row and length of each run of consecutive ones."""
    start = 0
    for k in range(1, len(rows) + 1):
        if k == len(rows) or rows[k] != rows[k - 1] + 1:
            yield rows[start], k - start
            start = k


def unpacked(parts: Iterable[bytes], shown: str, workdir: Path | None, file: IO[bytes] | None = None) -> IO[bytes]:
    """A file without a name, or the end of `file`, that holds `parts`. Raises OutputError where there is no room."""
    folder = Path(tempfile.gettempdir() if workdir is None else workdir)
    try:
        if file is None:
            file = tempfile.TemporaryFile(prefix="poetopt-", dir=folder, buffering=0)  # noqa: SIM115
        file.seek(0, os.SEEK_END)
        for part in parts:
            write_all(file, part)
    except OSError as error:
        raise OutputError(
            f"can't unpack {shown} into {folder}: {error.strerror or os.strerror(error.errno or 0)}; make room there, "
            "or name another folder with --workdir"
        ) from error
    return file


class DataColumns:
    """A data set of one column for each input that has rows.

    shown
        The file, or "the data".
    fixed
        What every batch has alike.
    """

    def __init__(
        self, graph: TrainingGraph, shown: str, columns: Mapping[str, Column], fixed: Mapping[str, Array] | None = None
    ) -> None:
        self.graph, self.shown = graph, shown
        self.columns, self.fixed = columns, fixed or {}
        self.rows = next(iter(columns.values())).rows

    def take(self, rows: Array) -> Mapping[str, Array]:
        """See `DataSet`."""
        return {**self.fixed, **{name: column.take(rows) for name, column in self.columns.items()}}

    def where(self, row: int) -> str:
        """See `DataSet`."""
        return f"{self.shown}, row {row}"

    def check(self, told: Told = silent) -> str:
        """See `DataSet`."""
        pace, digest = paced(told), Digest()
        for name, array in self.fixed.items():
            digest.add(name, array)
        for name, column in self.columns.items():
            row_bytes = column.take(np.arange(1)).nbytes
            # so much of an array is looked at together
            step = max(1, (1 << 20) // max(1, row_bytes))
            for start in range(0, self.rows, step):
                pace(f"checking the data: row {start:,} of {self.rows:,} of {name}")
                part = column.take(np.arange(start, min(start + step, self.rows)))
                if fault(self.graph, name, part):
                    k = next(k for k in range(len(part)) if fault(self.graph, name, part[k : k + 1]))
                    what = fault(self.graph, name, part[k : k + 1])
                    raise ModelError(f"{self.where(start + k)}: {what}")
                digest.add(name, part)
        return digest.text


def fault(graph: TrainingGraph, name: str, array: Array) -> str:
    """Gives what is wrong with values of an input; empty where nothing is."""
    if array.dtype.kind in "fc" and not np.isfinite(array).all():
        what = "NaN" if np.isnan(array).any() else "infinity"
        return f"{name!r} holds {what}, of which no gradient can be; leave such rows out, or fill them"
    try:
        check_values(graph, name, array)
    except ModelError as error:
        return str(error).removeprefix("the data's ")
    return ""


def of_arrays(graph: TrainingGraph, data: Mapping[str, object]) -> DataColumns:
    """Arrays in memory as a data set. Raises ModelError for those that fit no input."""
    arrays: dict[str, Array] = {}
    for name in graph.inputs:
        if name in data:
            arrays[name] = as_array(name, data[name])
    shapes = {name: (array.shape, array.dtype) for name, array in arrays.items()}
    rows, fixed = which_are_rows(graph, "the data", {**data, **arrays}, shapes)
    return DataColumns(
        graph, "the data", {name: InMemory(arrays[name]) for name in rows}, {n: arrays[n] for n in fixed}
    )


def which_are_rows(
    graph: TrainingGraph,
    shown: str,
    data: Mapping[str, object],
    shapes: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]],
) -> tuple[list[str], list[str]]:
    """Names of the inputs that have rows, and of those that every batch has alike.

    shapes
        Shape and type of each array. What has an input's shape exactly, while others have more rows, is alike in every
        batch, unless it has the rows of one batch.

    Raises ModelError where an input is missing, or has another shape or type, or no rows.
    """
    said = told_of(shown)
    said(lambda: check_names(graph, data))
    count = 0
    for name in graph.inputs:
        shape, tensor = shapes[name][0], graph.tensors[name]
        if len(shape) == len(tensor.shape) > 0 and shape[1:] == tensor.shape[1:]:
            count = max(count, shape[0])
        elif shape != tensor.shape:
            text, dot, remedy = str(misfit(tensor, shape)).partition(". ")
            raise ModelError(f"{shown}: {text}, or longer along its first axis{dot}{remedy}")
    rows = [name for name in graph.inputs if shapes[name][0][:1] == (count,) and graph.tensors[name].shape]
    if not count or not rows:
        raise ModelError(f"{shown}: it holds no rows; leave it out, or give some")
    fixed = [name for name in graph.inputs if name not in rows]
    for name in fixed:
        shape, tensor = shapes[name][0], graph.tensors[name]
        of_a_batch = graph.tensors[rows[0]].shape[:1]
        if shape != tensor.shape or name in graph.added_inputs or (shape[:1] == of_a_batch != (1,)):
            raise ModelError(
                f"{shown}: {rows[0]!r} has {count} rows, and {name!r} {', '.join(map(str, shape[:1])) or 'none'}; each "
                "row of one belongs to a row of the other: cut the longer"
            )
    for name in graph.inputs:
        said(lambda name=name: check_type(graph, name, shapes[name][1]))  # type: ignore[misc]
    return rows, fixed


def told_of(shown: str) -> Callable[[Callable[[], object]], None]:
    """Call something whose ModelErrors then begin with `shown`."""

    def call(act: Callable[[], object]) -> None:
        try:
            act()
        except ModelError as error:
            text = str(error)
            raise ModelError(text if text.startswith(shown) else f"{shown}: {text}") from error

    return call


def check_type(graph: TrainingGraph, name: str, dtype: np.dtype[Any]) -> None:
    """Raise ModelError for a type that can't be an input's, whatever the values are."""
    from poetopt.backends.step.memory import numpy_dtype

    tensor = graph.tensors[name]
    wanted = numpy_dtype(tensor.dtype)
    target = name in graph.added_inputs and "float" in tensor.dtype
    whole = dtype.kind in "iub" if target else dtype.kind in "iu" and wanted.kind in "iu"
    if dtype != wanted and not whole:
        scaled = " and scale it, as the network expects" if dtype.kind == "u" and "float" in tensor.dtype else ""
        raise ModelError(
            f"{name!r} has type {dtype}; it must be {tensor.dtype}: convert it with .astype({tensor.dtype!r}){scaled}"
        )
