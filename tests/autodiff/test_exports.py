"""Networks that torch has exported: loss and gradients against torch's own, at several opsets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from poetopt.autodiff import differentiate
from poetopt.frontends.onnx_file import load_onnx
from poetopt.frontends.origins import origins
from poetopt.frontends.read import read_model
from poetopt.graph import TrainingGraph
from tests.seeds import turns
from tests.support.autodiff.oracle import run
from tests.support.later import ALL_USE_TORCH, later

torch = later("torch")
modules = later("tests.support.autodiff.exported")
pytestmark = ALL_USE_TORCH

CASES = {
    "squeeze-excite": (11, 17), "unet": (11, 20), "lstm": (11, 17), "gru": (14,), "encoder": (14, 17, 20),
    "decoder": (14, 18),
}  # fmt: skip
COMPUTED = ("squeeze-excite", "lstm", "gru")
"""The optimizing exporter computes with weights of these."""
WAYS = ((False, False), (False, True), (True, False), (True, True))
"""Of the newer exporter: whether it optimizes, whether the batch is open."""
NEWER = [
    (name, *way)
    for place, name in enumerate((*CASES, "chunks"))
    for way in turns(place, [way for way in WAYS if not (way[0] and name in COMPUTED)])
]


@pytest.mark.parametrize(("name", "opset"), [(name, opset) for name, opsets in CASES.items() for opset in opsets])
def test_gradients_equal_torchs(name: str, opset: int) -> None:
    module, x = modules.networks()[name]
    compare(module, x, differentiate(load_onnx(modules.export(module, x, opset))), {})


@pytest.mark.parametrize(("name", "optimize", "dynamic"), NEWER)
def test_gradients_of_the_newer_exporters_files(name: str, optimize: bool, dynamic: bool) -> None:
    pytest.importorskip("onnxscript")
    module, x = (modules.Chunks(), torch.randn(2, 5, 16)) if name == "chunks" else modules.networks()[name]
    scatter(module, 0.05)
    model = modules.export_newer(module.eval(), x, optimize=optimize, dynamic=dynamic and x.shape[0] > 1)
    graph = differentiate(load_onnx(model, batch=x.shape[0]))
    compare(module, x, graph, origins(read_model(model)).names)


def scatter(module: Any, scale: float) -> None:
    """Distinct values and statistics, so that the exporter merges none."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for value in module.state_dict().values():
            if value.is_floating_point():
                value.add_(scale * torch.rand(value.shape, generator=generator))


def compare(module: Any, x: Any, graph: TrainingGraph, stored: Mapping[str, str]) -> None:
    """Loss and gradients against torch's; a parameter that is `stored` under another name lies there transposed."""
    loss, own, found = steps(module, x, graph)
    wanted = {stored.get(key, key): gradient.T if key in stored else gradient for key, gradient in own.items()}
    assert set(graph.gradients) == set(wanted)
    agree(loss, found, wanted, {key: found[graph.gradients[key]] for key in wanted})


def steps(module: Any, x: Any, graph: TrainingGraph) -> tuple[float, dict[str, Any], Mapping[str, Any]]:
    """One step both ways: torch's loss and gradients by parameter, and all that the graph computes."""
    y = module(x)
    classes = y.shape[1] if y.dim() >= 4 else y.shape[-1]
    (labels,) = graph.added_inputs
    chosen = torch.randint(0, classes, graph.tensors[labels].shape)
    if y.dim() == 3:
        loss = torch.nn.functional.cross_entropy(y.flatten(0, 1), chosen.flatten())
    else:
        loss = torch.nn.functional.cross_entropy(y, chosen)
    loss.backward()
    (data,) = (n for n in graph.inputs if n != labels)
    found = run(graph, {data: x.numpy(), labels: chosen.numpy()})
    return loss.item(), {key: torch.Tensor.numpy(p.grad) for key, p in module.named_parameters()}, found


def agree(loss: float, found: Mapping[str, Any], wanted: Mapping[str, Any], got: Mapping[str, Any]) -> None:
    """To 1e-4 of each tensor's norm."""
    assert abs(float(found["loss"]) - loss) <= 1e-5 * max(1.0, abs(loss))
    assert set(got) == set(wanted)
    total = np.sqrt(sum(float(np.square(g).sum()) for g in wanted.values()))
    for key, gradient in wanted.items():
        distance = np.linalg.norm(got[key] - gradient)
        # the gradient of a bias in front of a normalization is 0 but for rounding
        assert distance <= 1e-4 * max(float(np.linalg.norm(gradient)), 1e-3 * total), key
