"""Scatter with reductions: ties, zeros, half precision."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from poetopt.autodiff import differentiate
from poetopt.util.errors import MissingVjpError
from tests.support.autodiff.errors import gradients
from tests.support.autodiff.oracle import run
from tests.support.autodiff.specs import Spec, graph_of, normal
from tests.support.later import ALL_USE_TORCH, later

REDUCTIONS = {"max": "amax", "min": "amin", "mul": "prod"}


torch = later("torch")
pytestmark = ALL_USE_TORCH


def _torch(how: str, x: np.ndarray[Any, Any], index: np.ndarray[Any, Any], updates: np.ndarray[Any, Any]) -> list[Any]:
    a, b = (torch.tensor(v, requires_grad=True) for v in (x, updates))
    y = a.scatter_reduce(0, torch.tensor(index), b, REDUCTIONS[how])
    (y * torch.tensor(normal(*y.shape, seed=7))).sum().backward()
    return [a.grad, b.grad]


@pytest.mark.parametrize("how", REDUCTIONS)
@pytest.mark.parametrize("op", ["ScatterElements", "ScatterND"])
def test_many_ties_and_zeros_are_as_in_torch(how: str, op: str) -> None:
    rng = np.random.default_rng(5)
    for _ in range(20):
        rows, count, inner = (int(n) for n in rng.integers([1, 4, 1], [5, 8, 5]))
        x, updates = (rng.integers(-1, 2, (n, inner)).astype(np.float64) for n in (rows, count))
        at = rng.integers(0, rows, (count, 1))
        wide = np.repeat(at, inner, 1)
        row = Spec(op, (x, at if op == "ScatterND" else wide, updates), (0, 2), attributes={"reduction": how})
        found = gradients(differentiate(graph_of(row), loss="none"))
        for name, want in zip(("i0", "i2"), _torch(how, x, wide, updates), strict=True):
            np.testing.assert_allclose(found[name], want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("how", [None, "max", "min"])
def test_half_precision(how: str | None) -> None:
    """onnxruntime neither adds nor multiplies float16 there; the gradients do without."""
    attributes: dict[str, object] = {} if how is None else {"reduction": how}
    row = Spec("ScatterElements", (normal(4, 3), np.array([[0, 1, -1], [2, 1, 0]]), normal(2, 3)), (0, 2),
               attributes=attributes, opset=18)  # fmt: skip
    step = differentiate(graph_of(row, "float16"), loss="none")
    found, exact = run(step, {}, tuple(step.gradients.values())), gradients(differentiate(graph_of(row), loss="none"))
    for name, want in exact.items():
        assert found[step.gradients[name]].dtype == np.float16
        np.testing.assert_allclose(found[step.gradients[name]], want, rtol=2e-3)


def test_another_reduction_is_refused() -> None:
    spec = Spec("ScatterElements", (normal(3, 3), np.array([[0]]), normal(1, 1)), (0, 2))
    model = graph_of(spec)
    scatter = model.operators[0]
    nodes = (replace(scatter.nodes[0], attributes={"reduction": "median"}),)
    odd = replace(model, operators=(replace(scatter, nodes=nodes), *model.operators[1:]))
    with pytest.raises(MissingVjpError, match=r"no gradient rule for the reduction 'median'; use none, add"):
        differentiate(odd, loss="none")
