"""Describes what is trained on: rows of arrays in memory or in files, of which a batch at a time is read.

| data | what it is |
|---|---|
| arrays by input name | in memory |
| `FILE.npz` | arrays by input name; read in place where `numpy.savez` wrote it, unpacked once where it is compressed |
| a folder of `.npz` files | the rows of one after the other, in the order of their names |
| `FILE.csv` | a table with a line of names: see `poetopt.training.data.files` |
| `FILE.npy`, `FILE.bin`, `FILE.txt` | tokens, one after the other |
| a folder of folders of images | a class each, numbered in the order of their names |

All of these are regular files, or links to such: a pipe or a device is refused by its name, and never opened.

Tokens are one long row of ids in a file, cut into windows of what a language model reads; labels are the next tokens.

| file | ids |
|---|---|
| `.npy` | an array of one axis, of integers |
| `.bin` | numbers of 16 bits, low byte first |
| `.txt` | the text's bytes in UTF-8, 0 to 255 |

Window k has T ids from k T on, and its labels begin one id later; what fills no window at the end is left out.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from poetopt.backends.onnxruntime.archive import array_in
from poetopt.graph import TrainingGraph
from poetopt.training.data.arrays import DataColumns, DataSet, InFile, of_arrays
from poetopt.util.errors import ModelError
from poetopt.util.files import open_regular

__all__ = ["DataSet", "open_data"]


def open_data(
    data: Mapping[str, object] | str | os.PathLike[str], graph: TrainingGraph, workdir: Path | None = None
) -> DataSet:
    """The rows of `data` for the inputs of `graph`.

    workdir
        Where what is packed is unpacked to, in files without a name; by default the system's temporary folder.

    Raises `ModelError` for what can't be read, or has other names, shapes or types than the graph's inputs.
    """
    if isinstance(data, Mapping):
        return of_arrays(graph, data)
    path = Path(data)
    if path.is_dir():
        return _of_folder(path, graph, workdir)
    if path.suffix.lower() == ".csv":
        from poetopt.training.data.files import of_table

        return of_table(graph, path, workdir)
    if path.suffix.lower() in ENDINGS:
        return of_tokens(graph, path)
    from poetopt.training.data.files import of_archive

    return of_archive(graph, path, workdir)


def _of_folder(folder: Path, graph: TrainingGraph, workdir: Path | None) -> DataSet:
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if not entry.name.startswith("."))
    except OSError as error:
        raise ModelError(f"can't read the folder {folder}: {error.strerror or error}") from error
    shards = [folder / name for name in names if name.endswith(".npz")]
    if shards:
        from poetopt.training.data.arrays import unpacked
        from poetopt.training.data.files import Shards, of_archive

        into = unpacked((), str(folder), workdir)  # one for all: each would be a descriptor
        return Shards(str(folder), [of_archive(graph, shard, workdir, part=True, into=into) for shard in shards])
    from poetopt.training.data.files import of_images

    return of_images(graph, folder, [folder / name for name in names if (folder / name).is_dir()])


RAW = {".bin": "<u2", ".txt": "u1"}
"""The types of files without a header."""
ENDINGS = (".npy", *RAW)


def of_tokens(graph: TrainingGraph, path: Path) -> DataColumns:
    """The windows of a file. Raises ModelError for what is no such file, or a network that reads no tokens."""
    given = [name for name in graph.inputs if name not in graph.added_inputs]
    shapes = {graph.tensors[name].shape for name in graph.inputs}
    whole = all(graph.tensors[name].dtype in ("int32", "int64") for name in graph.inputs)
    if len(given) != 1 or len(graph.added_inputs) != 1 or len(shapes) != 1 or not whole or len(min(shapes)) != 2:
        raise ModelError(
            f"{path}: tokens are for a network with one input of ids [batch, tokens] and cross-entropy on its classes "
            "for each of them; make other inputs constants (solve --value), or give its arrays as .npz"
        )
    start, count, dtype = _ids(path)
    ((_, window),) = shapes
    rows = (count - 1) // window
    if rows < 1:
        raise ModelError(f"{path}: it has {count:,} ids, and a window with its labels takes {window + 1:,}; give more")
    if dtype.kind == "i" and int(np.memmap(path, dtype, "r", start, (count,)).min()) < 0:
        raise ModelError(f"{path}: it has negative ids, and tokens are numbers from 0 on")
    columns = {
        name: InFile(str(path), start + at * dtype.itemsize, rows, (window,), dtype)
        for name, at in ((given[0], 0), (graph.added_inputs[0], 1))
    }
    return DataColumns(graph, str(path), columns)


def _ids(path: Path) -> tuple[int, int, np.dtype[np.generic]]:
    """The first byte of the ids, their count, and their type."""
    if path.suffix.lower() == ".npy":
        found, start = array_in(path)
        if len(found.shape) != 1 or found.dtype.kind not in "iu" or not found.dtype.isnative:
            raise ModelError(
                f"{path}: it holds {found.dtype} of shape {list(found.shape)}; tokens are one row of integers, as in "
                "numpy.save(path, ids.reshape(-1))"
            )
        return start, found.shape[0], found.dtype
    dtype = np.dtype(RAW[path.suffix.lower()])
    try:
        with open_regular(path) as file:
            count, rest = divmod(file.seek(0, 2), dtype.itemsize)
    except OSError as error:
        raise ModelError(f"can't read {path}: {error.strerror or error}") from error
    if rest:
        raise ModelError(f"{path}: half an id at its end; ids are numbers of 16 bits, low byte first")
    return 0, count, dtype
