"""Data sets in files: arrays, pictures, shards, tables.

A folder of folders of images: each folder is a class, numbered from 0 in the order of their names.

An image (BMP, GIF, JPEG, PNG, TIFF, WebP) becomes the model's one input: scaled to its height and width, with as many
channels as that has (1: grey, 3: colours, 4: with transparency), channels first or last as in its shape, and numbers
from 0 to 1, or from 0 to 255 where the input is uint8. Other scalings belong into the model, or into an iterable of
one's own.

A table in a CSV file: a line of names, then a row a line, all of them numbers.

Columns called as an input (`labels`), or as an input with a number (`target.0`, `target.1`, ...), are that input's. The
other columns, in their order, are the one input that is left, whatever its shape: as many as it has numbers in a row.
The table is read once, into a file of numbers without a name, so that no more than a batch of it is in memory.
"""

from __future__ import annotations

import csv
import io
import math
import os
import re
import warnings
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from poetopt.backends.onnxruntime.archive import Archive, opened
from poetopt.backends.step.memory import numpy_dtype
from poetopt.graph import TrainingGraph
from poetopt.training.data.arrays import (
    Column,
    DataColumns,
    DataSet,
    Digest,
    InFile,
    InMemory,
    fault,
    unpacked,
    which_are_rows,
)
from poetopt.util.errors import BackendUnavailableError, ModelError
from poetopt.util.files import open_regular
from poetopt.util.numbers import read_number
from poetopt.util.progress import Told, silent

if TYPE_CHECKING:
    from poetopt.graph import Array


def of_archive(
    graph: TrainingGraph,
    path: Path,
    workdir: Path | None = None,
    *,
    part: bool = False,
    into: IO[bytes] | None = None,
) -> DataColumns:
    """The rows of an `.npz` file.

    part
        Whether other files have more rows; then nothing in it may be alike in every batch.
    into
        An open file without a name for what is compressed; a new one by default.

    Raises ModelError for a file that can't be read, or arrays that fit no input.
    """
    shown = str(path)
    with opened(path) as archive:
        headers = {name: archive.header(name) for name in graph.inputs if name in archive}
        shapes = {name: (header.shape, header.dtype) for name, header in headers.items()}
        rows, same = which_are_rows(graph, shown, archive, shapes)
        if part and same:
            raise ModelError(f"{shown}: {same[0]!r} has no row for each sample; in a folder of files each array has")
        packed = any(archive.start(name) is None for name in rows)
        file = into or (unpacked((), shown, workdir) if packed else None)
        columns = {name: _column(archive, name, shown, workdir, file) for name in rows}
        fixed: dict[str, Array] = {name: archive[name] for name in same}
    return _InArchive(graph, shown, columns, fixed)


class _InArchive(DataColumns):
    """Its checksums are compared before its values are: rows are read where they lie, past them."""

    def check(self, told: Told = silent) -> str:
        """See `DataSet`."""
        told(f"checking {self.shown}")
        with opened(self.shown) as archive:
            for name, column in self.columns.items():
                if isinstance(column, InFile) and column.file is None:
                    for _ in archive.parts(name):
                        pass
        return super().check(told)


def _column(archive: Archive, name: str, shown: str, workdir: Path | None, file: IO[bytes] | None) -> Column:
    header = archive.header(name)
    if header.order == "F" and len(header.shape) > 1:
        return InMemory(archive[name])
    start = archive.start(name)
    if start is not None:
        return InFile(shown, start, header.shape[0], header.shape[1:], header.dtype)
    assert file is not None
    start = file.seek(0, os.SEEK_END)
    unpacked(archive.parts(name), f"{name!r} of {shown}", workdir, file)
    return InFile(shown, start, header.shape[0], header.shape[1:], header.dtype, file)


ENDINGS = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "TIFF", "WEBP")
"""All that Pillow is let try, whatever a file is called: for others it starts programs."""
PIXELS = 2**26
"""The most that an image may have: it takes up to four bytes for each."""
MODES = {1: "L", 3: "RGB", 4: "RGBA"}
"""Pillow's word for so many channels."""


