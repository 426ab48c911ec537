"""Data sets in files: arrays, images, shards, tables.

A folder of folders of images has one class a folder, numbered from 0 in the order of their names.

An image (BMP, GIF, JPEG, PNG, TIFF, WebP) becomes the model's single input. It is scaled to the height and width of the
input, and gets its number of channels (1: grey, 3: colours, 4: with transparency), first or last as in its shape.
Values are from 0 to 1, or from 0 to 255 if the input is uint8. Other scalings belong into the model, or into a custom
iterable.

A table in a CSV file has a line of names, and then one line a row, of numbers only.

Columns named like an input (`labels`), or like an input with a number (`target.0`, `target.1`, ...), belong to that
input. The other columns, in order, form the one remaining input: as many as it has numbers in a row, whatever its
shape. The table is read once, into an unnamed file of numbers, so that memory holds no more than a batch of it.
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
    """Open the rows of an `.npz` file.

    Parameters
    ----------
    part
        Whether other files have more rows; then no array may be equal in every batch.
    into
        An open unnamed file for compressed arrays; a new one by default.

    Raises
    ------
    ModelError
        For a file that can't be read, or arrays that fit no input.
    """
    shown = str(path)
    with opened(path) as archive:
        headers = {name: archive.header(name) for name in graph.inputs if name in archive}
        shapes = {name: (header.shape, header.dtype) for name, header in headers.items()}
        rows, fixed_names = which_are_rows(graph, shown, archive, shapes)
        if part and fixed_names:
            raise ModelError(
                f"{shown}: {fixed_names[0]!r} needs a row for each sample, as each array in a folder of files."
            )
        is_compressed = any(archive.start(name) is None for name in rows)
        file = into or (unpacked((), shown, workdir) if is_compressed else None)
        columns = {name: _column(archive, name, shown, workdir, file) for name in rows}
        fixed: dict[str, Array] = {name: archive[name] for name in fixed_names}
    return _InArchive(graph, shown, columns, fixed)


class _InArchive(DataColumns):
    """Columns of an archive, whose checksums are verified first: rows are read in place, without them."""

    def check(self, told: Told = silent) -> str:
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


IMAGE_SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "TIFF", "WEBP")
"""Formats that Pillow may try, whatever the file's name: for others it starts programs."""
PIXELS = 2**26
"""Maximum number of pixels of an image; each takes up to four bytes."""
MODES = {1: "L", 3: "RGB", 4: "RGBA"}
"""Pillow's mode by the number of channels."""


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
        images = np.stack([self._image(self.paths[row]) for row in rows.tolist()])
        return {self._name: images, self._labels_name: self._labels[rows]}

    def where(self, row: int) -> str:
        return str(self.paths[row])

    def check(self, told: Told = silent) -> str:
        """Check the labels; each image is checked when it is read."""
        for row in range(self.rows):
            if fault_text := fault(self.graph, self._labels_name, self._labels[row : row + 1]):
                raise ModelError(f"{self.where(row)}: {fault_text}: each folder of {self.shown} is one class")
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
            reason = f"none of {', '.join(FORMATS)}" if type(error) is self._pillow.UnidentifiedImageError else error
            reason = error.strerror or error if isinstance(error, OSError) and error.errno else reason
            raise ModelError(f"{path}: the image can't be read ({reason}). Remove it, or write it again.") from error
        pixels = np.asarray(sized).reshape(self._height, self._width, -1)
        scaled = pixels if self._dtype == np.uint8 else (pixels / np.float32(255)).astype(self._dtype)
        array: Array = scaled if self._last else scaled.transpose(2, 0, 1)
        return array


def pillow() -> Any:
    """Return Pillow's image module. Raises BackendUnavailableError."""
    try:
        from PIL import Image

        # Pillow's warnings of damaged files are either part of the error, or harmless.
        warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")
    except ImportError as error:
        raise BackendUnavailableError(
            "images need Pillow, which is not installed. Install it with: pip install pillow"
        ) from error
    return Image


