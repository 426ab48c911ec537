"""Resize: the gradient is the transpose of what onnxruntime computes, whatever the settings, or refused."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx.helper import make_node

from poetopt.autodiff import differentiate
from poetopt.frontends.onnx_file import load_onnx
from tests.seeds import turns
from tests.support.autodiff.oracle import Array, run
from tests.support.frontends import model_of

MODES = ("nearest", "linear", "cubic")
FRAMES = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric")
SHAPES: tuple[tuple[tuple[int, ...], tuple[float, ...]], ...] = (
    ((1, 2, 5, 4), (1.5, 2.5)), ((1, 1, 7, 5), (0.7, 1.5)), ((2, 1, 3, 5), (2.5, 0.7)), ((1, 1, 4, 3), (2.0, 3.0)),
    ((1, 2, 5), (1.5,)), ((1, 1, 3, 5, 2), (1.5, 0.7, 2.5)), ((1, 1, 3, 5), (1.3, 2.0)), ((1, 1, 3, 4), (1.3, 1.2)),
)  # fmt: skip


def settings_of(mode: str, frame: str, opset: int) -> list[dict[str, Any]]:
    """What Resize of this opset has."""
    if opset == 10:
        return [{"mode": mode}] if mode != "cubic" and frame == "asymmetric" else []
    if frame == "half_pixel_symmetric" and opset < 19:
        return []
    more: list[dict[str, Any]] = [{}]
    if mode == "nearest":
        more += [{"nearest_mode": how} for how in ("floor", "ceil", "round_prefer_ceil")]
    if mode == "cubic":
        more += [{"cubic_coeff_a": -0.5}, {"exclude_outside": 1}]
    if mode != "nearest" and opset >= 18:
        more.append({"antialias": 1})
    return [{"mode": mode, "coordinate_transformation_mode": frame, **own} for own in more]


def resized_model(
    opset: int, settings: dict[str, Any], shape: tuple[int, ...], scales: tuple[float, ...], by_sizes: bool
) -> onnx.ModelProto:
    """y = resize(w + x), in the form of each opset; the lengths are what the scales give, rounded down."""
    every = [1.0] * (len(shape) - len(scales)) + list(scales)
    lengths = [int(np.floor(n * np.float32(s))) for n, s in zip(shape, every, strict=True)]
    weights: dict[str, Array] = {"w": np.random.default_rng(2).standard_normal(shape).astype(np.float32)}
    weights["given"] = np.array(lengths) if by_sizes else np.array(every, np.float32)
    names = ["h", "", "", "given"] if by_sizes else ["h", "", "given"]
    if opset == 10:
        names = ["h", "given"]
    elif opset < 13:
        weights["none"] = np.zeros(0, np.float32)
        names[1:3] = ["none", "none" if by_sizes else "given"]
    nodes = [make_node("Add", ["w", "x"], ["h"]), make_node("Resize", names, ["y"], **settings)]
    return model_of(nodes, {"x": list(shape)}, ["y"], weights, opset=opset)


@pytest.mark.parametrize("opset", [10, 11, 18, 19])
@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("mode", MODES)
def test_the_gradient_is_that_of_what_onnxruntime_computes(mode: str, frame: str, opset: int) -> None:
    """The file's own Resize is linear: its difference along a direction is the gradient's product with it, exactly."""
    rng = np.random.default_rng(3)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    checked = 0
    for n, settings in enumerate(settings_of(mode, frame, opset)):
        for place, (shape, scales) in enumerate(itertools.chain(*turns(n + opset, (SHAPES[::2], SHAPES[1::2])))):
            for by_sizes in turns(place, (False, True)[: 1 if opset == 10 else 2]):
                if mode == "cubic" and len(shape) != 4:
                    continue  # which onnxruntime doesn't compute
                proto = resized_model(opset, settings, shape, scales, by_sizes)
                forward = ort.InferenceSession(proto.SerializeToString(), options)
                start = onnx.numpy_helper.to_array(next(w for w in proto.graph.initializer if w.name == "w"))
                (y,) = forward.run(None, {"x": np.zeros(shape, np.float32)})
                target, direction = (rng.standard_normal(s).astype(np.float32) for s in (y.shape, shape))
                step = differentiate(load_onnx(proto, train="w"), loss="mse")
                labels = next(name for name in step.inputs if name != "x")
                found = run(step, {"x": np.zeros(shape, np.float32), labels: target}, ("w.grad",))["w.grad"]
                (change,) = forward.run(None, {"x": direction - start})
                wanted = 2 * np.mean((y - target).astype(np.float64) * change)
                scale = np.linalg.norm(found) * np.linalg.norm(direction)
                assert abs(np.sum(found.astype(np.float64) * direction) - wanted) <= 1e-5 * scale, (settings, shape)
                checked += 1
    assert checked or not settings_of(mode, frame, opset)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("before", "after"), [((5, 6), (7, 11)), ((5, 5), (7, 7)), ((10, 20), (13, 26))])
def test_ratios_that_float32_rounds_down(mode: str, before: tuple[int, int], after: tuple[int, int]) -> None:
    """1.4 is 1.39999998 there: five elements become 7 in onnxruntime, and 6 in ONNX's shape inference."""
    scales = np.array([1, 1, *(a / b for a, b in zip(after, before, strict=True))], np.float32)
    w = np.random.default_rng(0).standard_normal((1, 2, *before)).astype(np.float32)
    nodes = [make_node("Add", ["w", "x"], ["h"]), make_node("Resize", ["h", "", "s"], ["y"], mode=mode)]
    file = model_of(nodes, {"x": list(w.shape)}, ["y"], {"w": w, "s": scales})
    step = differentiate(load_onnx(file, train="w"), loss="mse")
    assert step.tensors["y"].shape == (1, 2, *after)
    feeds = {"x": np.zeros_like(w), "target": np.zeros((1, 2, *after), np.float32)}
    found = run(step, feeds, ("y", "w.grad"))
    session = ort.InferenceSession(file.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(found["y"], session.run(None, {"x": feeds["x"]})[0])
    # y is linear in w, so <dL/dw, w> = 2 L
    assert np.sum(found["w.grad"].astype(np.float64) * w) == pytest.approx(2 * np.mean(found["y"] ** 2), rel=1e-4)
