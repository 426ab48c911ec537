"""Random configurations of every op that has a rule: shapes, attributes, broadcasting, settings.

`RANDOM` gives a function for each op that draws a `Spec`; `specs(op)` is the strategy. They are checked by finite
differences in float64, so that no row needs a second implementation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.support.autodiff.random_networks import NETWORKS
from tests.support.autodiff.random_sampling import SAMPLING
from tests.support.autodiff.specs import Spec, distinct, ints, normal, positive, whole

Array = NDArray[Any]
Draw = Callable[[st.SearchStrategy[Any]], Any]
Drawn = Callable[[Draw], Spec]

OPSET: Mapping[str, int] = {"Gelu": 20, "RMSNormalization": 23, "RotaryEmbedding": 23, "Attention": 23, "Swish": 24}
"""Newer than 18, where an op needs it."""


def shape(draw: Draw, low: int = 1, high: int = 4, largest: int = 4) -> tuple[int, ...]:
    """A shape of `low` to `high` axes."""
    return tuple(draw(st.lists(st.integers(1, largest), min_size=low, max_size=high)))


def seed(draw: Draw) -> int:
    """For the values."""
    return int(draw(st.integers(0, 99)))


def grid(*dims: int, seed: int = 0) -> Array:
    """Between -0.9 and 0.9, off zero."""
    x = np.random.default_rng([seed, *dims]).uniform(0.05, 0.9, dims)
    return np.asarray(x * np.random.default_rng([seed, 1, *dims]).choice([-1.0, 1.0], dims))


def above_one(*dims: int, seed: int = 0) -> Array:
    """Between 1.5 and 3."""
    return 1.0 + positive(*dims, seed=seed)


def _unary(op: str, draw: Draw, values: Callable[..., Array] = normal, **ranges: tuple[float, float]) -> Spec:
    # between the numbers of `distinct`: a threshold that is one of them has no gradient there
    given = {name: draw(st.floats(*limits).map(lambda v: round(v, 2) + 0.0005)) for name, limits in ranges.items()}
    x = np.asarray(values(*shape(draw, 0), seed=seed(draw)))
    return Spec(op, (x,), attributes=given, opset=OPSET.get(op, 18))


def _broadcast(draw: Draw, count: int) -> list[tuple[int, ...]]:
    """Shapes that broadcast; the first has all axes."""
    full = shape(draw, 1, 4)
    found = [full]
    for _ in range(count - 1):
        kept = full[draw(st.integers(0, len(full))) :]
        found.append(tuple(d if draw(st.booleans()) else 1 for d in kept))
    return found


def _several(op: str, count: int, draw: Draw, values: Callable[..., Array] = normal) -> Spec:
    shapes = _broadcast(draw, count)
    # ONNX's own evaluation of Mean adds up in the first operand
    draw_order = shapes if op == "Mean" else draw(st.permutations(shapes))
    inputs = tuple(values(*s, seed=7 * k + seed(draw)) for k, s in enumerate(draw_order))
    return Spec(op, inputs, tuple(range(count)))


def _mod(draw: Draw) -> Spec:
    dividend, divisor = draw(st.permutations(_broadcast(draw, 2)))
    by = np.random.default_rng(seed(draw)).choice([-4.0, -2.0, -1.0, 1.0, 2.0, 4.0], divisor)
    return Spec("Mod", (whole(*dividend, seed=seed(draw)), np.asarray(by)), (0, 1), attributes={"fmod": 1})


def _extreme(op: str, draw: Draw) -> Spec:
    """Values of all operands far apart, so that a step changes no winner."""
    shapes = _broadcast(draw, draw(st.integers(1, 3)))
    start = seed(draw)
    values = [np.asarray(distinct(*s, seed=start + k) * len(shapes) + 0.013 * k) for k, s in enumerate(shapes)]
    return Spec(op, tuple(values), tuple(range(len(values))))


def _reduction(op: str, draw: Draw, values: Callable[..., Array] = normal) -> Spec:
    dims = shape(draw)
    axes = draw(st.lists(st.integers(0, len(dims) - 1), unique=True, max_size=len(dims)))
    signed = [axis - len(dims) * draw(st.integers(0, 1)) for axis in axes]
    return Spec(op, (values(*dims, seed=seed(draw)), ints(*signed)),
                attributes={"keepdims": draw(st.integers(0, 1))})  # fmt: skip


def _axis(op: str, draw: Draw, **more: Any) -> Spec:
    dims = shape(draw)
    attributes = {"axis": draw(st.integers(-len(dims), len(dims) - 1)), **{k: draw(v) for k, v in more.items()}}
    return Spec(op, (normal(*dims, seed=seed(draw)),), attributes=attributes)


def _power(draw: Draw) -> Spec:
    a, b = _broadcast(draw, 2)
    if draw(st.booleans()):
        return Spec("Pow", (positive(*a), normal(*b)), (0, 1))
    return Spec("Pow", (positive(*a), np.array(draw(st.sampled_from([-1.0, 0.5, 1.0, 2.0, 3.0])))))


def _where(draw: Draw) -> Spec:
    shapes = draw(st.permutations(_broadcast(draw, 3)))
    return Spec("Where", (normal(*shapes[0], seed=3) > 0, normal(*shapes[1]), normal(*shapes[2], seed=1)), (1, 2))


def _prelu(draw: Draw) -> Spec:
    a, b = _broadcast(draw, 2)
    return Spec("PRelu", (normal(*a), normal(*b, seed=1)), (0, 1))


def _clip(draw: Draw) -> Spec:
    low, high = draw(st.sampled_from([(-0.4, 0.7), (None, 0.3), (-0.2, None), (None, None), (0.0, 6.0)]))
    bounds = tuple(None if bound is None else np.array(bound) for bound in (low, high))
    x = np.asarray(normal(*shape(draw), seed=seed(draw)))
    for bound in (low, high):
        x = x if bound is None else np.where(np.abs(x - bound) < 0.01, x + 0.03, x)
    return Spec("Clip", (x, *bounds))


def _gemm(draw: Draw) -> Spec:
    m, n, k = (draw(st.integers(1, 5)) for _ in range(3))
    ta, tb = draw(st.integers(0, 1)), draw(st.integers(0, 1))
    a, b = normal(*((k, m) if ta else (m, k))), normal(*((n, k) if tb else (k, n)), seed=1)
    c = draw(st.sampled_from([None, (n,), (1, n), (m, 1), (m, n)]))
    attributes: dict[str, object] = {"transA": ta, "transB": tb, "alpha": draw(st.sampled_from([1.0, 0.5])),
                                     "beta": draw(st.sampled_from([1.0, 2.0]))}  # fmt: skip
    inputs = (a, b) if c is None else (a, b, normal(*c, seed=2))
    return Spec("Gemm", inputs, tuple(range(len(inputs))), attributes=attributes)


def _matmul(draw: Draw) -> Spec:
    left, right = draw(st.permutations(_broadcast(draw, 2)))
    m, n, k = (draw(st.integers(1, 4)) for _ in range(3))
    a, b = (*left[-2:], m, k), (*right[-2:], k, n)
    return Spec("MatMul", (normal(*(a if draw(st.booleans()) else (k,))), normal(*b, seed=1)), (0, 1))


def _shaped(op: str, draw: Draw) -> Spec:
    """Ops that only give another shape."""
    dims = shape(draw, 2)
    x, rank = normal(*dims, seed=seed(draw)), len(dims)
    axis = draw(st.integers(0, rank - 1))
    if op == "Reshape":
        return Spec(op, (x, ints(*draw(st.sampled_from([(-1,), (1, -1, 1), (0, -1), (x.size, 1)])))))
    if op == "Flatten":
        return Spec(op, (x,), attributes={"axis": axis - rank * draw(st.integers(0, 1))})
    if op == "Unsqueeze":
        return Spec(op, (x, ints(*draw(st.sampled_from([(0,), (-1,), (1, 3), (0, rank + 1)])))))
    if op == "Squeeze":
        return Spec(op, (normal(*dims[:axis], 1, *dims[axis:]), ints(axis)))
    if op == "Transpose":
        return Spec(op, (x,), attributes={"perm": list(draw(st.permutations(range(rank))))})
    if op == "Expand":
        thin = tuple(1 if k == axis else d for k, d in enumerate(dims))
        return Spec(op, (normal(*thin), ints(*(draw(st.sampled_from([(), (2,)]))), *dims)))
    if op == "Tile":
        return Spec(op, (x, ints(*(draw(st.integers(1, 3)) for _ in dims))))
    return Spec(op, (x,))


def _concat(draw: Draw) -> Spec:
    dims = shape(draw, 1, 3)
    axis = draw(st.integers(0, len(dims) - 1))
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    parts = [normal(*dims[:axis], n, *dims[axis + 1 :], seed=k) for k, n in enumerate(sizes)]
    return Spec("Concat", tuple(parts), tuple(range(len(parts))), attributes={"axis": axis - len(dims)})


def _split(draw: Draw) -> Spec:
    dims = shape(draw, 1, 3)
    axis = draw(st.integers(0, len(dims) - 1))
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    x = normal(*dims[:axis], sum(sizes), *dims[axis + 1 :])
    ignored = (0,) if len(sizes) > 1 and draw(st.booleans()) else ()
    return Spec("Split", (x, ints(*sizes)), attributes={"axis": axis}, outputs=len(sizes), ignored=ignored)


def _slice(draw: Draw) -> Spec:
    dims = shape(draw, 1, 3, 6)
    axes = draw(st.lists(st.integers(0, len(dims) - 1), unique=True, min_size=1))
    edges = [sorted((draw(st.integers(0, dims[a] - 1)), draw(st.integers(1, dims[a])))) for a in axes]
    edges = [[low, max(high, low + 1)] for low, high in edges]
    steps = [draw(st.sampled_from([1, 1, 2, 3, -1, -2])) for _ in axes]
    starts = [low if s > 0 else high - 1 for (low, high), s in zip(edges, steps, strict=True)]
    ends = [
        high if s > 0 else low - 1 - dims[a] if low else -100
        for (low, high), s, a in zip(edges, steps, axes, strict=True)
    ]
    return Spec("Slice", (normal(*dims), ints(*starts), ints(*ends), ints(*axes), ints(*steps)))


def _pad(draw: Draw) -> Spec:
    mode = draw(st.sampled_from(["constant", "reflect", "edge", "wrap"]))
    dims = tuple(draw(st.lists(st.integers(3, 5), min_size=1, max_size=4)))
    sides = [draw(st.integers(-1, 2 if mode == "constant" else 1)) for _ in range(2 * len(dims))]
    if mode != "constant" and len(dims) == 4:
        sides = [0 if k % 4 < 2 else side for k, side in enumerate(sides)]
    if mode == "reflect":  # of an axis cut to one element nothing is reflected
        sides = [max(side, 0) if dims[k % len(dims)] < 4 else side for k, side in enumerate(sides)]
    return Spec("Pad", (normal(*dims), ints(*sides)), attributes={"mode": mode}, opset=19)


def _gather(draw: Draw) -> Spec:
    dims = shape(draw, 1, 3, 6)
    axis = draw(st.integers(0, len(dims) - 1))
    n = dims[axis]
    at = np.random.default_rng(seed(draw)).integers(-n, n, shape(draw, 0, 2))
    return Spec("Gather", (normal(*dims), np.asarray(at, np.int64)), attributes={"axis": axis})


def _reduced(
    draw: Draw, dims: tuple[int, ...], axis: int, indices: Array, picked: tuple[int, ...]
) -> tuple[Array, dict[str, object], list[Array]]:
    """Indices, which repeat where something is done about it, a reduction, and values: all apart for the extremes."""
    how = draw(st.sampled_from(["none", "add", "mul", "max", "min"]))
    if how == "none":
        return indices, {}, [normal(*dims), normal(*picked, seed=1)]
    repeated = np.random.default_rng(seed(draw)).integers(0, indices.shape[axis], indices.shape[axis])
    indices, settings = indices.take(repeated, axis), {"reduction": how}
    if how in {"add", "mul"}:
        return indices, settings, [normal(*dims), normal(*picked, seed=1)]
    size = math.prod(dims)
    values = distinct(size + math.prod(picked), seed=seed(draw))
    return indices, settings, [values[:size].reshape(dims), values[size:].reshape(picked)]


def _elements(op: str, draw: Draw) -> Spec:
    dims = shape(draw, 1, 3)
    axis = draw(st.integers(0, len(dims) - 1))
    count = draw(st.integers(1, dims[axis]))
    picked = (*dims[:axis], count, *dims[axis + 1 :])
    order = np.argsort(np.random.default_rng(seed(draw)).random(dims), axis).take(range(count), axis)
    x = normal(*dims)
    if op == "GatherElements":
        return Spec(op, (x, order), attributes={"axis": axis})
    if op == "ScatterElements":
        places, reduction, (x, updates) = _reduced(draw, dims, axis, order, picked)
        return Spec(op, (x, places, updates), (0, 2), attributes={"axis": axis, **reduction})
    if op == "TopK":
        return Spec(op, (distinct(*dims), ints(count)), attributes={"axis": axis, "largest": draw(st.integers(0, 1))},
                    outputs=2, ignored=(1,))  # fmt: skip
    depth = draw(st.integers(1, len(dims)))
    rows = np.random.default_rng(seed(draw)).permutation(math.prod(dims[:depth]))[: draw(st.integers(1, 4))]
    where = np.stack(np.unravel_index(rows, dims[:depth]), -1).astype(np.int64)
    if op == "GatherND":
        return Spec(op, (x, where))
    where, reduction, (x, updates) = _reduced(draw, dims, 0, where, (len(rows), *dims[depth:]))
    return Spec(op, (x, where, updates), (0, 2), attributes=reduction)


def _cumsum(draw: Draw) -> Spec:
    dims = shape(draw)
    axis = np.array(draw(st.integers(-len(dims), len(dims) - 1)))
    attributes = {"exclusive": draw(st.integers(0, 1)), "reverse": draw(st.integers(0, 1))}
    return Spec("CumSum", (normal(*dims), axis), attributes=attributes)


def _trilu(draw: Draw) -> Spec:
    return Spec("Trilu", (normal(*shape(draw, 2)), np.array(draw(st.integers(-3, 3)))),
                attributes={"upper": draw(st.integers(0, 1))})  # fmt: skip


def _blocks(op: str, draw: Draw) -> Spec:
    n, c, h, w, b = (draw(st.integers(1, 3)) for _ in range(5))
    if op == "SpaceToDepth":
        return Spec(op, (normal(n, c, h * b, w * b),), attributes={"blocksize": b})
    mode = draw(st.sampled_from(["DCR", "CRD"]))
    return Spec(op, (normal(n, c * b * b, h, w),), attributes={"blocksize": b, "mode": mode})


_PLAIN = ("Abs", "Sin", "Cos", "Erf", "Exp", "Gelu", "HardSwish", "Mish", "Neg", "Relu", "Sigmoid", "Sinh", "Cosh",
          "Tanh", "Softplus", "Softsign", "Atan", "Asinh", "Selu")  # fmt: skip
_SHAPED = ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Transpose", "Expand", "Tile")

RANDOM: dict[str, Drawn] = {
    **{op: partial(_unary, op) for op in _PLAIN},
    **{op: partial(_unary, op, values=positive) for op in ("Log", "Sqrt", "Reciprocal")},
    **{op: partial(_unary, op, values=grid) for op in ("Tan", "Asin", "Acos", "Atanh")},
    "Acosh": partial(_unary, "Acosh", values=above_one),
    **{op: partial(_unary, op, alpha=(0.1, 1.5)) for op in ("Celu", "Elu", "Swish")},
    "LeakyRelu": partial(_unary, "LeakyRelu", alpha=(-0.5, 0.5)),
    "ThresholdedRelu": partial(_unary, "ThresholdedRelu", values=distinct, alpha=(-0.5, 0.5)),
    "Mod": _mod,
    "HardSigmoid": partial(_unary, "HardSigmoid", values=grid, alpha=(0.1, 0.3), beta=(0.4, 0.6)),
    **{op: partial(_several, op, 2) for op in ("Add", "Sub", "Mul")},
    "Div": partial(_several, "Div", 2, values=positive),
    **{op: partial(_several, op, 3) for op in ("Sum", "Mean")},
    **{op: partial(_extreme, op) for op in ("Max", "Min")},
    "Pow": _power, "Where": _where, "PRelu": _prelu, "Clip": _clip, "Gemm": _gemm, "MatMul": _matmul,
    **{op: partial(_reduction, op) for op in ("ReduceL1", "ReduceL2", "ReduceLogSumExp", "ReduceMean", "ReduceProd",
                                                 "ReduceSum", "ReduceSumSquare")},
    "ReduceLogSum": partial(_reduction, "ReduceLogSum", values=positive),
    **{op: partial(_reduction, op, values=distinct) for op in ("ReduceMax", "ReduceMin")},
    **{op: partial(_axis, op) for op in ("Softmax", "LogSoftmax")},
    "LpNormalization": partial(_axis, "LpNormalization", p=st.integers(1, 2)),
    **{op: partial(_shaped, op) for op in _SHAPED},
    "Concat": _concat, "Split": _split, "Slice": _slice, "Pad": _pad, "Gather": _gather, "CumSum": _cumsum,
    "Trilu": _trilu,
    **{op: partial(_elements, op) for op in ("GatherElements", "ScatterElements", "GatherND", "ScatterND", "TopK")},
    **{op: partial(_blocks, op) for op in ("DepthToSpace", "SpaceToDepth")},
    **NETWORKS,
    **SAMPLING,
}  # fmt: skip


def specs(op: str) -> st.SearchStrategy[Spec]:
    """Random rows of `op`."""
    return st.composite(lambda draw: RANDOM[op](draw))()
