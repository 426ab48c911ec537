"""Frozen weights that a file stores as integers stay so, and gradients are those of the same floats, bit for bit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper
from onnx.helper import make_node

import poetopt as po
from poetopt.api.training import scheduled
from poetopt.autodiff import differentiate
from poetopt.frontends.onnx_file import load_onnx
from poetopt.frontends.proto import model_proto
from poetopt.graph import Graph, Role, TrainingGraph
from poetopt.graph.problem import Problem
from tests.autodiff.oracle import run
from tests.backends.c.support import needs_host
from tests.frontends.support import floats, model_of
from tests.frontends.support import run as run_model
from tests.quantized import KINDS, TRAINED, dequantized, lora, operator_own, packed, weight, with_own
from tests.seeds import some

if TYPE_CHECKING:
    from poetopt.graph import Array

TYPES = ("int8", "uint8", "int4", "uint4")
FEEDS: dict[str, Array] = {"x": floats(4, 64, seed=3), "labels": np.array([1, 0, 7, 9])}


def stepped(model: onnx.ModelProto) -> TrainingGraph:
    return differentiate(load_onnx(model, train=TRAINED), loss="cross-entropy")


def figures(report: po.Report) -> dict[str, Any]:
    return report.to_dict()


def problem_of(report: po.Report) -> Problem:
    assert report.plan is not None
    return report.plan.problem


def bytes_of(graph: Graph, dtypes: tuple[str, ...]) -> int:
    return sum(graph.tensors[name].nbytes for name in graph.values if graph.tensors[name].dtype in dtypes)


@pytest.mark.parametrize(("dtype", "nbytes"), [("int8", 1), ("uint8", 1), ("int4", 0.5), ("uint4", 0.5)])
def test_a_weight_has_the_bytes_that_the_file_has(dtype: str, nbytes: float) -> None:
    graph = load_onnx(lora(dtype, "tensor"), train=TRAINED)
    held = [graph.tensors[f"q{k}"] for k in range(2)]
    assert [tensor.nbytes for tensor in held] == [64 * 64 * nbytes] * 2
    assert all(graph.values[tensor.name].nbytes == tensor.nbytes for tensor in held)
    assert all(tensor.role is Role.CONSTANT for tensor in held)
    assert [o.kind for o in graph.operators].count("DequantizeLinear") == 2
    (again,) = (i for i in model_proto(graph).graph.initializer if i.name == "q0")
    np.testing.assert_array_equal(numpy_helper.to_array(again).astype(int), lora_values(dtype))


def lora_values(dtype: str) -> Array:
    model = lora(dtype, "tensor")
    return numpy_helper.to_array(next(i for i in model.graph.initializer if i.name == "q0")).astype(int)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", TYPES)
def test_gradients_are_those_of_the_same_floats_bit_for_bit(dtype: str, kind: str) -> None:
    mine, twin = stepped(lora(dtype, kind)), stepped(lora(dtype, kind, twin=True))
    names = (mine.loss, "logits", *mine.gradients.values())
    assert set(mine.gradients) == {"A0", "A1", "B0", "B1"} == set(twin.gradients)
    found, wanted = run(mine, FEEDS, names), run(twin, FEEDS, names)
    assert all(np.abs(found[name]).max() > 0 for name in names)
    assert {name for name in names if found[name].tobytes() != wanted[name].tobytes()} == set()


def test_one_ulp_of_one_scale_shows() -> None:
    model = lora("int8", "channel")
    for held in model.graph.initializer:
        if held.name == "s0":
            scales = numpy_helper.to_array(held).copy()
            scales[5] = np.nextafter(scales[5], np.float32(1))
            held.CopyFrom(numpy_helper.from_array(scales, "s0"))
    mine, twin = stepped(model), stepped(lora("int8", "channel", twin=True))
    names = tuple(mine.gradients.values())
    found, wanted = run(mine, FEEDS, names), run(twin, FEEDS, names)
    assert any(found[name].tobytes() != wanted[name].tobytes() for name in names)


def test_gradients_are_finite_differences_of_the_loss() -> None:
    model = lora("int4", "block")
    step = stepped(model)
    stored = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}
    held = {k: {name: stored[f"{name}{k}"] for name in "qsz"} for k in range(2)}
    frozen = [dequantized(held[k], {"axis": 0, "block_size": 16}).astype(np.float64) for k in range(2)]
    pairs = {name: stored[name].astype(np.float64) for name in step.gradients}

    def loss(parameters: dict[str, Any]) -> float:
        x: Any = FEEDS["x"].astype(np.float64)
        for k, w in enumerate(frozen):
            x = np.tanh(x @ w + (x @ parameters[f"A{k}"]) @ parameters[f"B{k}"])
        scores = x @ stored["head"].astype(np.float64)
        chosen = scores[np.arange(4), FEEDS["labels"]]
        return float((np.log(np.exp(scores).sum(1)) - chosen).mean())

    found = run(step, FEEDS, tuple(step.gradients.values()))
    rng = np.random.default_rng(0)
    for name, value in pairs.items():
        way = rng.standard_normal(value.shape)
        ends = [loss({**pairs, name: value + sign * 1e-6 * way}) for sign in (1, -1)]
        slope = float((found[f"{name}.grad"] * way).sum())
        assert slope == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=2e-4, abs=2e-6), name


@pytest.mark.parametrize(
    ("dtype", "kind"), [("int8", "channel"), ("uint8", "block"), ("int4", "block"), ("uint4", "tensor")]
)
def test_a_step_in_less_than_both_weights_take_as_floats(dtype: str, kind: str) -> None:
    found = po.solve(lora(dtype, kind, layers=3), device="a72", train=TRAINED, ram=40_000, time_limit=20)
    assert figures(found)["peak_bytes"] <= 40_000 < 3 * 64 * 64 * 4
    kinds = [o.kind for o in problem_of(found).operators]
    assert sum(kind.startswith("DequantizeLinear+") for kind in kinds) == 5  # the first layer has no dX
    assert "DequantizeLinear" not in kinds
    ran = po.execute(found)
    assert ran.bit_identical
    assert ran.gradients == 6


IN_C = [
    ("int8", "channel", 1), ("uint8", "tensor", 0), ("int8", "block", 1), ("int4", "block", 0), ("uint4", "channel", 0),
]  # fmt: skip


@needs_host
@pytest.mark.parametrize(("dtype", "kind", "axis"), some(IN_C, 2))
def test_in_c_no_step_has_the_floats_of_a_weight(dtype: str, kind: str, axis: int) -> None:
    model = lora(dtype, kind, axis=axis)
    graph = scheduled(stepped(model), "operator", "c")
    assert not any(o.kind == "DequantizeLinear" for o in graph.operators)
    assert sum(o.kind.startswith("DequantizeLinear+") for o in graph.operators) == 3  # the first layer has no dX
    found = po.solve(model, device="m4", runtime="c", train=TRAINED, optimizer="sgd", ram=8_000, time_limit=20)
    assert figures(found)["peak_bytes"] < 8_000 < 64 * 64 * 4
    weights = 2 * 64 * 64 // (2 if "4" in dtype else 1)
    scales = 2 * {"tensor": 1, "channel": 64, "block": 256}[kind] * (4 + (0.5 if "4" in dtype else 1))
    assert problem_of(found).flash_bytes <= weights + scales + 64 * 10 * 4 + 64  # the head, and the loss's
    ran = po.execute_on(found, "host")
    assert ran.bit_identical


def product(bits: int, *, zero: bool, bias: bool, opset: int, **more: int) -> onnx.ModelProto:
    """A trained scale, a MatMulNBits of 40 x 24, and a trained head."""
    rng, size = np.random.default_rng(bits), 16
    stored: dict[str, Any] = {
        "q": rng.integers(0, 256, (24, 3, size * bits // 8)).astype(np.uint8),
        "s": rng.random(24 * 3).astype(np.float32), "a": floats(40), "head": floats(24, 4),
        "z": rng.integers(0, 256, 24 * -(-3 * bits // 8)).astype(np.uint8), "bias": floats(24),
    }  # fmt: skip
    inputs = ["x1", "q", "s", "z" if zero else "", "", "bias" if bias else ""]
    while not inputs[-1]:
        inputs.pop()
    own = operator_own("MatMulNBits", inputs, **{"K": 40, "N": 24, "bits": bits, "block_size": size, **more})
    nodes = [make_node("Mul", ["x", "a"], ["x1"]), own, make_node("MatMul", ["h", "head"], ["y"])]
    return with_own(model_of(nodes, {"x": [3, 40]}, ["y"], stored, opset=opset))


@pytest.mark.parametrize("accuracy_level", [0, 1])
@pytest.mark.parametrize(
    ("bits", "zero", "bias", "opset"), [(4, True, False, 17), (4, False, True, 21), (8, True, True, 18)]
)
def test_a_product_of_onnxruntimes_own_is_read(
    bits: int, zero: bool, bias: bool, opset: int, accuracy_level: int
) -> None:
    model = product(bits, zero=zero, bias=bias, opset=opset, accuracy_level=accuracy_level)
    graph = load_onnx(model, train="a,head")
    assert 0 < bytes_of(graph, ("int4", "uint4", "uint8")) <= 24 * 48 * bits // 8 + 24 * 3 * (zero or bits == 8)
    feeds = {"x": floats(3, 40)}
    wanted = run_model(model, feeds)[0]
    np.testing.assert_allclose(
        run_model(model_proto(graph), feeds)[0], wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max()
    )
    assert set(differentiate(graph, loss="mse").gradients) == {"a", "head"}


@pytest.mark.parametrize("dtype", ["int4", "uint4", "uint8", "packed"])
@pytest.mark.parametrize("zero", [False, True])
def test_a_table_of_onnxruntimes_own_is_read(dtype: str, zero: bool) -> None:
    own = "uint4" if dtype == "packed" else dtype
    held, _ = weight(np.random.default_rng(1), (12, 64), own, "block", axis=1, block=16)
    if dtype == "packed":
        held = {name: value if name == "s" else packed(value.astype(np.uint8)) for name, value in held.items()}
    attributes = {"block_size": 16, "bits": 8 if dtype == "uint8" else 4, "gather_axis": 0, "quantize_axis": 1}
    names = ["q", "ids", "s", *(["z"] if zero else [])]
    nodes = [operator_own("GatherBlockQuantized", names, **attributes), make_node("Mul", ["h", "a"], ["y"])]
    stored = {name: value for name, value in held.items() if name != "z" or zero}
    model = with_own(model_of(nodes, {"ids": [2, 3]}, ["y"], {**stored, "a": floats(64)}, opset=21, ir_version=10))
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.INT64
    graph = load_onnx(model, train="a")
    feeds: dict[str, Array] = {"ids": np.array([[0, 11, 5], [3, 3, 7]])}
    np.testing.assert_array_equal(run_model(model_proto(graph), feeds)[0], run_model(model, feeds)[0])
