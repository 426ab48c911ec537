"""Quantized parts are computed in front of what is trained; no gradient passes them, or straight through on demand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.helper import make_node

import poetopt as po
from poetopt.autodiff import differentiate
from poetopt.frontends.onnx_file import load_onnx
from poetopt.graph import TrainingGraph
from poetopt.util.errors import ModelError
from tests.support.autodiff.oracle import Array, run
from tests.support.frontends import floats, model_of

CASE = Path(__file__).parents[2] / "../shared/cases/int8_backbone_float_head.onnx"
SCALE, ZERO = np.array(0.05, np.float32), np.array(3, np.int8)


def integers(*shape: int, seed: int = 0) -> Array:
    """Weights of 8 bits."""
    return np.random.default_rng(seed).integers(-100, 100, shape).astype(np.int8)


HEAD = [make_node("GlobalAveragePool", ["a"], ["g"]), make_node("Flatten", ["g"], ["f"]),
        make_node("Gemm", ["f", "head.w", "head.b"], ["y"])]  # fmt: skip
SHARED: dict[str, Array] = {"s": SCALE, "z": ZERO, "wq": integers(4, 2, 3, 3), "head.w": floats(4, 3),
                            "head.b": floats(3)}  # fmt: skip

QDQ = [
    make_node("QuantizeLinear", ["x", "s", "z"], ["xq"], "q0"), make_node("DequantizeLinear", ["xq", "s", "z"], ["xd"]),
    make_node("DequantizeLinear", ["wq", "s"], ["wd"]), make_node("DequantizeLinear", ["bq", "sb"], ["b"]),
    make_node("Conv", ["xd", "wd", "b"], ["a"], "conv"),
]  # fmt: skip
INTEGER = [
    make_node("QuantizeLinear", ["x", "s", "z"], ["xq"], "q0"),
    make_node("QLinearConv", ["xq", "s", "z", "wq", "s", "zw", "s2", "z"], ["aq"], "conv"),
    make_node("MaxPool", ["aq"], ["pq"], kernel_shape=[2, 2]),
    make_node("DequantizeLinear", ["pq", "s2", "z"], ["a"]),
]  # fmt: skip
DYNAMIC = [
    make_node("DynamicQuantizeLinear", ["x"], ["xq", "xs", "xz"], "q0"),
    make_node("ConvInteger", ["xq", "wq", "xz"], ["ai"], "conv"), make_node("Cast", ["ai"], ["af"], to=1),
    make_node("Mul", ["xs", "w.scale"], ["scale"]), make_node("Mul", ["af", "scale"], ["a"]),
]  # fmt: skip
BACKBONES: dict[str, tuple[list[onnx.NodeProto], dict[str, Array]]] = {
    "qdq": (QDQ, {"bq": np.array([5, -3, 0, 9], np.int32), "sb": np.array(0.0025, np.float32)}),
    "integer": (INTEGER, {"zw": np.array(0, np.int8), "s2": np.array(0.3, np.float32)}),
    "dynamic": (DYNAMIC, {"w.scale": np.full((1, 4, 1, 1), 0.05, np.float32)}),
}


def backbone(kind: str) -> onnx.ModelProto:
    """An 8-bit convolution with a float head."""
    nodes, more = BACKBONES[kind]
    read = {name for node in nodes for name in node.input} | {"head.w", "head.b"}
    weights = {name: value for name, value in {**SHARED, **more}.items() if name in read}
    return model_of([*nodes, *HEAD], {"x": [2, 2, 6, 6]}, ["y"], weights)


@pytest.mark.parametrize("train", [None, "head.*"])
@pytest.mark.parametrize("kind", BACKBONES)
def test_the_head_of_a_quantized_backbone_trains(kind: str, train: str | None) -> None:
    model = backbone(kind)
    step = differentiate(load_onnx(model, train=train), loss="cross-entropy")
    assert set(step.gradients) == {"head.w", "head.b"}
    x, labels = floats(2, 2, 6, 6), np.array([2, 0])
    found = run(step, {"x": x, "labels": labels}, ("f", "y", *step.gradients.values()))
    scores = np.exp(found["y"].astype(np.float64))
    slope = (scores / scores.sum(1, keepdims=True) - np.eye(3)[labels]) / 2
    np.testing.assert_allclose(found["head.w.grad"], found["f"].astype(np.float64).T @ slope, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(found["head.b.grad"], slope.sum(0), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("kind", BACKBONES)
def test_a_quantized_backbone_is_planned_and_executed(kind: str) -> None:
    ran = po.execute(po.solve(po.load(backbone(kind)), device="a72", ram="100%", time_limit=10))
    assert ran.bit_identical
    assert ran.gradients == 2


@pytest.mark.skipif(not CASE.exists(), reason="a shared file")
def test_a_file_of_somebody_else() -> None:
    assert set(differentiate(load_onnx(str(CASE), train="head.*")).gradients) == {"head.w", "head.b"}


# --- training with quantization: weights float -> Q -> DQ -> layer ----------------------------------------------------

PAIRS = [
    make_node("QuantizeLinear", ["x", "s", "z"], ["xq"], "qx"), make_node("DequantizeLinear", ["xq", "s", "z"], ["xd"]),
    make_node("QuantizeLinear", ["conv.w", "sw", "zw"], ["wq"], "qw", axis=0),
    make_node("DequantizeLinear", ["wq", "sw", "zw"], ["wd"], axis=0),
    make_node("Conv", ["xd", "wd", "conv.b"], ["c"], "conv"), make_node("Relu", ["c"], ["r"]),
    make_node("QuantizeLinear", ["r", "sr", "zr"], ["rq"], "qr"),
    make_node("DequantizeLinear", ["rq", "sr", "zr"], ["a"]),
]  # fmt: skip
QAT: dict[str, Array] = {
    "s": SCALE, "z": ZERO, "sw": np.array([0.01, 0.02, 0.005, 0.03], np.float32), "zw": np.zeros(4, np.int8),
    "sr": np.array(0.004, np.float32), "zr": np.array(0, np.uint8), "conv.w": floats(4, 2, 3, 3), "conv.b": floats(4),
    "head.w": floats(4, 3), "head.b": floats(3),
}  # fmt: skip


def qat() -> onnx.ModelProto:
    """Convolution with quantized input, weights (by channel) and output; some of each are clipped."""
    return model_of([*PAIRS, *HEAD], {"x": [2, 2, 6, 6]}, ["y"], QAT)


def test_what_was_named_before_a_quantizer_is_refused() -> None:
    message = r"'conv.w' reaches the loss through quantizer 'qw' \(QuantizeLinear\) only: .*--straight-through$"
    with pytest.raises(ModelError, match=message):
        differentiate(load_onnx(qat(), train="conv.w,head.*"))


def test_by_default_what_stands_behind_the_last_quantizer_is_trained() -> None:
    step = differentiate(load_onnx(qat()))
    assert set(step.gradients) == {"head.w", "head.b"}
    (note,) = (note for note in step.notes if "quantizer" in note)
    assert note.startswith("2 parameters stand before a quantizer and are not trained")
    assert "conv.w before 'qw', conv.b before 'qr'" in note
    assert "--straight-through" in note


def straight() -> TrainingGraph:
    return differentiate(load_onnx(qat()), loss="cross-entropy", straight_through=True)


@pytest.mark.torch
def test_straight_through_is_that_of_torch() -> None:
    torch: Any = pytest.importorskip("torch")
    f = torch.nn.functional
    step = straight()
    x, labels = 2.5 * floats(2, 2, 6, 6), np.array([2, 0])
    names = ("conv.w", "conv.b", "head.w", "head.b")
    parameters = {name: torch.tensor(QAT[name], requires_grad=True) for name in names}
    tx = torch.fake_quantize_per_tensor_affine(torch.tensor(x), 0.05, 3, -128, 127)
    w = torch.fake_quantize_per_channel_affine(
        parameters["conv.w"], torch.tensor(QAT["sw"]), torch.zeros(4, dtype=torch.int32), 0, -128, 127
    )
    r = f.conv2d(tx, w, parameters["conv.b"]).relu()
    a = torch.fake_quantize_per_tensor_affine(r, 0.004, 0, 0, 255)
    y = a.mean((2, 3)) @ parameters["head.w"] + parameters["head.b"]
    f.cross_entropy(y, torch.tensor(labels)).backward()
    found = run(step, {"x": x, "labels": labels}, ("y", *step.gradients.values()))
    np.testing.assert_allclose(found["y"], y.detach().numpy(), rtol=1e-4, atol=1e-5)
    clipped = np.abs(QAT["conv.w"]) > 128 * QAT["sw"].reshape(4, 1, 1, 1)
    assert 0 < clipped.sum() < clipped.size
    assert (r.detach().numpy() > 255.5 * 0.004).any()
    assert not found["conv.w.grad"][clipped].any()
    assert found["conv.w.grad"][~clipped].any()
    assert set(step.gradients) == set(parameters)
    for name, parameter in parameters.items():
        want = parameter.grad.numpy()
        error = np.linalg.norm(found[f"{name}.grad"] - want)
        assert error <= 1e-5 * max(1.0, float(np.linalg.norm(want))), name


def test_a_plan_keeps_that_gradients_pass(tmp_path: Path) -> None:
    path = tmp_path / "qat.onnx"
    onnx.save(qat(), path)
    found = po.solve(path, device="a72", ram="100%", straight_through=True, time_limit=10)
    found.save(tmp_path / "plan.json")
    ran = po.execute(tmp_path / "plan.json")
    assert ran.bit_identical
    assert ran.gradients == 4


def test_integers_that_are_computed_with_stop_gradients_all_the_same() -> None:
    weights = {**SHARED, **BACKBONES["integer"][1], "gain": np.ones((1, 2, 1, 1), np.float32)}
    nodes = [make_node("Mul", ["x", "gain"], ["xs"]), *INTEGER[1:], *HEAD]
    nodes.insert(1, make_node("QuantizeLinear", ["xs", "s", "z"], ["xq"], "q0"))
    graph = load_onnx(model_of(nodes, {"x": [2, 2, 6, 6]}, ["y"], weights), train="gain")
    for asked in (False, True):
        with pytest.raises(
            ModelError, match=r"'gain' .* quantizer 'q0' .*, and 'conv' \(QLinearConv\) computes with its"
        ):
            differentiate(graph, straight_through=asked)


def test_a_way_beside_a_quantizer_is_said() -> None:
    nodes = [
        make_node("Mul", ["x", "gain"], ["h"]), make_node("QuantizeLinear", ["h", "s", "z"], ["hq"], "q"),
        make_node("DequantizeLinear", ["hq", "s", "z"], ["hd"]), make_node("Add", ["h", "hd"], ["y"]),
    ]  # fmt: skip
    weights: dict[str, Array] = {"s": SCALE, "z": ZERO, "gain": floats(5)}
    graph = load_onnx(model_of(nodes, {"x": [2, 5]}, ["y"], weights), train="gain")
    x, target = floats(2, 5), floats(2, 5, seed=1)
    plain, passing = (differentiate(graph, loss="mse", straight_through=asked) for asked in (False, True))
    assert any("also beside it" in note and "gain before 'q'" in note for note in plain.notes)
    assert not any("quantizer" in note for note in passing.notes)
    found = [run(step, {"x": x, "target": target}, ("gain.grad",))["gain.grad"] for step in (plain, passing)]
    inside = np.abs(x * weights["gain"] / SCALE + 3) < 127
    assert inside.all()
    np.testing.assert_allclose(found[1], 2 * found[0], rtol=1e-5)
