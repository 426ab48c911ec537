"""Networks that torch has exported: loss and gradients against torch's own, at several opsets."""

from __future__ import annotations

import numpy as np
import pytest

from poetopt.autodiff import differentiate
from poetopt.frontends.onnx_file import load_onnx
from tests.autodiff.oracle import run

torch = pytest.importorskip("torch")

from tests.autodiff.exported import export, networks  # noqa: E402

CASES = {
    "squeeze-excite": (11, 17), "unet": (11, 20), "lstm": (11, 17), "gru": (14,), "encoder": (14, 17, 20),
    "decoder": (14, 18), "mixed": (11, 18),
}  # fmt: skip


@pytest.mark.parametrize(("name", "opset"), [(name, opset) for name, opsets in CASES.items() for opset in opsets])
def test_gradients_equal_torchs(name: str, opset: int) -> None:
    module, x = networks()[name]
    graph = differentiate(load_onnx(export(module, x, opset)))
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
    wanted = {key: torch.Tensor.numpy(parameter.grad) for key, parameter in module.named_parameters()}
    assert set(graph.gradients) == set(wanted)
    assert abs(float(found["loss"]) - loss.item()) <= 1e-5
    total = np.sqrt(sum(float(np.square(g).sum()) for g in wanted.values()))
    for key, gradient in wanted.items():
        distance = np.linalg.norm(found[graph.gradients[key]] - gradient)
        # the gradient of a bias in front of a normalization is 0 but for rounding
        assert distance <= 1e-4 * max(float(np.linalg.norm(gradient)), 1e-3 * total), key
