"""A table in a CSV file: a line of names, then a row a line, all of them numbers.

Columns called as an input (`labels`), or as an input with a number (`target.0`, `target.1`, ...), are that input's. The
other columns, in their order, are the one input that is left, whatever its shape: as many as it has numbers in a row.
The table is read once, into a file of numbers without a name, so that no more than a batch of it is in memory.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

import numpy as np

from poetopt.errors import ModelError
from poetopt.files import write_all
from poetopt.graph import TrainingGraph
from poetopt.inputs import open_regular
from poetopt.step.memory import numpy_dtype
from poetopt.training.data.arrays import Columns, fault
from poetopt.training.data.columns import Column, InFile, unpacked
from poetopt.training.data.digest import Digest

_TOGETHER = 1024
"""Lines that are turned into numbers at once."""


def of_table(graph: TrainingGraph, path: Path, workdir: Path | None = None) -> Columns:
    """The rows of a CSV file. Raises ModelError, naming file, line and column, for what is no number of an input."""
    try:
        with open_regular(path) as raw, io.TextIOWrapper(raw, encoding="utf-8-sig", newline="") as text:
            lines = csv.reader(text)
            names = [name.strip() for name in next(lines, [])]
            places = _places(graph, str(path), names)
            return _read(graph, path, _without_end(lines), names, places, workdir)
    except OSError as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"can't read {path}: {error.strerror or error}") from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise ModelError(f"{path} is no CSV file in UTF-8: {error}") from error


def _without_end(lines: Iterable[list[str]]) -> Iterator[list[str]]:
    """The lines but for blank ones at the end, as editors leave them."""
    blank = 0
    for line in lines:
        if not line:
            blank += 1
            continue
        yield from ([] for _ in range(blank))
        blank = 0
        yield line


def _places(graph: TrainingGraph, shown: str, names: Sequence[str]) -> Mapping[str, list[int]]:
    """Which columns each input has."""
    if not names:
        raise ModelError(f"{shown}: it is empty; its first line must name the columns")
    if len(names) == 1 and (sign := next((sign for sign in ";\t" if sign in names[0]), None)):
        raise ModelError(
            f"{shown}: its columns are separated by {sign!r}; write them with commas, and numbers with points"
        )
    if doubled := next((name for k, name in enumerate(names) if name in names[:k]), None):
        raise ModelError(f"{shown}: two columns are called {doubled!r}; rename one")
    found: dict[str, list[int]] = {}
    for name in graph.inputs:
        numbered = {
            int(m[1]): k for k, column in enumerate(names) if (m := re.fullmatch(rf"{re.escape(name)}\.(\d+)", column))
        }
        if name in names:
            found[name] = [names.index(name)]
        elif numbered:
            found[name] = [numbered[k] for k in sorted(numbered)]
    left = [name for name in graph.inputs if name not in found]
    if len(left) > 1 or any(name in graph.added_inputs for name in left):
        missing = next((name for name in left if name in graph.added_inputs), left[0])
        raise ModelError(f"{shown}: no column is called {missing!r}, which is an input; name it so in the first line")
    taken = {k for places in found.values() for k in places}
    if left:
        found[left[0]] = [k for k in range(len(names)) if k not in taken]
    for name, places in found.items():
        tensor = graph.tensors[name]
        wanted = math.prod(tensor.shape[1:])
        if not tensor.shape or len(places) != wanted:
            raise ModelError(
                f"{shown}: it has {len(places)} columns for the input {name!r}, which has {wanted} numbers in a row "
                f"(shape {list(tensor.shape)}); the others must be called as another input, or left out"
            )
    return found


def _read(
    graph: TrainingGraph,
    path: Path,
    lines: Iterator[list[str]],
    names: Sequence[str],
    places: Mapping[str, list[int]],
    workdir: Path | None,
) -> Columns:
    digest = Digest()
    files: dict[str, IO[bytes]] = {name: unpacked((), str(path), workdir) for name in places}
    rows, first = 0, 2
    while True:
        taken = [line for _, line in zip(range(_TOGETHER), lines, strict=False)]
        if not taken:
            break
        for k, line in enumerate(taken):
            if len(line) != len(names):
                raise ModelError(
                    f"{path}, line {first + k}: {len(line)} columns, and the first line names {len(names)}"
                )
        for name, columns in places.items():
            tensor = graph.tensors[name]
            dtype = numpy_dtype(tensor.dtype)
            array = _numbers(path, taken, first, names, columns, dtype).reshape(len(taken), *tensor.shape[1:])
            if fault(graph, name, array):
                k = next(k for k in range(len(taken)) if fault(graph, name, array[k : k + 1]))
                raise ModelError(f"{path}, line {first + k}: {fault(graph, name, array[k : k + 1])}")
            digest.add(name, array)
            _append(files[name], array.tobytes(), path)
        rows += len(taken)
        first += len(taken)
    if not rows:
        raise ModelError(f"{path}: it holds no rows; leave it out, or give some")
    columns_of = {
        name: InFile(str(path), 0, rows, graph.tensors[name].shape[1:], numpy_dtype(graph.tensors[name].dtype), file)
        for name, file in files.items()
    }
    return _Table(graph, str(path), columns_of, digest.text)


def _numbers(
    path: Path,
    lines: Sequence[Sequence[str]],
    first: int,
    names: Sequence[str],
    columns: Sequence[int],
    dtype: np.dtype[np.generic],
) -> np.ndarray[tuple[int, int], np.dtype[np.generic]]:
    try:
        found = np.array([[float(line[c]) for c in columns] for line in lines], np.float64)
    except ValueError:
        for k, line in enumerate(lines):
            for c in columns:
                try:
                    float(line[c])
                except ValueError as error:
                    raise ModelError(
                        f"{path}, line {first + k}: {line[c]!r} in the column {names[c]!r} is no number; classes are "
                        "numbers from 0"
                    ) from error
        raise
    with np.errstate(all="ignore"):
        made = found.astype(dtype)
    if dtype.kind in "iu" and not np.array_equal(made.astype(np.float64), found):
        k, c = (int(place) for place in np.argwhere(made.astype(np.float64) != found)[0])
        raise ModelError(
            f"{path}, line {first + k}: {lines[k][columns[c]]!r} in the column {names[columns[c]]!r} is no whole number"
        )
    return made


def _append(file: IO[bytes], data: bytes, path: Path) -> None:
    from poetopt.errors import OutputError

    try:
        write_all(file, data)
    except OSError as error:
        raise OutputError(
            f"can't unpack {path}: {error.strerror or error}; make room, or name another folder with --workdir"
        ) from error


class _Table(Columns):
    """Its values have been looked at when they were read."""

    def __init__(self, graph: TrainingGraph, shown: str, columns: Mapping[str, Column], digest: str) -> None:
        super().__init__(graph, shown, columns)
        self._digest = digest

    def where(self, row: int) -> str:
        """See `DataSet`."""
        return f"{self.shown}, line {row + 2}"

    def check(self, told: object = None) -> str:
        """Nothing is left to check."""
        return self._digest
