"""Weights of eight or four bits: `quantize` makes them of a network's floats, by onnxruntime's quantizer.

A matrix becomes a MatMulNBits, and a table whose rows are picked a GatherBlockQuantized; a table that is tied to a
matrix is there once. Blocks go along what a product sums up, each with a scale.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper

from poetopt.frontends import read_network
from poetopt.frontends.proto import attribute_int, copied, unique
from poetopt.frontends.read import Document, array_of
from poetopt.frontends.rewriting import Source, products, put, whole, written
from poetopt.frontends.structure import needed
from poetopt.frontends.trained import LORA
from poetopt.util.errors import BackendUnavailableError, ModelError, OptionError
from poetopt.util.text import closest

BITS = {"int4": 4, "int8": 8}
BLOCKS = {"int4": 32, "int8": 64}
"""Of a block, where nobody says: a scale for so many takes an eighth of a bit to a bit."""
SIZES = (16, 32, 64, 128, 256)
"""Of a block: those that onnxruntime's kernels know."""


def quantize(
    model: Source, kind: str = "int4", *, block: int | None = None, out: str | os.PathLike[str] | None = None
) -> onnx.ModelProto:
    """A network whose stored matrices and tables are integers, to be frozen; LoRA's pairs stay as they are.

    model
        A file, or a model in memory, which isn't changed.
    kind
        `int4` or `int8`.
    block
        How many weights have a scale in common: a power of two from 16 to 256; by default 32 of int4, and 64 of int8.
    out
        Where the file is written, too.

    Raises OptionError for another kind or block, ModelError for what is no network, or has no such matrix,
    BackendUnavailableError where what onnxruntime's quantizer needs isn't installed, OutputError where the file can't
    be written.
    """
    if kind not in BITS:
        raise OptionError(f"kind {kind!r}: must be int4 or int8{closest(kind, list(BITS))}")
    size = BLOCKS[kind] if block is None else block
    if size not in SIZES:
        raise OptionError(f"block {size}: must be one of {', '.join(map(str, SIZES))}")
    document = read_network(model)
    tables = _prepare(document, size)
    with _quantizer() as quantizer:
        done = quantizer.MatMulNBitsQuantizer(
            whole(document), bits=BITS[kind], block_size=size, is_symmetric=True, op_types_to_quantize=("MatMul",),
            nodes_to_exclude=[n.name for n in document.proto.graph.node if any(map(LORA.search, n.input))],
        )  # fmt: skip
        done.process()
    made = done.model.model
    if not any(node.op_type == "MatMulNBits" for node in made.graph.node):
        raise ModelError(
            f"{document.where}: no product with a stored matrix of floats, so there is nothing to quantize"
        )
    _put_tables(made, tables, BITS[kind], size)
    return written(document, made, out)


@contextmanager
def _quantizer() -> Iterator[Any]:
    """The quantizer, which else has a say in how all that is logged is shown, and tells all that it does."""
    root, before = logging.root, logging.root.manager.disable
    handlers, level = root.handlers[:], root.level
    logging.disable(logging.CRITICAL)
    try:
        from onnxruntime.quantization import matmul_nbits_quantizer

        yield matmul_nbits_quantizer
    except ImportError as error:
        raise BackendUnavailableError(
            "onnxruntime's quantizer needs onnx-ir, which is not installed; install it with: "
            "pip install 'poetopt[quantize]'"
        ) from error
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        logging.disable(before)


