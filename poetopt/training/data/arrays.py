"""Data sets in memory, and the protocol of all data sets: rows by the names of a network's inputs."""

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

    Attributes
    ----------
    shown
        Its name in messages.
    rows
        Number of rows.
    """

    shown: str
    rows: int

    def take(self, rows: Array) -> Mapping[str, Array]:
        """Return these rows (numbers from 0) as arrays by input name. Raises ModelError if they can't be read."""

    def where(self, row: int) -> str:
        """Return the name of a row in messages: its file, and its number there."""

    def check(self, told: Told = silent) -> str:
        """Read all values once; return their digest. Raises ModelError for the first invalid value.

        If that takes as long as training (images), values are checked when they are read, and the digest covers names
        and sizes of the files.
        """


class Digest:
    """Digest of named arrays that come in pieces, rows after rows."""

    def __init__(self) -> None:
        self._names: dict[str, hashlib.blake2b] = {}

    def add(self, name: str, rows: Array) -> None:
        """Add the next rows of an array."""
        if name not in self._names:
            self._names[name] = hashlib.blake2b(f"{rows.dtype} {rows.shape[1:]}".encode(), digest_size=16)
        self._names[name].update(np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data)

    @property
    def text(self) -> str:
        """Digest of all rows so far."""
        return Digest.of(f"{name} {self._names[name].hexdigest()}" for name in sorted(self._names))

    @staticmethod
    def of(parts: Iterable[str]) -> str:
        """Return the digest of texts, one after the other."""
        digest = hashlib.blake2b(digest_size=16)
        for part in parts:
            digest.update(f"{part}\n".encode(errors="surrogateescape"))  # file names may be any bytes
        return digest.hexdigest()


class Column(Protocol):
    """Rows of one shape and type."""

    @property
    def rows(self) -> int:
        """Number of rows."""

    def take(self, rows: Array) -> Array:
        """Return these rows, in this order."""


@dataclass(frozen=True)
class InMemory:
    """Rows of an array in memory."""

    array: Array

    @property
    def rows(self) -> int:
        return len(self.array)

    def take(self, rows: Array) -> Array:
        rows_array: Array = self.array[rows]
        return rows_array


@dataclass(frozen=True)
class InFile:
    """Rows in a file, one after the other from the byte `start` on.

    Attributes
    ----------
    path
        Path of the file, which is opened for each batch; with `file`, its name in messages.
    shape
        Shape of one row.
    file
        An open unnamed file, which other columns may share.
    """

    path: str
    start: int
    rows: int
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    file: IO[bytes] | None = None

    def take(self, rows: Array) -> Array:
        array = aligned_empty((len(rows), *self.shape), np.dtype(self.dtype))
        row_bytes = array.nbytes // max(1, len(rows))
        if not row_bytes:
            return array
        flat = array.reshape(-1).view(np.uint8)
        try:
            if self.file is not None:
                self._read(self.file, rows, row_bytes, flat)
            else:
                with open(self.path, "rb", buffering=0) as file:
                    self._read(file, rows, row_bytes, flat)
        except OSError as error:
            raise ModelError(f"can't read {self.path}: {error.strerror or error}") from error
        return array

    def _read(
        self, file: IO[bytes], rows: Array, row_bytes: int, flat: np.ndarray[tuple[int], np.dtype[np.uint8]]
    ) -> None:
        n_done = 0
        for first, count in consecutive_runs(rows.tolist()):
            file.seek(self.start + first * row_bytes)
            buffer = flat[n_done * row_bytes : (n_done + count) * row_bytes].data
            n_done += count
            while buffer:
                n_read = file.readinto(buffer)  # type: ignore[attr-defined]
                if not n_read:
                    raise ModelError(
                        f"{self.path} has become shorter since training began. Another program changed it."
                    )
                buffer = buffer[n_read:]


