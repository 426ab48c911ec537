"""What PyTorch's exporters write: names, merged initializers, training mode, dynamic batch, shape arithmetic."""

from __future__ import annotations

import importlib.util
import io
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest

from poetopt.autodiff import differentiate
from poetopt.frontends.onnx_file import load_onnx
from poetopt.frontends.proto import model_proto
from poetopt.graph import Role
from tests.autodiff.oracle import run as run_graph
from tests.frontends.support import floats, run
from tests.later import ALL_USE_TORCH, later
from tests.seeds import some

torch = later("torch")
pytestmark = ALL_USE_TORCH

if TYPE_CHECKING:
    from poetopt.graph import Graph

nn = later("torch.nn")


def export(module: Any, x: Any, *, training: bool = False, dynamo: bool = False, **options: Any) -> onnx.ModelProto:
    """The exported model, nothing folded by the exporter where it is to be trained."""
    file = io.BytesIO()
    module.train(training)
    if not dynamo:
        mode = torch.onnx.TrainingMode.TRAINING if training else torch.onnx.TrainingMode.EVAL
        options |= {"training": mode, "do_constant_folding": not training}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, (x,), file, input_names=["x"], output_names=["y"], dynamo=dynamo, **options)
    return onnx.load_from_string(file.getvalue())


def resnet_block() -> Any:
    """Convolution, BatchNormalization, a residual, pooling, a view, a classifier."""

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(3, 8, 3, padding=1, bias=False)
            self.bn1 = nn.BatchNorm2d(8)
            self.conv2 = nn.Conv2d(8, 8, 3, padding=1, bias=False)
            self.bn2 = nn.BatchNorm2d(8)
            self.drop = nn.Dropout(0.25)
            self.fc = nn.Linear(8 * 16, 5)

        def forward(self, x: Any) -> Any:
            x = torch.relu(self.bn1(self.conv1(x)))
            x = torch.relu(x + self.bn2(self.conv2(x)))
            x = nn.functional.max_pool2d(x, 2)
            return self.fc(self.drop(x.view(x.size(0), -1)))

    torch.manual_seed(0)
    return Block()


def attention() -> Any:
    """Self-attention: LayerNormalization, Softmax, Gelu, and the reshapes of the heads."""

    class Layer(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(16)
            self.qkv = nn.Linear(16, 48)
            self.out = nn.Linear(16, 16)
            self.mlp = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))

        def forward(self, x: Any) -> Any:
            batch, length, width = x.shape
            heads = self.qkv(self.norm(x)).reshape(batch, length, 3, 2, width // 2).permute(2, 0, 3, 1, 4)
            q, k, v = heads[0], heads[1], heads[2]
            weights = torch.softmax(q @ k.transpose(-2, -1) / 8**0.5, dim=-1)
            x = x + self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))
            return x + self.mlp(x)

    torch.manual_seed(0)
    return Layer()


def same_outputs(graph: Graph, module: Any, x: np.ndarray[Any, Any]) -> None:
    """The graph computes what the module does."""
    with torch.no_grad():
        expected = module(torch.from_numpy(x)).numpy()
    (found,) = run(model_proto(graph, [graph.outputs[0]]), {"x": x})
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("opset", some((11, 20, 14, 17, 18), 2))
def test_evaluation_mode(opset: int) -> None:
    module = resnet_block()
    axes = {"x": {0: "batch"}, "y": {0: "batch"}}
    options: dict[str, Any] = {"opset_version": opset, "dynamic_axes": axes, "keep_initializers_as_inputs": True}
    model = export(module, torch.zeros(2, 3, 8, 8), **options)
    graph = load_onnx(model, batch=4)
    assert graph.inputs == ("x",)
    assert not [operator for operator in graph.operators if operator.kind in ("Shape", "Gather", "Concat", "Constant")]
    same_outputs(graph, module, floats(4, 3, 8, 8))


def test_training_mode() -> None:
    module = resnet_block()
    names = [name for name, _ in module.named_parameters()]
    for parameter in module.parameters():  # distinct values, so that the exporter merges none
        nn.init.normal_(parameter)
    graph = load_onnx(export(module, torch.zeros(2, 3, 8, 8), training=True))
    kinds = [operator.kind for operator in graph.operators]
    assert kinds.count("BatchNormalization") == 2
    assert kinds.count("Dropout") == 1
    assert sorted(graph.trained) == sorted(names)
    assert sum(tensor.role is Role.STATE for tensor in graph.tensors.values()) == 4
    dropout = next(operator for operator in graph.operators if operator.kind == "Dropout")
    assert not dropout.recomputable
    assert graph.values[dropout.inputs[1]] == np.float32(0.25)


