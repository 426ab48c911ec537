"""Settings of nodes that no runtime could follow end in one message, whatever is in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from onnx import helper

from poetopt.autodiff import differentiate
from poetopt.frontends.onnx_file import load_onnx
from poetopt.util.errors import ModelError
from tests.support.frontends import floats, model_of

if TYPE_CHECKING:
    from poetopt.graph import Array

HUGE = 2**33 + 1


def one(
    op: str, shape: Sequence[int], weights: Mapping[str, Array] | None = None, opset: int = 18, **attributes: Any
) -> onnx.ModelProto:
    """A product, then `op` on it and the weights."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], "product"),
        helper.make_node(op, ["h", *(weights or {})], ["y"], "n", **attributes),
    ]
    stored = {"w": floats(shape[-1], shape[-1]), **(weights or {})}
    return model_of(nodes, {"x": list(shape)}, ["y"], stored, opset=opset, ir_version=11 if opset > 20 else 8)


def at(*values: int) -> Array:
    return np.array(values, np.int64)


def groups(opset: int, count: int = 2, /, **weights: Array) -> onnx.ModelProto:
    """A normalization of so many groups of four channels."""
    size = 2 if opset < 21 else 4
    both = {"scale": floats(size), "bias": floats(size), **weights}
    return one("GroupNormalization", [1, 4, 5], both, opset, num_groups=count)


def convolution(op: str, bias: int = 3, **attributes: Any) -> onnx.ModelProto:
    w = floats(*((3, 2, 3, 3) if op == "Conv" else (2, 3, 3, 3)))
    return one(op, [1, 2, 8, 8], {"k": w, "b": floats(bias)}, **attributes)


def behind(op: str, **attributes: Any) -> onnx.ModelProto:
    """An operator behind a convolution of one pixel."""
    nodes = [helper.make_node("Conv", ["x", "w"], ["h"]), helper.make_node(op, ["h"], ["y"], "n", **attributes)]
    return model_of(nodes, {"x": [1, 4, 5, 5]}, ["y"], {"w": floats(4, 4, 1, 1)})


TURNED = {"cos": floats(1, 3, 2), "sin": floats(1, 3, 2)}
COUNTS = (0, -1, 3, HUGE)
REFUSED: list[tuple[onnx.ModelProto, str]] = [
    *(
        (one(op, [3, 4], axis=axis), rf"node 'n' \({op}, opset 18\): .*{axis}")
        for op in ("Softmax", "LogSoftmax", "Hardmax", "LpNormalization", "Flatten", "ArgMax")
        for axis in (-3, 3, HUGE, -HUGE)
    ),
    *(
        (one(op, [3, 4], {"scale": floats(4)}, 23, axis=HUGE), f"its axis names {HUGE}, but its input has 2 axes")
        for op in ("LayerNormalization", "RMSNormalization")
    ),
    *(
        (one("GatherElements", [3, 4], {"i": at(0).reshape(1, 1)}, axis=axis), r"'n' \(GatherElements.*axis")
        for axis in (2, -3, HUGE)
    ),
    (
        one("ScatterElements", [3, 4], {"i": at(0).reshape(1, 1), "u": floats(1, 1)}, axis=2),
        r"'n' \(ScatterElements.*axis names 2",
    ),
    *((one(op, [3, 4], {"axes": at(HUGE)}), rf"'n' \({op}") for op in ("CumSum", "ReduceMax", "ReduceSum")),
    *(
        (convolution(op, group=k), rf"'n' \({op}, opset 18\): its group is {k}")
        for op in ("Conv", "ConvTranspose")
        for k in COUNTS
    ),
    *(
        (convolution(op, bias), rf"its bias has shape \[{bias}\], but its output has 3 channels")
        for op in ("Conv", "ConvTranspose")
        for bias in (1, 2, 4)
    ),
    *((groups(21, k), rf"'n' \(GroupNormalization, opset 21\): its num_groups is {k}") for k in COUNTS),
    *(
        (
            groups(opset, **{name: floats(6 - size)}),
            rf"its {name} has shape \[{6 - size}\], but .* per {each}: \[{size}\]",
        )
        for opset, size, each in ((18, 2, "group"), (21, 4, "channel"))
        for name in ("scale", "bias")
    ),
    *((one("LRN", [1, 4, 5], size=size), rf"'n' \(LRN, opset 18\): its size is {size}") for size in (0, -1, 2, HUGE)),
    *(
        (
            one("RotaryEmbedding", [1, 3, 4], TURNED, 23, **{"num_heads": 1, name: value}),
            rf"'n' \(RotaryEmbedding, opset 23\): its {name} is {value}",
        )
        for name in ("num_heads", "rotary_embedding_dim")
        for value in (-1, 3, HUGE)
    ),
    (
        behind("MaxPool", kernel_shape=[2, 2], dilations=[5, 5]),
        r"'n' \(MaxPool, opset 18\): its window .* is larger than its padded",
    ),
    (behind("DepthToSpace", blocksize=3), r"'n' \(DepthToSpace.*blocksize is 3"),
]


@pytest.mark.parametrize(("model", "told"), REFUSED, ids=[told for _, told in REFUSED])
def test_a_setting_that_nothing_follows(model: onnx.ModelProto, told: str) -> None:
    with pytest.raises(ModelError, match=told):
        load_onnx(model)


def test_possible_ones_are_taken() -> None:
    for op, axis in (("Softmax", -2), ("Softmax", 1), ("Flatten", 2), ("Flatten", -2)):
        assert load_onnx(one(op, [3, 4], axis=axis)).operators[-1].nodes[0].attributes["axis"] == axis
    for opset in (18, 21):
        assert load_onnx(groups(opset)).trained == ("w", "scale", "bias")
    for op in ("Conv", "ConvTranspose"):
        assert load_onnx(convolution(op)).operators


@pytest.mark.parametrize(
    ("op", "weights"),
    [
        ("Tile", {"n": at(0, 1)}),
        ("Slice", {"from": at(-1), "to": at(0), "axes": at(0)}),
        ("Expand", {"n": at(0, 3, 4)}),
    ],
)
def test_a_loss_on_nothing(op: str, weights: dict[str, Array]) -> None:
    with pytest.raises(ModelError, match=rf"node 'n' \({op}, opset 18\): its output 'y' .*has no elements"):
        differentiate(load_onnx(one(op, [3, 4], weights)))
