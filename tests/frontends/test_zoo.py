"""The built-in networks: sizes as published, the same weights every time, and fit to run."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import onnx
import pytest

from poetopt import zoo
from poetopt.backends.onnxruntime.batch import random_batch
from poetopt.frontends import load_model
from poetopt.frontends.onnx_file import load_onnx
from poetopt.frontends.proto import model_proto
from poetopt.frontends.reading import read_options
from poetopt.graph import Graph, Role
from poetopt.util.errors import ModelError
from tests.frontends.support import run
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


def _load(name: str, batch: int | None = None) -> Graph:
    return load_onnx(zoo.build(name, batch), reference=name)


@cache
def _of_two(name: str) -> Graph:
    """With a batch of two."""
    return _load(name, 2)


def test_every_network_is_listed() -> None:
    assert set(SIZES) == set(zoo.names()) == set(zoo.ZOO)
    assert all(entry.about for entry in zoo.ZOO.values())


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


@pytest.mark.parametrize("name", SMALL)
def test_the_same_every_time(name: str) -> None:
    assert _load(name, 2).content_hash == _of_two(name).content_hash


@pytest.mark.parametrize("name", SMALL)
def test_outputs_are_of_sensible_size(name: str) -> None:
    graph = _of_two(name)
    (logits,) = run(model_proto(graph), random_batch(graph))
    assert logits.shape == (2, *SIZES[name][-1][1:])
    assert 0.01 < np.abs(logits).mean() < 20


def test_resnet_normalizes_with_the_batch() -> None:
    graph = _of_two("resnet18-cifar")
    states = [tensor for tensor in graph.tensors.values() if tensor.role is Role.STATE]
    assert len(states) == 40
    frozen = [name for name in graph.values if name not in graph.trained]
    assert len(frozen) == 40
    assert all("running" in name for name in frozen)


def test_shorter_sequences_read_the_first_positions() -> None:
    short = load_model("bert-tiny", read_options(batch=1, shapes={"input_ids": "1x8"}))
    assert isinstance(short, Graph)
    assert {short.tensors[name].shape for name in short.inputs} == {(1, 8)}
    whole = _load("bert-tiny", 1)
    assert short.trained == whole.trained
    batch = dict(random_batch(whole))
    batch["attention_mask"] = np.where(np.arange(128) < 8, 1, 0)[None].astype(np.int64)
    (masked,) = run(model_proto(whole), batch)
    (alone,) = run(model_proto(short), {name: array[:, :8] for name, array in batch.items()})
    np.testing.assert_allclose(alone, masked, rtol=1e-4, atol=1e-6)


def test_bad_requests() -> None:
    with pytest.raises(ModelError, match=r"no such network: 'resnet'; closest: resnet8 or .*; there are autoencoder,"):
        zoo.build("resnet")
    with pytest.raises(ModelError, match="at least 1"):
        zoo.build("mlp", 0)
    with pytest.raises(ModelError, match="1 to 512 tokens, not 513"):
        zoo.build("bert-tiny", 1, 513)
    with pytest.raises(ModelError, match="no tokens"):
        zoo.build("mlp", 1, 8)