def test_merged_initializers_are_as_many_parameters_and_statistics() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 6), nn.BatchNorm1d(6))
    module[1].bias.data.zero_()
    graph = load_onnx(export(module, torch.zeros(2, 6)))
    # In a fresh network scales and variances are 1, shifts, means and here a bias 0: the exporter keeps one of each.
    assert sorted(graph.trained) == sorted(name for name, _ in module.named_parameters())
    assert any("merged with equal ones by the exporter, and apart again" in note for note in graph.notes)
    normalizations = [operator.nodes[0] for operator in graph.operators if operator.kind == "BatchNormalization"]
    statistics = {name for node in normalizations for name in node.inputs[3:]}
    assert not statistics & set(graph.trained)
    same_outputs(graph, module, floats(2, 6))


@pytest.mark.parametrize("symbolic", [False, True])
def test_attention(symbolic: bool) -> None:
    module = attention()
    axes = {"x": {0: "batch"}, "y": {0: "batch"}} if symbolic else None
    model = export(module, torch.zeros(2, 6, 16), training=True, opset_version=17, dynamic_axes=axes)
    graph = load_onnx(model, batch=3)
    assert not {"Shape", "Range", "Concat", "Constant", "Cast"} & {operator.kind for operator in graph.operators}
    assert sum(graph.tensors[name].size for name in graph.trained) == sum(p.numel() for p in module.parameters())
    same_outputs(graph, module, floats(3, 6, 16))


def test_train_patterns_are_module_names() -> None:
    graph = load_onnx(export(resnet_block(), torch.zeros(2, 3, 8, 8), training=True), train="fc.*")
    assert graph.trained == ("fc.weight", "fc.bias")


@pytest.mark.skipif(importlib.util.find_spec("onnxscript") is None, reason="the newer exporter needs onnxscript")
@pytest.mark.parametrize("make", [resnet_block, attention])
def test_the_newer_exporter(make: Any) -> None:
    module = make().eval()
    shape = (2, 3, 8, 8) if make is resnet_block else (2, 6, 16)
    batch = torch.export.Dim("batch")
    graph = load_onnx(export(module, torch.zeros(shape), dynamo=True, dynamic_shapes=({0: batch},)), batch=4)
    same_outputs(graph, module, floats(4, *shape[1:]))


@pytest.mark.parametrize("dynamo", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_a_tied_output_layer_is_one_parameter(training: bool, dynamo: bool) -> None:
    """Folded, the exporters store the embedding's transpose beside it; the gradient is torch's sum over both uses."""
    if dynamo and (training or importlib.util.find_spec("onnxscript") is None):
        pytest.skip("the newer exporter needs onnxscript, and folds in both modes")

    class Tied(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.words, self.inner = nn.Embedding(40, 32), nn.Linear(32, 32)
            self.head = nn.Linear(32, 40, bias=False)
            self.head.weight = self.words.weight

        def forward(self, x: Any) -> Any:
            return self.head(torch.tanh(self.inner(self.words(x))))

    torch.manual_seed(0)
    module, ids = Tied(), torch.randint(0, 40, (2, 6))
    step = differentiate(load_onnx(export(module, ids, training=training, dynamo=dynamo)), loss="mse")
    assert sorted(step.tensors[name].shape for name in step.trained) == [(32,), (32, 32), (40, 32)]
    labels = next(name for name in step.inputs if name != "x")
    target = floats(*step.tensors[labels].shape, seed=5)
    ((module(ids) - torch.from_numpy(target)) ** 2).mean().backward()
    found = run_graph(step, {"x": ids.numpy(), labels: target})
    (name,) = (name for name in step.trained if step.tensors[name].shape == (40, 32))
    want = module.words.weight.grad.numpy()
    assert np.linalg.norm(found[f"{name}.grad"] - want) <= 1e-5 * np.linalg.norm(want)


@pytest.mark.parametrize("persistent", [False, True])
def test_a_fixed_filter_is_no_parameter_unless_it_is_saved(persistent: bool) -> None:
    """A buffer that is saved can't be told from a parameter; one that isn't is a Constant node."""

    class Blur(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)
            self.register_buffer("taps", torch.rand(4, 1, 3, 3), persistent=persistent)

        def forward(self, x: Any) -> Any:
            return nn.functional.conv2d(self.conv(x), self.taps, stride=2, groups=4)

    graph = load_onnx(export(Blur(), torch.zeros(2, 3, 8, 8), training=True))
    assert set(graph.trained) == {"conv.weight", "conv.bias", *(["taps"] if persistent else [])}


@pytest.mark.parametrize("optimize", [True, False])
def test_a_convolution_with_its_normalization_merged_is_said(optimize: bool) -> None:
    pytest.importorskip("onnxscript")
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    nn.init.normal_(module[1].weight)
    graph = load_onnx(export(module, torch.zeros(1, 3, 8, 8), dynamo=True, optimize=optimize, external_data=False))
    assert ("1.weight" in graph.trained) is not optimize
    assert any("merged BatchNormalization into 0.weight, 0.bias" in note for note in graph.notes) is optimize
    same_outputs(graph, module, floats(1, 3, 8, 8))
