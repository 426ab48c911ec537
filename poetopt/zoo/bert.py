"""BERT for sequence classification (Devlin et al., 2019): embeddings, encoder, pooler, and a classifier of 2 classes.

`base` has 12 layers of width 768 with 12 heads, `tiny` 2 layers of width 128 with 2 heads (Turc et al., 2019); the
uncased vocabulary of 30,522 tokens, 512 positions of which the first 128 are used, or as many as a sequence has.
Dropout is left out.
"""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, TensorProto

from poetopt.zoo.network import Network
from poetopt.zoo.transformer import (
    KEYS,
    OPSET,
    Size,
    attention,
    feed_forward,
    heads,
    layer_norm,
    linear,
    normal,
)

SEED = 3
VOCABULARY, POSITIONS, TYPES, TOKENS, CLASSES = 30_522, 512, 2, 128, 2
EPSILON = 1e-12
VARIANTS = {"base": (12, 768, 12), "tiny": (2, 128, 2)}
"""Layers, width and heads."""


def build(batch: int, variant: str, tokens: int = TOKENS) -> ModelProto:
    """Inputs `input_ids`, `attention_mask` and `token_type_ids`, int64 [batch, tokens]; output [batch, 2]."""
    layers, width, count = VARIANTS[variant]
    size = Size(batch, tokens, width, count)
    net = Network(f"bert-{variant}", SEED, OPSET)
    shape = (batch, tokens)
    ids, mask, types = (
        net.input(name, shape, TensorProto.INT64) for name in ("input_ids", "attention_mask", "token_type_ids")
    )
    x = _embeddings(net, ids, types, size)
    bias = _mask(net, mask)
    for index in range(layers):
        x = layer(net, x, f"bert.encoder.layer.{index}", size, bias)
    first = net.add("Gather", [x, net.constant("first", np.array(0, np.int64))], "bert.pooler.first", axis=1)
    pooled = net.add("Tanh", [linear(net, first, "bert.pooler.dense", width, width)], "bert.pooler.activation")
    return net.model(linear(net, pooled, "classifier", width, CLASSES), (batch, CLASSES))


def _embeddings(net: Network, ids: str, types: str, size: Size) -> str:
    width = size.width
    places = net.constant("position_ids", np.arange(size.tokens, dtype=np.int64)[None])
    tables = (("word", VOCABULARY, ids), ("token_type", TYPES, types), ("position", POSITIONS, places))
    found = []
    for name, rows, indices in tables:
        table = normal(net, f"bert.embeddings.{name}_embeddings.weight", (rows, width))
        found.append(net.add("Gather", [table, indices], f"bert.embeddings.{name}", axis=0))
    x = net.add("Add", found[:2], "bert.embeddings.add1")
    x = net.add("Add", [x, found[2]], "bert.embeddings.add2")
    return layer_norm(net, x, "bert.embeddings.LayerNorm", width, EPSILON)


def _mask(net: Network, mask: str) -> str:
    """0 where a token takes part, the least float where it does not: [batch, 1, 1, tokens]."""
    axes = net.constant("mask.axes", np.array([1, 2], np.int64))
    x = net.add("Cast", [net.add("Unsqueeze", [mask, axes], "mask.unsqueeze")], "mask.cast", to=TensorProto.FLOAT)
    hidden = net.add("Sub", [net.constant("mask.one", np.ones((), np.float32)), x], "mask.hidden")
    least = net.constant("mask.least", np.array(np.finfo(np.float32).min, np.float32))
    return net.add("Mul", [hidden, least], "mask.bias")


def layer(net: Network, x: str, name: str, size: Size, mask: str) -> str:
    """Attention, then two linear layers, each added to its input and normalized."""
    orders = {"query": (0, 2, 1, 3), "key": KEYS, "value": (0, 2, 1, 3)}
    inner = f"{name}.attention.self"
    projected = {what: linear(net, x, f"{inner}.{what}", size.width, size.width) for what in orders}
    q, k, v = (heads(net, projected[what], f"{inner}.{what}", size, perm) for what, perm in orders.items())
    mixed = attention(net, q, k, v, inner, size, mask)
    mixed = linear(net, mixed, f"{name}.attention.output.dense", size.width, size.width)
    x = net.add("Add", [mixed, x], f"{name}.attention.output.add")
    x = layer_norm(net, x, f"{name}.attention.output.LayerNorm", size.width, EPSILON)
    names = (f"{name}.intermediate.dense", f"{name}.output.dense")
    y = net.add("Add", [feed_forward(net, x, names, (size.width, 4 * size.width), "none"), x], f"{name}.output.add")
    return layer_norm(net, y, f"{name}.output.LayerNorm", size.width, EPSILON)
