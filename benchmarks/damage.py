"""Damaged models, drawn with a seed: bytes of the file, or fields of the protobuf, of seven small sound ones."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from google.protobuf.descriptor import FieldDescriptor  # type: ignore[import-untyped]
from google.protobuf.message import Message  # type: ignore[import-untyped]
from onnx import helper, numpy_helper

TEXTS = (
    """<ir_version: 8, opset_import: ["" : 17]>
    mlp (float[4, 6] x) => (float[4, 3] y)
    <float[6, 5] w = {BIG30}, float[5] b = {1.0, 2.0, 3.0, 4.0, 5.0}, float[5, 3] v = {BIG15}>
    { h = MatMul(x, w)  a = Add(h, b)  r = Relu(a)  y = MatMul(r, v) }""",
    """<ir_version: 8, opset_import: ["" : 15]>
    cnn (float[2, 2, 6, 6] x) => (float[2, 4] y)
    <float[4, 2, 3, 3] w = {BIG72}, float[4] s = {1.0, 1.0, 1.0, 1.0}, float[4] b = {0.0, 0.0, 0.0, 0.0},
     float[4] m = {0.0, 0.0, 0.0, 0.0}, float[4] v = {1.0, 1.0, 1.0, 1.0}>
    { c = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 2]> (x, w)
      n, rm, rv = BatchNormalization <training_mode = 1, epsilon = 0.001> (c, s, b, m, v)
      k = Clip(n)  p = MaxPool <kernel_shape = [2, 2]> (k)  q = GlobalAveragePool(p)  y = Flatten(q) }""",
    """<ir_version: 9, opset_import: ["" : 20]>
    attention (int64[1, 4] ids) => (float[1, 4, 3] y)
    <float[7, 6] e = {BIG42}, float[6] g = {1.0, 1.0, 1.0, 1.0, 1.0, 1.0}, float[6, 6] q = {BIG36},
     float[6, 6] k = {BIG36}, float[6, 3] o = {BIG18}, int64[4] shape = {1, 4, 2, 3}, int64[3] back = {1, 4, 6}>
    { x = Gather <axis = 0> (e, ids)  n = LayerNormalization <axis = -1> (x, g)
      a = MatMul(n, q)  a4 = Reshape(a, shape)  at = Transpose <perm = [0, 2, 1, 3]> (a4)
      b = MatMul(n, k)  b4 = Reshape(b, shape)  bt = Transpose <perm = [0, 2, 3, 1]> (b4)
      s = MatMul(at, bt)  p = Softmax <axis = -1> (s)  d = MatMul(p, at)
      t = Transpose <perm = [0, 2, 1, 3]> (d)  f = Reshape(t, back)  h = Gelu(f)  y = MatMul(h, o) }""",
    """<ir_version: 8, opset_import: ["" : 18]>
    shapes (float[B, 6] x) => (float[B, 2, 3] y)
    <float[6] w = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0}>
    { z = Mul(x, w)  s = Shape(z)  i = Constant <value = int64[1] {0}> ()  f = Gather(s, i)
      r = Constant <value = int64[2] {2, 3}> ()  j = Concat <axis = 0> (f, r)  u = Reshape(z, j)
      o = Constant <value = float[1] {0.5}> ()  v = Pow(u, o)  t = Slice(v, i, r, i)  y = Sub(v, v) }""",
    """<ir_version: 8, opset_import: ["" : 18, "own" : 1]>
    calls (float[3, 4] x) => (float[3, 4] y)
    <float[4] w = {1.0, 2.0, 3.0, 4.0}> { a = own.scaled (x, w)  y = Sigmoid(a) }
    <domain: "own", opset_import: ["" : 18]> scaled (p, q) => (r) { t = Mul(p, q)  r = Tanh(t) }""",
    """<ir_version: 8, opset_import: ["" : 17]>
    recurrent (float[5, 2, 3] x) => (float[2, 4] y)
    <float[1, 16, 3] w = {BIG48}, float[1, 16, 4] r = {BIG64}, float[1, 32] b = {BIG32}>
    { s, h = LSTM <hidden_size = 4> (x, w, r, b)  a = Constant <value = int64[1] {0}> ()  y = Squeeze(h, a) }""",
    """<ir_version: 9, opset_import: ["" : 18]>
    constants (float[2, 8] x) => (float[2, 4] y)
    <float[8, 4] w = {BIG32}, float[1] one = {1.0}, int64[2] s = {2, 3}, int64 n = {4}, int64 z = {0}, int64 d = {1},
     int64[4] p = {0, 1, 0, 1}, float[2] v = {0.0, 1.0}, int64[2] t = {2, 2}>
    { e = Expand(one, s)  q = Pad(e, p)  u = Tile(q, t)  k = Range(z, n, d)  o = OneHot(k, n, v)  m = MatMul(o, o)
      g = ReduceMax <keepdims = 0> (u)  i = ReduceSum <keepdims = 0> (m)  c = Mul(g, i)
      a = MatMul(x, w)  b = Add(a, c)  y = Sigmoid(b) }""",
)


def adaptable() -> onnx.ModelProto:
    """A small sound one with products that LoRA and the quantizer know: plain, turned, biased, and a tied table."""
    shapes = {"e": (32, 16), "q_proj": (16, 16), "v_proj": (16, 16), "o": (16, 16)}
    count = helper.make_node("Constant", [], ["shape"], value_ints=[-1, 16])
    nodes = [
        helper.make_node("Gather", ["e.weight", "ids"], ["x"], name="e/Gather"),
        helper.make_node("MatMul", ["x", "q_proj.weight"], ["q"], name="q_proj/MatMul"),
        helper.make_node("Add", ["q", "q_proj.bias"], ["qb"], name="q_proj/Add"),
        helper.make_node("Transpose", ["v_proj.weight"], ["vt"], name="v_proj/Transpose", perm=[1, 0]),
        helper.make_node("MatMul", ["x", "vt"], ["v"], name="v_proj/MatMul"),
        helper.make_node("Add", ["qb", "v"], ["s"], name="s/Add"),
        count,
        helper.make_node("Reshape", ["s", "shape"], ["rows"], name="rows/Reshape"),
        helper.make_node("Gemm", ["rows", "o.weight", "q_proj.bias"], ["g"], name="o/Gemm", transB=1, alpha=0.5),
        helper.make_node("Relu", ["g"], ["r"], name="r/Relu"),
        helper.make_node("Transpose", ["e.weight"], ["et"], name="logits/Transpose", perm=[1, 0]),
        helper.make_node("MatMul", ["r", "et"], ["logits"], name="logits/MatMul"),
    ]
    stored = {f"{name}.weight": shape for name, shape in shapes.items()} | {"q_proj.bias": (16,)}
    values = [
        numpy_helper.from_array((np.arange(math.prod(s)) * 7 % 13 - 6).astype(np.float32).reshape(s) / 10, name)
        for name, s in stored.items()
    ]
    ids = helper.make_tensor_value_info("ids", onnx.TensorProto.INT64, [2, 4])
    logits = helper.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, [8, 32])
    graph = helper.make_graph(nodes, "adaptable", [ids], [logits], values)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


OPTIONS = {"shapes": ("--batch", "2")}
"""What a model needs on the command line, by its name."""


def models() -> tuple[onnx.ModelProto, ...]:
    """The sound models that the damaged ones are made of."""
    made = []
    for text in TEXTS:
        for count in (15, 18, 30, 32, 36, 42, 48, 64, 72):
            numbers = ", ".join(f"{(k * 7 % 13 - 6) / 10}" for k in range(count))
            text = text.replace(f"{{BIG{count}}}", f"{{{numbers}}}")
        made.append(onnx.parser.parse_model(text))
    return tuple(made)


def damaged(seed: int, count: int) -> Iterator[tuple[str, bytes]]:
    """`count` damaged files, each with a line that says how it was made."""
    sound = models()
    for number in range(count):
        rng = random.Random(f"{seed}/{number}")
        base = rng.choice(sound)
        if number % 2:
            yield f"{number}: bytes of {base.graph.name}", bytes_of(base.SerializeToString(), rng)
        else:
            yield f"{number}: fields of {base.graph.name}", fields_of(base, rng)


def bytes_of(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 8))):
        at, length = rng.randrange(len(changed) + 1), rng.choice((1, 1, 2, 4, 16, 64))
        action = rng.randrange(5)
        if action == 0 and at < len(changed):
            changed[at] ^= 1 << rng.randrange(8)
        elif action == 1:
            del changed[at : at + length]
        elif action == 2:
            changed[at:at] = changed[at : at + length]
        elif action == 3:
            changed[at : at + length] = rng.randbytes(length)
        else:
            changed[at : at + 1] = rng.choice((b"\xff", b"\x00", b"\x80" * 9 + b"\x01", b"\x7f"))
    return bytes(changed)


_WHOLE = (0, 1, -1, 2, 3, 7, 16, 127, 2**31 - 1, -(2**31), 2**40, 2**63 - 1, -(2**63))
_FLOATS = (0.0, 1.0, -1.0, 1e-45, 3.4e38, float("inf"), float("-inf"), float("nan"))
_TEXTS = ("", "x", "y", "w", "Relu", "Conv", "Loop", "If", "Reshape", "NoSuchOp", "ai.onnx.ml", "a/../b", "é\n", "N")


def fields_of(base: onnx.ModelProto, rng: random.Random) -> bytes:
    model = onnx.ModelProto()
    model.CopyFrom(base)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        places = list(_places(model))
        if not places:
            break
        message, field = rng.choice(places)
        _change(message, field, rng)
    return bytes(model.SerializeToString())


def _places(message: Message) -> Iterator[tuple[Message, FieldDescriptor]]:
    """Every field that is set, at any depth."""
    for field, value in message.ListFields():
        yield message, field
        if field.message_type is not None:
            for inner in value if isinstance(value, Sequence) or hasattr(value, "add") else (value,):
                yield from _places(inner)


def _change(message: Message, field: FieldDescriptor, rng: random.Random) -> None:
    value: Any = getattr(message, field.name)
    if not (isinstance(value, Sequence) and not isinstance(value, str | bytes)) and not hasattr(value, "append"):
        if field.message_type is not None or rng.random() < 0.2:
            message.ClearField(field.name)
        else:
            _set(message, field, rng)
        return
    action = rng.randrange(4)
    if not len(value) or action == 0:
        message.ClearField(field.name)
    elif action == 1:
        del value[rng.randrange(len(value))]
    elif field.message_type is not None:
        chosen = rng.choice(value)
        if action == 2:
            value.add().CopyFrom(chosen)
        else:
            other = rng.choice(value)
            kept = type(chosen)()
            kept.CopyFrom(chosen)
            chosen.CopyFrom(other)
            other.CopyFrom(kept)
    else:
        value[rng.randrange(len(value))] = _drawn(field, rng)


def _set(message: Message, field: FieldDescriptor, rng: random.Random) -> None:
    drawn = _drawn(field, rng)
    try:
        setattr(message, field.name, drawn)
    except (ValueError, TypeError):
        message.ClearField(field.name)


def _drawn(field: FieldDescriptor, rng: random.Random) -> Any:
    kinds = FieldDescriptor
    if field.cpp_type in (kinds.CPPTYPE_FLOAT, kinds.CPPTYPE_DOUBLE):
        return rng.choice(_FLOATS)
    if field.type == kinds.TYPE_STRING:
        return rng.choice(_TEXTS)
    if field.type == kinds.TYPE_BYTES:
        return rng.randbytes(rng.choice((0, 1, 7, 64)))
    if field.cpp_type in (kinds.CPPTYPE_INT32, kinds.CPPTYPE_ENUM):
        return rng.choice(tuple(n for n in _WHOLE if -(2**31) <= n < 2**31) + tuple(range(24)))
    if field.cpp_type in (kinds.CPPTYPE_UINT64, kinds.CPPTYPE_UINT32):
        return rng.choice((0, 1, 2, 2**31 - 1))
    return rng.choice(_WHOLE + tuple(range(25)))
