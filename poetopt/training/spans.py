"""Where the bytes of tensors lie in an ONNX file, without reading them, or ONNX: weights may be larger than the RAM.

Protobuf's fields that matter, by their numbers in `onnx.proto`: a model's graph (7); a graph's nodes (1) and
initializers (5); of a node its outputs (2), its op (4) and attributes (5), of an attribute its tensor (5); of a tensor
its name (8) and its bytes: `raw_data` (9), packed `float_data` (4) and `double_data` (10).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

from poetopt.util.errors import ModelError

_VARINT, _EIGHT, _LENGTH, _FOUR = 0, 1, 2, 5
_LITTLE_ENDIAN = frozenset({4, 9, 10})
"""Fields of a tensor that hold its elements as memory does."""


@dataclass(frozen=True)
class FileSpan:
    """So many bytes of a file from `start` on."""

    start: int
    nbytes: int


def tensor_spans(file: IO[bytes]) -> dict[str, FileSpan]:
    """Says where the elements of initializers and of constants (by their output) are in the file of a model.

    Tensors whose elements are elsewhere, or stored one by one, are absent. Raises ModelError for what is no protobuf.
    """
    found: dict[str, FileSpan] = {}
    for number, graph in _messages(file, FileSpan(0, file.seek(0, os.SEEK_END))):
        if number != 7:
            continue
        for part, span in _messages(file, graph):
            if part == 5:
                name, data = _tensor(file, span)
            elif part == 1:
                name, data = _constant(file, span)
            else:
                continue
            if name and data is not None:
                found[name] = data
    return found


def _tensor(file: IO[bytes], tensor: FileSpan) -> tuple[str, FileSpan | None]:
    name, data = "", None
    for number, span in _messages(file, tensor):
        if number == 8:
            name = _text(file, span)
        elif number in _LITTLE_ENDIAN and span.nbytes:
            data = span
    return name, data


def _constant(file: IO[bytes], node: FileSpan) -> tuple[str, FileSpan | None]:
    outputs: list[str] = []
    op, data = "", None
    attributes: list[FileSpan] = []
    for number, span in _messages(file, node):
        if number == 2:
            outputs.append(_text(file, span))
        elif number == 4:
            op = _text(file, span)
        elif number == 5:
            attributes.append(span)
    for attribute in attributes if op == "Constant" else ():
        for number, span in _messages(file, attribute):
            if number == 5:
                _, data = _tensor(file, span)
    return outputs[0] if len(outputs) == 1 else "", data


def _text(file: IO[bytes], span: FileSpan) -> str:
    file.seek(span.start)
    return file.read(span.nbytes).decode("utf-8", "replace")


def _messages(file: IO[bytes], within: FileSpan) -> Iterator[tuple[int, FileSpan]]:
    """The length-delimited fields of a message: number, and where the content is."""
    place, end = within.start, within.start + within.nbytes
    while place < end:
        key, place = _varint(file, place, end)
        kind = key & 7
        if kind == _VARINT:
            _, place = _varint(file, place, end)
        elif kind in (_EIGHT, _FOUR):
            place += 8 if kind == _EIGHT else 4
        elif kind == _LENGTH:
            nbytes, place = _varint(file, place, end)
            if place + nbytes > end:
                raise ModelError("the file is cut short; export it again")
            yield key >> 3, FileSpan(place, nbytes)
            place += nbytes
        else:
            raise ModelError("the file is no ONNX model; export it again")


def _varint(file: IO[bytes], place: int, end: int) -> tuple[int, int]:
    file.seek(place)
    value = 0
    for shift, byte in enumerate(file.read(min(10, end - place))):
        value |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            return value, place + shift + 1
    raise ModelError("the file is cut short; export it again")
