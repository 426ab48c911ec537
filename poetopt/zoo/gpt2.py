"""GPT-2 small (Radford et al., 2019): 12 layers of width 768 with 12 heads, 50,257 tokens, 1,024 positions.

The head that scores the next token shares its weight with the token embedding. Sequences have 128 tokens;
`--loss cross-entropy` takes the next token at each as `labels`. Dropout is left out.
"""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, TensorProto

from poetopt.zoo.network import Network
from poetopt.zoo.transformer import (
    OPSET,
    Size,
    attention,
    feed_forward,
    fused_heads,
    layer_norm,
    linear,
    normal,
    reshape,
)

SEED = 4
VOCABULARY, POSITIONS, TOKENS = 50_257, 1_024, 128
LAYERS, WIDTH, HEADS = 12, 768, 12
EPSILON = 1e-5


def build(batch: int, tokens: int = TOKENS) -> ModelProto:
    """Input `input_ids`, int64 [batch, tokens]; output [batch, tokens, 50257]; 148 parameters."""
    size = Size(batch, tokens, WIDTH, HEADS)
    net = Network("gpt2-small", SEED, OPSET)
    ids = net.input("input_ids", (batch, tokens), TensorProto.INT64)
    places = net.constant("position_ids", np.arange(tokens, dtype=np.int64)[None])
    words = normal(net, "transformer.wte.weight", (VOCABULARY, WIDTH))
    x = net.add("Gather", [words, ids], "transformer.wte", axis=0)
    y = net.add("Gather", [normal(net, "transformer.wpe.weight", (POSITIONS, WIDTH)), places], "transformer.wpe")
    x = net.add("Add", [x, y], "transformer.embed")
    later = np.triu(np.ones((tokens, tokens), np.bool_), 1)[None, None]
    mask = net.constant("causal", np.where(later, np.finfo(np.float32).min, np.float32(0)).astype(np.float32))
    for index in range(LAYERS):
        x = _layer(net, x, f"transformer.h.{index}", size, mask)
    x = layer_norm(net, x, "transformer.ln_f", WIDTH, EPSILON)
    rows = reshape(net, x, "lm_head.rows", (batch * tokens, WIDTH))
    scores = net.add("Gemm", [rows, words], "lm_head", transB=1)
    shape = (batch, tokens, VOCABULARY)
    return net.model(reshape(net, scores, "lm_head.logits", shape), shape)


def _layer(net: Network, x: str, name: str, size: Size, mask: str) -> str:
    """Attention and two linear layers, each on the normalized input and added to it."""
    y = layer_norm(net, x, f"{name}.ln_1", WIDTH, EPSILON)
    mixed = attention(net, *fused_heads(net, y, f"{name}.attn.c_attn", size), f"{name}.attn", size, mask)
    x = net.add("Add", [linear(net, mixed, f"{name}.attn.c_proj", WIDTH, WIDTH), x], f"{name}.add1")
    y = layer_norm(net, x, f"{name}.ln_2", WIDTH, EPSILON)
    y = feed_forward(net, y, (f"{name}.mlp.c_fc", f"{name}.mlp.c_proj"), (WIDTH, 4 * WIDTH), "tanh")
    return net.add("Add", [x, y], f"{name}.add2")
