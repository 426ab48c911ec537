"""What random calls are drawn with: shapes, values, networks of one op whose gradients are asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.support.contract.kernel import OPSET, Case

if TYPE_CHECKING:
    import onnx

    from poetopt.graph import Array

Random = np.random.Generator
Draw = Callable[[Random], "list[Case]"]
"""One or more random cases of an op."""


def random_shape(random: Random, least: int = 0, most: int = 4, longest: int = 6) -> tuple[int, ...]:
    """A random shape."""
    return tuple(int(n) for n in random.integers(1, longest + 1, int(random.integers(least, most + 1))))


def normal(random: Random, shape: Sequence[int]) -> Array:
    """Normally distributed float32."""
    return random.standard_normal(tuple(shape)).astype(np.float32)


def broadcastable(random: Random, shape: Sequence[int]) -> tuple[int, ...]:
    """A shape that broadcasts to `shape`."""
    kept = [1 if random.random() < 0.3 else length for length in shape]
    return tuple(kept[int(random.integers(0, len(kept) + 1)) if random.random() < 0.3 else 0 :])


def random_values(random: Random, dtype: str, shape: Sequence[int]) -> Array:
    """Random values of a type."""
    if dtype == "bool":
        return random.random(tuple(shape)) < 0.5
    if dtype == "float32":
        return normal(random, shape)
    return random.integers(-9, 10, tuple(shape)).astype(dtype)


def integers(values: Sequence[int]) -> Array:
    """A vector of int64."""
    return np.array(list(values), np.int64)


def random_length(random: Random, longest: int = 11) -> int:
    """A length; now and then one that takes several parts of a sum."""
    return int(random.integers(1, longest + 1)) if random.random() < 0.9 else int(random.integers(60, 150))


def network(
    random: Random, shape: Sequence[int], nodes: Sequence[onnx.NodeProto], parameters: Mapping[str, Array]
) -> onnx.ModelProto:
    """A model that multiplies its input by a parameter, so that a gradient flows there, and goes on with `nodes`."""
    import onnx
    from onnx import helper, numpy_helper

    first = helper.make_node("Mul", ["x", "p"], ["h"])
    values = {"p": normal(random, shape), **parameters}
    graph = helper.make_graph(
        [first, *nodes],
        "checked",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, list(shape))],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in values.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)


def onnx_node(
    op_type: str, inputs: Sequence[str], outputs: Sequence[str] = ("y",), attributes: Mapping[str, Any] | None = None
) -> onnx.NodeProto:
    """A node as a protobuf."""
    from onnx import helper

    return helper.make_node(op_type, list(inputs), list(outputs), **(attributes or {}))