class Images:
    """Images by their paths, each with its class; decoded when they are taken."""

    def __init__(self, graph: TrainingGraph, shown: str, paths: Sequence[Path], labels: Sequence[int]) -> None:
        self.graph, self.shown, self.paths = graph, shown, paths
        self.rows = len(paths)
        (self._name,) = (name for name in graph.inputs if name not in graph.added_inputs)
        (self._labels_name,) = graph.added_inputs
        self._labels: Array = np.array(labels, np.int64)
        shape = graph.tensors[self._name].shape
        self._last = shape[1] not in MODES
        self._height, self._width = shape[1:3] if self._last else shape[2:4]
        self._mode = MODES[shape[3] if self._last else shape[1]]
        self._dtype = numpy_dtype(graph.tensors[self._name].dtype)
        self._pillow = pillow()

    def take(self, rows: Array) -> Mapping[str, Array]:
        """See `DataSet`."""
        images = np.stack([self._image(self.paths[row]) for row in rows.tolist()])
        return {self._name: images, self._labels_name: self._labels[rows]}

    def where(self, row: int) -> str:
        """See `DataSet`."""
        return str(self.paths[row])

    def check(self, told: Told = silent) -> str:
        """Of the labels alone: each image is looked at when it is read."""
        for row in range(self.rows):
            if what := fault(self.graph, self._labels_name, self._labels[row : row + 1]):
                raise ModelError(f"{self.where(row)}: {what}: {self.shown} has a folder for each class")
        try:
            return Digest.of(f"{path.parent.name}/{path.name} {path.stat().st_size}" for path in self.paths)
        except OSError as error:
            raise ModelError(f"can't read {error.filename}: {error.strerror or error}") from error

    def _image(self, path: Path) -> Array:
        try:
            with open_regular(path) as file, self._pillow.open(file, formats=FORMATS) as image:
                if image.width * image.height > PIXELS:
                    raise ValueError(f"it has {image.width * image.height:,} pixels, and at most {PIXELS:,} are read")
                sized = image.convert(self._mode).resize((self._width, self._height), self._pillow.Resampling.BILINEAR)
        except Exception as error:
            what = f"none of {', '.join(FORMATS)}" if type(error) is self._pillow.UnidentifiedImageError else error
            what = error.strerror or error if isinstance(error, OSError) and error.errno else what
            raise ModelError(f"{path}: no image that can be read ({what}); remove it, or write it again") from error
        pixels = np.asarray(sized).reshape(self._height, self._width, -1)
        made = pixels if self._dtype == np.uint8 else (pixels / np.float32(255)).astype(self._dtype)
        found: Array = made if self._last else made.transpose(2, 0, 1)
        return found


def pillow() -> Any:
    """Pillow's module of images. Raises BackendUnavailableError."""
    try:
        from PIL import Image

        # What Pillow warns of in a damaged file is in the refusal, or did no harm.
        warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")
    except ImportError as error:
        raise BackendUnavailableError(
            "images are read by Pillow, which is not installed; install it with: pip install pillow"
        ) from error
    return Image


def of_images(graph: TrainingGraph, folder: Path, classes: Sequence[Path]) -> Images:
    """The images of a folder. Raises ModelError where there are none, or the model has no input for them."""
    paths: list[Path] = []
    labels: list[int] = []
    for number, place in enumerate(classes):
        try:
            names = sorted(entry.name for entry in os.scandir(place) if entry.name.lower().endswith(ENDINGS))
        except OSError as error:
            raise ModelError(f"can't read the folder {place}: {error.strerror or error}") from error
        if not names:
            raise ModelError(f"{place}: it holds no image; remove the folder, or its class has no sample")
        paths += [place / name for name in names]
        labels += [number] * len(names)
    if not paths:
        raise ModelError(f"{folder}: it holds neither .npz files nor folders of images, one for each class")
    if image_input(graph) is None:
        raise ModelError(
            f"{folder}: images in folders are for a model with one input [batch, channels, height, width] and "
            "cross-entropy on its classes; give the arrays of this one as .npz"
        )
    return Images(graph, str(folder), paths, labels)


