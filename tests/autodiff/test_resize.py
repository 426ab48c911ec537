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
from poetopt.ops.pooling.vjp import weights
from poetopt.util.errors import MissingVjpError
from tests.autodiff.oracle import Array, run
from tests.frontends.support import model_of
from tests.seeds import turns

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
    values = {"w": np.ones((1, 1, 4, 4), np.float32), "roi": np.array([0, 0, 0, 0, 1, 1, 0.5, 0.5], np.float32)}
    how = "tf_crop_and_resize"
    nodes = [
        make_node("Mul", ["w", "x"], ["h"]),
        make_node("Resize", ["h", "roi", "", "size"], ["y"], coordinate_transformation_mode=how),
    ]
    cropped = model_of(nodes, {"x": [1, 1, 4, 4]}, ["y"], {**values, "size": np.array([1, 1, 3, 3])}, opset=18)
    with pytest.raises(MissingVjpError, match=r"'tf_crop_and_resize'; write a fixed region as a Slice and a Resize"):
        differentiate(load_onnx(cropped, train="w"), loss="mse")


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


@pytest.mark.parametrize("opset", [10, 11, 13, 18, 19])
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


@pytest.mark.parametrize("scale", [1.37, 3.0, 0.4, 0.013])
@pytest.mark.parametrize("mode", MODES)
def test_weights_are_those_of_every_element_alone(mode: str, scale: float) -> None:
    """Against onnxruntime's Resize of the unit vectors, for all settings."""
    before = 150
    for frame in FRAMES if scale < 2 else FRAMES[:1]:
        for given in settings_of(mode, frame, 19):
            after = int(np.floor(before * np.float32(scale)))
            nodes = [make_node("Resize", ["x", "", "s"], ["y"], **given)]
            scales = {"s": np.array([scale, 1.0], np.float32)}
            proto = model_of(nodes, {"x": [before, before]}, ["y"], scales, opset=19)
            session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
            (wanted,) = session.run(None, {"x": np.eye(before, dtype=np.float32)})
            own = {"antialias": 0, "coordinate_transformation_mode": frame, "cubic_coeff_a": -0.75,
                   "exclude_outside": 0, "nearest_mode": "round_prefer_floor", **given}  # fmt: skip
            found = weights(before, after, scale, (*sorted(own.items()), ("opset", 19), ("scaled", True)))
            matrix = np.zeros((after, before))
            np.add.at(matrix, (found.places, found.read), found.weights)
            np.testing.assert_allclose(matrix, wanted, atol=1e-6, err_msg=str(given))


@pytest.mark.parametrize("shape", [(2, 1, 90, 70), (1, 90, 3, 70)])
@pytest.mark.parametrize(("mode", "scales"), [("nearest", (1.5, 1.2)), ("linear", (2.0, 1.5)), ("cubic", (1.3, 25.0))])
def test_long_lines_are_gathered(mode: str, scales: tuple[float, ...], shape: tuple[int, ...]) -> None:
    """Resize is linear in w: <dL/dw, d> = 2 mean((R w - t) R d) for any d; and no constant grows with a square."""
    proto = resized_model(18, {"mode": mode}, shape, scales, by_sizes=False)
    forward = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(3)
    (y,) = forward.run(None, {"x": np.zeros(shape, np.float32)})
    target, direction = (rng.standard_normal(s).astype(np.float32) for s in (y.shape, shape))
    graph = load_onnx(proto, train="w")
    step = differentiate(graph, loss="mse")
    emitted = sum(v.nbytes for name, v in step.values.items() if name not in graph.values)
    assert emitted < 100_000 < 4 * 70 * 1750
    feeds = {"x": np.zeros(shape, np.float32), "target": target}
    found = run(step, feeds, ("w.grad",))["w.grad"]
    np.testing.assert_array_equal(found, run(step, feeds, ("w.grad",))["w.grad"])
    start = np.asarray(graph.values["w"], np.float32)
    (change,) = forward.run(None, {"x": direction - start})
    wanted = 2 * np.mean((y - target).astype(np.float64) * change)
    scale = np.linalg.norm(found) * np.linalg.norm(direction)
    assert abs(np.sum(found.astype(np.float64) * direction) - wanted) <= 1e-5 * scale


def test_a_line_beyond_what_float32_counts_is_refused() -> None:
    settings = (*sorted({"mode": "linear", "antialias": 0}.items()), ("opset", 18), ("scaled", True))
    with pytest.raises(MissingVjpError, match="20000000 elements that become 40000000 along one axis"):
        weights(20_000_000, 0, 2.0, settings)


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


def test_beside_a_scale_that_is_no_ratio() -> None:
    """F.interpolate(x, scale_factor=1.3) of 10x12: 13x15, though 12 * 1.3 is 15.6."""
    w = np.random.default_rng(0).standard_normal((1, 2, 10, 12)).astype(np.float32)
    scales = np.array([1, 1, 1.3, 1.3], np.float32)
    nodes = [make_node("Add", ["w", "x"], ["h"]), make_node("Resize", ["h", "", "s"], ["y"], mode="linear")]
    file = model_of(nodes, {"x": list(w.shape)}, ["y"], {"w": w, "s": scales})
    step = differentiate(load_onnx(file, train="w"), loss="mse")
    feeds = {"x": np.zeros_like(w), "target": np.zeros((1, 2, 13, 15), np.float32)}
    found = run(step, feeds, ("y", "w.grad"))
    session = ort.InferenceSession(file.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(found["y"], session.run(None, {"x": feeds["x"]})[0], atol=1e-5)
    assert np.sum(found["w.grad"].astype(np.float64) * w) == pytest.approx(2 * np.mean(found["y"] ** 2), rel=1e-4)
