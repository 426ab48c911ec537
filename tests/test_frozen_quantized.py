"""Frozen weights that a file stores as integers stay so, and gradients are those of the same floats, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.helper import make_node

import poetopt as po
from poetopt.api.training import scheduled
from poetopt.autodiff import differentiate
from poetopt.frontends.onnx_file import load_onnx
from poetopt.frontends.proto import model_proto
from poetopt.graph import Graph, Role, Tensor, TrainingGraph
from poetopt.graph.problem import Problem
from poetopt.util.errors import ModelError, PoetError, UnsupportedOpError
from tests.support.autodiff.oracle import run
from tests.support.c import needs_host
from tests.support.frontends import floats, model_of
from tests.support.frontends import run as run_model
from tests.support.quantized import KINDS, TRAINED, dequantized, lora, operator_own, packed, weight, with_own

if TYPE_CHECKING:
    from poetopt.graph import Array

CASE = Path(__file__).parents[1] / "../shared/cases/dq_lora.onnx"
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


# --- bytes ------------------------------------------------------------------------------------------------------------


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


def test_an_odd_element_of_four_bits_takes_a_byte() -> None:
    assert Tensor("q", (3, 5), "int4", Role.CONSTANT).nbytes == 8
    assert Tensor("q", (3, 5), "int4", Role.CONSTANT).array_shape == (8,)


def test_biases_and_numbers_are_folded_as_they_take_no_more_room() -> None:
    nodes = [make_node("DequantizeLinear", ["q", "s"], ["b"]), make_node("DequantizeLinear", ["w32", "s"], ["w"]),
             make_node("MatMul", ["x", "w"], ["h"]), make_node("Add", ["h", "b"], ["i"]),
             make_node("MatMul", ["i", "k"], ["y"])]  # fmt: skip
    stored: dict[str, Any] = {"q": np.arange(3, dtype=np.int8), "w32": np.ones((4, 3), np.int32), "k": floats(3, 2)}
    graph = load_onnx(model_of(nodes, {"x": [2, 4]}, ["y"], {**stored, "s": np.array(0.5, np.float32)}), train="k")
    assert [o.kind for o in graph.operators] == ["MatMul", "Add", "MatMul"]


@pytest.mark.skipif(not CASE.exists(), reason="a shared file")
def test_a_megabyte_of_integers_stays_one_and_moves_as_one(tmp_path: Path) -> None:
    graph = load_onnx(str(CASE), train="*lora*")
    assert bytes_of(graph, ("int8",)) == 1_048_576
    assert sum(graph.tensors[name].nbytes for name in graph.values) < 1_210_000
    found = po.solve(
        str(CASE), device="a72", train="*lora*", optimizer="adamw", parameters="paged", total_ram="1.4MB", time_limit=20
    )
    told = figures(found)
    assert told["total_ram_bytes"] <= 1_400_000
    stored = {t.name: t.nbytes for t in problem_of(found).tensors if t.name.endswith("weight_q")}
    assert stored == {f"l{k}.weight_q": 512 * 512 for k in range(4)}
    ran = po.execute(found)
    assert ran.bit_identical
    assert 0 < ran.bytes_paged <= 3 * 1_048_576  # twice what is there is read, and little else


# --- gradients --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", TYPES)
def test_gradients_are_those_of_the_same_floats_bit_for_bit(dtype: str, kind: str) -> None:
    mine, twin = stepped(lora(dtype, kind)), stepped(lora(dtype, kind, twin=True))
    names = (mine.loss, "logits", *mine.gradients.values())
    assert set(mine.gradients) == {"A0", "A1", "B0", "B1"} == set(twin.gradients)
    found, wanted = run(mine, FEEDS, names), run(twin, FEEDS, names)
    assert all(np.abs(found[name]).max() > 0 for name in names)
    assert {name for name in names if found[name].tobytes() != wanted[name].tobytes()} == set()


def test_neither_integers_nor_scales_are_trained() -> None:
    assert set(load_onnx(lora(), train="*").trained) == {"A0", "A1", "B0", "B1", "head"}
    with pytest.raises(ModelError, match=r"--train 'q0' names 'q0', which is int8: only floats are trained"):
        load_onnx(lora(), train="q0")
    with pytest.raises(ModelError, match=r"--train 's0' names 's0', which is input 1 of DequantizeLinear"):
        load_onnx(lora(), train="s0")


# --- executed in a budget ---------------------------------------------------------------------------------------------


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
@pytest.mark.parametrize(("dtype", "kind", "axis"), IN_C)
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


def convolutions(*, twin: bool) -> onnx.ModelProto:
    """Two convolutions with frozen weights of 8 bits, or of the same floats, and what is trained between them."""
    rng, nodes, stored, x, ins = np.random.default_rng(2), [], dict[str, Any](), "x", 3
    for k, outs in enumerate((24, 32)):
        held, attributes = weight(rng, (outs, ins * 9), "int8", "channel")
        if twin:
            stored[f"w{k}"] = dequantized(held, attributes).reshape(outs, ins, 3, 3)
        else:
            stored |= {f"{name}{k}": v.reshape(outs, ins, 3, 3) if name == "q" else v for name, v in held.items()}
            nodes.append(make_node("DequantizeLinear", [f"{n}{k}" for n in held], [f"w{k}"], axis=0))
        stored |= {f"A{k}": np.ones(outs, np.float32), f"B{k}": np.zeros(outs, np.float32)}
        nodes += [make_node("Conv", [x, f"w{k}"], [f"c{k}"], pads=[1] * 4, strides=[2, 2]),
                  make_node("InstanceNormalization", [f"c{k}", f"A{k}", f"B{k}"], [f"i{k}"]),
                  make_node("Relu", [f"i{k}"], [f"r{k}"])]  # fmt: skip
        x, ins = f"r{k}", outs
    nodes += [make_node("GlobalAveragePool", [x], ["p"]), make_node("Flatten", ["p"], ["y"])]
    return model_of(nodes, {"x": [1, 3, 16, 16]}, ["y"], stored)


@needs_host
def test_in_c_convolutions_take_no_more_ram_than_with_floats_in_flash() -> None:
    options: dict[str, Any] = {
        "time_limit": 20,
        "device": "m4",
        "runtime": "c",
        "train": TRAINED,
        "optimizer": "sgd",
        "loss": "mse",
    }
    mine, floating = (po.solve(convolutions(twin=twin), ram="100%", **options) for twin in (False, True))
    kinds = [o.kind for o in problem_of(mine).operators if "DequantizeLinear" in o.kind]
    assert kinds == ["DequantizeLinear+Conv"] * 2 + ["DequantizeLinear+Conv.grad_input"]
    assert figures(mine)["peak_bytes"] <= figures(floating)["peak_bytes"] + 1024
    assert problem_of(mine).flash_bytes < 0.3 * problem_of(floating).flash_bytes
    ran = po.execute_on(mine, "host")
    assert ran.bit_identical


def test_a_weight_that_is_also_read_in_another_shape_stays_an_operator_in_c() -> None:
    model = lora("int8", "channel", layers=1)
    model.graph.node.append(make_node("Flatten", ["w0"], ["flat"], axis=0))
    model.graph.node.append(make_node("ReduceSum", ["flat"], ["total"], keepdims=0))
    model.graph.node.append(make_node("Add", ["logits", "total"], ["y"]))
    model.graph.output[0].name = "y"
    graph = scheduled(stepped(model), "operator", "c")
    assert [o.kind for o in graph.operators].count("DequantizeLinear") == 1


# --- what exporters and onnxruntime write -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("axis", [0, 1])
def test_a_transpose_goes_to_the_integers(kind: str, axis: int) -> None:
    held, attributes = weight(np.random.default_rng(1), (12, 20), "int8", kind, axis=axis, block=8)
    nodes = [make_node("DequantizeLinear", list(held), ["w"], **attributes),  # type: ignore[arg-type]
             make_node("Transpose", ["w"], ["t"]), make_node("Mul", ["x", "a"], ["h"]),
             make_node("MatMul", ["h", "t"], ["y"])]  # fmt: skip
    model = model_of(nodes, {"x": [3, 20]}, ["y"], {**held, "a": floats(20)}, opset=21, ir_version=10)
    graph = load_onnx(model, train="a")
    assert [o.kind for o in graph.operators] == ["Mul", "DequantizeLinear", "MatMul"]
    feeds = {"x": floats(3, 20)}
    np.testing.assert_array_equal(run_model(model_proto(graph), feeds)[0], run_model(model, feeds)[0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", TYPES)
def test_rows_of_a_table_are_picked_before_they_are_floats(dtype: str, kind: str, axis: int) -> None:
    held, attributes = weight(np.random.default_rng(1), (12, 20), dtype, kind, axis=axis, block=4)
    nodes = [make_node("DequantizeLinear", list(held), ["w"], **attributes),  # type: ignore[arg-type]
             make_node("Gather", ["w", "ids"], ["e"]), make_node("Mul", ["e", "a"], ["y"])]  # fmt: skip
    model = model_of(nodes, {"ids": [2, 3]}, ["y"], {**held, "a": floats(20)}, opset=21, ir_version=10)
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.INT64
    graph = load_onnx(model, train="a")
    whole = [o for o in graph.operators if graph.tensors[o.outputs[0]].shape == (12, 20)]
    assert bool(whole) == (kind == "block" and axis == 0)  # blocks of several rows
    feeds: dict[str, Array] = {"ids": np.array([[0, 11, -1], [3, 3, -12]])}
    np.testing.assert_array_equal(run_model(model_proto(graph), feeds)[0], run_model(model, feeds)[0])


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


# --- hostile files: one message each ----------------------------------------------------------------------------------


def broken(kind: str = "channel", **changed: Any) -> onnx.ModelProto:
    """The network of one layer with other operands, or other attributes."""
    model = lora("int8", kind, layers=1)
    node = model.graph.node[0]
    for name, value in changed.items():
        for held in model.graph.initializer:
            if held.name == name:
                held.CopyFrom(numpy_helper.from_array(value, name))
        if isinstance(value, int):
            kept = [a for a in node.attribute if a.name != name]
            del node.attribute[:]
            node.attribute.extend([*kept, helper.make_attribute(name, value)])
    return model


ONES = np.ones(64, np.float32)
HOSTILE = {
    "its scale has shape .63., but must have one element for each step of axis 0": broken(
        s0=ONES[:63], z0=np.zeros(63, np.int8)
    ),
    "its scale has shape .4, 64., but must have one element for each block of 5 along axis 0": broken(
        "block", block_size=5
    ),
    "its block_size is -16, but must be 0 or more": broken("block", block_size=-16),
    "its block_size is 16, but it has one scale for all": broken("tensor", block_size=16),
    "its axis is 2, but its input has 2 axes": broken(axis=2),
    "its zero point has shape .3., but its scale .64.": broken(z0=np.zeros(3, np.int8)),
    "its input 'z0' is of type uint8, but another one of int8": broken(z0=np.zeros(64, np.uint8)),
    "its scale has NaN or infinite values": broken(s0=np.where(np.arange(64) == 9, np.float32(np.inf), ONES)),
}


@pytest.mark.parametrize("message", HOSTILE)
def test_what_does_not_fit_is_refused(message: str) -> None:
    remedy = "(The file is damaged|Export the model again)"
    with pytest.raises(ModelError, match=rf"'w0' \(DequantizeLinear, opset 21\): {message}.*{remedy}"):
        load_onnx(HOSTILE[message], train=TRAINED)


def changed(model: onnx.ModelProto, name: str, value: Array) -> onnx.ModelProto:
    for held in model.graph.initializer:
        if held.name == name:
            held.CopyFrom(numpy_helper.from_array(value, name))
    return model


PLAIN: dict[str, Any] = {"zero": True, "bias": False, "opset": 21}
OWN: dict[str, tuple[onnx.ModelProto, type[PoetError]]] = {
    "weights of 2 bits": (product(2, **PLAIN), UnsupportedOpError),
    "another order of the weights": (product(4, weight_prepacked=1, **PLAIN), UnsupportedOpError),
    "its K, N and block_size are 40, 24 and 0": (product(4, block_size=0, **PLAIN), ModelError),
    "its weight 'q' has shape .24, 3, 8., but must have 768 elements": (product(4, block_size=32, **PLAIN), ModelError),
    "its scale 's' has shape .5., but must have 72": (changed(product(4, **PLAIN), "s", ONES[:5]), ModelError),
    "its zero point 'z' is float": (changed(product(4, **PLAIN), "z", ONES), UnsupportedOpError),
}


@pytest.mark.parametrize("message", OWN)
def test_what_does_not_fit_onnxruntimes_own_is_refused(message: str) -> None:
    model, kind = OWN[message]
    with pytest.raises(kind, match=rf"\(com.microsoft.MatMulNBits, opset 21\): {message}"):
        load_onnx(model)
