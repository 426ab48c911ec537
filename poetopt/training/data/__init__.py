"""Training data: rows of arrays in memory or in files, of which one batch at a time is read.

| data | content |
|---|---|
| arrays by input name | in memory |
| `FILE.npz` | arrays by input name; those of `numpy.savez` are read in place, compressed ones are unpacked once |
| a folder of `.npz` files | the rows of all files, in the order of their names |
| `FILE.csv` | a table with a line of names: see `poetopt.training.data.files` |
| `FILE.npy`, `FILE.bin`, `FILE.txt` | tokens, one after the other |
| a folder of folders of images | one class a folder, numbered in the order of their names |

All of these are regular files, or links to them. A pipe or a device is rejected by its name, and never opened.

Tokens are one long sequence of ids in a file. It is cut into windows that a language model reads; labels are the next
tokens.

| file | ids |
|---|---|
| `.npy` | an array of integers with one axis |
| `.bin` | numbers of 16 bits, low byte first |
| `.txt` | the bytes of the text in UTF-8, 0 to 255 |

Window k has T ids from k T on, and its labels begin one id later. Ids at the end that fill no window are left out.
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
    """Open the rows of `data` for the inputs of `graph`.

    Parameters
    ----------
    workdir
        Folder for unpacked data, in unnamed files; by default the system's temporary folder.

    Raises
    ------
    ModelError
        For data that can't be read, or whose names, shapes or types differ from the graph's inputs.
    """
    if isinstance(data, Mapping):
        return of_arrays(graph, data)
    path = Path(data)
    if path.is_dir():
        return _open_folder(path, graph, workdir)
    if path.suffix.lower() == ".csv":
        from poetopt.training.data.files import of_table

        return of_table(graph, path, workdir)
    if path.suffix.lower() in TOKEN_SUFFIXES:
        return of_tokens(graph, path)
    from poetopt.training.data.files import of_archive

    return of_archive(graph, path, workdir)


def _open_folder(folder: Path, graph: TrainingGraph, workdir: Path | None) -> DataSet:
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if not entry.name.startswith("."))
    except OSError as error:
        raise ModelError(f"can't read the folder {folder}: {error.strerror or error}") from error
    shards = [folder / name for name in names if name.endswith(".npz")]
    if shards:
        from poetopt.training.data.arrays import unpacked
        from poetopt.training.data.files import Shards, of_archive

        into = unpacked((), str(folder), workdir)  # one file for all shards: each file takes a descriptor
        return Shards(str(folder), [of_archive(graph, shard, workdir, part=True, into=into) for shard in shards])
    from poetopt.training.data.files import of_images

    return of_images(graph, folder, [folder / name for name in names if (folder / name).is_dir()])


RAW = {".bin": "<u2", ".txt": "u1"}
"""Types of the ids in files without a header."""
TOKEN_SUFFIXES = (".npy", *RAW)


def of_tokens(graph: TrainingGraph, path: Path) -> DataColumns:
    """Open the windows of a token file. Raises ModelError for another file, or a network without token inputs."""
    model_inputs = [name for name in graph.inputs if name not in graph.added_inputs]
    shapes = {graph.tensors[name].shape for name in graph.inputs}
    is_integer = all(graph.tensors[name].dtype in ("int32", "int64") for name in graph.inputs)
    if (
        len(model_inputs) != 1
        or len(graph.added_inputs) != 1
        or len(shapes) != 1
        or not is_integer
        or len(min(shapes)) != 2
    ):
        raise ModelError(
            f"{path}: tokens need a network with one input of ids [batch, tokens] and cross-entropy on the classes of "
            "each token. Make other inputs constants (solve --value), or give the arrays as .npz."
        )
    start, count, dtype = _locate_ids(path)
    ((_, window),) = shapes
    rows = (count - 1) // window
    if rows < 1:
        raise ModelError(
            f"{path}: it has {count:,} ids, and a window with its labels takes {window + 1:,}. Give more ids."
        )
    if dtype.kind == "i" and int(np.memmap(path, dtype, "r", start, (count,)).min()) < 0:
        raise ModelError(f"{path}: it has negative ids. Tokens are numbers from 0 on.")
    columns = {
        name: InFile(str(path), start + offset * dtype.itemsize, rows, (window,), dtype)
        for name, offset in ((model_inputs[0], 0), (graph.added_inputs[0], 1))
    }
    return DataColumns(graph, str(path), columns)


def _locate_ids(path: Path) -> tuple[int, int, np.dtype[np.generic]]:
    """Return the first byte of the ids, their count, and their type."""
    if path.suffix.lower() == ".npy":
        header, start = array_in(path)
        if len(header.shape) != 1 or header.dtype.kind not in "iu" or not header.dtype.isnative:
            raise ModelError(
                f"{path}: it holds {header.dtype} of shape {list(header.shape)}. Tokens are one row of integers, as in "
                "numpy.save(path, ids.reshape(-1))."
            )
        return start, header.shape[0], header.dtype
    dtype = np.dtype(RAW[path.suffix.lower()])
    try:
        with open_regular(path) as file:
            count, rest = divmod(file.seek(0, 2), dtype.itemsize)
    except OSError as error:
        raise ModelError(f"can't read {path}: {error.strerror or error}") from error
    if rest:
        raise ModelError(f"{path}: it ends within an id. Ids are numbers of 16 bits, low byte first.")
    return 0, count, dtype
