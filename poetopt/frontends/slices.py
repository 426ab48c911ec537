"""Rows of one parameter that a file stores apart, as PyTorch's older exporter does where it folds a slice or a flip.

What is left of the module's parameter are tensors with made-up names, each trained by its own uses. Which of them was
the parameter can't be told, nor how to put them together, so nothing is changed: the user gets to know. Rows count in
any order, and columns; what equals another tensor as it stands is no part of it (see `ties`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from poetopt.util.notes import Note

if TYPE_CHECKING:
    from poetopt.graph import Array

    Bits = NDArray[np.unsignedinteger[Any]]

_LEAST_VALUES = 4
"""A row with fewer different values may equal another one by chance, or because both are fresh."""
_TRIES = 8
_AT_FIRST = 4096
"""Numbers of a row that mostly tell, without sorting all."""
_AT_ONCE = 2**20
"""Rows that are looked at together."""


class _Probe(NamedTuple):
    """A tensor that may be part of another one, as rows, and the row that is looked for first."""

    name: str
    rows: Bits
    row: Bits


def parts(arrays: Mapping[str, Array]) -> list[tuple[str, str]]:
    """Pairs of a tensor and a larger one (or one of its size, in another order) that has all its rows."""
    bits = {name: _bits(array) for name, array in arrays.items() if array.size >= _LEAST_VALUES and array.ndim}
    probes: dict[tuple[int, str], dict[int, list[_Probe]]] = {}
    for name, array in bits.items():
        for rows in _matrices(array):
            row = _telling(rows)
            if row is not None:
                known = probes.setdefault((rows.shape[1], array.dtype.str), {})
                known.setdefault(int(row[0]), []).append(_Probe(name, rows, row))
    widths = {(width, kind): place for place, (width, kind) in enumerate(probes)}
    firsts: dict[str, dict[int, list[int]]] = {}
    for (width, kind), known in probes.items():
        for first in known:
            firsts.setdefault(kind, {}).setdefault(first, []).append(width)
    sought = {kind: np.sort(np.array(list(known), kind)) for kind, known in firsts.items()}
    found: dict[tuple[str, str], None] = {}
    for whole, array in bits.items():
        kind = array.dtype.str
        if kind not in firsts:
            continue
        # The first numbers of rows are looked up, all at once: most tensors have none that is looked for.
        if array.ndim == 1:
            fitting = {width for first in _among(array, sought[kind]) for width in firsts[kind][first]}
        else:
            fitting = {rows.shape[1] for rows in _matrices(array)}
        keys = [(width, kind) for width in fitting if (width, kind) in widths]
        for key in sorted(keys, key=widths.__getitem__):
            for rows in _rows_of(array, key[0]):
                for part in _held(rows, probes[key], sought[kind]):
                    if part != whole and (whole, part) not in found and bits[part].size <= array.size:
                        found[part, whole] = None
    return list(found)


def _held(rows: Bits, probes: Mapping[int, list[_Probe]], sought: Bits) -> Iterator[str]:
    """Names of the tensors that `rows` has all rows of."""
    for place in _places(rows[:, 0], sought):
        for probe in probes.get(int(rows[place, 0]), ()):
            if np.array_equal(probe.row, rows[place]) and _holds(rows, probe.rows):
                yield probe.name


def _places(numbers: Bits, sought: Bits) -> Iterator[int]:
    """Where `numbers` has any of those `sought`, which are ascending; in parts, for their places take memory."""
    for begin in range(0, len(numbers), _AT_ONCE):
        part = numbers[begin : begin + _AT_ONCE]
        nearest = np.minimum(np.searchsorted(sought, part), len(sought) - 1)
        yield from (begin + np.flatnonzero(sought[nearest] == part)).tolist()


def _among(numbers: Bits, sought: Bits) -> set[int]:
    """Those of `numbers` that are `sought`."""
    return {int(numbers[place]) for place in _places(numbers, sought)}


def _telling(rows: Bits) -> Bits | None:
    """A row that nothing else is likely to have; it starts with no zero, for many rows of a pruned weight do."""
    for place in np.flatnonzero(rows[:, 0])[:_TRIES]:
        row: Bits = rows[place]
        if any(np.unique(part).size >= _LEAST_VALUES for part in (row[:_AT_FIRST], row)):
            return row
    return None


def note(arrays: Mapping[str, Array]) -> list[str]:
    """What to say of `parts`: one line, or nothing."""
    found = parts(arrays)
    if not found:
        return []
    shown = ", ".join(f"{part} of {whole}" for part, whole in found[:3]) + (", ..." if len(found) > 3 else "")
    count = len({part for part, _ in found})
    text = f"{count} tensors hold rows of others ({shown}): where the module has one parameter, "
    return [Note(text + "the exporter stored parts of it, and each is trained by its own uses alone")]


def _bits(array: Array) -> Bits:
    """Numbers as integers, which are told apart exactly."""
    own = np.ascontiguousarray(array)
    return own.view(f"u{own.dtype.itemsize}").reshape(array.shape)


def _matrices(array: Bits) -> Iterator[Bits]:
    """The tensor as rows along its first axis, and as columns."""
    rows = array.reshape(1, -1) if array.ndim == 1 else array.reshape(array.shape[0], -1)
    yield rows
    yield rows.T


def _rows_of(array: Bits, width: int) -> Iterator[Bits]:
    """Matrices of rows of `width` numbers that stand together in `array`."""
    if array.ndim == 1:
        if array.size >= width:
            yield np.lib.stride_tricks.sliding_window_view(array, width)
        return
    yield from (rows for rows in _matrices(array) if rows.shape[1] == width)


def _holds(rows: Bits, part: Bits) -> bool:
    """Whether every row of `part` is one of `rows`, and it isn't all of them as they stand."""
    if part.shape == rows.shape and np.array_equal(part, rows):
        return False
    there = {row.tobytes() for row in rows} if len(part) > 1 else set()
    return len(part) == 1 or all(row.tobytes() in there for row in part)