def image_input(graph: TrainingGraph) -> str | None:
    """The one input, where it is of images with a class each: [batch, channels, height, width], or channels last."""
    given = [name for name in graph.inputs if name not in graph.added_inputs]
    shape = graph.tensors[given[0]].shape if len(given) == 1 else ()
    fits = len(shape) == 4 and (shape[1] in MODES or shape[3] in MODES)
    if not fits or graph.loss_kind != "cross-entropy" or len(graph.tensors[graph.added_inputs[0]].shape) != 1:
        return None
    return given[0]


class Shards:
    """The rows of `parts`."""

    def __init__(self, shown: str, parts: Sequence[DataSet]) -> None:
        self.shown, self.parts = shown, parts
        self._ends = list(accumulate(part.rows for part in parts))
        self.rows = self._ends[-1]

    def take(self, rows: Array) -> Mapping[str, Array]:
        """See `DataSet`."""
        which = np.searchsorted(self._ends, rows, side="right")
        found: dict[str, Array] = {}
        for k in np.unique(which).tolist():
            places = np.nonzero(which == k)[0]
            for name, array in self.parts[k].take(rows[places] - self._start(k)).items():
                if name not in found:
                    found[name] = np.empty((len(rows), *array.shape[1:]), array.dtype)
                found[name][places] = array
        return found

    def where(self, row: int) -> str:
        """See `DataSet`."""
        k = bisect_right(self._ends, row)
        return self.parts[k].where(row - self._start(k))

    def check(self, told: Told = silent) -> str:
        """See `DataSet`."""
        return Digest.of(part.check(told) for part in self.parts)

    def _start(self, k: int) -> int:
        return self._ends[k - 1] if k else 0


def of_table(graph: TrainingGraph, path: Path, workdir: Path | None = None) -> DataColumns:
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
    """Says which columns each input has."""
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
        own = re.compile(rf"{re.escape(name)}\.(\d{{1,9}})")
        numbered = {int(m[1]): k for k, column in enumerate(names) if (m := own.fullmatch(column))}
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
) -> DataColumns:
    digest = Digest()
    files: dict[str, IO[bytes]] = {name: unpacked((), str(path), workdir) for name in places}
    rows, first = 0, 2
    while True:
        # lines that are turned into numbers at once
        taken = [line for _, line in zip(range(1024), lines, strict=False)]
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
            unpacked([array.tobytes()], str(path), workdir, files[name])
        rows += len(taken)
        first += len(taken)
    if not rows:
        raise ModelError(f"{path}: it holds no rows; leave it out, or give some")
    columns_of = {
        name: InFile(str(path), 0, rows, graph.tensors[name].shape[1:], numpy_dtype(graph.tensors[name].dtype), file)
        for name, file in files.items()
    }
    return _TextTable(graph, str(path), columns_of, digest.text)


_PLAIN = re.compile(r"[\x00-^`-\x7f]*")
"""ASCII without underscores, of which `float` makes what `read_number` does, in a tenth of the time. It knows NaN."""


def _numbers(
    path: Path,
    lines: Sequence[Sequence[str]],
    first: int,
    names: Sequence[str],
    columns: Sequence[int],
    dtype: np.dtype[np.generic],
) -> np.ndarray[tuple[int, int], np.dtype[np.generic]]:
    cells = [[line[c] for c in columns] for line in lines]
    read = float if _PLAIN.fullmatch("".join(map("".join, cells))) else read_number
    try:
        found = np.array([[read(cell) for cell in row] for row in cells], np.float64)
    except ValueError:
        for k, row in enumerate(cells):
            for cell, c in zip(row, columns, strict=True):
                try:
                    read(cell)
                except ValueError as error:
                    raise ModelError(
                        f"{path}, line {first + k}: {cell!r} in the column {names[c]!r} is no number; classes are "
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


class _TextTable(DataColumns):
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
