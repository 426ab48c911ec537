"""How far a row's gradients are from finite differences and torch, relative to the larger of their norm and one."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from poetopt.autodiff import differentiate
from tests.autodiff.test_rules import TOLERANCE, evaluator, gradients
from tests.support.autodiff.specs import Spec, graph_of, weights_of

__all__ = ["TOLERANCE", "finite_difference_error", "torch_error"]

Array = NDArray[Any]


def finite_difference_error(spec: Spec, directions: int = 3) -> float:
    """The worst of a few random directions for each trained input, in float64."""
    graph = differentiate(graph_of(spec), loss="none")
    found = gradients(graph)
    loss = evaluator(graph, (graph.loss,))
    step, rng, worst = 1e-4, np.random.default_rng(3), 0.0
    for name, gradient in found.items():
        assert gradient.shape == graph.tensors[name].shape
        for _ in range(directions):
            direction = rng.standard_normal(gradient.shape)
            direction /= max(1.0, float(np.abs(direction).max()) / 3)
            sides = []
            for sign in (1, -1):
                values: dict[str, Array] = {n: graph.values[n] for n in graph.trained}
                values[name] = np.asarray(values[name] + sign * step * direction)
                sides.append(float(loss(values)[0]))
            slope = (sides[0] - sides[1]) / (2 * step)
            scale = max(1.0, float(np.linalg.norm(gradient) * np.linalg.norm(direction)))
            worst = max(worst, abs(slope - float(np.sum(gradient * direction))) / scale)
    return worst


def torch_error(spec: Spec) -> float:
    """The worst of the trained inputs, in float64; the row must have its torch function."""
    import torch

    assert spec.torch is not None
    found = gradients(differentiate(graph_of(spec), loss="none"))
    inputs = [
        None if a is None else torch.tensor(a, requires_grad=k in spec.trained) for k, a in enumerate(spec.inputs)
    ]
    made = spec.torch(*inputs)
    results = list(made) if isinstance(made, (tuple, list)) else [made]
    weighed = weights_of([y.detach().numpy() for y in results], spec)
    total: Any = sum((results[k] * torch.tensor(w)).sum() for k, w in weighed)
    total.backward()
    worst = 0.0
    for k in spec.trained:
        tensor: Any = inputs[k]
        want = tensor.grad.numpy()
        error = np.linalg.norm(found[f"i{k}"] - want) / max(1.0, float(np.linalg.norm(want)))
        worst = max(worst, float(error))
    return worst
