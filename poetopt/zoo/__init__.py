"""Networks to start with, built on the spot with seeded weights: nothing to download.

Weights are drawn as their authors draw them (He's initialisation for convolutional networks, N(0, 0.02) for
transformers). Images come in as `input`, tokens as `input_ids`; outputs are called `logits`, and
parameters have the names that PyTorch's modules give them. Dropout is left out, so that a step has one result.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from poetopt.util.errors import ModelError
from poetopt.util.text import closest

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True, slots=True)
class ZooEntry:
    """A network: module and function that build it for a batch, its default batch, and a line for people.

    variant
        Where a function builds several networks, the name of this one, its second argument.
    positions
        The most tokens that a sequence may have, where the network reads tokens.
    """

    builder: str
    batch: int
    about: str
    variant: str = ""
    positions: int = 0


TOKENS = "input_ids"
"""The input that tokens come in as, (batch, tokens)."""

ZOO = {
    "autoencoder": ZooEntry("tiny.build", 8,
        "MLPerf Tiny's autoencoder of sounds, 640 in and out, for --loss mse, 267,928 parameters", "autoencoder"),
    "bert-base": ZooEntry("transformers.bert", 1,
        "BERT base (12 layers of 768), 128 tokens, classifier of 2 classes, 109,483,778 parameters", "base", 512),
    "bert-tiny": ZooEntry("transformers.bert", 2,
        "BERT tiny (2 layers of 128), 128 tokens, classifier of 2 classes, 4,386,178 parameters", "tiny", 512),
    "ds-cnn": ZooEntry("tiny.build", 1,
        "MLPerf Tiny's keyword spotter DS-CNN on 49x10 features, 23,756 parameters", "ds-cnn"),
    "gpt2-small": ZooEntry("transformers.gpt2", 1,
        "GPT-2 small (12 layers of 768), 128 tokens, tied head, 124,439,808 parameters", "", 1_024),
    "lenet": ZooEntry("images.lenet", 8, "LeNet-5 on 28x28 grey images, ReLU and max pooling, 61,706 parameters"),
    "mlp": ZooEntry("images.mlp", 32, "784-256-128-10 perceptron with ReLU, 235,146 parameters"),
    "mobilenetv1-025": ZooEntry("tiny.build", 1,
        "MLPerf Tiny's MobileNetV1 of width 0.25 for 96x96 images, 216,322 parameters", "mobilenetv1-025"),
    "mobilenetv2": ZooEntry("images.mobilenetv2", 2,
        "MobileNetV2 for 224x224 images, training-mode BatchNormalization, 3,504,872 parameters", "mobilenetv2"),
    "mobilenetv2-035": ZooEntry("images.mobilenetv2", 1,
        "MobileNetV2 of width 0.35 for 128x128 images, training-mode BatchNormalization, 1,677,128 parameters",
        "mobilenetv2-035"),
    "resnet18-cifar": ZooEntry("images.resnet18", 8,
        "ResNet-18 for 32x32 images, training-mode BatchNormalization, 11,173,962 parameters"),
    "resnet50": ZooEntry("images.resnet50", 2,
        "ResNet-50 for 224x224 images, training-mode BatchNormalization, 25,557,032 parameters"),
    "resnet8": ZooEntry("tiny.build", 1, "MLPerf Tiny's ResNet-8 for 32x32 images, 78,186 parameters", "resnet8"),
    "vgg16-cifar": ZooEntry("images.vgg16", 8,
        "VGG-16 for 32x32 images, no BatchNormalization, 512-512-10 classifier, 15,245,130 parameters"),
    "vit-b16": ZooEntry("transformers.vit", 1,
        "Vision Transformer B/16 (12 layers of 768) for 224x224 images, 86,567,656 parameters"),
}  # fmt: skip


def names() -> tuple[str, ...]:
    """Names of all networks, sorted."""
    return tuple(sorted(ZOO))


def tokens_of(name: str, shapes: Mapping[str, object]) -> int | None:
    """The length of sequences that `shapes` of inputs state; None where they don't, or the network reads no tokens."""
    sizes = shapes.get(TOKENS)
    if name not in ZOO or not ZOO[name].positions or not isinstance(sizes, Sequence) or len(sizes) != 2:
        return None
    return sizes[1] if isinstance(sizes[1], int) else None


def build(name: str, batch: int | None = None, tokens: int | None = None) -> onnx.ModelProto:
    """The network `name` with every shape static.

    batch
        Its default batch where not given.
    tokens
        How long a sequence is, where the network reads tokens; 128 where not given.

    Raises `ModelError` for an unknown name, a batch below 1, or a sequence that can't be.
    """
    if name not in ZOO:
        raise ModelError(f"no such network: {name!r}{closest(name, names())}; there are {', '.join(names())}")
    entry = ZOO[name]
    if batch is not None and batch < 1:
        raise ModelError(f"{name}: the batch must be at least 1, not {batch}; give another --batch")
    module, _, function = entry.builder.partition(".")
    builder = getattr(importlib.import_module(f"poetopt.zoo.{module}"), function)
    settings = (entry.variant,) if entry.variant else ()
    more: dict[str, int] = {}
    if tokens is not None:
        if not 1 <= tokens <= entry.positions:
            said = f"has 1 to {entry.positions} tokens" if entry.positions else "has no tokens"
            raise ModelError(f"{name}: a sequence {said}, not {tokens}; give another --shape {TOKENS}=1x128")
        more["tokens"] = tokens
    model: onnx.ModelProto = builder(entry.batch if batch is None else batch, *settings, **more)
    return model
