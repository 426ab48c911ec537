"""Example networks, built in memory with seeded weights, without a download.

Weights are initialised as by their authors (He's initialisation for convolutional networks, N(0, 0.02) for
transformers). The input is called `input` for images, `input_ids` for tokens, and the output `logits`. Parameters have
the names that PyTorch's modules give them. Dropout is omitted, so that a step is deterministic.
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
    """An example network.

    Attributes
    ----------
    builder
        Module and function that build it for a batch.
    batch
        Default batch.
    about
        Description in one line.
    variant
        Second argument of the function, if that builds several networks.
    positions
        Largest number of tokens of a sequence, if the network reads tokens.
    """

    builder: str
    batch: int
    about: str
    variant: str = ""
    positions: int = 0


TOKENS = "input_ids"
"""Name of the input with tokens, [batch, tokens]."""

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
    """Return the names of all networks, sorted."""
    return tuple(sorted(ZOO))


def tokens_of(name: str, shapes: Mapping[str, object]) -> int | None:
    """Return the length of sequences in `shapes`; None if they state none, or the network reads no tokens."""
    sizes = shapes.get(TOKENS)
    if name not in ZOO or not ZOO[name].positions or not isinstance(sizes, Sequence) or len(sizes) != 2:
        return None
    return sizes[1] if isinstance(sizes[1], int) else None


def build(name: str, batch: int | None = None, tokens: int | None = None) -> onnx.ModelProto:
    """Return the network `name` with static shapes.

    Parameters
    ----------
    batch
        Default: the network's default batch.
    tokens
        Length of a sequence, if the network reads tokens; default: 128.

    Raises
    ------
    ModelError
        For an unknown name, a batch below 1, or an invalid length of sequences.
    """
    if name not in ZOO:
        raise ModelError(f"no such network: {name!r}{closest(name, names())}. The networks are {', '.join(names())}")
    entry = ZOO[name]
    if batch is not None and batch < 1:
        raise ModelError(f"{name}: the batch must be at least 1, not {batch}. Give another --batch")
    module, _, function = entry.builder.partition(".")
    builder = getattr(importlib.import_module(f"poetopt.zoo.{module}"), function)
    settings = (entry.variant,) if entry.variant else ()
    options: dict[str, int] = {}
    if tokens is not None:
        if not 1 <= tokens <= entry.positions:
            limit = f"has 1 to {entry.positions} tokens" if entry.positions else "has no tokens"
            raise ModelError(f"{name}: a sequence {limit}, not {tokens}. Give another --shape {TOKENS}=1x128")
        options["tokens"] = tokens
    model: onnx.ModelProto = builder(entry.batch if batch is None else batch, *settings, **options)
    return model