def of_images(graph: TrainingGraph, folder: Path, classes: Sequence[Path]) -> Images:
    """Open the images of a folder. Raises ModelError if there are none, or the model has no input for them."""
    paths: list[Path] = []
    labels: list[int] = []
    for number, class_folder in enumerate(classes):
        try:
            names = sorted(
                entry.name for entry in os.scandir(class_folder) if entry.name.lower().endswith(IMAGE_SUFFIXES)
            )
        except OSError as error:
            raise ModelError(f"can't read the folder {class_folder}: {error.strerror or error}") from error
        if not names:
            raise ModelError(
                f"{class_folder}: it has no image, so its class has no sample. Remove the folder, or add images."
            )
        paths += [class_folder / name for name in names]
        labels += [number] * len(names)
    if not paths:
        raise ModelError(f"{folder}: it holds neither .npz files nor folders of images, one for each class")
    if image_input(graph) is None:
        raise ModelError(
            f"{folder}: images in folders need a model with one input [batch, channels, height, width] and "
            "cross-entropy on its classes. Give the arrays of this model as .npz."
        )
    return Images(graph, str(folder), paths, labels)


def image_input(graph: TrainingGraph) -> str | None:
    """Return the single input of images [batch, channels, height, width] (or channels last) with a class each.

    None if the graph has no such input.
    """
    model_inputs = [name for name in graph.inputs if name not in graph.added_inputs]
    shape = graph.tensors[model_inputs[0]].shape if len(model_inputs) == 1 else ()
    is_image = len(shape) == 4 and (shape[1] in MODES or shape[3] in MODES)
    if not is_image or graph.loss_kind != "cross-entropy" or len(graph.tensors[graph.added_inputs[0]].shape) != 1:
        return None
    return model_inputs[0]


class Shards:
    """Rows of several data sets, one after the other."""

    def __init__(self, shown: str, parts: Sequence[DataSet]) -> None:
        self.shown, self.parts = shown, parts
        self._ends = list(accumulate(part.rows for part in parts))
        self.rows = self._ends[-1]

    def take(self, rows: Array) -> Mapping[str, Array]:
        which = np.searchsorted(self._ends, rows, side="right")
        arrays: dict[str, Array] = {}
        for k in np.unique(which).tolist():
            positions = np.nonzero(which == k)[0]
            for name, array in self.parts[k].take(rows[positions] - self._start(k)).items():
                if name not in arrays:
                    arrays[name] = np.empty((len(rows), *array.shape[1:]), array.dtype)
                arrays[name][positions] = array
        return arrays

    def where(self, row: int) -> str:
        k = bisect_right(self._ends, row)
        return self.parts[k].where(row - self._start(k))

    def check(self, told: Told = silent) -> str:
        return Digest.of(part.check(told) for part in self.parts)

    def _start(self, k: int) -> int:
        return self._ends[k - 1] if k else 0


def of_table(graph: TrainingGraph, path: Path, workdir: Path | None = None) -> DataColumns:
    """Open the rows of a CSV file. Raises ModelError with file, line and column of an invalid number."""
    try:
        with open_regular(path) as raw, io.TextIOWrapper(raw, encoding="utf-8-sig", newline="") as text:
            lines = csv.reader(text)
            names = [name.strip() for name in next(lines, [])]
            places = _assign_columns(graph, str(path), names)
            return _read_table(graph, path, _strip_blank_end(lines), names, places, workdir)
    except OSError as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"can't read {path}: {error.strerror or error}") from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise ModelError(f"{path} is not a CSV file in UTF-8: {error}") from error


def _strip_blank_end(lines: Iterable[list[str]]) -> Iterator[list[str]]:
    """Yield the lines without blank ones at the end, which editors leave."""
    blank = 0
    for line in lines:
        if not line:
            blank += 1
            continue
        yield from ([] for _ in range(blank))
        blank = 0
        yield line


