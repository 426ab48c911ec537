"""Small networks whose frozen weights are stored as integers, with LoRA's pairs beside them, and their float twins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import helper

from tests.support.frontends import floats, model_of

if TYPE_CHECKING:
    from poetopt.graph import Array

KINDS = ("tensor", "channel", "block")
RANGES = {"int8": (-128, 128), "uint8": (0, 256), "int4": (-8, 8), "uint4": (0, 16)}
TRAINED = "A*,B*"


def element_type(dtype: str) -> np.dtype[Any]:
    """The type that holds integers of that name, one a byte where they are of four bits."""
    return np.dtype(helper.tensor_dtype_to_np_dtype(onnx.TensorProto.DataType.Value(dtype.upper())))


def weight(
    rng: np.random.Generator, shape: tuple[int, int], dtype: str, kind: str, *, axis: int = 0, block: int = 16
) -> tuple[dict[str, Array], dict[str, int]]:
    """Integers `q`, scales `s` and zero points `z`, and the attributes that go with them."""
    grid: tuple[int, ...] = {"tensor": (), "channel": shape[axis : axis + 1]}.get(
        kind, tuple(-(-n // block) if k == axis else n for k, n in enumerate(shape))
    )
    low, high = RANGES[dtype]
    held = {
        "q": rng.integers(low, high, shape).astype(element_type(dtype)),
        "s": np.asarray(rng.uniform(0.5, 1.5, grid) / (high - low), np.float32),
        "z": np.asarray(rng.integers((low + high) // 2 - 2, (low + high) // 2 + 3, grid)).astype(element_type(dtype)),
    }
    attributes = {"tensor": {}, "channel": {"axis": axis}}.get(kind, {"axis": axis, "block_size": block})
    return held, attributes


def dequantized(held: dict[str, Array], attributes: dict[str, int]) -> Array:
    """The floats that they stand for."""
    axis, shape = attributes.get("axis", 0), held["q"].shape

    def spread(of: Array) -> Array:
        if "block_size" in attributes:
            return np.repeat(of, attributes["block_size"], axis).take(np.arange(shape[axis]), axis)
        return of.reshape([-1 if k == axis else 1 for k in range(len(shape))]) if of.ndim else of

    whole = held["q"].astype(np.int32) - spread(held["z"]).astype(np.int32)
    found: Array = whole.astype(np.float32) * spread(held["s"]).astype(np.float32)
    return found


def lora(
    dtype: str = "int8",
    kind: str = "channel",
    *,
    width: int = 64,
    layers: int = 2,
    block: int = 16,
    axis: int = 0,
    twin: bool = False,
) -> onnx.ModelProto:
    """`layers` frozen square layers, each with a pair A, B beside it, and a frozen head of floats.

    twin
        The same network with the dequantized weights as floats.
    """
    rng, nodes, stored, x = np.random.default_rng(7), [], dict[str, Any](), "x"
    for k in range(layers):
        held, attributes = weight(rng, (width, width), dtype, kind, axis=axis, block=block)
        if twin:
            stored[f"w{k}"] = dequantized(held, attributes)
        else:
            stored |= {f"{name}{k}": value for name, value in held.items()}
            names = [f"{name}{k}" for name in held]
            nodes.append(helper.make_node("DequantizeLinear", names, [f"w{k}"], **attributes))  # type: ignore[arg-type]
        stored |= {f"A{k}": floats(width, 4, seed=k) / 8, f"B{k}": floats(4, width, seed=9 + k) / 8}
        nodes += [
            helper.make_node("MatMul", [x, f"w{k}"], [f"y{k}"]), helper.make_node("MatMul", [x, f"A{k}"], [f"a{k}"]),
            helper.make_node("MatMul", [f"a{k}", f"B{k}"], [f"b{k}"]),
            helper.make_node("Add", [f"y{k}", f"b{k}"], [f"c{k}"]),
            helper.make_node("Tanh", [f"c{k}"], [f"r{k}"]),
        ]  # fmt: skip
        x = f"r{k}"
    nodes.append(helper.make_node("MatMul", [x, "head"], ["logits"]))
    stored["head"] = floats(width, 10, seed=99) / 8
    return model_of(nodes, {"x": [4, width]}, ["logits"], stored, opset=21, ir_version=10)


def operator_own(op: str, inputs: list[str], **attributes: int) -> onnx.NodeProto:
    """A node of onnxruntime's own domain that writes `h`."""
    return helper.make_node(op, inputs, ["h"], domain="com.microsoft", **attributes)  # type: ignore[arg-type]


def with_own(model: onnx.ModelProto) -> onnx.ModelProto:
    """`model`, which may have onnxruntime's own operators then."""
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return model


def packed(values: Array) -> Array:
    """Elements of four bits along the last axis, two to a byte."""
    found: Array = (values[..., ::2] | values[..., 1::2] << 4).astype(np.uint8)  # type: ignore[operator]
    return found
