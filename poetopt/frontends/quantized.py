"""Weights that a file stores quantized, in one form: DequantizeLinear right before who reads what it writes.

`MatMulNBits` multiplies with a weight of N rows and K columns, of which `block_size` elements of a row have a scale and
a zero point in common. Here the weight is [K, N], as MatMul takes it, of uint4 or uint8, with its blocks along the
first axis; what is dequantized is the same numbers. Weights of four bits need opset 21, to which older files are
converted. `GatherBlockQuantized` is a Gather of such a weight.

A Transpose of a dequantized weight goes to the weight: no step moves its floats. And of a table rows are picked before
they are dequantized, with their own scales: no step has all of it as floats.
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
"""The opset since which DequantizeLinear has blocks and elements of four bits."""
_PRODUCT, _TABLE = "MatMulNBits", "GatherBlockQuantized"
_PLAIN = "give the file from before that was quantized, or quantize it to DequantizeLinear (QDQ)"


def spell_out_quantized(document: Document) -> list[str]:
    """Write onnxruntime's quantized operators in `document` as DequantizeLinear and MatMul or Gather. Returns notes.

    Raises `UnsupportedOpError` for bits, zero points and orders that ONNX has no type for, for weights that are
    computed, and where the file can't be converted; `ModelError` where sizes don't fit each other.
    """
    graph = document.proto.graph
    if not any(_is_own(node) for node in graph.node):
        return []
    kept: list[NodeProto] = []
    made: dict[tuple[str, ...], NodeProto] = {}
    _put_shaped(document)
    for node in graph.node:
        if not _is_own(node):
            kept.append(node)
            continue
        table = node.op_type == _TABLE
        if len(node.input) < 3 or not node.output:
            raise ModelError(f"{describe(document.where, node, document.opset)}: it lacks operands; export it again")
        key = (node.op_type, *(node.input if table else node.input[1:4]))
        if key not in made:
            made[key] = (_of_table if table else _of_product)(document, node)
        weight = made[key].output[0]
        if table:
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
            f"({note}); {_PLAIN}"
        )
    for node in made.values():
        del document.weights[node.output[0]]
    document.put_nodes([*made.values(), *graph.node])
    return [note] if note else []


def _is_own(node: NodeProto) -> bool:
    return node.op_type in (_PRODUCT, _TABLE) and node.domain == "com.microsoft"


def _of_table(document: Document, node: NodeProto) -> NodeProto:
    """The same of a GatherBlockQuantized."""
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
            f"{at}: a table of {bits} bits that is computed, or of another type than int4, uint4 "
            f"or uint8, which is not supported; {_PLAIN}"
        )
    data, scale, *zero = stored
    if kind == TensorProto.UINT8:
        zero = zero or [np.full(scale.shape, 1 << (bits - 1), np.uint8)]
        if bits == 4:
            data, zero = halves(data), [halves(z)[..., : scale.shape[-1]] if len(stored) > 2 else z for z in zero]
    return _put(
        document,
        names[0],
        [data, scale, *zero],
        TensorProto.UINT4 if bits == 4 and kind == TensorProto.UINT8 else kind,
        axis,
        size,
    )


def _put_shaped(document: Document) -> None:
    """Have what a table reads of a stored tensor under another shape as one of its own: the table is tied to a product.

    The bytes are put together again where a step reads both (`poetopt.autodiff.linear_loss`).
    """
    graph, weights = document.proto.graph, document.weights
    tables = {name for node in graph.node if _is_own(node) and node.op_type == _TABLE for name in node.input}
    reshapes = [n for n in graph.node if n.op_type == "Reshape" and len(n.input) == 2 and len(n.output) == 1]
    shaped = [n for n in reshapes if n.output[0] in tables and weights.keys() >= {*n.input}]
    for node in shaped:
        stored, shape = (array_of(document, name) for name in node.input)
        try:
            value = stored.reshape([stored.shape[k] if n == 0 else n for k, n in enumerate(shape.tolist())])
        except (ValueError, TypeError, IndexError) as error:
            at = describe(document.where, node, document.opset)
            raise ModelError(f"{at}: no table of shape {list(stored.shape)} has the shape that it says") from error
        weights[node.output[0]] = numpy_helper.from_array(value, node.output[0])
    gone = {node.output[0] for node in shaped}
    document.put_nodes([node for node in graph.node if gone.isdisjoint(node.output)])


def _of_product(document: Document, node: NodeProto) -> NodeProto:
    """The node that writes the weight of `node`; `document` has its operands, and the weight as one without values."""
    at = describe(document.where, node, document.opset)
    depth, columns, size = (attribute_int(node, name, 0) for name in ("K", "N", "block_size"))
    bits = attribute_int(node, "bits", 4)
    if bits not in (4, 8) or (len(node.input) > 4 and node.input[4]) or attribute_int(node, "weight_prepacked", 0):
        what = f"weights of {bits} bits" if bits not in (4, 8) else "another order of the weights (g_idx, prepacked)"
        raise UnsupportedOpError(f"{at}: {what}, which is not supported; {_PLAIN}")
    if min(depth, columns, size) < 1 or size % 2:
        raise ModelError(f"{at}: its K, N and block_size are {depth}, {columns} and {size}; export the model again")
    blocks = -(-depth // size)

    def stored(k: int, wanted: int, fits: Callable[[TensorProto], bool], what: str) -> Array:
        proto = document.weights.get(node.input[k])
        if proto is None or not fits(proto):
            said = "is computed" if proto is None else f"is {TensorProto.DataType.Name(proto.data_type).lower()}"
            raise UnsupportedOpError(f"{at}: its {what} {node.input[k]!r} {said}, which is not supported; {_PLAIN}")
        if prod(proto.dims) != wanted:
            raise ModelError(
                f"{at}: its {what} {node.input[k]!r} has shape {list(proto.dims)}, but must have {wanted} elements for "
                f"K={depth}, N={columns}, block_size={size}, bits={bits}; export the model again"
            )
        return array_of(document, node.input[k])

    def integers(k: int, row: int, what: str) -> Array:
        """Rows of so many bytes, unpacked: low bits first."""
        found = stored(k, columns * row, lambda p: p.data_type == TensorProto.UINT8, what).reshape(columns, row)
        return found if bits == 8 else halves(found)

    weight = integers(1, blocks * size * bits // 8, "weight")[:, :depth]
    scales = stored(2, columns * blocks, lambda p: p.data_type in FLOATS, "scale").reshape(columns, blocks)
    given = len(node.input) > 3 and bool(node.input[3])
    if not given and bits == 4:  # with a sign they need no zero points
        return _put(document, node.input[1], [weight.astype(np.int8).T - 8, scales.T], TensorProto.INT4, 0, size)
    middle: Array = np.full((columns, blocks), 1 << (bits - 1), np.uint8)
    zeros = integers(3, -(-blocks * bits // 8), "zero point")[:, :blocks] if given else middle
    kind = TensorProto.UINT4 if bits == 4 else TensorProto.UINT8
    return _put(document, node.input[1], [weight.T, scales.T, zeros.T], kind, 0, size)


def _put(document: Document, stem: str, operands: Sequence[Array], kind: int, axis: int, size: int) -> NodeProto:
    """The node that dequantizes these operands, which `document` has then: weight, scale, and a zero point perhaps."""
    taken, kinds = document.names, helper.tensor_dtype_to_np_dtype(kind)
    names = [unique(f"{stem}.{what}", taken) for what in ("weight", "quantized", "scales", "zero_points")]
    for name, array in zip(names[1:], operands, strict=False):
        stored = array if name == names[2] else array.astype(kinds)
        document.weights[name] = numpy_helper.from_array(np.ascontiguousarray(stored), name)
    # the converter takes what is external for an input
    document.weights[names[0]] = TensorProto(
        name=names[0],
        data_type=document.weights[names[2]].data_type,
        dims=operands[0].shape,
        data_location=TensorProto.EXTERNAL,
    )
    own = names[1 : 1 + len(operands)]
    return helper.make_node("DequantizeLinear", own, names[:1], name=names[0], axis=axis, block_size=size)


def settle(draft: Draft, outputs: Collection[str]) -> None:
    """Let each weight be dequantized as its only reader takes it, right before its first reader, in place.

    outputs
        Of the graph: what is one of them stays.
    """
    count = readers(draft.nodes)
    weights = {n.output[0]: n for n in draft.nodes if n.op_type == "DequantizeLinear" and n.input[0] in draft.constants}
    waiting: dict[str, NodeProto] = {}
    nodes: list[NodeProto] = []
    for node in draft.nodes:
        if node.output[0] in weights:
            waiting[node.output[0]] = node
            continue
        held = waiting.get(node.input[0]) if node.op_type == "Transpose" else None
        if held is not None and count[node.input[0]] == count[held.input[0]] == 1 and node.input[0] not in outputs:
            waiting[node.output[0]] = _turned(draft, waiting.pop(node.input[0]), node)
            continue
        table = weights.get(node.input[0]) if node.op_type == "Gather" and not attribute_int(node, "axis", 0) else None
        picked = _picked(draft, table, node) if table is not None else []
        if table is not None and picked:
            count[table.output[0]] -= 1
            if not count[table.output[0]] and table.output[0] not in outputs:
                waiting.pop(table.output[0], None)
            nodes += picked
            continue
        nodes += [waiting.pop(name) for name in dict.fromkeys(node.input) if name in waiting]
        nodes.append(node)
    draft.nodes[:] = [*nodes, *waiting.values()]


def _turned(draft: Draft, weight: NodeProto, transpose: NodeProto) -> NodeProto:
    """The node that writes what `transpose` writes of what `weight` does, from operands that are transposed."""
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


def _picked(draft: Draft, weight: NodeProto, gather: NodeProto) -> list[NodeProto]:
    """Nodes that write what `gather` picks of the table that `weight` writes; none where blocks are of several rows."""
    (shape, scale), ids = (draft.types[name][1] for name in weight.input[:2]), gather.input[1]
    axis, block = sharing(shape, scale, attribute_int(weight, "axis", 1), attribute_int(weight, "block_size", 0))
    packed = dtype_name(draft.types[weight.input[0]][0]) in PACKED
    if (axis == 0 and (block or len(shape) != 2)) or (packed and shape[-1] % 2):
        return []
    if draft.opset < BLOCKED_SINCE and (block or axis == 0):
        return []
    rank, nodes = len(draft.types[ids][1]) + len(shape) - 1, list[NodeProto]()

    def add(op: str, *inputs: str, **attributes: int) -> str:
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
    if packed:  # there is no Gather of four bits: bytes are picked, and taken apart
        signed = draft.constants[table].dtype.name == "int4"
        values, *middle = (draft.constants[name].astype(np.int8) + 8 * signed for name in (table, *zeros))
        middle = middle or [np.full(scale, 8, np.int8)] * signed
        zeros = [constant("zero_points", value.astype(np.uint8)) for value in middle]
        pairs = add(
            "Gather", constant("bytes", (values[..., ::2] | values[..., 1::2] << 4).astype(np.uint8)), ids, axis=0
        )
        pairs, sixteen = add("Cast", pairs, to=TensorProto.INT32), constant("sixteen", np.array(16, np.int32))
        last = constant("last", np.array([-1]))
        halves = [add("Unsqueeze", add(op, pairs, sixteen), last) for op in ("Mod", "Div")]
        whole = constant("rows", np.array([*draft.types[ids][1], *shape[1:]]))
        data = add("Cast", add("Reshape", add("Concat", *halves, axis=-1), whole), to=TensorProto.UINT8)
    else:
        data = add("Gather", table, ids, axis=0)
    scales = [factors, *zeros]
    if block or axis == 0:
        scales = [add("Gather", name, ids, axis=0) for name in scales]
    if axis == 0:
        last, block, axis = constant("columns", np.array([-1])), shape[1], 1
        scales = [add("Unsqueeze", name, last) for name in scales]
    along = 1 if axis is None else axis + rank - len(shape)
    own = {"axis": along} | ({"block_size": block} if block else {})
    made = helper.make_node("DequantizeLinear", [data, *scales], gather.output, **own)  # type: ignore[arg-type]
    made.name = gather.name
    return [*nodes, made]
