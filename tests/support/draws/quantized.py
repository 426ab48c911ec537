"""Random calls of what turns integers into floats, alone and within a product."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from poetopt.graph import OWN_DOMAIN, Node, Operator, Role, Tensor
from tests.support.contract.kernel import OPSET, Case, node_case, session_of
from tests.support.draws.pieces import Draw, Random, network, normal, onnx_node, random_shape
from tests.support.draws.steps import step_cases

if TYPE_CHECKING:
    from poetopt.graph import Array


def weight(random: Random, shape: tuple[int, ...]) -> tuple[Array, Array, Array | None, dict[str, int]]:
    """A tensor of 8 bits with its scale, now and then a zero point, and the attributes that go with them."""
    dtype = np.dtype(random.choice(["int8", "uint8"]))
    axis, kind = int(random.integers(0, len(shape))), int(random.integers(0, 3))
    size = int(random.integers(1, shape[axis] + 2))
    blocks = tuple(-(-n // size) if k == axis else n for k, n in enumerate(shape))
    grid = ((), shape[axis : axis + 1], blocks)[kind]
    attributes = {"axis": axis - len(shape) * int(random.integers(0, 2))} | ({"block_size": size} if kind == 2 else {})
    info = np.iinfo(dtype)
    x, zero = (np.asarray(random.integers(info.min, info.max + 1, of).astype(dtype)) for of in (shape, grid))
    scale = np.asarray(random.random(grid).astype(np.float32))
    return x, scale, zero if random.random() < 0.6 else None, attributes


def _dequantize(random: Random) -> list[Case]:
    x, scale, zero, attributes = weight(random, random_shape(random, 2, longest=9))
    operands = (x, scale) if zero is None else (x, scale, zero)
    return [node_case("DequantizeLinear", *operands, attributes=attributes)]


def product(op_type: str, random: Random) -> list[Case]:
    """A product with a weight that is dequantized for it."""
    rows, columns, depth = (int(n) for n in random.integers(1, (6, 24, 150)))
    turned = op_type == "Gemm" and bool(random.random() < 0.6)
    shape = (columns, depth) if turned else (depth, columns)
    x, scale, zero, attributes = weight(random, shape)
    a = normal(random, (rows, depth))
    added = [normal(random, ((rows, columns), (columns,))[int(random.integers(0, 2))])] if op_type == "Gemm" else []
    added = added if random.random() < 0.5 else []
    mine = {"transB": int(turned), "alpha": 0.5, "beta": 1.5} if op_type == "Gemm" else {}
    mine = mine if random.random() < 0.5 or op_type != "Gemm" else {"transB": int(turned)}
    given = {"a": a, "x": x, "s": scale, **({"z": zero} if zero is not None else {})}
    given |= dict(zip("c", added, strict=False))
    names = ("x", "s", "z" if zero is not None else "")
    first = Node("DequantizeLinear", names, ("w",), attributes)
    then = Node(op_type, ("a", "w", *(["c"] if added else [])), ("y",), mine)
    own = ("a", *names, *(["c"] if added else []))
    node = Node(f"DequantizeLinear+{op_type}", own, ("y",), {**attributes, **mine}, OWN_DOMAIN)
    expected = computed([first, then], given, "y")
    tensors = {n: Tensor(n, v.shape, v.dtype.name, Role.ACTIVATION) for n, v in {**given, "y": expected}.items()}
    operator = Operator("checked", op_type, (node,), tuple(given), ("y",))
    return [Case(operator, node, tensors, {}, given, {"y": expected})]


def convolution(op_type: str, random: Random) -> list[Case]:
    """What a training step has of a convolution with a quantized weight, as one with dequantizing it."""
    axes, groups = int(random.integers(1, 3)), int(random.choice([1, 1, 2, 12]))
    ins, outs = (12 * int(n) // groups for n in random.integers(1, 3, 2))
    window: dict[str, Any] = {"kernel_shape": [int(n) for n in random.integers(1, 4, axes)], "group": groups}
    window["strides"] = [int(n) for n in random.integers(1, 3, axes)]
    window["pads"] = [int(random.integers(0, k)) for k in (*window["kernel_shape"], *window["kernel_shape"])]
    x, scale, zero, attributes = weight(random, (outs * groups, ins, *window["kernel_shape"]))
    held = {"q": x, "s": scale, **({"z": zero} if zero is not None else {}), "b": normal(random, (outs * groups,))}
    names = [name for name in held if name != "b"]
    operands = ["h", "w", *(["b"] if random.random() < 0.5 else [])]
    nodes = [onnx_node("DequantizeLinear", names, ["w"], attributes), onnx_node("Conv", operands, attributes=window)]
    shape = (int(random.integers(1, 3)), ins * groups, *(int(n) for n in random.integers(3, 8, axes)))
    return step_cases(network(random, shape, nodes, held), op_type, random)


def computed(nodes: Sequence[Node], given: Mapping[str, Array], name: str) -> Array:
    """A tensor that these nodes write, by onnxruntime."""
    from onnx import helper

    from poetopt.frontends.proto import node_proto, value_info

    inputs = [value_info(Tensor(n, a.shape, a.dtype.name, Role.INPUT)) for n, a in given.items()]
    graph = helper.make_graph([node_proto(n) for n in nodes], "g", inputs, [helper.make_empty_tensor_value_info(name)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
    return np.asarray(session_of(model).run([name], dict(given))[0])


DRAWS: Mapping[tuple[str, str], Draw] = {
    ("", "DequantizeLinear"): _dequantize,
    **{(OWN_DOMAIN, f"DequantizeLinear+{op}"): partial(product, op) for op in ("Gemm", "MatMul")},
    **{
        (OWN_DOMAIN, op): partial(convolution, op)
        for op in ("DequantizeLinear+Conv", "DequantizeLinear+Conv.grad_input")
    },
}
