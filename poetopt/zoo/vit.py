"""Vision Transformer B/16 for 224x224 images (Dosovitskiy et al., 2021, table 1): 12 layers of width 768, 12 heads.

196 patches of 16x16 pixels and a class token, whose last state the classifier of 1,000 classes reads.
Dropout is left out.
"""

from __future__ import annotations

import numpy as np
from onnx import ModelProto

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

SEED = 6
IMAGE, PATCH, LAYERS, WIDTH, HEADS, HIDDEN, CLASSES = 224, 16, 12, 768, 12, 3072, 1000
PATCHES = (IMAGE // PATCH) ** 2
EPSILON = 1e-6


def build(batch: int) -> ModelProto:
    """Input [batch, 3, 224, 224], output [batch, 1000]; 152 parameters."""
    size = Size(batch, PATCHES + 1, WIDTH, HEADS)
    net = Network("vit-b16", SEED, OPSET)
    x = net.input("input", (batch, 3, IMAGE, IMAGE))
    x = net.conv(x, "conv_proj", (3, WIDTH), PATCH, PATCH, bias=True)
    x = reshape(net, x, "patches", (batch, WIDTH, PATCHES))
    x = net.add("Transpose", [x], "patches.transpose", perm=[0, 2, 1])
    token = net.weight("class_token", np.zeros((1, 1, WIDTH), np.float32))
    shape = net.constant("class_token.shape", np.array([batch, 1, WIDTH], np.int64))
    x = net.add("Concat", [net.add("Expand", [token, shape], "class_token.expand"), x], "tokens", axis=1)
    x = net.add("Add", [x, normal(net, "encoder.pos_embedding", (1, PATCHES + 1, WIDTH))], "encoder.embed")
    for index in range(LAYERS):
        x = _layer(net, x, f"encoder.layers.encoder_layer_{index}", size)
    x = layer_norm(net, x, "encoder.ln", WIDTH, EPSILON)
    first = net.add("Gather", [x, net.constant("first", np.array(0, np.int64))], "encoder.first", axis=1)
    return net.model(linear(net, first, "heads.head", WIDTH, CLASSES), (batch, CLASSES))


def _layer(net: Network, x: str, name: str, size: Size) -> str:
    """Attention and two linear layers, each on the normalized input and added to it."""
    y = layer_norm(net, x, f"{name}.ln_1", WIDTH, EPSILON)
    qkv = fused_heads(net, y, f"{name}.self_attention.in_proj", size)
    mixed = attention(net, *qkv, f"{name}.self_attention", size)
    x = net.add("Add", [linear(net, mixed, f"{name}.self_attention.out_proj", WIDTH, WIDTH), x], f"{name}.add1")
    y = layer_norm(net, x, f"{name}.ln_2", WIDTH, EPSILON)
    y = feed_forward(net, y, (f"{name}.mlp.0", f"{name}.mlp.3"), (WIDTH, HIDDEN), "none")
    return net.add("Add", [x, y], f"{name}.add2")
