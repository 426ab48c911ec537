"""Networks that torch has exported: loss and gradients against torch's own, at several opsets."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from poetopt.autodiff import differentiate
from poetopt.frontends.onnx_file import load_onnx
from poetopt.frontends.origins import origins
from poetopt.frontends.read import read_model
from poetopt.graph import TrainingGraph
from tests.autodiff.oracle import run

torch = pytest.importorskip("torch")

from tests.autodiff.exported import Chunks, export, export_newer, networks  # noqa: E402

CASES = {
    "squeeze-excite": (11, 17), "unet": (11, 20), "lstm": (11, 17), "gru": (14,), "encoder": (14, 17, 20),
    "decoder": (14, 18), "mixed": (11, 18),
}  # fmt: skip


@pytest.mark.parametrize(("name", "opset"), [(name, opset) for name, opsets in CASES.items() for opset in opsets])
def test_gradients_equal_torchs(name: str, opset: int) -> None:
    module, x = networks()[name]
    compare(module, x, differentiate(load_onnx(export(module, x, opset))), {})


@pytest.mark.skipif(importlib.util.find_spec("onnxscript") is None, reason="the newer exporter needs onnxscript")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("optimize", [False, True])
@pytest.mark.parametrize("name", [*CASES, "chunks"])
def test_gradients_of_the_newer_exporters_files(name: str, optimize: bool, dynamic: bool) -> None:
    module, x = (Chunks(), torch.randn(2, 5, 16)) if name == "chunks" else networks()[name]
    if optimize and name in {"squeeze-excite", "mixed", "lstm", "gru"}:
        pytest.skip("the exporter computes with these weights, so that the file's are others than the module's")
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in module.parameters():  # distinct values, so that the exporter merges none
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))
    model = export_newer(module.eval(), x, optimize=optimize, dynamic=dynamic and x.shape[0] > 1)
    graph = differentiate(load_onnx(model, batch=x.shape[0]))
    compare(module, x, graph, origins(read_model(model)).names)


def compare(module: Any, x: Any, graph: TrainingGraph, stored: Mapping[str, str]) -> None:
    """Loss and gradients against torch's; a parameter that is `stored` under another name lies there transposed."""
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
    own = {key: torch.Tensor.numpy(parameter.grad) for key, parameter in module.named_parameters()}
    wanted = {stored.get(key, key): gradient.T if key in stored else gradient for key, gradient in own.items()}
    assert set(graph.gradients) == set(wanted)
    assert abs(float(found["loss"]) - loss.item()) <= 1e-5
    total = np.sqrt(sum(float(np.square(g).sum()) for g in wanted.values()))
    for key, gradient in wanted.items():
        distance = np.linalg.norm(found[graph.gradients[key]] - gradient)
        # the gradient of a bias in front of a normalization is 0 but for rounding
        assert distance <= 1e-4 * max(float(np.linalg.norm(gradient)), 1e-3 * total), key
