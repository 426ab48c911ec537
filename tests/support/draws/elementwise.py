"""Random calls of element-wise ops, and of their gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    pass


def unary(
    op_type: str, *, positive: bool = False, attributes: Callable[[Random], dict[str, Any]] | None = None,
    dtypes: Sequence[str] = ("float32",), out: str = "",
) -> Draw:  # fmt: skip
    """An element-wise op of one operand."""

    def draw(random: Random) -> list[Case]:
        dtype = str(random.choice(dtypes))
        x = random_values(random, dtype, random_shape(random))
        x = np.abs(x) + np.float32(0.1) if positive else np.multiply(x, 3) if dtype == "float32" else x
        chosen = attributes(random) if attributes is not None else {}
        return [node_case(op_type, np.asarray(x, dtype), outputs=(out or dtype,), attributes=chosen)]

    return draw


def binary(op_type: str, *, dtypes: Sequence[str] = ("float32",), out: str = "", nonzero: bool = False) -> Draw:
    """An element-wise op of two operands that broadcast."""

    def draw(random: Random) -> list[Case]:
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

    return draw


def variadic(op_type: str) -> Draw:
    """An element-wise op of any number of operands."""

    def draw(random: Random) -> list[Case]:
        shape = random_shape(random, 1)
        parts = [normal(random, broadcastable(random, shape)) for _ in range(int(random.integers(1, 4)))]
        return [node_case(op_type, normal(random, shape), *parts)]

    return draw


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


def gradient(op_type: str, of: str, shape: Callable[[Random], tuple[int, ...]] | None = None) -> Draw:
    """The gradient of an element-wise op of one operand."""

    def draw(random: Random) -> list[Case]:
        size = shape(random) if shape is not None else random_shape(random, 1)
        attributes: dict[str, Any] = {}
        if of == "Gelu" and random.random() < 0.5:
            attributes["approximate"] = "tanh"
        if of == "Softmax":
            attributes["axis"] = int(random.integers(0, len(size)))
        model = network(random, size, [onnx_node(of, ["h"], attributes=attributes)], {})
        return step_cases(model, op_type, random)

    return draw


def _clip_gradient(random: Random) -> list[Case]:
    bounds = {"low": np.array(-0.4, np.float32), "high": np.array(0.5, np.float32)}
    shape = random_shape(random, 1)
    nodes = [onnx_node("Constant", [], [n], attributes={"value_float": float(v)}) for n, v in bounds.items()]
    given = ["h", "low" if random.random() < 0.8 else "", "high" if random.random() < 0.8 else ""]
    model = network(random, shape, [*nodes, onnx_node("Clip", given)], {})
    return step_cases(model, "Clip.grad_input", random)


def dropout(op_type: str) -> Draw:
    """What a training step has of a Dropout."""

    def draw(random: Random) -> list[Case]:
        given = {"ratio": np.array(0.3, np.float32), "training": np.array(True)}
        node = onnx_node("Dropout", ["h", *given], attributes={"seed": 7})
        return step_cases(network(random, random_shape(random, 1), [node], given), op_type, random)

    return draw


_SLOPES = ("Relu", "Gelu", "Sigmoid", "Tanh", "Softmax")
_NUMBERS = ("float32", "int64", "int32")
_COMPARED = ("float32", "int64")
DRAWS: Mapping[tuple[str, str], Draw] = {
    **{("", op): binary(op, dtypes=_NUMBERS) for op in ("Add", "Sub", "Mul")},
    **{("", op): binary(op, dtypes=_COMPARED, out="bool") for op in ("Greater", "GreaterOrEqual", "Less", "Equal")},
    ("", "LessOrEqual"): binary("LessOrEqual", dtypes=_COMPARED, out="bool"),
    **{("", op): binary(op, dtypes=("bool",)) for op in ("And", "Or")},
    ("", "Div"): binary("Div", dtypes=_NUMBERS, nonzero=True),
    ("", "Mod"): binary("Mod", dtypes=("int64", "int32"), nonzero=True),
    ("", "Pow"): binary("Pow"),
    **{("", op): variadic(op) for op in ("Sum", "Max", "Min", "Mean")},
    **{("", op): unary(op) for op in ("Abs", "Exp", "Sin", "Cos", "Erf", "Tanh", "Sigmoid", "Softplus", "Softsign")},
    **{("", op): unary(op) for op in ("Relu", "HardSwish")},
    **{("", op): unary(op, positive=True) for op in ("Sqrt", "Reciprocal", "Log")},
    **{("", op): unary(op, dtypes=_NUMBERS) for op in ("Neg", "Sign")},
    ("", "Not"): unary("Not", dtypes=("bool",)),
    ("", "LeakyRelu"): unary("LeakyRelu", attributes=lambda random: {"alpha": float(random.random())}),
    ("", "Elu"): unary("Elu", attributes=lambda random: {"alpha": float(random.random())}),
    ("", "HardSigmoid"): unary("HardSigmoid", attributes=lambda random: {"alpha": float(random.random() * 2)}),
    ("", "Gelu"): unary("Gelu", attributes=lambda random: {"approximate": str(random.choice(["none", "tanh"]))}),
    ("", "Clip"): _clip,
    ("", "PRelu"): _prelu,
    ("", "Where"): _where,
    ("", "Cast"): _cast,
    ("", "Identity"): unary("Identity"),
    **{(OWN_DOMAIN, f"{op}.grad_input"): gradient(f"{op}.grad_input", op) for op in _SLOPES},
    (OWN_DOMAIN, "Clip.grad_input"): _clip_gradient,
    **{(OWN_DOMAIN, op): dropout(op) for op in ("Dropout", "Dropout.mask")},
}
