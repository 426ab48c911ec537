"""Resize where sizes only bound the scale: the gradient is the transpose of what onnxruntime computes, or refused."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx.helper import make_node

from poetopt.autodiff import differentiate
from poetopt.errors import MissingVjpError
from poetopt.frontends.onnx_file import load_onnx
from tests.autodiff.oracle import Array, run
from tests.frontends.support import model_of

START = np.random.default_rng(0).standard_normal((1, 2, 4, 6)).astype(np.float32)


def model(policy: str, how: str, sizes: tuple[int, int], antialias: int = 0) -> onnx.ModelProto:
    """y = resize(w + x), 4x6 to what `sizes` allow."""
    weights: dict[str, Array] = {"w": START, "n": np.array(sizes)}
    nodes = [
        make_node("Add", ["w", "x"], ["h"]),
        make_node(
            "Resize", ["h", "", "", "n"], ["y"], mode="linear", axes=[2, 3], keep_aspect_ratio_policy=policy,
            coordinate_transformation_mode=how, antialias=antialias,
        ),
    ]  # fmt: skip
    return model_of(nodes, {"x": [1, 2, 4, 6]}, ["y"], weights, opset=19)


@pytest.mark.parametrize("sizes", [(8, 8), (7, 11), (3, 5)])
@pytest.mark.parametrize("how", ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"])
@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
def test_the_gradient_is_the_adjoint(policy: str, how: str, sizes: tuple[int, int]) -> None:
    """For L = mean((R h - t)^2) and any direction d: <dL/dh, d> = 2 mean((R h - t) R d)."""
    step = differentiate(load_onnx(model(policy, how, sizes), train="w"), loss="mse")
    labels = next(name for name in step.inputs if name != "x")
    rng = np.random.default_rng(1)
    x = rng.standard_normal((1, 2, 4, 6)).astype(np.float32)
    target = np.zeros(step.tensors[labels].shape, np.float32)

    def resized(h: Array) -> Array:
        return run(step, {"x": h - START, labels: target}, ("y",))["y"].astype(np.float64)

    found = run(step, {"x": x, labels: target})["w.grad"].astype(np.float64)
    direction = rng.standard_normal(x.shape).astype(np.float32)
    wanted = 2 * np.mean(resized(x + START) * resized(direction))
    assert np.sum(found * direction) == pytest.approx(wanted, rel=1e-4, abs=1e-6)


def test_settings_without_a_rule_are_refused() -> None:
    with pytest.raises(MissingVjpError, match="keep_aspect_ratio_policy 'not_larger' with these settings; give"):
        differentiate(load_onnx(model("not_larger", "half_pixel", (3, 5), antialias=1), train="w"), loss="mse")
