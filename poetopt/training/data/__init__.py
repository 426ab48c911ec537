"""Describes what is trained on: rows of arrays in memory or in files, of which a batch at a time is read.

| data | what it is |
|---|---|
| arrays by input name | in memory |
| `FILE.npz` | arrays by input name; read in place where `numpy.savez` wrote it, unpacked once where it is compressed |
| a folder of `.npz` files | the rows of one after the other, in the order of their names |
| `FILE.csv` | a table with a line of names: see `poetopt.training.data.files` |
| `FILE.npy`, `FILE.bin`, `FILE.txt` | tokens, one after the other: see `poetopt.training.data.tokens` |
| a folder of folders of images | a class each, numbered in the order of their names |

All of these are regular files, or links to such: a pipe or a device is refused by its name, and never opened.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from poetopt.graph import TrainingGraph
from poetopt.training.data.arrays import DataSet, of_arrays
from poetopt.training.data.tokens import ENDINGS, of_tokens
from poetopt.util.errors import ModelError

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
