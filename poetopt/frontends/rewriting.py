"""A file that is written anew: its weights with its structure, and the matrices that its products multiply with."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
from google.protobuf.message import EncodeError  # type: ignore[import-untyped,unused-ignore]
from onnx import NodeProto, TensorProto, numpy_helper

from poetopt.frontends.onnx_file import check_readable
from poetopt.frontends.places import FLOATS
from poetopt.frontends.proto import attribute_int
from poetopt.frontends.read import Document, array_of, read_model
from poetopt.util.errors import ModelError, OptionError
from poetopt.util.files import write_atomically

if TYPE_CHECKING:
    from poetopt.graph import Array

Source = str | os.PathLike[str] | onnx.ModelProto


@dataclass(frozen=True)
class Product:
    """A product y = x W (+ c) with a stored matrix.

    node
        A MatMul, Gemm or MatMulNBits.
    weight
        The initializer.
    turned
        Whether it is W', [outputs, inputs].
    sizes
        Inputs and outputs.
    """

    node: NodeProto
    weight: str
    turned: bool
    sizes: tuple[int, int]

    @property
    def names(self) -> list[str]:
        """Names for patterns: of its weight with and without `.weight`, of its node, and of that one's module."""
        plain = re.sub(r"(\.turned)?_Q[48]$", "", self.weight)
        found = [plain.removesuffix(".weight"), plain, self.node.name, self.node.name.rpartition("/")[0]]
        return [name for name in dict.fromkeys(found) if name]


def products(document: Document) -> Iterator[Product]:
    """The products of a file with stored matrices of floats, or of what onnxruntime's quantizer made of those."""
    nodes, weights = document.proto.graph.node, document.weights
    turns = {n.output[0]: n.input[0] for n in nodes if n.op_type == "Transpose" and n.input[0] in weights}
    for node in nodes:
        name = node.input[1] if len(node.input) > 1 else ""
        if node.op_type == "MatMulNBits" and name in weights:
            yield Product(node, name, True, (attribute_int(node, "K", 0), attribute_int(node, "N", 0)))
        if node.op_type not in ("MatMul", "Gemm") or attribute_int(node, "transA", 0):
            continue
        turned = bool(attribute_int(node, "transB", 0)) != (name in turns)
        name = turns.get(name, name)
        proto = weights.get(name)
        if proto is not None and proto.data_type in FLOATS and len(proto.dims) == 2:
            first, last = map(int, proto.dims)
            yield Product(node, name, turned, (last, first) if turned else (first, last))


def put(document: Document, name: str, value: Array) -> str:
    """Have a weight of this name and value."""
    document.weights[name] = numpy_helper.from_array(np.asarray(value, order="C"), name)
    return name


def whole(document: Document, nodes: Iterable[NodeProto] | None = None) -> onnx.ModelProto:
    """The file, with these nodes, and the weights that they read."""
    if nodes is not None:
        document.put_nodes(nodes)
    graph = document.proto.graph
    read = {name for node in graph.node for name in node.input} | {info.name for info in graph.output}
    made = onnx.ModelProto()
    made.CopyFrom(document.proto)
    made.graph.initializer.extend(
        proto
        if proto.data_location != TensorProto.EXTERNAL
        else numpy_helper.from_array(array_of(document, name), name)
        for name, proto in document.weights.items()
        if name in read
    )
    return made


def _bytes_of(document: Document, model: onnx.ModelProto) -> bytes:
    try:
        return bytes(model.SerializeToString(deterministic=True))
    except EncodeError as error:
        raise ModelError(f"{document.where}: its weights take more than the 2 GB that a file holds") from error


def written(document: Document, model: onnx.ModelProto, out: str | os.PathLike[str] | None) -> onnx.ModelProto:
    """The model, once it was read back, which is written to `out` too where that is given. Raises OutputError.

    Raises OptionError where `out` is a file that has weights of `document`, ModelError where nobody could read it.
    """
    try:
        check_readable(read_model(model))
    except ModelError as error:
        text = str(error).removeprefix("<model>: ")
        raise ModelError(f"{document.where}: what would be written of it can't be read: {text}") from error
    if out is not None:
        external = (one for one in document.weights.values() if one.data_location == TensorProto.EXTERNAL)
        entries = (entry for proto in external for entry in proto.external_data)
        beside = {os.path.realpath(Path(document.folder or "", e.value)) for e in entries if e.key == "location"}
        if os.path.realpath(out) in beside:
            raise OptionError(f"-o {os.fspath(out)}: it has weights of {document.where}; give another path")
        write_atomically(out, _bytes_of(document, model))
    return model
