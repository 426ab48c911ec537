"""Random calls of each op that there is a kernel for: shapes, attributes and values, within what onnxruntime takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from poetopt.graph import OWN_DOMAIN
from poetopt.testing.kernel_cases import OPSET, Case, Draw, node_case, step_cases

if TYPE_CHECKING:
    import onnx

    from poetopt.graph import Array

Random = np.random.Generator


def _shape(random: Random, least: int = 0, most: int = 4, longest: int = 6) -> tuple[int, ...]:
    return tuple(int(n) for n in random.integers(1, longest + 1, int(random.integers(least, most + 1))))


def _real(random: Random, shape: Sequence[int]) -> Array:
    return random.standard_normal(tuple(shape)).astype(np.float32)


def _broadcast(random: Random, shape: Sequence[int]) -> tuple[int, ...]:
    """A shape that broadcasts to `shape`."""
    kept = [1 if random.random() < 0.3 else length for length in shape]
    return tuple(kept[int(random.integers(0, len(kept) + 1)) if random.random() < 0.3 else 0 :])


def _values(random: Random, dtype: str, shape: Sequence[int]) -> Array:
    if dtype == "bool":
        return random.random(tuple(shape)) < 0.5
    if dtype == "float32":
        return _real(random, shape)
    return random.integers(-9, 10, tuple(shape)).astype(dtype)


def unary(
    op_type: str, *, positive: bool = False, attributes: Callable[[Random], dict[str, Any]] | None = None,
    dtypes: Sequence[str] = ("float32",), out: str = "",
) -> Draw:  # fmt: skip
    """An element-wise op of one operand."""

    def draw(random: Random) -> list[Case]:
        dtype = str(random.choice(dtypes))
        x = _values(random, dtype, _shape(random))
        x = np.abs(x) + np.float32(0.1) if positive else np.multiply(x, 3) if dtype == "float32" else x
        chosen = attributes(random) if attributes is not None else {}
        return [node_case(op_type, np.asarray(x, dtype), outputs=(out or dtype,), attributes=chosen)]

    return draw


def binary(op_type: str, *, dtypes: Sequence[str] = ("float32",), out: str = "", nonzero: bool = False) -> Draw:
    """An element-wise op of two operands that broadcast."""

    def draw(random: Random) -> list[Case]:
        dtype = str(random.choice(dtypes))
        shape = _shape(random, 1)
        a, b = _values(random, dtype, shape), _values(random, dtype, _broadcast(random, shape))
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
        shape = _shape(random, 1)
        parts = [_real(random, _broadcast(random, shape)) for _ in range(int(random.integers(1, 4)))]
        return [node_case(op_type, _real(random, shape), *parts)]

    return draw


def _clip(random: Random) -> list[Case]:
    low, high = (np.float32(v) if random.random() < 0.8 else None for v in (-0.5, 0.7))
    bounds = [None if v is None else np.asarray(v) for v in (low, high)]
    return [node_case("Clip", _real(random, _shape(random)), *bounds)]


def _prelu(random: Random) -> list[Case]:
    shape = _shape(random, 1)
    return [node_case("PRelu", _real(random, shape), _real(random, _broadcast(random, shape)))]


def _where(random: Random) -> list[Case]:
    shape = _shape(random, 1)
    parts = [_real(random, shape), _real(random, _broadcast(random, shape))]
    return [node_case("Where", random.random(_broadcast(random, shape)) < 0.5, *parts)]


def _cast(random: Random) -> list[Case]:
    from onnx import helper

    source, to = (str(random.choice(["float32", "int64", "int32", "bool"])) for _ in range(2))
    x = _values(random, source, _shape(random))
    return [node_case("Cast", x, outputs=(to,), attributes={"to": helper.np_dtype_to_tensor_dtype(np.dtype(to))})]


# --- moving data -----------------------------------------------------------------------------------


def _ints(values: Sequence[int]) -> Array:
    return np.array(list(values), np.int64)


def _transpose(random: Random) -> list[Case]:
    x = _real(random, _shape(random, 1, 5, 4))
    chosen = {"perm": [int(a) for a in random.permutation(x.ndim)]} if random.random() < 0.9 else {}
    return [node_case("Transpose", x, attributes=chosen)]


def _expand(random: Random) -> list[Case]:
    shape = _shape(random, 1)
    return [node_case("Expand", _real(random, _broadcast(random, shape)), _ints(shape), constants=(1,))]


def _reshape(random: Random) -> list[Case]:
    x = _real(random, _shape(random, 1))
    return [node_case("Reshape", x, _ints([-1]), constants=(1,))]


def _flatten(random: Random) -> list[Case]:
    x = _real(random, _shape(random, 1))
    return [node_case("Flatten", x, attributes={"axis": int(random.integers(0, x.ndim + 1))})]


def _squeeze(random: Random) -> list[Case]:
    return [node_case("Squeeze", _real(random, (1, *_shape(random, 1))), _ints([0]), constants=(1,))]


def _unsqueeze(random: Random) -> list[Case]:
    return [node_case("Unsqueeze", _real(random, _shape(random, 1)), _ints([0]), constants=(1,))]


def _slice(random: Random) -> list[Case]:
    x = _real(random, _shape(random, 1))
    axes = [int(a) for a in random.permutation(x.ndim)[: int(random.integers(1, x.ndim + 1))]]
    starts, ends, steps = [], [], []
    for axis in axes:
        step = int(random.choice([1, 1, 2, -1, -2]))
        low = int(random.integers(0, x.shape[axis]))
        high = int(random.integers(low + 1, x.shape[axis] + 1))
        starts.append(low if step > 0 else high - 1)
        ends.append(high if step > 0 else (low - 1 if low else -(2**63) + 1))
        steps.append(step)
    return [node_case("Slice", x, _ints(starts), _ints(ends), _ints(axes), _ints(steps), constants=(1, 2, 3, 4))]


def _pad(random: Random) -> list[Case]:
    x = _real(random, _shape(random, 1))
    pads = random.integers(0, 3, 2 * x.ndim)
    if random.random() < 0.3 and x.shape[0] > 2:
        pads[0] = -1
    value = (np.asarray(np.float32(0.5)),) if random.random() < 0.5 else ()
    return [node_case("Pad", x, pads, *value, constants=(1, 2))]


def _concat(random: Random) -> list[Case]:
    shape = list(_shape(random, 1))
    axis = int(random.integers(0, len(shape)))
    parts = []
    for _ in range(int(random.integers(1, 5))):
        shape[axis] = int(random.integers(1, 5))
        parts.append(_real(random, shape))
    return [node_case("Concat", *parts, attributes={"axis": axis - len(shape) if random.random() < 0.3 else axis})]


def _split(random: Random) -> list[Case]:
    shape = list(_shape(random, 1))
    axis, count = int(random.integers(0, len(shape))), int(random.integers(2, 4))
    sizes = random.integers(1, 4, count)
    shape[axis] = int(sizes.sum())
    x = _real(random, shape)
    return [node_case("Split", x, sizes, outputs=("float32",) * count, constants=(1,), attributes={"axis": axis})]


def _gather(random: Random) -> list[Case]:
    x = _real(random, _shape(random, 1))
    axis = int(random.integers(0, x.ndim))
    where = random.integers(-x.shape[axis], x.shape[axis], _shape(random, 0, 2))
    return [node_case("Gather", x, where.astype(random.choice(["int64", "int32"])), attributes={"axis": axis})]


def _scatter_elements(random: Random) -> list[Case]:
    x = _real(random, _shape(random, 1))
    axis = int(random.integers(0, x.ndim))
    shape = tuple(int(random.integers(1, n + 1)) for n in x.shape)
    reduction = str(random.choice(["none", "add", "mul", "max", "min"]))
    where = random.integers(-x.shape[axis], x.shape[axis], shape)
    if reduction == "none":  # the order of what meets is nobody's to rely on
        where = np.argsort(random.random(x.shape), axis)[tuple(slice(0, n) for n in shape)]
    return [
        node_case("ScatterElements", x, where, _real(random, shape), attributes={"axis": axis, "reduction": reduction})
    ]


def _scatter_nd(random: Random) -> list[Case]:
    x = _real(random, _shape(random, 1, 3))
    depth, count = int(random.integers(1, x.ndim + 1)), int(random.integers(1, 4))
    reduction = str(random.choice(["none", "add"]))
    places = random.permutation(int(np.prod(x.shape[:depth])))[:count]
    where = np.stack(np.unravel_index(places, x.shape[:depth]), -1)
    return [
        node_case(
            "ScatterND", x, where, _real(random, (len(places), *x.shape[depth:])), attributes={"reduction": reduction}
        )
    ]


def _constant_of_shape(random: Random) -> list[Case]:
    shape, dtype = _shape(random, 1), str(random.choice(["float32", "int64", "int32"]))
    value = _values(random, dtype, (1,))
    return [node_case("ConstantOfShape", _ints(shape), outputs=(dtype,), constants=(0,), attributes={"value": value})]


def _size(random: Random) -> list[Case]:
    return [node_case("Size", _real(random, _shape(random, 1)), outputs=("int64",))]


def _random_uniform(random: Random) -> list[Case]:
    shape, seed = list(_shape(random, 1)), float(random.integers(1, 1_000_000))
    return [node_case("RandomUniform", attributes={"shape": shape, "seed": seed})]


# --- sums and products -----------------------------------------------------------------------------


def reduction(op_type: str) -> Draw:
    """A reduction over some axes, now and then a long one."""

    def draw(random: Random) -> list[Case]:
        shape = list(_shape(random, 1))
        if random.random() < 0.3:
            shape[int(random.integers(0, len(shape)))] = int(random.integers(60, 200)) if op_type != "ReduceProd" else 3
        axes = [int(a) for a in random.permutation(len(shape))[: int(random.integers(1, len(shape) + 1))]]
        x = _real(random, shape)
        return [node_case(op_type, x, _ints(axes), constants=(1,), attributes={"keepdims": int(random.random() < 0.5)})]

    return draw


def _length(random: Random, longest: int = 11) -> int:
    return int(random.integers(1, longest + 1)) if random.random() < 0.9 else int(random.integers(60, 150))


def _gemm(random: Random) -> list[Case]:
    rows, columns, depth = (_length(random) for _ in range(3))
    turned = [int(random.random() < 0.5) for _ in range(2)]
    a = _real(random, (depth, rows) if turned[0] else (rows, depth))
    b = _real(random, (columns, depth) if turned[1] else (depth, columns))
    chosen: dict[str, Any] = {"transA": turned[0], "transB": turned[1]}
    if random.random() < 0.5:
        chosen |= {"alpha": 0.5, "beta": -1.5}
    c = () if random.random() < 0.4 else (_real(random, _broadcast(random, (rows, columns))),)
    return [node_case("Gemm", a, b, *c, attributes=chosen)]


def _matmul(random: Random) -> list[Case]:
    rows, columns, depth = (_length(random) for _ in range(3))
    batch = _shape(random, 0, 2, 3)
    left = (*_broadcast(random, batch), rows, depth) if random.random() < 0.9 else (depth,)
    right = (*_broadcast(random, batch), depth, columns) if random.random() < 0.9 else (depth,)
    return [node_case("MatMul", _real(random, left), _real(random, right))]


# --- networks of one op, whose gradients are asked for -----------------------------------------------


def _network(
    random: Random, shape: Sequence[int], nodes: Sequence[onnx.NodeProto], parameters: Mapping[str, Array]
) -> onnx.ModelProto:
    """A model that multiplies its input by a parameter, so that a gradient flows there, and goes on with `nodes`."""
    import onnx
    from onnx import helper, numpy_helper

    first = helper.make_node("Mul", ["x", "p"], ["h"])
    values = {"p": _real(random, shape), **parameters}
    graph = helper.make_graph(
        [first, *nodes],
        "checked",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, list(shape))],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in values.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)


def _node(
    op_type: str, inputs: Sequence[str], outputs: Sequence[str] = ("y",), attributes: Mapping[str, Any] | None = None
) -> onnx.NodeProto:
    from onnx import helper

    return helper.make_node(op_type, list(inputs), list(outputs), **(attributes or {}))


def gradient(op_type: str, of: str, shape: Callable[[Random], tuple[int, ...]] | None = None) -> Draw:
    """The gradient of an element-wise op of one operand."""

    def draw(random: Random) -> list[Case]:
        size = shape(random) if shape is not None else _shape(random, 1)
        attributes: dict[str, Any] = {}
        if of == "Gelu" and random.random() < 0.5:
            attributes["approximate"] = "tanh"
        if of == "Softmax":
            attributes["axis"] = int(random.integers(0, len(size)))
        model = _network(random, size, [_node(of, ["h"], attributes=attributes)], {})
        return step_cases(model, op_type, random)

    return draw


def _clip_gradient(random: Random) -> list[Case]:
    bounds = {"low": np.array(-0.4, np.float32), "high": np.array(0.5, np.float32)}
    shape = _shape(random, 1)
    nodes = [_node("Constant", [], [n], attributes={"value_float": float(v)}) for n, v in bounds.items()]
    given = ["h", "low" if random.random() < 0.8 else "", "high" if random.random() < 0.8 else ""]
    model = _network(random, shape, [*nodes, _node("Clip", given)], {})
    return step_cases(model, "Clip.grad_input", random)


def _window(random: Random, axes: int, size: Sequence[int], *, pool: bool = False) -> dict[str, Any]:
    kernel = [int(random.integers(1, min(n, 4) + 1)) for n in size]
    dilated = not pool and random.random() < 0.25
    dilations = [2 if dilated and (k - 1) * 2 < n else 1 for k, n in zip(kernel, size, strict=True)]
    strides = [int(random.choice([1, 1, 2, 3])) for _ in range(axes)]
    pads = [int(random.integers(0, k)) if k > 1 else 0 for k in (*kernel, *kernel)]
    return {"kernel_shape": kernel, "strides": strides, "pads": pads, "dilations": dilations}


def _convolution(random: Random, *, transposed: bool = False) -> tuple[Array, Array, Array, dict[str, Any]]:
    axes = int(random.integers(1, 3))
    size = [int(n) for n in random.integers(1, 12, axes)]
    window = _window(random, axes, size)
    kind = random.random()
    groups = int(random.integers(1, 4)) if kind < 0.4 else 1
    ins, outs = (1, 1) if kind < 0.2 else (int(n) for n in random.integers(1, 10, 2))
    if kind > 0.85:  # a product of matrices
        window = {"kernel_shape": [1] * axes, "strides": [1] * axes, "pads": [0] * 2 * axes, "dilations": [1] * axes}
    x = _real(random, (int(random.integers(1, 3)), (outs if transposed else ins) * groups, *size))
    w = _real(random, (outs * groups, ins, *window["kernel_shape"]))
    return x, w, _real(random, ((ins if transposed else outs) * groups,)), {**window, "group": groups}


def _conv(random: Random) -> list[Case]:
    x, w, bias, window = _convolution(random)
    return [node_case("Conv", x, w, *([bias] if random.random() < 0.5 else []), attributes=window)]


def _conv_transpose(random: Random) -> list[Case]:
    x, w, bias, window = _convolution(random, transposed=True)
    kernel, strides = window["kernel_shape"], window["strides"]
    extra = [int(random.integers(0, s)) for s in strides]
    window["output_padding"] = extra
    window["pads"] = [int(random.integers(0, (k + 1) // 2)) for k in (*kernel, *kernel)]
    out = [
        (n - 1) * s + (k - 1) * d + 1 + e - a - b
        for n, s, k, d, e, a, b in zip(
            x.shape[2:], strides, kernel, window["dilations"], extra, window["pads"], window["pads"][len(extra) :],
            strict=False,
        )
    ]  # fmt: skip
    if min(out) < 1:
        return []
    return [node_case("ConvTranspose", x, w, *([bias] if random.random() < 0.5 else []), attributes=window)]


def convolution_gradient(op_type: str, optimizer: str = "none") -> Draw:
    """A gradient of a convolution, or one with the update by it."""

    def draw(random: Random) -> list[Case]:
        x, w, bias, window = _convolution(random)
        model = _network(random, x.shape, [_node("Conv", ["h", "w", "b"], attributes=window)], {"w": w, "b": bias})
        return step_cases(model, op_type, random, optimizer=optimizer)

    return draw


def update(op_type: str, optimizer: str) -> Draw:
    """An optimizer's update, or one with the gradient of a matrix that it is of."""

    def draw(random: Random) -> list[Case]:
        rows, columns, depth = (_length(random) for _ in range(3))
        w = _real(random, (columns, depth))
        node = _node("Gemm", ["h", "w"], attributes={"transB": 1})
        model = _network(random, (rows, depth), [node], {"w": w})
        return step_cases(model, op_type, random, optimizer=optimizer)

    return draw


