"""The zoo's networks as torch writes them, over the same parameters: what a training step is timed against.

Each function takes the parameters by name and the inputs, and gives the logits. Torch's own fast paths are taken where
it has them: convolution with its pads, linear layers with their bias, scaled dot-product attention.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch.nn.functional as f
from torch import Tensor

from poetopt.zoo import bert, mobilenet, resnet, vgg

Weights = Mapping[str, Tensor]


def resnet18(p: Weights, inputs: Sequence[Tensor]) -> Any:
    """`resnet18-cifar`."""
    x = f.relu(_norm(p, f.conv2d(inputs[0], p["conv1.weight"], padding=1), "bn1"))
    for stage, (_, first) in enumerate(resnet.STAGES, start=1):
        for block in range(2):
            name, stride = f"layer{stage}.{block}", first if block == 0 else 1
            y = f.conv2d(x, p[f"{name}.conv1.weight"], stride=stride, padding=1)
            y = f.relu(_norm(p, y, f"{name}.bn1"))
            y = _norm(p, f.conv2d(y, p[f"{name}.conv2.weight"], padding=1), f"{name}.bn2")
            if f"{name}.shortcut.0.weight" in p:
                x = _norm(p, f.conv2d(x, p[f"{name}.shortcut.0.weight"], stride=stride), f"{name}.shortcut.1")
            x = f.relu(y + x)
    return _linear(p, x.mean((2, 3)), "fc")


def lenet(p: Weights, inputs: Sequence[Tensor]) -> Any:
    """`lenet`."""
    x = inputs[0]
    for name, padding in (("conv1", 2), ("conv2", 0)):
        x = f.max_pool2d(f.relu(f.conv2d(x, p[f"{name}.weight"], p[f"{name}.bias"], padding=padding)), 2)
    x = f.relu(_linear(p, x.flatten(1), "fc1"))
    return _linear(p, f.relu(_linear(p, x, "fc2")), "fc3")


def vgg16(p: Weights, inputs: Sequence[Tensor]) -> Any:
    """`vgg16-cifar`."""
    x = inputs[0]
    for stage, (_, convolutions) in enumerate(vgg.STAGES, start=1):
        for index in range(1, convolutions + 1):
            name = f"conv{stage}_{index}"
            x = f.relu(f.conv2d(x, p[f"{name}.weight"], p[f"{name}.bias"], padding=1))
        x = f.max_pool2d(x, 2)
    x = f.relu(_linear(p, x.flatten(1), "fc1"))
    return _linear(p, f.relu(_linear(p, x, "fc2")), "fc3")


def mobilenetv2(p: Weights, inputs: Sequence[Tensor]) -> Any:
    """`mobilenetv2`."""

    def convolution(x: Tensor, name: str, stride: int = 1) -> Any:
        w = p[f"{name}.0.weight"]
        group = x.shape[1] // w.shape[1]
        return f.relu6(_norm(p, f.conv2d(x, w, stride=stride, padding=w.shape[2] // 2, groups=group), f"{name}.1"))

    x, before, index = convolution(inputs[0], "features.0", 2), 32, 1
    for expansion, channels, blocks, first in mobilenet.STAGES:
        for block in range(blocks):
            name, stride = f"features.{index}.conv", first if block == 0 else 1
            y = convolution(x, f"{name}.0") if expansion > 1 else x
            layer = 1 if expansion > 1 else 0
            y = convolution(y, f"{name}.{layer}", stride)
            y = _norm(p, f.conv2d(y, p[f"{name}.{layer + 1}.weight"]), f"{name}.{layer + 2}")
            x = x + y if stride == 1 and before == channels else y
            before, index = channels, index + 1
    return _linear(p, convolution(x, f"features.{index}").mean((2, 3)), "classifier.1")


def bert_tiny(p: Weights, inputs: Sequence[Tensor]) -> Any:
    """`bert-tiny`."""
    ids, mask, types = inputs
    layers, width, heads = bert.VARIANTS["tiny"]
    names = [f"bert.embeddings.{kind}_embeddings.weight" for kind in ("word", "token_type", "position")]
    x = f.embedding(ids, p[names[0]]) + f.embedding(types, p[names[1]]) + p[names[2]][: bert.TOKENS]
    x = _layer_norm(p, x, "bert.embeddings.LayerNorm")
    bias = (1.0 - mask[:, None, None].float()) * -3.4e38

    def split(x: Tensor) -> Any:
        return x.view(*x.shape[:2], heads, width // heads).transpose(1, 2)

    for index in range(layers):
        name = f"bert.encoder.layer.{index}"
        q, k, v = (split(_dense(p, x, f"{name}.attention.self.{what}")) for what in ("query", "key", "value"))
        mixed = f.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).reshape(x.shape)
        mixed = _dense(p, mixed, f"{name}.attention.output.dense")
        x = _layer_norm(p, mixed + x, f"{name}.attention.output.LayerNorm")
        y = _dense(p, f.gelu(_dense(p, x, f"{name}.intermediate.dense")), f"{name}.output.dense")
        x = _layer_norm(p, y + x, f"{name}.output.LayerNorm")
    return _dense(p, _dense(p, x[:, 0], "bert.pooler.dense").tanh(), "classifier")


NETWORKS: Mapping[str, Callable[[Weights, Sequence[Tensor]], Any]] = {
    "lenet": lenet,
    "resnet18-cifar": resnet18,
    "vgg16-cifar": vgg16,
    "mobilenetv2": mobilenetv2,
    "bert-tiny": bert_tiny,
}
"""By their names in the zoo."""


def _norm(p: Weights, x: Tensor, name: str) -> Any:
    mean, var = p[f"{name}.running_mean"], p[f"{name}.running_var"]
    return f.batch_norm(x, mean, var, p[f"{name}.weight"], p[f"{name}.bias"], training=True)


def _linear(p: Weights, x: Tensor, name: str) -> Any:
    return f.linear(x, p[f"{name}.weight"], p[f"{name}.bias"])


def _dense(p: Weights, x: Tensor, name: str) -> Any:
    # the zoo's transformers keep W as MatMul reads it
    return f.linear(x, p[f"{name}.weight"].T, p[f"{name}.bias"])


def _layer_norm(p: Weights, x: Tensor, name: str) -> Any:
    return f.layer_norm(x, x.shape[-1:], p[f"{name}.weight"], p[f"{name}.bias"], bert.EPSILON)
