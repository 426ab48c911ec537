"""Rewrite a model file: its structure with its weights, and the stored matrices of its products."""

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

    Attributes
    ----------
    node
        A MatMul, Gemm or MatMulNBits.
    weight
        Name of the initializer.
    turned
        Whether the initializer is W', [outputs, inputs].
    sizes
        Numbers of inputs and outputs.
    """

    node: NodeProto
    weight: str
    turned: bool
    sizes: tuple[int, int]

    @property
    def names(self) -> list[str]:
        """Names for patterns: of the weight with and without `.weight`, the node, and the node's module."""
        name = re.sub(r"(\.turned)?_Q[48]$", "", self.weight)
        candidates = [name.removesuffix(".weight"), name, self.node.name, self.node.name.rpartition("/")[0]]
        return [name for name in dict.fromkeys(candidates) if name]


def products(document: Document) -> Iterator[Product]:
    """Yield the products with stored float matrices, or with matrices that onnxruntime quantized."""
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
    """Add a weight, and return its name."""
    document.weights[name] = numpy_helper.from_array(np.asarray(value, order="C"), name)
    return name


def whole(document: Document, nodes: Iterable[NodeProto] | None = None) -> onnx.ModelProto:
    """Return the model with `nodes` (default: its nodes) and the weights that they read."""
    if nodes is not None:
        document.put_nodes(nodes)
    graph = document.proto.graph
    read = {name for node in graph.node for name in node.input} | {info.name for info in graph.output}
    model = onnx.ModelProto()
    model.CopyFrom(document.proto)
    model.graph.initializer.extend(
        proto
        if proto.data_location != TensorProto.EXTERNAL
        else numpy_helper.from_array(array_of(document, name), name)
        for name, proto in document.weights.items()
        if name in read
    )
    return model


def _bytes_of(document: Document, model: onnx.ModelProto) -> bytes:
    try:
        return bytes(model.SerializeToString(deterministic=True))
    except EncodeError as error:
        raise ModelError(f"{document.where}: its weights exceed the 2 GB of an ONNX file") from error


def written(document: Document, model: onnx.ModelProto, out: str | os.PathLike[str] | None) -> onnx.ModelProto:
    """Check that `model` can be read, write it to `out` if that is given, and return it.

    Raises
    ------
    OptionError
        If `out` is a file that has weights of `document`.
    ModelError
        If the model can't be read.
    OutputError
        If the file can't be written.
    """
    try:
        check_readable(read_model(model))
    except ModelError as error:
        text = str(error).removeprefix("<model>: ")
        raise ModelError(f"{document.where}: the rewritten model can't be read: {text}") from error
    if out is not None:
        external = (weight for weight in document.weights.values() if weight.data_location == TensorProto.EXTERNAL)
        entries = (entry for proto in external for entry in proto.external_data)
        data_files = {os.path.realpath(Path(document.folder or "", e.value)) for e in entries if e.key == "location"}
        if os.path.realpath(out) in data_files:
            raise OptionError(f"-o {os.fspath(out)}: it has weights of {document.where}. Give another path")
        write_atomically(out, _bytes_of(document, model))
    return model
