"""The built-in networks: sizes as published, the same weights every time, and fit to run."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from poetopt.errors import ModelError
from poetopt.frontends import zoo
from poetopt.frontends.onnx_file import load_onnx
from poetopt.frontends.proto import model_proto
from poetopt.graph import Graph, Role
from tests.frontends.support import floats, run

SIZES = {
    # name: trained tensors, trained elements, default input, operators
    "lenet": (10, 61_706, (8, 1, 28, 28), 12),
    "mlp": (6, 235_146, (32, 784), 5),
    "resnet18-cifar": (62, 11_173_962, (8, 3, 32, 32), 68),
    "vgg16-cifar": (32, 15_245_130, (8, 3, 32, 32), 37),
}


def _load(name: str, batch: int | None = None) -> Graph:
    return load_onnx(zoo.build(name, batch), reference=name)


def test_every_network_is_listed() -> None:
    assert set(SIZES) == set(zoo.names()) == set(zoo.ZOO)
    assert all(entry.about for entry in zoo.ZOO.values())


@pytest.mark.parametrize("name", zoo.names())
def test_sizes(name: str) -> None:
    model = zoo.build(name)
    onnx.checker.check_model(model, full_check=True)
    graph = load_onnx(model, reference=name)
    trained, elements, shape, operators = SIZES[name]
    assert len(graph.trained) == trained
    assert sum(graph.tensors[parameter].size for parameter in graph.trained) == elements
    assert graph.tensors["input"].shape == shape
    assert zoo.ZOO[name].batch == shape[0]
    assert f"{elements:,} parameters" in zoo.ZOO[name].about
    assert len(graph.operators) == operators
    assert graph.outputs == ("logits",)
    assert graph.source == name


@pytest.mark.parametrize("name", zoo.names())
def test_the_same_every_time(name: str) -> None:
    assert _load(name, 2).content_hash == _load(name, 2).content_hash


@pytest.mark.parametrize("name", zoo.names())
def test_outputs_are_of_sensible_size(name: str) -> None:
    graph = _load(name, 2)
    (logits,) = run(model_proto(graph), {"input": floats(*graph.tensors["input"].shape)})
    assert logits.shape == (2, 10)
    assert 0.05 < np.abs(logits).mean() < 20


def test_resnet_normalizes_with_the_batch() -> None:
    graph = _load("resnet18-cifar", 2)
    states = [tensor for tensor in graph.tensors.values() if tensor.role is Role.STATE]
    assert len(states) == 40
    frozen = [name for name in graph.values if name not in graph.trained]
    assert len(frozen) == 40
    assert all("running" in name for name in frozen)


def test_bad_requests() -> None:
    with pytest.raises(ModelError, match="the zoo has no network 'resnet'; it has lenet"):
        zoo.build("resnet")
    with pytest.raises(ModelError, match="at least 1"):
        zoo.build("mlp", 0)