def consecutive_runs(rows: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield first row and length of each run of consecutive rows."""
    start = 0
    for k in range(1, len(rows) + 1):
        if k == len(rows) or rows[k] != rows[k - 1] + 1:
            yield rows[start], k - start
            start = k


def unpacked(parts: Iterable[bytes], shown: str, workdir: Path | None, file: IO[bytes] | None = None) -> IO[bytes]:
    """Append `parts` to `file`, or write them to an unnamed file; return it. Raises OutputError if the disk is full."""
    folder = Path(tempfile.gettempdir() if workdir is None else workdir)
    try:
        if file is None:
            file = tempfile.TemporaryFile(prefix="poetopt-", dir=folder, buffering=0)  # noqa: SIM115
        file.seek(0, os.SEEK_END)
        for part in parts:
            write_all(file, part)
    except OSError as error:
        raise OutputError(
            f"can't unpack {shown} into {folder}: {error.strerror or os.strerror(error.errno or 0)}. "
            "Free some space there, or give another folder with --workdir."
        ) from error
    return file


class DataColumns:
    """Data set with one column for each input that has rows.

    Attributes
    ----------
    shown
        The file, or "the data".
    fixed
        Arrays that are equal in every batch.
    """

    def __init__(
        self, graph: TrainingGraph, shown: str, columns: Mapping[str, Column], fixed: Mapping[str, Array] | None = None
    ) -> None:
        self.graph, self.shown = graph, shown
        self.columns, self.fixed = columns, fixed or {}
        self.rows = next(iter(columns.values())).rows

    def take(self, rows: Array) -> Mapping[str, Array]:
        return {**self.fixed, **{name: column.take(rows) for name, column in self.columns.items()}}

    def where(self, row: int) -> str:
        return f"{self.shown}, row {row}"

    def check(self, told: Told = silent) -> str:
        pace, digest = paced(told), Digest()
        for name, array in self.fixed.items():
            digest.add(name, array)
        for name, column in self.columns.items():
            row_bytes = column.take(np.arange(1)).nbytes
            # 1 MiB is checked at a time
            step = max(1, (1 << 20) // max(1, row_bytes))
            for start in range(0, self.rows, step):
                pace(f"checking the data: row {start:,} of {self.rows:,} of {name}")
                part = column.take(np.arange(start, min(start + step, self.rows)))
                if fault(self.graph, name, part):
                    k = next(k for k in range(len(part)) if fault(self.graph, name, part[k : k + 1]))
                    description = fault(self.graph, name, part[k : k + 1])
                    raise ModelError(f"{self.where(start + k)}: {description}")
                digest.add(name, part)
        return digest.text


def fault(graph: TrainingGraph, name: str, array: Array) -> str:
    """Return the fault of an input's values, or "" for valid values."""
    if array.dtype.kind in "fc" and not np.isfinite(array).all():
        value = "NaN" if np.isnan(array).any() else "infinity"
        return f"{name!r} holds {value}, which has no gradient. Leave such rows out, or fill them."
    try:
        check_values(graph, name, array)
    except ModelError as error:
        return str(error).removeprefix("the data's ")
    return ""


def of_arrays(graph: TrainingGraph, data: Mapping[str, object]) -> DataColumns:
    """Open arrays in memory as a data set. Raises ModelError if they fit no input."""
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
    """Return the names of the inputs that have rows, and of those that are equal in every batch.

    Parameters
    ----------
    shapes
        Shape and type of each array. An array with exactly the shape of its input is equal in every batch if others
        have more rows, unless its rows are those of one batch.

    Raises
    ------
    ModelError
        If an input is missing, has another shape or type, or has no rows.
    """
    call_checked = prefix_errors(shown)
    call_checked(lambda: check_names(graph, data))
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
        raise ModelError(f"{shown}: it has no rows. Leave it out, or give some.")
    fixed = [name for name in graph.inputs if name not in rows]
    for name in fixed:
        shape, tensor = shapes[name][0], graph.tensors[name]
        rows_of_batch = graph.tensors[rows[0]].shape[:1]
        if shape != tensor.shape or name in graph.added_inputs or (shape[:1] == rows_of_batch != (1,)):
            raise ModelError(
                f"{shown}: {rows[0]!r} has {count} rows, and {name!r} {', '.join(map(str, shape[:1])) or 'none'}. "
                "Each row of one belongs to a row of the other: shorten the longer."
            )
    for name in graph.inputs:
        call_checked(lambda name=name: check_type(graph, name, shapes[name][1]))  # type: ignore[misc]
    return rows, fixed


def prefix_errors(shown: str) -> Callable[[Callable[[], object]], None]:
    """Return a function that calls another; its ModelErrors then begin with `shown`."""

    def call(function: Callable[[], object]) -> None:
        try:
            function()
        except ModelError as error:
            text = str(error)
            raise ModelError(text if text.startswith(shown) else f"{shown}: {text}") from error

    return call


def check_type(graph: TrainingGraph, name: str, dtype: np.dtype[Any]) -> None:
    """Raise ModelError for a type that no value of the input can have."""
    from poetopt.backends.step.memory import numpy_dtype

    tensor = graph.tensors[name]
    expected = numpy_dtype(tensor.dtype)
    is_target = name in graph.added_inputs and "float" in tensor.dtype
    is_integer = dtype.kind in "iub" if is_target else dtype.kind in "iu" and expected.kind in "iu"
    if dtype != expected and not is_integer:
        scaled = " and scale it, as the network expects" if dtype.kind == "u" and "float" in tensor.dtype else ""
        raise ModelError(
            f"{name!r} has type {dtype}, and must be {tensor.dtype}. Convert it with .astype({tensor.dtype!r}){scaled}."
        )
