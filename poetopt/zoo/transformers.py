"""Transformers with the operators of today's exporters: MatMul and Add, LayerNormalization, Gelu, Softmax.

The scale of attention is applied to the queries, which are smaller than the scores.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from onnx import ModelProto, TensorProto

from poetopt.zoo.network import Network

OPSET = 20
"""The first opset with Gelu."""

DEVIATION = 0.02
"""Standard deviation of the weights."""


@dataclass(frozen=True, slots=True)
class Size:
    """Sequences and widths that every layer of a network shares."""

    batch: int
    tokens: int
    width: int
    heads: int

    @property
    def depth(self) -> int:
        """Width of one head."""
        return self.width // self.heads


def normal(net: Network, name: str, shape: tuple[int, ...]) -> str:
    """Add an initializer drawn from N(0, 0.02)."""
    return net.weight(name, net.rng.standard_normal(shape, dtype=np.float32) * np.float32(DEVIATION))


def linear(net: Network, x: str, name: str, in_features: int, out_features: int) -> str:
    """Add x W + b along the last axis, with W [in, out]."""
    y = net.add("MatMul", [x, normal(net, f"{name}.weight", (in_features, out_features))], name)
    bias = net.weight(f"{name}.bias", np.zeros(out_features, np.float32))
    return net.add("Add", [y, bias], f"{name}.add")


def layer_norm(net: Network, x: str, name: str, width: int, epsilon: float) -> str:
    """Add LayerNormalization of the last axis, with scale and bias."""
    scale = net.weight(f"{name}.weight", np.ones(width, np.float32))
    bias = net.weight(f"{name}.bias", np.zeros(width, np.float32))
    return net.add("LayerNormalization", [x, scale, bias], name, axis=-1, epsilon=epsilon)


def reshape(net: Network, x: str, name: str, shape: tuple[int, ...]) -> str:
    """Add a Reshape."""
    return net.add("Reshape", [x, net.constant(f"{name}.shape", np.array(shape, np.int64))], name)


def heads(net: Network, x: str, name: str, size: Size, perm: tuple[int, ...] = (0, 2, 1, 3)) -> str:
    """Split [batch, tokens, width] into [batch, heads, tokens, depth], or another order of these axes."""
    x = reshape(net, x, f"{name}.split", (size.batch, size.tokens, size.heads, size.depth))
    return net.add("Transpose", [x], f"{name}.transpose", perm=list(perm))


KEYS = (0, 2, 3, 1)
"""`perm` of `heads` for keys, which attention reads transposed."""


def attention(net: Network, queries: str, keys: str, values: str, name: str, size: Size, mask: str = "") -> str:
    """Add softmax(q k / sqrt(depth) + mask) v for each head, and concatenate the heads.

    Parameters
    ----------
    queries, values
        Tensors [batch, heads, tokens, depth].
    keys
        Tensor [batch, heads, depth, tokens].
    mask
        Tensor added to the scores [batch, heads, tokens, tokens]; "" for none.
    """
    scale = net.constant(f"{name}.scale", np.array(size.depth**-0.5, np.float32))
    scaled = net.add("Mul", [queries, scale], f"{name}.scaled")
    scores = net.add("MatMul", [scaled, keys], f"{name}.scores")
    if mask:
        scores = net.add("Add", [scores, mask], f"{name}.masked")
    weights = net.add("Softmax", [scores], f"{name}.softmax", axis=-1)
    mixed = net.add("MatMul", [weights, values], f"{name}.mixed")
    mixed = net.add("Transpose", [mixed], f"{name}.merge", perm=[0, 2, 1, 3])
    return reshape(net, mixed, f"{name}.merged", (size.batch, size.tokens, size.width))


def fused_heads(net: Network, x: str, name: str, size: Size) -> tuple[str, str, str]:
    """Add queries, keys and values from one projection of three times the width, parameters `<name>.*`."""
    parts = tuple(f"{name}.{part}" for part in ("q", "k", "v"))
    projected = linear(net, x, name, size.width, 3 * size.width)
    net.split(projected, f"{name}.split", parts, axis=-1)
    orders = ((0, 2, 1, 3), KEYS, (0, 2, 1, 3))
    q, k, v = (heads(net, part, part, size, perm) for part, perm in zip(parts, orders, strict=True))
    return q, k, v


def feed_forward(net: Network, x: str, names: tuple[str, str], widths: tuple[int, int], approximate: str) -> str:
    """Add two linear layers with Gelu between; `approximate` is `none` (by erf) or `tanh`."""
    x = linear(net, x, names[0], *widths)
    x = net.add("Gelu", [x], f"{names[0]}.gelu", approximate=approximate)
    return linear(net, x, names[1], widths[1], widths[0])


BERT_VOCABULARY, BERT_POSITIONS, BERT_TYPES, TOKENS, BERT_CLASSES = 30_522, 512, 2, 128, 2
BERT_EPSILON = 1e-12
BERTS = {"base": (12, 768, 12), "tiny": (2, 128, 2)}
"""Layers, width and heads."""


def bert(batch: int, variant: str, tokens: int = TOKENS) -> ModelProto:
    """Build BERT (Devlin et al., 2019) for classification of sequences: embeddings, encoder, pooler, 2 classes.

    Inputs `input_ids`, `attention_mask` and `token_type_ids`, int64 [batch, tokens]; output [batch, 2].

    `base` has 12 layers of width 768 with 12 heads, `tiny` 2 layers of width 128 with 2 heads (Turc et al., 2019). Both
    have the uncased vocabulary of 30,522 tokens, and 512 positions, of which the first `tokens` are used. Dropout is
    omitted.
    """
    layers, width, count = BERTS[variant]
    size = Size(batch, tokens, width, count)
    net = Network(f"bert-{variant}", 3, OPSET)
    shape = (batch, tokens)
    ids, mask, types = (
        net.input(name, shape, TensorProto.INT64) for name in ("input_ids", "attention_mask", "token_type_ids")
    )
    x = _embeddings(net, ids, types, size)
    bias = _bert_mask(net, mask)
    for index in range(layers):
        x = bert_layer(net, x, f"bert.encoder.layer.{index}", size, bias)
    first = net.add("Gather", [x, net.constant("first", np.array(0, np.int64))], "bert.pooler.first", axis=1)
    pooled = net.add("Tanh", [linear(net, first, "bert.pooler.dense", width, width)], "bert.pooler.activation")
    return net.model(linear(net, pooled, "classifier", width, BERT_CLASSES), (batch, BERT_CLASSES))


def _embeddings(net: Network, ids: str, types: str, size: Size) -> str:
    width = size.width
    places = net.constant("position_ids", np.arange(size.tokens, dtype=np.int64)[None])
    tables = ("word", BERT_VOCABULARY, ids), ("token_type", BERT_TYPES, types), ("position", BERT_POSITIONS, places)
    embeddings = []
    for name, vocabulary, indices in tables:
        table = normal(net, f"bert.embeddings.{name}_embeddings.weight", (vocabulary, width))
        embeddings.append(net.add("Gather", [table, indices], f"bert.embeddings.{name}", axis=0))
    x = net.add("Add", embeddings[:2], "bert.embeddings.add1")
    x = net.add("Add", [x, embeddings[2]], "bert.embeddings.add2")
    return layer_norm(net, x, "bert.embeddings.LayerNorm", width, BERT_EPSILON)


def _bert_mask(net: Network, mask: str) -> str:
    """Return the mask [batch, 1, 1, tokens]: 0 for a token that takes part, else the least float."""
    axes = net.constant("mask.axes", np.array([1, 2], np.int64))
    x = net.add("Cast", [net.add("Unsqueeze", [mask, axes], "mask.unsqueeze")], "mask.cast", to=TensorProto.FLOAT)
    hidden = net.add("Sub", [net.constant("mask.one", np.ones((), np.float32)), x], "mask.hidden")
    least = net.constant("mask.least", np.array(np.finfo(np.float32).min, np.float32))
    return net.add("Mul", [hidden, least], "mask.bias")


def bert_layer(net: Network, x: str, name: str, size: Size, mask: str) -> str:
    """Add attention, then two linear layers, each added to its input and normalized."""
    orders = {"query": (0, 2, 1, 3), "key": KEYS, "value": (0, 2, 1, 3)}
    inner = f"{name}.attention.self"
    projected = {kind: linear(net, x, f"{inner}.{kind}", size.width, size.width) for kind in orders}
    q, k, v = (heads(net, projected[kind], f"{inner}.{kind}", size, perm) for kind, perm in orders.items())
    mixed = attention(net, q, k, v, inner, size, mask)
    mixed = linear(net, mixed, f"{name}.attention.output.dense", size.width, size.width)
    x = net.add("Add", [mixed, x], f"{name}.attention.output.add")
    x = layer_norm(net, x, f"{name}.attention.output.LayerNorm", size.width, BERT_EPSILON)
    names = (f"{name}.intermediate.dense", f"{name}.output.dense")
    y = net.add("Add", [feed_forward(net, x, names, (size.width, 4 * size.width), "none"), x], f"{name}.output.add")
    return layer_norm(net, y, f"{name}.output.LayerNorm", size.width, BERT_EPSILON)


GPT2_VOCABULARY, GPT2_POSITIONS, TOKENS = 50_257, 1_024, 128
GPT2_LAYERS, GPT2_WIDTH, GPT2_HEADS = 12, 768, 12
GPT2_EPSILON = 1e-5


def gpt2(batch: int, tokens: int = TOKENS) -> ModelProto:
    """Build GPT-2 small (Radford et al., 2019): 12 layers of width 768 with 12 heads, 50,257 tokens, 1,024 positions.

    Input `input_ids`, int64 [batch, tokens]; output [batch, tokens, 50257]; 148 parameters.

    The head that scores the next token shares its weight with the token embedding. `--loss cross-entropy` reads the
    next token at each position as `labels`. Dropout is omitted.
    """
    size = Size(batch, tokens, GPT2_WIDTH, GPT2_HEADS)
    net = Network("gpt2-small", 4, OPSET)
    ids = net.input("input_ids", (batch, tokens), TensorProto.INT64)
    positions = net.constant("position_ids", np.arange(tokens, dtype=np.int64)[None])
    words = normal(net, "transformer.wte.weight", (GPT2_VOCABULARY, GPT2_WIDTH))
    x = net.add("Gather", [words, ids], "transformer.wte", axis=0)
    y = net.add(
        "Gather", [normal(net, "transformer.wpe.weight", (GPT2_POSITIONS, GPT2_WIDTH)), positions], "transformer.wpe"
    )
    x = net.add("Add", [x, y], "transformer.embed")
    is_later = np.triu(np.ones((tokens, tokens), np.bool_), 1)[None, None]
    mask = net.constant("causal", np.where(is_later, np.finfo(np.float32).min, np.float32(0)).astype(np.float32))
    for index in range(GPT2_LAYERS):
        x = _gpt2_layer(net, x, f"transformer.h.{index}", size, mask)
    x = layer_norm(net, x, "transformer.ln_f", GPT2_WIDTH, GPT2_EPSILON)
    flat = reshape(net, x, "lm_head.rows", (batch * tokens, GPT2_WIDTH))
    scores = net.add("Gemm", [flat, words], "lm_head", transB=1)
    shape = (batch, tokens, GPT2_VOCABULARY)
    return net.model(reshape(net, scores, "lm_head.logits", shape), shape)


def _gpt2_layer(net: Network, x: str, name: str, size: Size, mask: str) -> str:
    """Add attention and two linear layers, each on the normalized input and added to it."""
    y = layer_norm(net, x, f"{name}.ln_1", GPT2_WIDTH, GPT2_EPSILON)
    mixed = attention(net, *fused_heads(net, y, f"{name}.attn.c_attn", size), f"{name}.attn", size, mask)
    x = net.add("Add", [linear(net, mixed, f"{name}.attn.c_proj", GPT2_WIDTH, GPT2_WIDTH), x], f"{name}.add1")
    y = layer_norm(net, x, f"{name}.ln_2", GPT2_WIDTH, GPT2_EPSILON)
    y = feed_forward(net, y, (f"{name}.mlp.c_fc", f"{name}.mlp.c_proj"), (GPT2_WIDTH, 4 * GPT2_WIDTH), "tanh")
    return net.add("Add", [x, y], f"{name}.add2")


IMAGE, PATCH, VIT_LAYERS, VIT_WIDTH, VIT_HEADS, VIT_HIDDEN, VIT_CLASSES = 224, 16, 12, 768, 12, 3072, 1000
PATCHES = (IMAGE // PATCH) ** 2
VIT_EPSILON = 1e-6


def vit(batch: int) -> ModelProto:
    """Build Vision Transformer B/16 for 224x224 images (Dosovitskiy et al., 2021, table 1).

    Input [batch, 3, 224, 224], output [batch, 1000]; 152 parameters.

    It has 12 layers of width 768 with 12 heads, 196 patches of 16x16 pixels, and a class token, whose last state the
    classifier of 1,000 classes reads. Dropout is omitted.
    """
    size = Size(batch, PATCHES + 1, VIT_WIDTH, VIT_HEADS)
    net = Network("vit-b16", 6, OPSET)
    x = net.input("input", (batch, 3, IMAGE, IMAGE))
    x = net.conv(x, "conv_proj", (3, VIT_WIDTH), PATCH, PATCH, bias=True)
    x = reshape(net, x, "patches", (batch, VIT_WIDTH, PATCHES))
    x = net.add("Transpose", [x], "patches.transpose", perm=[0, 2, 1])
    token = net.weight("class_token", np.zeros((1, 1, VIT_WIDTH), np.float32))
    shape = net.constant("class_token.shape", np.array([batch, 1, VIT_WIDTH], np.int64))
    x = net.add("Concat", [net.add("Expand", [token, shape], "class_token.expand"), x], "tokens", axis=1)
    x = net.add("Add", [x, normal(net, "encoder.pos_embedding", (1, PATCHES + 1, VIT_WIDTH))], "encoder.embed")
    for index in range(VIT_LAYERS):
        x = _vit_layer(net, x, f"encoder.layers.encoder_layer_{index}", size)
    x = layer_norm(net, x, "encoder.ln", VIT_WIDTH, VIT_EPSILON)
    first = net.add("Gather", [x, net.constant("first", np.array(0, np.int64))], "encoder.first", axis=1)
    return net.model(linear(net, first, "heads.head", VIT_WIDTH, VIT_CLASSES), (batch, VIT_CLASSES))


def _vit_layer(net: Network, x: str, name: str, size: Size) -> str:
    """Add attention and two linear layers, each on the normalized input and added to it."""
    y = layer_norm(net, x, f"{name}.ln_1", VIT_WIDTH, VIT_EPSILON)
    qkv = fused_heads(net, y, f"{name}.self_attention.in_proj", size)
    mixed = attention(net, *qkv, f"{name}.self_attention", size)
    x = net.add("Add", [linear(net, mixed, f"{name}.self_attention.out_proj", VIT_WIDTH, VIT_WIDTH), x], f"{name}.add1")
    y = layer_norm(net, x, f"{name}.ln_2", VIT_WIDTH, VIT_EPSILON)
    y = feed_forward(net, y, (f"{name}.mlp.0", f"{name}.mlp.3"), (VIT_WIDTH, VIT_HIDDEN), "none")
    return net.add("Add", [x, y], f"{name}.add2")
