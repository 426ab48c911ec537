"""The layers of transformers, as today's exporters write them: MatMul and Add, LayerNormalization, Gelu, Softmax.

The scale of attention is applied to the queries, which are smaller than the scores.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from poetopt.zoo.network import Network

OPSET = 20
"""The first with Gelu."""

DEVIATION = 0.02
"""Of the normal distribution that weights are drawn from."""


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
    """An initializer drawn from N(0, 0.02)."""
    return net.weight(name, net.rng.standard_normal(shape, dtype=np.float32) * np.float32(DEVIATION))


def linear(net: Network, x: str, name: str, inside: int, outside: int) -> str:
    """x W + b along the last axis; W lies as MatMul reads it."""
    y = net.add("MatMul", [x, normal(net, f"{name}.weight", (inside, outside))], name)
    bias = net.weight(f"{name}.bias", np.zeros(outside, np.float32))
    return net.add("Add", [y, bias], f"{name}.add")


def layer_norm(net: Network, x: str, name: str, width: int, epsilon: float) -> str:
    """LayerNormalization of the last axis, with scale and bias."""
    scale = net.weight(f"{name}.weight", np.ones(width, np.float32))
    bias = net.weight(f"{name}.bias", np.zeros(width, np.float32))
    return net.add("LayerNormalization", [x, scale, bias], name, axis=-1, epsilon=epsilon)


def reshape(net: Network, x: str, name: str, shape: tuple[int, ...]) -> str:
    """The same elements under another shape."""
    return net.add("Reshape", [x, net.constant(f"{name}.shape", np.array(shape, np.int64))], name)


def heads(net: Network, x: str, name: str, size: Size, perm: tuple[int, ...] = (0, 2, 1, 3)) -> str:
    """[batch, tokens, width] -> [batch, heads, tokens, depth], or another order of these axes."""
    x = reshape(net, x, f"{name}.split", (size.batch, size.tokens, size.heads, size.depth))
    return net.add("Transpose", [x], f"{name}.transpose", perm=list(perm))


KEYS = (0, 2, 3, 1)
"""`perm` of `heads` for keys, which are multiplied transposed."""


def attention(net: Network, queries: str, keys: str, values: str, name: str, size: Size, mask: str = "") -> str:
    """softmax(q k / sqrt(depth) + mask) v for each head, and the heads side by side again.

    queries, values
        [batch, heads, tokens, depth].
    keys
        [batch, heads, depth, tokens].
    mask
        What is added to the scores [batch, heads, tokens, tokens]; none where it is "".
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
    """Queries, keys and values of attention from one projection of three times the width, parameters `<name>.*`."""
    parts = tuple(f"{name}.{part}" for part in ("q", "k", "v"))
    together = linear(net, x, name, size.width, 3 * size.width)
    net.split(together, f"{name}.split", parts, axis=-1)
    orders = ((0, 2, 1, 3), KEYS, (0, 2, 1, 3))
    q, k, v = (heads(net, part, part, size, perm) for part, perm in zip(parts, orders, strict=True))
    return q, k, v


def feed_forward(net: Network, x: str, names: tuple[str, str], widths: tuple[int, int], approximate: str) -> str:
    """Two linear layers with Gelu between; `approximate` is `none` (by erf) or `tanh`."""
    x = linear(net, x, names[0], *widths)
    x = net.add("Gelu", [x], f"{names[0]}.gelu", approximate=approximate)
    return linear(net, x, names[1], widths[1], widths[0])
