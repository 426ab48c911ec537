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
    width = shape[-1]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], "product"),
        helper.make_node(op, ["h", *(weights or {})], ["y"], "n", **attributes),
    ]
    stored = {"w": floats(width, width), **(weights or {})}
    return model_of(nodes, {"x": list(shape)}, ["y"], stored, opset=opset, ir_version=11 if opset > 20 else 8)


def at(*values: int) -> Array:
    return np.array(values, np.int64)


AXES = ("Softmax", "LogSoftmax", "Hardmax", "LpNormalization", "Flatten", "ArgMax")


class TestAxes:
    @pytest.mark.parametrize("axis", [-3, 3, HUGE, -HUGE])
    @pytest.mark.parametrize("op", AXES)
    def test_attribute(self, op: str, axis: int) -> None:
        with pytest.raises(ModelError, match=rf"node 'n' \({op}, opset 18\): .*{axis}"):
            load_onnx(one(op, [3, 4], axis=axis))

    @pytest.mark.parametrize("op", ["LayerNormalization", "RMSNormalization"])
    def test_of_a_normalization(self, op: str) -> None:
        with pytest.raises(ModelError, match=f"its axis names {HUGE}, but its input has 2 axes"):
            load_onnx(one(op, [3, 4], {"scale": floats(4)}, opset=23, axis=HUGE))

    @pytest.mark.parametrize("axis", [2, -3, HUGE])
    def test_of_gathered_elements(self, axis: int) -> None:
        with pytest.raises(ModelError, match=r"'n' \(GatherElements.*axis"):
            load_onnx(one("GatherElements", [3, 4], {"i": at(0).reshape(1, 1)}, axis=axis))

    def test_of_scattered_elements(self) -> None:
        weights: dict[str, Array] = {"i": at(0).reshape(1, 1), "u": floats(1, 1)}
        with pytest.raises(ModelError, match=r"'n' \(ScatterElements.*axis names 2"):
            load_onnx(one("ScatterElements", [3, 4], weights, axis=2))

    @pytest.mark.parametrize("op", ["CumSum", "ReduceMax", "ReduceSum"])
    def test_input(self, op: str) -> None:
        with pytest.raises(ModelError, match=rf"'n' \({op}"):
            load_onnx(one(op, [3, 4], {"axes": at(HUGE)}))

    @pytest.mark.parametrize(("op", "axis"), [("Softmax", -2), ("Softmax", 1), ("Flatten", 2), ("Flatten", -2)])
    def test_possible_ones_are_taken(self, op: str, axis: int) -> None:
        assert load_onnx(one(op, [3, 4], axis=axis)).operators[-1].nodes[0].attributes["axis"] == axis


class TestCounts:
    @pytest.mark.parametrize("group", [0, -1, 3, HUGE])
    @pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
    def test_groups_of_a_convolution(self, op: str, group: int) -> None:
        nodes = [helper.make_node(op, ["x", "w"], ["y"], "n", group=group)]
        with pytest.raises(ModelError, match=rf"'n' \({op}, opset 18\): its group is {group}"):
            load_onnx(model_of(nodes, {"x": [1, 4, 5]}, ["y"], {"w": floats(4, 4, 3)}))

    @pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
    @pytest.mark.parametrize("bias", [1, 2, 4])
    def test_a_bias_has_an_element_a_channel(self, op: str, bias: int) -> None:
        w = floats(*((3, 2, 3, 3) if op == "Conv" else (2, 3, 3, 3)))
        load_onnx(one(op, [1, 2, 8, 8], {"k": w, "b": floats(3)}))
        with pytest.raises(ModelError, match=rf"its bias has shape \[{bias}\], but its output has 3 channels"):
            load_onnx(one(op, [1, 2, 8, 8], {"k": w, "b": floats(bias)}))

    @pytest.mark.parametrize("groups", [0, -1, 3, HUGE])
    def test_groups_of_a_normalization(self, groups: int) -> None:
        weights = {"scale": floats(4), "bias": floats(4)}
        with pytest.raises(ModelError, match=rf"'n' \(GroupNormalization, opset 21\): its num_groups is {groups}"):
            load_onnx(one("GroupNormalization", [1, 4, 5], weights, opset=21, num_groups=groups))

    @pytest.mark.parametrize("opset", [18, 21])
    def test_weights_of_a_normalization_of_groups(self, opset: int) -> None:
        size, wrong, each = (2, 4, "group") if opset < 21 else (4, 2, "channel")
        node = {"opset": opset, "num_groups": 2}
        good = one("GroupNormalization", [1, 4, 5], {"scale": floats(size), "bias": floats(size)}, **node)
        assert load_onnx(good).trained == ("w", "scale", "bias")
        for name in ("scale", "bias"):
            bad = one(
                "GroupNormalization",
                [1, 4, 5],
                {"scale": floats(size), "bias": floats(size), name: floats(wrong)},
                **node,
            )
            with pytest.raises(
                ModelError, match=rf"its {name} has shape \[{wrong}\], but .* element a {each}: \[{size}\]"
            ):
                load_onnx(bad)

    @pytest.mark.parametrize("size", [0, -1, 2, HUGE])
    def test_window_of_a_response_normalization(self, size: int) -> None:
        with pytest.raises(ModelError, match=rf"'n' \(LRN, opset 18\): its size is {size}"):
            load_onnx(one("LRN", [1, 4, 5], size=size))

    @pytest.mark.parametrize("name", ["num_heads", "rotary_embedding_dim"])
    @pytest.mark.parametrize("value", [-1, 3, HUGE])
    def test_rotary_heads(self, name: str, value: int) -> None:
        weights = {"cos": floats(1, 3, 2), "sin": floats(1, 3, 2)}
        with pytest.raises(ModelError, match=rf"'n' \(RotaryEmbedding, opset 23\): its {name} is {value}"):
            load_onnx(one("RotaryEmbedding", [1, 3, 4], weights, opset=23, **{"num_heads": 1, name: value}))

    def test_a_window_that_fits_nowhere(self) -> None:
        nodes = [helper.make_node("Conv", ["x", "w"], ["h"]), helper.make_node("MaxPool", ["h"], ["y"], "n",
                 kernel_shape=[2], dilations=[3])]  # fmt: skip
        with pytest.raises(ModelError, match=r"'n' \(MaxPool, opset 18\): its window .* is larger than its padded"):
            load_onnx(model_of(nodes, {"x": [1, 4, 5]}, ["y"], {"w": floats(4, 4, 3)}))

    def test_too_few_channels_for_blocks(self) -> None:
        nodes = [helper.make_node("Conv", ["x", "w"], ["h"]), helper.make_node("DepthToSpace", ["h"], ["y"], "n",
                 blocksize=3)]  # fmt: skip
        with pytest.raises(ModelError, match=r"'n' \(DepthToSpace.*blocksize is 3"):
            load_onnx(model_of(nodes, {"x": [1, 4, 5, 5]}, ["y"], {"w": floats(4, 4, 1, 1)}))


class TestEmptyOutputs:
    @pytest.mark.parametrize(
        ("op", "weights"),
        [
            ("Tile", {"n": at(0, 1)}),
            ("Slice", {"from": at(-1), "to": at(0), "axes": at(0)}),
            ("Expand", {"n": at(0, 3, 4)}),
        ],
    )
    def test_a_loss_on_nothing(self, op: str, weights: dict[str, Array]) -> None:
        with pytest.raises(ModelError, match=rf"node 'n' \({op}, opset 18\): its output 'y' .*has no elements"):
            differentiate(load_onnx(one(op, [3, 4], weights)))
