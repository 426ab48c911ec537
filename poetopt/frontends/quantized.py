"""Normalise quantized weights to one form: DequantizeLinear right before the weight's reader.

`MatMulNBits` multiplies by a weight of N rows and K columns, in which `block_size` elements of a row share a scale and
a zero point. poetopt stores the weight as [K, N], as MatMul expects it, in uint4 or uint8, with its blocks along the
first axis; the dequantized values are the same. Weights of four bits need opset 21, to which older files are converted.
`GatherBlockQuantized` is a Gather of such a weight.

A Transpose of a dequantized weight is applied to the stored weight, so that no step moves its floats. And rows of a
table are selected before they are dequantized, with their scales, so that no step holds the whole table as floats.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from math import prod
from typing import TYPE_CHECKING

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

from poetopt.frontends.convert import convert
from poetopt.frontends.draft import Draft, readers
from poetopt.frontends.fold import infer
from poetopt.frontends.places import FLOATS
from poetopt.frontends.proto import attribute_int, copied, dtype_name, unique
from poetopt.frontends.read import Document, array_of
from poetopt.frontends.structure import describe
from poetopt.graph import PACKED
from poetopt.ops.quantization import halves, sharing
from poetopt.util.errors import ModelError, UnsupportedOpError

if TYPE_CHECKING:
    from poetopt.graph import Array

BLOCKED_SINCE = 21
"""First opset in which DequantizeLinear has blocks and elements of four bits."""
_PRODUCT, _TABLE = "MatMulNBits", "GatherBlockQuantized"
_REMEDY = "Give the file from before quantization, or quantize it to DequantizeLinear (QDQ)"


def spell_out_quantized(document: Document) -> list[str]:
    """Replace onnxruntime's quantized operators by DequantizeLinear and MatMul or Gather; return notes.

    Raises
    ------
    UnsupportedOpError
        For bits, zero points and orders that ONNX has no type for, for computed weights, and if the file can't be
        converted.
    ModelError
        For inconsistent sizes.
    """
    graph = document.proto.graph
    if not any(_is_quantized(node) for node in graph.node):
        return []
    kept: list[NodeProto] = []
    dequantizers: dict[tuple[str, ...], NodeProto] = {}
    _store_reshaped_tables(document)
    for node in graph.node:
        if not _is_quantized(node):
            kept.append(node)
            continue
        is_table = node.op_type == _TABLE
        if len(node.input) < 3 or not node.output:
            raise ModelError(f"{describe(document.where, node, document.opset)}: it lacks operands. Export it again")
        key = (node.op_type, *(node.input if is_table else node.input[1:4]))
        if key not in dequantizers:
            dequantizers[key] = (_dequantize_table if is_table else _dequantize_product)(document, node)
        weight = dequantizers[key].output[0]
        if is_table:
            axis = attribute_int(node, "gather_axis", 0)
            kept.append(helper.make_node("Gather", [weight, node.input[1]], node.output, name=node.name, axis=axis))
            continue
        bias = node.input[5] if len(node.input) > 5 else ""
        product = f"{node.output[0]}.product" if bias else node.output[0]
        kept.append(helper.make_node("MatMul", [node.input[0], weight], [product], name=node.name))
        if bias:
            kept.append(helper.make_node("Add", [product, bias], [node.output[0]], name=f"{node.name}.bias"))
    document.put_nodes(kept)
    note = convert(document, BLOCKED_SINCE)
    if document.opset < BLOCKED_SINCE:
        raise UnsupportedOpError(
            f"{document.where}: {_PRODUCT} and {_TABLE} need opset {BLOCKED_SINCE}, and the file can't be converted "
            f"({note}). {_REMEDY}"
        )
    for node in dequantizers.values():
        del document.weights[node.output[0]]
    document.put_nodes([*dequantizers.values(), *graph.node])
    return [note] if note else []


def _is_quantized(node: NodeProto) -> bool:
    return node.op_type in (_PRODUCT, _TABLE) and node.domain == "com.microsoft"


def _dequantize_table(document: Document, node: NodeProto) -> NodeProto:
    """Return the DequantizeLinear of a GatherBlockQuantized, and add its operands to `document`."""
    bits, size, axis = (attribute_int(node, n, d) for n, d in (("bits", 4), ("block_size", 128), ("quantize_axis", 1)))
    names = [name for k, name in enumerate(node.input) if name and k != 1]
    protos = [document.weights.get(name) for name in names]
    stored = [array_of(document, name) for name, proto in zip(names, protos, strict=True) if proto is not None]
    kind = protos[0].data_type if protos[0] is not None else 0
    if (
        len(stored) < len(names)
        or kind not in (TensorProto.INT4, TensorProto.UINT4, TensorProto.UINT8)
        or bits not in (4, 8)
    ):
        at = describe(document.where, node, document.opset)
        raise UnsupportedOpError(
            f"{at}: its table of {bits} bits is computed, or of another type than int4, uint4 "
            f"or uint8, which is not supported. {_REMEDY}"
        )
    data, scale, *zero = stored
    if kind == TensorProto.UINT8:
        zero = zero or [np.full(scale.shape, 1 << (bits - 1), np.uint8)]
        if bits == 4:
            data, zero = halves(data), [halves(z)[..., : scale.shape[-1]] if len(stored) > 2 else z for z in zero]
    return _dequantize(
        document,
        names[0],
        [data, scale, *zero],
        TensorProto.UINT4 if bits == 4 and kind == TensorProto.UINT8 else kind,
        axis,
        size,
    )


def _store_reshaped_tables(document: Document) -> None:
    """Store a table that is a Reshape of a stored tensor as a tensor of its own: the table is tied to a product.

    If a step reads both, `poetopt.autodiff.linear_loss` shares the bytes again.
    """
    graph, weights = document.proto.graph, document.weights
    tables = {name for node in graph.node if _is_quantized(node) and node.op_type == _TABLE for name in node.input}
    reshapes = [n for n in graph.node if n.op_type == "Reshape" and len(n.input) == 2 and len(n.output) == 1]
    shaped = [n for n in reshapes if n.output[0] in tables and weights.keys() >= {*n.input}]
    for node in shaped:
        stored, shape = (array_of(document, name) for name in node.input)
        try:
            value = stored.reshape([stored.shape[k] if n == 0 else n for k, n in enumerate(shape.tolist())])
        except (ValueError, TypeError, IndexError) as error:
            at = describe(document.where, node, document.opset)
            raise ModelError(f"{at}: a table of shape {list(stored.shape)} can't have its shape") from error
        weights[node.output[0]] = numpy_helper.from_array(value, node.output[0])
    removed = {node.output[0] for node in shaped}
    document.put_nodes([node for node in graph.node if removed.isdisjoint(node.output)])


def _dequantize_product(document: Document, node: NodeProto) -> NodeProto:
    """Return the DequantizeLinear of a MatMulNBits; add its operands, and the weight without values, to `document`."""
    at = describe(document.where, node, document.opset)
    depth, columns, size = (attribute_int(node, name, 0) for name in ("K", "N", "block_size"))
    bits = attribute_int(node, "bits", 4)
    if bits not in (4, 8) or (len(node.input) > 4 and node.input[4]) or attribute_int(node, "weight_prepacked", 0):
        name = f"weights of {bits} bits" if bits not in (4, 8) else "another order of the weights (g_idx, prepacked)"
        raise UnsupportedOpError(f"{at}: {name}, which is not supported. {_REMEDY}")
    if min(depth, columns, size) < 1 or size % 2:
        raise ModelError(f"{at}: its K, N and block_size are {depth}, {columns} and {size}. Export the model again")
    blocks = -(-depth // size)

    def stored(k: int, count: int, accepts: Callable[[TensorProto], bool], name: str) -> Array:
        proto = document.weights.get(node.input[k])
        if proto is None or not accepts(proto):
            fault = "is computed" if proto is None else f"is {TensorProto.DataType.Name(proto.data_type).lower()}"
            raise UnsupportedOpError(f"{at}: its {name} {node.input[k]!r} {fault}, which is not supported. {_REMEDY}")
        if prod(proto.dims) != count:
            raise ModelError(
                f"{at}: its {name} {node.input[k]!r} has shape {list(proto.dims)}, but must have {count} elements for "
                f"K={depth}, N={columns}, block_size={size}, bits={bits}. Export the model again"
            )
        return array_of(document, node.input[k])

    def integers(k: int, row: int, name: str) -> Array:
        """Return rows of `row` bytes, unpacked low bits first."""
        packed = stored(k, columns * row, lambda p: p.data_type == TensorProto.UINT8, name).reshape(columns, row)
        return packed if bits == 8 else halves(packed)

    weight = integers(1, blocks * size * bits // 8, "weight")[:, :depth]
    scales = stored(2, columns * blocks, lambda p: p.data_type in FLOATS, "scale").reshape(columns, blocks)
    has_zeros = len(node.input) > 3 and bool(node.input[3])
    if not has_zeros and bits == 4:  # signed elements need no zero points
        return _dequantize(document, node.input[1], [weight.astype(np.int8).T - 8, scales.T], TensorProto.INT4, 0, size)
    default_zeros: Array = np.full((columns, blocks), 1 << (bits - 1), np.uint8)
    zeros = integers(3, -(-blocks * bits // 8), "zero point")[:, :blocks] if has_zeros else default_zeros
    kind = TensorProto.UINT4 if bits == 4 else TensorProto.UINT8
    return _dequantize(document, node.input[1], [weight.T, scales.T, zeros.T], kind, 0, size)


def _dequantize(document: Document, stem: str, operands: Sequence[Array], elem: int, axis: int, size: int) -> NodeProto:
    """Add weight, scale and perhaps a zero point to `document`, and return the node that dequantizes them."""
    used_names, dtype = document.names, helper.tensor_dtype_to_np_dtype(elem)
    names = [unique(f"{stem}.{what}", used_names) for what in ("weight", "quantized", "scales", "zero_points")]
    for name, array in zip(names[1:], operands, strict=False):
        stored = array if name == names[2] else array.astype(dtype)
        document.weights[name] = numpy_helper.from_array(np.ascontiguousarray(stored), name)
    # the converter treats an external weight as an input
    document.weights[names[0]] = TensorProto(
        name=names[0],
        data_type=document.weights[names[2]].data_type,
        dims=operands[0].shape,
        data_location=TensorProto.EXTERNAL,
    )
    inputs = names[1 : 1 + len(operands)]
    return helper.make_node("DequantizeLinear", inputs, names[:1], name=names[0], axis=axis, block_size=size)


def settle(draft: Draft, outputs: Collection[str]) -> None:
    """Move each DequantizeLinear of a weight right before its first reader, in place, and simplify it.

    A Transpose of the weight is applied to the stored weight, and a Gather selects rows before they are dequantized,
    except for outputs of the graph.
    """
    counts = readers(draft.nodes)
    weights = {n.output[0]: n for n in draft.nodes if n.op_type == "DequantizeLinear" and n.input[0] in draft.constants}
    waiting: dict[str, NodeProto] = {}
    nodes: list[NodeProto] = []
    for node in draft.nodes:
        if node.output[0] in weights:
            waiting[node.output[0]] = node
            continue
        held = waiting.get(node.input[0]) if node.op_type == "Transpose" else None
        if held is not None and counts[node.input[0]] == counts[held.input[0]] == 1 and node.input[0] not in outputs:
            waiting[node.output[0]] = _transpose_weight(draft, waiting.pop(node.input[0]), node)
            continue
        table = weights.get(node.input[0]) if node.op_type == "Gather" and not attribute_int(node, "axis", 0) else None
        replacement = _gather_first(draft, table, node) if table is not None else []
        if table is not None and replacement:
            counts[table.output[0]] -= 1
            if not counts[table.output[0]] and table.output[0] not in outputs:
                waiting.pop(table.output[0], None)
            nodes += replacement
            continue
        nodes += [waiting.pop(name) for name in dict.fromkeys(node.input) if name in waiting]
        nodes.append(node)
    draft.nodes[:] = [*nodes, *waiting.values()]


def _transpose_weight(draft: Draft, weight: NodeProto, transpose: NodeProto) -> NodeProto:
    """Return a DequantizeLinear of transposed operands that replaces `weight` and its `transpose`."""
    shape, scale = (draft.types[name][1] for name in weight.input[:2])
    axis, block = sharing(shape, scale, attribute_int(weight, "axis", 1), attribute_int(weight, "block_size", 0))
    perm = next((list(a.ints) for a in transpose.attribute if a.name == "perm"), list(range(len(shape)))[::-1])
    node = copied(weight)
    node.output[0] = transpose.output[0]
    for k, name in enumerate(filter(None, weight.input) if block else weight.input[:1]):
        node.input[k] = draft.put_beside(f"{name}.transposed", draft.constants[name].transpose(perm).copy())
    kept = [a for a in node.attribute if a.name != "axis"]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute("axis", 1 if axis is None else perm.index(axis))])
    return node


def _gather_first(draft: Draft, weight: NodeProto, gather: NodeProto) -> list[NodeProto]:
    """Return nodes that gather rows of a table, then dequantize them; none if a block spans several rows."""
    (shape, scale), ids = (draft.types[name][1] for name in weight.input[:2]), gather.input[1]
    axis, block = sharing(shape, scale, attribute_int(weight, "axis", 1), attribute_int(weight, "block_size", 0))
    packed = dtype_name(draft.types[weight.input[0]][0]) in PACKED
    if (axis == 0 and (block or len(shape) != 2)) or (packed and shape[-1] % 2):
        return []
    if draft.opset < BLOCKED_SINCE and (block or axis == 0):
        return []
    rank, nodes = len(draft.types[ids][1]) + len(shape) - 1, list[NodeProto]()

    def emit(op: str, *inputs: str, **attributes: int) -> str:
        name = f"{gather.output[0]}.{len(nodes)}"
        while name in draft.types:
            name += "_"
        node = helper.make_node(op, inputs, [name], name=name, **attributes)  # type: ignore[arg-type]
        draft.types.update(infer(draft, node, {}))
        nodes.append(node)
        return name

    def constant(name: str, value: Array) -> str:
        return draft.put_beside(f"{weight.output[0]}.{name}", value)

    table, factors, *zeros = filter(None, weight.input)
    if packed:  # ONNX has no Gather of four bits: gather bytes, then unpack them
        signed = draft.constants[table].dtype.name == "int4"
        values, *middle = (draft.constants[name].astype(np.int8) + 8 * signed for name in (table, *zeros))
        middle = middle or [np.full(scale, 8, np.int8)] * signed
        zeros = [constant("zero_points", value.astype(np.uint8)) for value in middle]
        pairs = emit(
            "Gather", constant("bytes", (values[..., ::2] | values[..., 1::2] << 4).astype(np.uint8)), ids, axis=0
        )
        pairs, sixteen = emit("Cast", pairs, to=TensorProto.INT32), constant("sixteen", np.array(16, np.int32))
        last = constant("last", np.array([-1]))
        halves = [emit("Unsqueeze", emit(op, pairs, sixteen), last) for op in ("Mod", "Div")]
        rows_shape = constant("rows", np.array([*draft.types[ids][1], *shape[1:]]))
        data = emit("Cast", emit("Reshape", emit("Concat", *halves, axis=-1), rows_shape), to=TensorProto.UINT8)
    else:
        data = emit("Gather", table, ids, axis=0)
    scales = [factors, *zeros]
    if block or axis == 0:
        scales = [emit("Gather", name, ids, axis=0) for name in scales]
    if axis == 0:
        last, block, axis = constant("columns", np.array([-1])), shape[1], 1
        scales = [emit("Unsqueeze", name, last) for name in scales]
    along = 1 if axis is None else axis + rank - len(shape)
    attributes = {"axis": along} | ({"block_size": block} if block else {})
    dequantize = helper.make_node("DequantizeLinear", [data, *scales], gather.output, **attributes)  # type: ignore[arg-type]
    dequantize.name = gather.name
    return [*nodes, dequantize]
