"""What PyTorch's exporters write: names, merged initializers, training mode, dynamic batch, shape arithmetic."""

from __future__ import annotations

import io
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest

from poetopt.autodiff import differentiate
from poetopt.frontends.onnx_file import load_onnx
from poetopt.graph import Role
from tests.support.autodiff.oracle import run as run_graph
from tests.support.frontends import floats
from tests.support.later import ALL_USE_TORCH, later

torch = later("torch")
pytestmark = ALL_USE_TORCH

if TYPE_CHECKING:
    pass

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


@pytest.mark.parametrize(("training", "dynamo"), [(False, False), (True, False), (False, True)])  # which folds in both
def test_a_tied_output_layer_is_one_parameter(training: bool, dynamo: bool) -> None:
    """Folded, the exporters store the embedding's transpose beside it; the gradient is torch's sum over both uses."""
    if dynamo:
        pytest.importorskip("onnxscript")

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
