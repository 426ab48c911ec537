"""Random calls of element-wise ops, and of their gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from poetopt.graph import OWN_DOMAIN
from tests.support.contract.kernel import Case, node_case
from tests.support.draws.pieces import (
    Draw,
    Random,
    broadcastable,
    network,
    normal,
    onnx_node,
    random_shape,
    random_values,
)
from tests.support.draws.steps import step_cases


def unary(
    op_type: str,
    random: Random,
    *,
    positive: bool = False,
    attributes: Callable[[Random], dict[str, Any]] | None = None,
    dtypes: Sequence[str] = ("float32",),
) -> list[Case]:
    """An element-wise op of one operand."""
    dtype = str(random.choice(dtypes))
    x = random_values(random, dtype, random_shape(random))
    x = np.abs(x) + np.float32(0.1) if positive else np.multiply(x, 3) if dtype == "float32" else x
    chosen = attributes(random) if attributes is not None else {}
    return [node_case(op_type, np.asarray(x, dtype), outputs=(dtype,), attributes=chosen)]


def binary(
    op_type: str, random: Random, *, dtypes: Sequence[str] = ("float32",), out: str = "", nonzero: bool = False
) -> list[Case]:
    """An element-wise op of two operands that broadcast."""
    dtype = str(random.choice(dtypes))
    shape = random_shape(random, 1)
    a, b = random_values(random, dtype, shape), random_values(random, dtype, broadcastable(random, shape))
    b = np.where(b == 0, np.ones_like(b), b) if nonzero else b
    pair = (a, b) if op_type == "Pow" or random.random() < 0.7 else (b, a)
    if op_type == "Mod" or nonzero:
        pair = (a, b)
    if op_type == "Pow":
        exponents = np.array(random.choice([0.0, 1.0, 2.0, 3.0, 0.5, -1.0, 1.7]), np.float32)
        return [node_case(op_type, np.abs(a) + np.float32(0.1), exponents, constants=(1,))]
    return [node_case(op_type, *pair, outputs=(out or dtype,))]


def variadic(op_type: str, random: Random) -> list[Case]:
    """An element-wise op of any number of operands."""
    shape = random_shape(random, 1)
    parts = [normal(random, broadcastable(random, shape)) for _ in range(int(random.integers(1, 4)))]
    return [node_case(op_type, normal(random, shape), *parts)]


def _clip(random: Random) -> list[Case]:
    low, high = (np.float32(v) if random.random() < 0.8 else None for v in (-0.5, 0.7))
    bounds = [None if v is None else np.asarray(v) for v in (low, high)]
    return [node_case("Clip", normal(random, random_shape(random)), *bounds)]


def _prelu(random: Random) -> list[Case]:
    shape = random_shape(random, 1)
    return [node_case("PRelu", normal(random, shape), normal(random, broadcastable(random, shape)))]


def _where(random: Random) -> list[Case]:
    shape = random_shape(random, 1)
    parts = [normal(random, shape), normal(random, broadcastable(random, shape))]
    return [node_case("Where", random.random(broadcastable(random, shape)) < 0.5, *parts)]


def _cast(random: Random) -> list[Case]:
    from onnx import helper

    source, to = (str(random.choice(["float32", "int64", "int32", "bool"])) for _ in range(2))
    x = random_values(random, source, random_shape(random))
    return [node_case("Cast", x, outputs=(to,), attributes={"to": helper.np_dtype_to_tensor_dtype(np.dtype(to))})]


def gradient(op_type: str, of: str, random: Random) -> list[Case]:
    """The gradient of an element-wise op of one operand."""
    size = random_shape(random, 1)
    attributes: dict[str, Any] = {}
    if of == "Gelu" and random.random() < 0.5:
        attributes["approximate"] = "tanh"
    if of == "Softmax":
        attributes["axis"] = int(random.integers(0, len(size)))
    model = network(random, size, [onnx_node(of, ["h"], attributes=attributes)], {})
    return step_cases(model, op_type, random)


def _clip_gradient(random: Random) -> list[Case]:
    bounds = {"low": np.array(-0.4, np.float32), "high": np.array(0.5, np.float32)}
    shape = random_shape(random, 1)
    nodes = [onnx_node("Constant", [], [n], attributes={"value_float": float(v)}) for n, v in bounds.items()]
    given = ["h", "low" if random.random() < 0.8 else "", "high" if random.random() < 0.8 else ""]
    model = network(random, shape, [*nodes, onnx_node("Clip", given)], {})
    return step_cases(model, "Clip.grad_input", random)


def dropout(op_type: str, random: Random) -> list[Case]:
    """What a training step has of a Dropout."""
    given = {"ratio": np.array(0.3, np.float32), "training": np.array(True)}
    node = onnx_node("Dropout", ["h", *given], attributes={"seed": 7})
    return step_cases(network(random, random_shape(random, 1), [node], given), op_type, random)


_SLOPES = ("Relu", "Gelu", "Sigmoid", "Tanh", "Softmax")
_PLAIN = (
    "Abs", "Exp", "Sin", "Cos", "Erf", "Tanh", "Sigmoid", "Softplus", "Softsign", "Relu", "HardSwish", "Identity",
)  # fmt: skip
_NUMBERS = ("float32", "int64", "int32")
DRAWS: Mapping[tuple[str, str], Draw] = {
    **{("", op): partial(binary, op, dtypes=_NUMBERS) for op in ("Add", "Sub", "Mul")},
    **{
        ("", op): partial(binary, op, dtypes=("float32", "int64"), out="bool")
        for op in ("Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal")
    },
    **{("", op): partial(binary, op, dtypes=("bool",)) for op in ("And", "Or")},
    ("", "Div"): partial(binary, "Div", dtypes=_NUMBERS, nonzero=True),
    ("", "Mod"): partial(binary, "Mod", dtypes=("int64", "int32"), nonzero=True),
    ("", "Pow"): partial(binary, "Pow"),
    **{("", op): partial(variadic, op) for op in ("Sum", "Max", "Min", "Mean")},
    **{("", op): partial(unary, op) for op in _PLAIN},
    **{("", op): partial(unary, op, positive=True) for op in ("Sqrt", "Reciprocal", "Log")},
    **{("", op): partial(unary, op, dtypes=_NUMBERS) for op in ("Neg", "Sign")},
    ("", "Not"): partial(unary, "Not", dtypes=("bool",)),
    ("", "LeakyRelu"): partial(unary, "LeakyRelu", attributes=lambda random: {"alpha": float(random.random())}),
    ("", "Elu"): partial(unary, "Elu", attributes=lambda random: {"alpha": float(random.random())}),
    ("", "HardSigmoid"): partial(unary, "HardSigmoid", attributes=lambda random: {"alpha": float(random.random() * 2)}),
    ("", "Gelu"): partial(
        unary, "Gelu", attributes=lambda random: {"approximate": str(random.choice(["none", "tanh"]))}
    ),
    ("", "Clip"): _clip,
    ("", "PRelu"): _prelu,
    ("", "Where"): _where,
    ("", "Cast"): _cast,
    **{(OWN_DOMAIN, f"{op}.grad_input"): partial(gradient, f"{op}.grad_input", op) for op in _SLOPES},
    (OWN_DOMAIN, "Clip.grad_input"): _clip_gradient,
    **{(OWN_DOMAIN, op): partial(dropout, op) for op in ("Dropout", "Dropout.mask")},
}
