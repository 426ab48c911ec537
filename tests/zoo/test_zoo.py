"""The built-in networks: sizes as published, the same weights every time, and fit to run."""

from __future__ import annotations

import math

import onnx
import pytest

from poetopt import zoo
from poetopt.frontends.onnx_file import load_onnx
from tests.seeds import some

SIZES = {
    # name: trained tensors, trained elements, first input, operators, output
    "autoencoder": (38, 267_928, (8, 640), 28, (8, 640)),
    "bert-base": (201, 109_483_778, (1, 128), 376, (1, 2)),
    "bert-tiny": (41, 4_386_178, (2, 128), 76, (2, 2)),
    "ds-cnn": (38, 23_756, (1, 1, 49, 10), 30, (1, 12)),
    "gpt2-small": (148, 124_439_808, (1, 128), 331, (1, 128, 50_257)),
    "lenet": (10, 61_706, (8, 1, 28, 28), 12, (8, 10)),
    "mlp": (6, 235_146, (32, 784), 5, (32, 10)),
    "mobilenetv1-025": (110, 216_322, (1, 3, 96, 96), 84, (1, 2)),
    "mobilenetv2": (158, 3_504_872, (2, 3, 224, 224), 152, (2, 1000)),
    "mobilenetv2-035": (158, 1_677_128, (1, 3, 128, 128), 152, (1, 1000)),
    "resnet18-cifar": (62, 11_173_962, (8, 3, 32, 32), 68, (8, 10)),
    "resnet50": (161, 25_557_032, (2, 3, 224, 224), 175, (2, 1000)),
    "resnet8": (34, 78_186, (1, 3, 32, 32), 29, (1, 10)),
    "vgg16-cifar": (32, 15_245_130, (8, 3, 32, 32), 37, (8, 10)),
    "vit-b16": (152, 86_567_656, (1, 3, 224, 224), 322, (1, 1000)),
}
LARGE = ("gpt2-small", "vit-b16")
"""Checked as files only, to save time: bert-base is large too, and made of the same layers."""

SMALL = tuple(name for name in zoo.names() if name not in (*LARGE, "bert-base"))


@pytest.mark.parametrize("name", some((*SMALL, "bert-base", *LARGE), len(SMALL)))
def test_sizes(name: str) -> None:
    model = zoo.build(name)
    onnx.checker.check_model(model, full_check=name in SMALL)
    trained, elements, shape, operators, result = SIZES[name]
    assert f"{elements:,} parameters" in zoo.ZOO[name].about
    assert zoo.ZOO[name].batch == shape[0]
    (logits,) = model.graph.output
    assert logits.name == "logits"
    assert tuple(d.dim_value for d in logits.type.tensor_type.shape.dim) == result
    if name in LARGE:
        assert len(model.graph.initializer) == trained
        assert sum(math.prod(t.dims) for t in model.graph.initializer) == elements
        return
    graph = load_onnx(model, reference=name)
    assert len(graph.trained) == trained
    assert sum(graph.tensors[parameter].size for parameter in graph.trained) == elements
    assert graph.tensors[graph.inputs[0]].shape == shape
    assert len(graph.operators) == operators
    assert graph.outputs == ("logits",)
    assert graph.source == name
