"""Networks to start with, built on the spot with seeded weights (He's initialisation): nothing to download.

Inputs are called `input`, outputs `logits`; parameters have the names that PyTorch's modules give them.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from poetopt.errors import ModelError

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True, slots=True)
class Entry:
    """A network: the module that builds it (`build(batch)`), its default batch, and a line for people."""

    module: str
    batch: int
    about: str


ZOO = {
    "lenet": Entry("lenet", 8, "LeNet-5 on 28x28 grey images, ReLU and max pooling, 61,706 parameters"),
    "mlp": Entry("mlp", 32, "784-256-128-10 perceptron with ReLU, 235,146 parameters"),
    "resnet18-cifar": Entry(
        "resnet", 8, "ResNet-18 for 32x32 images, training-mode BatchNormalization, 11,173,962 parameters"
    ),
    "vgg16-cifar": Entry(
        "vgg", 8, "VGG-16 for 32x32 images, no BatchNormalization, 512-512-10 classifier, 15,245,130 parameters"
    ),
}


def names() -> tuple[str, ...]:
    """Names of all networks, sorted."""
    return tuple(sorted(ZOO))


def build(name: str, batch: int | None = None) -> onnx.ModelProto:
    """The network `name` with every shape static; without `batch`, its default batch.

    Raises `ModelError` for an unknown name or a batch below 1.
    """
    if name not in ZOO:
        raise ModelError(f"the zoo has no network {name!r}; it has {', '.join(names())}")
    entry = ZOO[name]
    if batch is not None and batch < 1:
        raise ModelError(f"{name}: the batch must be at least 1, not {batch}; give another --batch")
    module = importlib.import_module(f"poetopt.frontends.zoo.{entry.module}")
    model: onnx.ModelProto = module.build(entry.batch if batch is None else batch)
    return model