def _prepare(document: Document, size: int) -> dict[str, str]:
    """Have each matrix as a MatMul takes it, and a MatMul for each table, which stands last; the tables' by Gather."""
    nodes: list[NodeProto] = []
    taken, turned = document.names, dict[str, str]()
    of = {one.node.output[0]: one for one in products(document) if one.node.op_type != "MatMulNBits"}

    def straight(name: str, transposed: bool) -> str:
        """The weight as [inputs, outputs]."""
        if not transposed:
            return name
        if name not in turned:
            turned[name] = unique(f"{name}.turned", taken)
            taken.add(turned[name])
            put(document, turned[name], array_of(document, name).T)
        return turned[name]

    for name in {one.weight for one in of.values()}:
        if document.weights[name].data_type == TensorProto.DOUBLE:
            raise ModelError(f"{document.where}: {name!r} is of doubles, which no quantized weight is; give float32")
        if not np.isfinite(array_of(document, name)).all():
            raise ModelError(f"{document.where}: {name!r} has values that are no numbers, which no integers are")
    for node in map(copied, document.proto.graph.node):
        one = of.get(node.output[0])
        node.name = node.name or node.output[0]
        nodes.append(node)
        if one is None or LORA.search(one.weight):
            continue
        plain = all(a.f == 1 for a in node.attribute if a.name in ("alpha", "beta"))
        if node.op_type == "MatMul":
            node.input[1] = straight(one.weight, one.turned)
        elif plain:
            bias = list(node.input[2:3])
            product = node.output[0] if not bias else unique(f"{node.output[0]}.product", taken)
            inputs = [node.input[0], straight(one.weight, one.turned)]
            nodes[-1] = helper.make_node("MatMul", inputs, [product], name=node.name)
            if bias:
                nodes.append(helper.make_node("Add", [product, *bias], node.output, name=f"{node.name}.bias"))
    tables: dict[str, str] = {}
    for node in list(nodes):
        proto = document.weights.get(node.input[0]) if node.op_type == "Gather" else None
        floats = proto is not None and proto.data_type == TensorProto.FLOAT and len(proto.dims) == 2
        if proto is None or not floats or proto.dims[1] % size or attribute_int(node, "axis", 0):
            continue
        tables[node.output[0]] = weight = straight(node.input[0], True)
        if not any(n.op_type == "MatMul" and n.input[1] == weight for n in nodes):
            row = unique(f"{weight}.row", taken)
            put(document, row, np.zeros((1, proto.dims[1]), np.float32))
            nodes.append(helper.make_node("MatMul", [row, weight], [f"{row}.product"], name=f"{row}.product"))
    document.put_nodes(nodes)
    return tables


def _put_tables(model: onnx.ModelProto, tables: dict[str, str], bits: int, size: int) -> None:
    """Let each Gather of a table pick rows of what the quantizer has made of it."""
    graph = model.graph
    made = {node.input[1].rpartition("_Q")[0]: node for node in graph.node if node.op_type == "MatMulNBits"}
    nodes: list[NodeProto] = []
    shaped: dict[str, str] = {}
    for node in graph.node:
        weight = tables.get(node.output[0], "")
        if weight not in made:
            nodes.append(node)
            continue
        product = made[weight]
        count, depth = attribute_int(product, "N", 0), attribute_int(product, "K", 0)
        read = []
        for name, columns in ((product.input[1], depth * bits // 8), (product.input[2], depth // size)):
            if name not in shaped:
                shaped[name] = f"{name}.rows"
                shape = onnx.numpy_helper.from_array(np.array([count, columns]), f"{name}.shape")
                graph.initializer.append(shape)
                nodes.append(helper.make_node("Reshape", [name, shape.name], [shaped[name]], name=shaped[name]))
            read.append(shaped[name])
        nodes.append(
            helper.make_node(
                "GatherBlockQuantized", [read[0], node.input[1], read[1]], node.output, name=node.name,
                domain="com.microsoft", gather_axis=0, quantize_axis=1, block_size=size, bits=bits,
            )
        )  # fmt: skip
    kept = needed(nodes, [info.name for info in graph.output])
    del graph.node[:]
    graph.node.extend(kept)
    names = {name for node in kept for name in node.input}
    left = [one for one in graph.initializer if one.name in names]
    del graph.initializer[:]
    graph.initializer.extend(left)
