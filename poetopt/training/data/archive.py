"""Rows of an `.npz` file: read where they lie in it, or unpacked once where they are compressed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO, TYPE_CHECKING

from poetopt.backends.ort.archive import Archive, opened
from poetopt.errors import ModelError
from poetopt.graph import TrainingGraph
from poetopt.telling import Told, silent
from poetopt.training.data.arrays import Columns, which_are_rows
from poetopt.training.data.columns import Column, InFile, InMemory, unpacked

if TYPE_CHECKING:
    from poetopt.graph import Array


def of_archive(
    graph: TrainingGraph,
    path: Path,
    workdir: Path | None = None,
    *,
    part: bool = False,
    into: IO[bytes] | None = None,
) -> Columns:
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


class _InArchive(Columns):
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