def _planes(random: Random) -> tuple[int, ...]:
    axes = int(random.integers(1, 3))
    return (int(random.integers(1, 3)), int(random.integers(1, 4)), *(int(n) for n in random.integers(2, 10, axes)))


def pool(op_type: str) -> Draw:
    """Pooling of one or two axes."""

    def draw(random: Random) -> list[Case]:
        x = _real(random, _planes(random))
        window = _window(random, x.ndim - 2, x.shape[2:], pool=True)
        window["pads"] = [p // 2 for p in window["pads"]]
        window["ceil_mode"] = int(random.random() < 0.3)
        if op_type == "AveragePool":
            window["count_include_pad"] = int(random.random() < 0.5)
            return [node_case(op_type, x, attributes=window)]
        return [node_case(op_type, x, outputs=("float32", "int64")[: int(random.integers(1, 3))], attributes=window)]

    return draw


def pool_gradient(op_type: str, of: str) -> Draw:
    """What a training step has of a pooling."""

    def draw(random: Random) -> list[Case]:
        shape = _planes(random)
        window = _window(random, len(shape) - 2, shape[2:], pool=True)
        window["pads"] = [p // 2 for p in window["pads"]]
        if of == "AveragePool":
            window["count_include_pad"] = int(random.random() < 0.5)
        model = _network(random, shape, [_node(of, ["h"], attributes=window)], {})
        return step_cases(model, op_type, random)

    return draw


def _global_average(random: Random) -> list[Case]:
    return [node_case("GlobalAveragePool", _real(random, _planes(random)))]


def _batch_norm(random: Random) -> list[Case]:
    shape = _planes(random)
    vectors = [_real(random, shape[1:2]) for _ in range(3)]
    return [node_case("BatchNormalization", _real(random, shape), *vectors, np.abs(vectors[0]) + np.float32(0.2))]


def batch_norm_step(op_type: str) -> Draw:
    """What a training step has of a BatchNormalization."""

    def draw(random: Random) -> list[Case]:
        shape = (int(random.integers(2, 4)), *_planes(random)[1:])
        names = ("scale", "bias", "mean", "variance")
        vectors = {name: np.abs(_real(random, shape[1:2])) + np.float32(0.2) for name in names}
        node = _node(
            "BatchNormalization", ["h", *names], ["y", "new_mean", "new_variance"], attributes={"training_mode": 1}
        )
        return step_cases(_network(random, shape, [node], vectors), op_type, random)

    return draw


def _layer_norm(random: Random) -> list[Case]:
    x = _real(random, _shape(random, 2, 4))
    axis = int(random.integers(1, x.ndim))
    scale, bias = (_real(random, x.shape[axis:]) for _ in range(2))
    operands = (scale, bias) if random.random() < 0.7 else (scale,)
    outputs = ("float32",) * int(random.choice([1, 3]))
    return [node_case("LayerNormalization", x, *operands, outputs=outputs, attributes={"axis": axis})]


def _layer_norm_gradient(random: Random) -> list[Case]:
    shape = (*_shape(random, 1, 3), int(random.choice([5, 9, 70])))
    vectors = {name: _real(random, shape[-1:]) for name in ("scale", "bias")}
    model = _network(random, shape, [_node("LayerNormalization", ["h", "scale", "bias"])], vectors)
    return step_cases(model, "LayerNormalization.gradient", random)


def dropout(op_type: str) -> Draw:
    """What a training step has of a Dropout."""

    def draw(random: Random) -> list[Case]:
        given = {"ratio": np.array(0.3, np.float32), "training": np.array(True)}
        node = _node("Dropout", ["h", *given], attributes={"seed": 7})
        return step_cases(_network(random, _shape(random, 1), [node], given), op_type, random)

    return draw


def softmax(op_type: str) -> Draw:
    """Softmax or LogSoftmax along any axis."""

    def draw(random: Random) -> list[Case]:
        x = np.multiply(_real(random, _shape(random, 1)), 4)
        return [node_case(op_type, x, attributes={"axis": int(random.integers(-x.ndim, x.ndim))})]

    return draw


def _likelihood(random: Random) -> list[Case]:
    x = _real(random, (*_shape(random, 2, 2), *_shape(random, 0, 2)))
    labels = random.integers(0, x.shape[1], (x.shape[0], *x.shape[2:]))
    chosen = str(random.choice(["mean", "sum"]))
    return [node_case("NegativeLogLikelihoodLoss", x, labels, attributes={"reduction": chosen})]


def _cross_entropy(random: Random) -> list[Case]:
    shape = (int(random.integers(1, 5)), int(random.integers(2, 9)))
    model = _network(random, shape, [_node("Identity", ["h"])], {})
    return step_cases(model, "SoftmaxCrossEntropyLoss.grad_input", random, loss="cross-entropy")


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
    ("", "Transpose"): _transpose,
    ("", "Expand"): _expand,
    ("", "Reshape"): _reshape,
    ("", "Flatten"): _flatten,
    ("", "Squeeze"): _squeeze,
    ("", "Unsqueeze"): _unsqueeze,
    ("", "Identity"): unary("Identity"),
    ("", "Slice"): _slice,
    ("", "Pad"): _pad,
    ("", "Concat"): _concat,
    ("", "Split"): _split,
    ("", "Gather"): _gather,
    ("", "ScatterElements"): _scatter_elements,
    ("", "ScatterND"): _scatter_nd,
    ("", "ConstantOfShape"): _constant_of_shape,
    ("", "Size"): _size,
    ("", "RandomUniform"): _random_uniform,
    **{("", f"Reduce{op}"): reduction(f"Reduce{op}") for op in ("Sum", "Mean", "SumSquare", "L1", "L2", "Prod")},
    **{("", f"Reduce{op}"): reduction(f"Reduce{op}") for op in ("Max", "Min")},
    ("", "Gemm"): _gemm,
    ("", "MatMul"): _matmul,
    ("", "Conv"): _conv,
    ("", "ConvTranspose"): _conv_transpose,
    ("", "MaxPool"): pool("MaxPool"),
    ("", "AveragePool"): pool("AveragePool"),
    ("", "GlobalAveragePool"): _global_average,
    ("", "BatchNormalization"): _batch_norm,
    ("", "LayerNormalization"): _layer_norm,
    ("", "Softmax"): softmax("Softmax"),
    ("", "LogSoftmax"): softmax("LogSoftmax"),
    ("", "NegativeLogLikelihoodLoss"): _likelihood,
    **{(OWN_DOMAIN, f"{op}.grad_input"): gradient(f"{op}.grad_input", op) for op in _SLOPES},
    (OWN_DOMAIN, "Clip.grad_input"): _clip_gradient,
    **{(OWN_DOMAIN, op): dropout(op) for op in ("Dropout", "Dropout.mask")},
    **{(OWN_DOMAIN, f"Conv.{k}"): convolution_gradient(f"Conv.{k}") for k in ("grad_input", "grad_weight")},
    (OWN_DOMAIN, "MaxPool.indexed"): pool_gradient("MaxPool.indexed", "MaxPool"),
    (OWN_DOMAIN, "MaxPool.grad_input"): pool_gradient("MaxPool.grad_input", "MaxPool"),
    (OWN_DOMAIN, "AveragePool.grad_input"): pool_gradient("AveragePool.grad_input", "AveragePool"),
    **{
        (OWN_DOMAIN, f"BatchNormalization.{k}"): batch_norm_step(f"BatchNormalization.{k}")
        for k in ("training", "grad_weight")
    },
    (OWN_DOMAIN, "Conv.grad_weight+sgd.update"): convolution_gradient("Conv.grad_weight+sgd.update", "sgd"),
    (OWN_DOMAIN, "Gemm+sgd.update"): update("Gemm+sgd.update", "sgd"),
    **{(OWN_DOMAIN, f"{o}.update"): update(f"{o}.update", o) for o in ("sgd", "momentum", "adam", "adamw")},
    (OWN_DOMAIN, "LayerNormalization.gradient"): _layer_norm_gradient,
    (OWN_DOMAIN, "SoftmaxCrossEntropyLoss.grad_input"): _cross_entropy,
}
"""How to draw cases of each op."""