def _assign_columns(graph: TrainingGraph, shown: str, names: Sequence[str]) -> Mapping[str, list[int]]:
    """Return the column numbers of each input."""
    if not names:
        raise ModelError(f"{shown}: it is empty. Its first line must name the columns.")
    if len(names) == 1 and (sign := next((sign for sign in ";\t" if sign in names[0]), None)):
        raise ModelError(
            f"{shown}: its columns are separated by {sign!r}. Separate them by commas, and write decimal points."
        )
    if duplicate := next((name for k, name in enumerate(names) if name in names[:k]), None):
        raise ModelError(f"{shown}: two columns are named {duplicate!r}. Rename one.")
    columns_of: dict[str, list[int]] = {}
    for name in graph.inputs:
        pattern = re.compile(rf"{re.escape(name)}\.(\d{{1,9}})")
        numbered = {int(m[1]): k for k, column in enumerate(names) if (m := pattern.fullmatch(column))}
        if name in names:
            columns_of[name] = [names.index(name)]
        elif numbered:
            columns_of[name] = [numbered[k] for k in sorted(numbered)]
    unassigned = [name for name in graph.inputs if name not in columns_of]
    if len(unassigned) > 1 or any(name in graph.added_inputs for name in unassigned):
        missing = next((name for name in unassigned if name in graph.added_inputs), unassigned[0])
        raise ModelError(f"{shown}: it has no column for the input {missing!r}. Name it so in the first line.")
    assigned = {k for places in columns_of.values() for k in places}
    if unassigned:
        columns_of[unassigned[0]] = [k for k in range(len(names)) if k not in assigned]
    for name, places in columns_of.items():
        tensor = graph.tensors[name]
        expected = math.prod(tensor.shape[1:])
        if not tensor.shape or len(places) != expected:
            raise ModelError(
                f"{shown}: it has {len(places)} columns for the input {name!r}, which has {expected} numbers in a row "
                f"(shape {list(tensor.shape)}). Name the others like another input, or leave them out."
            )
    return columns_of


def _read_table(
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
        # 1,024 lines are converted at a time
        chunk = [line for _, line in zip(range(1024), lines, strict=False)]
        if not chunk:
            break
        for k, line in enumerate(chunk):
            if len(line) != len(names):
                raise ModelError(
                    f"{path}, line {first + k}: it has {len(line)} columns, and the first line names {len(names)}"
                )
        for name, columns in places.items():
            tensor = graph.tensors[name]
            dtype = numpy_dtype(tensor.dtype)
            array = _parse_numbers(path, chunk, first, names, columns, dtype).reshape(len(chunk), *tensor.shape[1:])
            if fault(graph, name, array):
                k = next(k for k in range(len(chunk)) if fault(graph, name, array[k : k + 1]))
                raise ModelError(f"{path}, line {first + k}: {fault(graph, name, array[k : k + 1])}")
            digest.add(name, array)
            unpacked([array.tobytes()], str(path), workdir, files[name])
        rows += len(chunk)
        first += len(chunk)
    if not rows:
        raise ModelError(f"{path}: it has no rows. Leave it out, or give some.")
    columns_of = {
        name: InFile(str(path), 0, rows, graph.tensors[name].shape[1:], numpy_dtype(graph.tensors[name].dtype), file)
        for name, file in files.items()
    }
    return _TextTable(graph, str(path), columns_of, digest.text)


_PLAIN = re.compile(r"[\x00-^`-\x7f]*")
"""ASCII without underscores: there `float` agrees with `read_number` and takes a tenth of the time, but accepts NaN."""


def _parse_numbers(
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
        values = np.array([[read(cell) for cell in row] for row in cells], np.float64)
    except ValueError:
        for k, row in enumerate(cells):
            for cell, c in zip(row, columns, strict=True):
                try:
                    read(cell)
                except ValueError as error:
                    raise ModelError(
                        f"{path}, line {first + k}: {cell!r} in the column {names[c]!r} is not a number. Classes are "
                        "numbers from 0 on."
                    ) from error
        raise
    with np.errstate(all="ignore"):
        converted = values.astype(dtype)
    if dtype.kind in "iu" and not np.array_equal(converted.astype(np.float64), values):
        k, c = (int(index) for index in np.argwhere(converted.astype(np.float64) != values)[0])
        raise ModelError(
            f"{path}, line {first + k}: {lines[k][columns[c]]!r} in the column {names[columns[c]]!r} is not an integer"
        )
    return converted


class _TextTable(DataColumns):
    """Columns of a table, whose values were checked when it was read."""

    def __init__(self, graph: TrainingGraph, shown: str, columns: Mapping[str, Column], digest: str) -> None:
        super().__init__(graph, shown, columns)
        self._digest = digest

    def where(self, row: int) -> str:
        return f"{self.shown}, line {row + 2}"

    def check(self, told: object = None) -> str:
        """Return the digest; the values are already checked."""
        return self._digest
