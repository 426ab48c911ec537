"""Quantize a network's float weights to eight or four bits with onnxruntime's quantizer.

A matrix becomes a MatMulNBits, and a table that a Gather reads a GatherBlockQuantized; a table tied to a matrix is
stored once. Blocks lie along the axis that a product sums over, each with a scale.
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
"""Default block sizes: a scale per block takes 0.5 to 1 bit per weight."""
SIZES = (16, 32, 64, 128, 256)
"""Block sizes that onnxruntime's kernels support."""


def quantize(
    model: Source, kind: str = "int4", *, block: int | None = None, out: str | os.PathLike[str] | None = None
) -> onnx.ModelProto:
    """Return the network with quantized matrices and tables, to be frozen; LoRA adapters stay floats.

    Parameters
    ----------
    model
        A file, or a model in memory, which isn't changed.
    kind
        `int4` or `int8`.
    block
        Number of weights that share a scale: a power of two from 16 to 256; default: 32 for int4, 64 for int8.
    out
        Path of a file to write as well.

    Raises
    ------
    OptionError
        For another kind or block.
    ModelError
        For a model that isn't an ONNX network, or has no such matrix.
    BackendUnavailableError
        If a package that onnxruntime's quantizer needs isn't installed.
    OutputError
        If the file can't be written.
    """
    if kind not in BITS:
        raise OptionError(f"kind {kind!r}: must be int4 or int8{closest(kind, list(BITS))}")
    size = BLOCKS[kind] if block is None else block
    if size not in SIZES:
        raise OptionError(f"block {size}: must be one of {', '.join(map(str, SIZES))}")
    document = read_network(model)
    tables = _prepare_products(document, size)
    with _quantizer() as quantizer:
        quantizer_run = quantizer.MatMulNBitsQuantizer(
            whole(document), bits=BITS[kind], block_size=size, is_symmetric=True, op_types_to_quantize=("MatMul",),
            nodes_to_exclude=[n.name for n in document.proto.graph.node if any(map(LORA.search, n.input))],
        )  # fmt: skip
        quantizer_run.process()
    model_proto = quantizer_run.model.model
    if not any(node.op_type == "MatMulNBits" for node in model_proto.graph.node):
        raise ModelError(
            f"{document.where}: it has no product with a stored float matrix, so there is nothing to quantize"
        )
    _gather_quantized_rows(model_proto, tables, BITS[kind], size)
    return written(document, model_proto, out)


@contextmanager
def _quantizer() -> Iterator[Any]:
    """Yield the quantizer's module with logging off: it would reconfigure logging, and log each step."""
    root, disabled_level = logging.root, logging.root.manager.disable
    handlers, level = root.handlers[:], root.level
    logging.disable(logging.CRITICAL)
    try:
        from onnxruntime.quantization import matmul_nbits_quantizer

        yield matmul_nbits_quantizer
    except ImportError as error:
        raise BackendUnavailableError(
            "onnxruntime's quantizer needs onnx-ir, which is not installed. Install it with: "
            "pip install 'poetopt[quantize]'"
        ) from error
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        logging.disable(disabled_level)


def _prepare_products(document: Document, size: int) -> dict[str, str]:
    """Make each product a plain MatMul, append a MatMul for each table; return tables' weights by Gather output."""
    nodes: list[NodeProto] = []
    used_names, transposed_names = document.names, dict[str, str]()
    matrices = {matrix.node.output[0]: matrix for matrix in products(document) if matrix.node.op_type != "MatMulNBits"}

    def as_inputs_outputs(name: str, transposed: bool) -> str:
        """Return the weight as [inputs, outputs]."""
        if not transposed:
            return name
        if name not in transposed_names:
            transposed_names[name] = unique(f"{name}.turned", used_names)
            used_names.add(transposed_names[name])
            put(document, transposed_names[name], array_of(document, name).T)
        return transposed_names[name]

    for name in {matrix.weight for matrix in matrices.values()}:
        if document.weights[name].data_type == TensorProto.DOUBLE:
            raise ModelError(f"{document.where}: {name!r} is float64, which can't be quantized. Convert it to float32")
        if not np.isfinite(array_of(document, name)).all():
            raise ModelError(f"{document.where}: {name!r} has NaN or infinite values, which can't be quantized")
    for node in map(copied, document.proto.graph.node):
        matrix = matrices.get(node.output[0])
        node.name = node.name or node.output[0]
        nodes.append(node)
        if matrix is None or LORA.search(matrix.weight):
            continue
        is_unscaled = all(a.f == 1 for a in node.attribute if a.name in ("alpha", "beta"))
        if node.op_type == "MatMul":
            node.input[1] = as_inputs_outputs(matrix.weight, matrix.turned)
        elif is_unscaled:
            bias = list(node.input[2:3])
            product = node.output[0] if not bias else unique(f"{node.output[0]}.product", used_names)
            inputs = [node.input[0], as_inputs_outputs(matrix.weight, matrix.turned)]
            nodes[-1] = helper.make_node("MatMul", inputs, [product], name=node.name)
            if bias:
                nodes.append(helper.make_node("Add", [product, *bias], node.output, name=f"{node.name}.bias"))
    tables: dict[str, str] = {}
    for node in list(nodes):
        proto = document.weights.get(node.input[0]) if node.op_type == "Gather" else None
        is_table = proto is not None and proto.data_type == TensorProto.FLOAT and len(proto.dims) == 2
        if proto is None or not is_table or proto.dims[1] % size or attribute_int(node, "axis", 0):
            continue
        tables[node.output[0]] = weight = as_inputs_outputs(node.input[0], True)
        if not any(n.op_type == "MatMul" and n.input[1] == weight for n in nodes):
            row = unique(f"{weight}.row", used_names)
            put(document, row, np.zeros((1, proto.dims[1]), np.float32))
            nodes.append(helper.make_node("MatMul", [row, weight], [f"{row}.product"], name=f"{row}.product"))
    document.put_nodes(nodes)
    return tables


def _gather_quantized_rows(model: onnx.ModelProto, tables: dict[str, str], bits: int, size: int) -> None:
    """Let each Gather of a table read the rows of the quantized weight."""
    graph = model.graph
    products = {node.input[1].rpartition("_Q")[0]: node for node in graph.node if node.op_type == "MatMulNBits"}
    nodes: list[NodeProto] = []
    reshaped: dict[str, str] = {}
    for node in graph.node:
        weight = tables.get(node.output[0], "")
        if weight not in products:
            nodes.append(node)
            continue
        product = products[weight]
        count, depth = attribute_int(product, "N", 0), attribute_int(product, "K", 0)
        read = []
        for name, columns in ((product.input[1], depth * bits // 8), (product.input[2], depth // size)):
            if name not in reshaped:
                reshaped[name] = f"{name}.rows"
                shape = onnx.numpy_helper.from_array(np.array([count, columns]), f"{name}.shape")
                graph.initializer.append(shape)
                nodes.append(helper.make_node("Reshape", [name, shape.name], [reshaped[name]], name=reshaped[name]))
            read.append(reshaped[name])
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
    initializers = [proto for proto in graph.initializer if proto.name in names]
    del graph.initializer[:]
    graph.initializer.extend(initializers)
