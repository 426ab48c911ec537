"""Random calls of ops that move data."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from poetopt.graph import OWN_DOMAIN
from tests.support.contract.kernel import Case, node_case
from tests.support.draws.pieces import (
    Draw,
    Random,
    broadcastable,
    integers,
    network,
    normal,
    onnx_node,
    random_shape,
    random_values,
)
from tests.support.draws.steps import step_cases


def _transpose(random: Random) -> list[Case]:
    x = normal(random, random_shape(random, 1, 5, 4))
    chosen = {"perm": [int(a) for a in random.permutation(x.ndim)]} if random.random() < 0.9 else {}
    return [node_case("Transpose", x, attributes=chosen)]


def _expand(random: Random) -> list[Case]:
    shape = random_shape(random, 1)
    return [node_case("Expand", normal(random, broadcastable(random, shape)), integers(shape), constants=(1,))]


def _reshape(random: Random) -> list[Case]:
    x = normal(random, random_shape(random, 1))
    return [node_case("Reshape", x, integers([-1]), constants=(1,))]


def _flatten(random: Random) -> list[Case]:
    x = normal(random, random_shape(random, 1))
    return [node_case("Flatten", x, attributes={"axis": int(random.integers(0, x.ndim + 1))})]


def _squeeze(random: Random) -> list[Case]:
    return [node_case("Squeeze", normal(random, (1, *random_shape(random, 1))), integers([0]), constants=(1,))]


def _unsqueeze(random: Random) -> list[Case]:
    return [node_case("Unsqueeze", normal(random, random_shape(random, 1)), integers([0]), constants=(1,))]


def _slice(random: Random) -> list[Case]:
    x = normal(random, random_shape(random, 1))
    axes = [int(a) for a in random.permutation(x.ndim)[: int(random.integers(1, x.ndim + 1))]]
    starts, ends, steps = [], [], []
    for axis in axes:
        step = int(random.choice([1, 1, 2, -1, -2]))
        low = int(random.integers(0, x.shape[axis]))
        high = int(random.integers(low + 1, x.shape[axis] + 1))
        starts.append(low if step > 0 else high - 1)
        ends.append(high if step > 0 else (low - 1 if low else -(2**63) + 1))
        steps.append(step)
    return [
        node_case("Slice", x, integers(starts), integers(ends), integers(axes), integers(steps), constants=(1, 2, 3, 4))
    ]


def _tile(random: Random) -> list[Case]:
    x = normal(random, random_shape(random, 1, 4, 4))
    return [node_case("Tile", x, random.integers(1, 4, x.ndim), constants=(1,))]


def _pad(random: Random) -> list[Case]:
    x = normal(random, random_shape(random, 1))
    mode = str(random.choice(["constant", "constant", "reflect", "edge", "wrap"]))
    if mode != "constant":  # reflect has one place less than there are
        most = [n - (mode == "reflect") for n in (*x.shape, *x.shape)]
        pads = np.array([random.integers(0, min(n, 3) + 1) for n in most])
        if random.random() < 0.2 and x.shape[0] > 4:
            pads[0], pads[x.ndim] = -1, min(int(pads[x.ndim]), 2)
        return [node_case("Pad", x, pads, constants=(1,), attributes={"mode": mode})]
    pads = random.integers(0, 3, 2 * x.ndim)
    if random.random() < 0.3 and x.shape[0] > 2:
        pads[0] = -1
    value = (np.asarray(np.float32(0.5)),) if random.random() < 0.5 else ()
    return [node_case("Pad", x, pads, *value, constants=(1, 2))]


def _concat(random: Random) -> list[Case]:
    shape = list(random_shape(random, 1))
    axis = int(random.integers(0, len(shape)))
    parts = []
    for _ in range(int(random.integers(1, 5))):
        shape[axis] = int(random.integers(1, 5))
        parts.append(normal(random, shape))
    return [node_case("Concat", *parts, attributes={"axis": axis - len(shape) if random.random() < 0.3 else axis})]


def _split(random: Random) -> list[Case]:
    shape = list(random_shape(random, 1))
    axis, count = int(random.integers(0, len(shape))), int(random.integers(2, 4))
    sizes = random.integers(1, 4, count)
    shape[axis] = int(sizes.sum())
    x = normal(random, shape)
    return [node_case("Split", x, sizes, outputs=("float32",) * count, constants=(1,), attributes={"axis": axis})]


def _gather(random: Random) -> list[Case]:
    x = normal(random, random_shape(random, 1))
    axis = int(random.integers(0, x.ndim))
    where = random.integers(-x.shape[axis], x.shape[axis], random_shape(random, 0, 2))
    return [node_case("Gather", x, where.astype(random.choice(["int64", "int32"])), attributes={"axis": axis})]


def _gather_elements(random: Random) -> list[Case]:
    x = normal(random, random_shape(random, 1))
    axis = int(random.integers(0, x.ndim))
    shape = tuple(int(random.integers(1, n + 1)) for n in x.shape)
    where = random.integers(-x.shape[axis], x.shape[axis], shape)
    return [node_case("GatherElements", x, where, attributes={"axis": axis})]


def _scatter_elements(random: Random) -> list[Case]:
    x = normal(random, random_shape(random, 1))
    axis = int(random.integers(0, x.ndim))
    shape = tuple(int(random.integers(1, n + 1)) for n in x.shape)
    reduction = str(random.choice(["none", "add", "mul", "max", "min"]))
    where = random.integers(-x.shape[axis], x.shape[axis], shape)
    if reduction == "none":  # the order of what meets is nobody's to rely on
        where = np.argsort(random.random(x.shape), axis)[tuple(slice(0, n) for n in shape)]
    return [
        node_case("ScatterElements", x, where, normal(random, shape), attributes={"axis": axis, "reduction": reduction})
    ]


def _scatter_nd(random: Random) -> list[Case]:
    x = normal(random, random_shape(random, 1, 3))
    depth, count = int(random.integers(1, x.ndim + 1)), int(random.integers(1, 4))
    reduction = str(random.choice(["none", "add"]))
    places = random.permutation(int(np.prod(x.shape[:depth])))[:count]
    where = np.stack(np.unravel_index(places, x.shape[:depth]), -1)
    return [
        node_case(
            "ScatterND", x, where, normal(random, (len(places), *x.shape[depth:])), attributes={"reduction": reduction}
        )
    ]


def _gather_nd(random: Random) -> list[Case]:
    x = normal(random, random_shape(random, 2, 4))
    batch = int(random.integers(0, x.ndim - 1)) if random.random() < 0.4 else 0
    depth, more = int(random.integers(1, x.ndim - batch + 1)), random_shape(random, 0, 2, 3)
    sizes = x.shape[batch : batch + depth]
    where = np.stack([random.integers(-n, n, (*x.shape[:batch], *more)) for n in sizes], -1)
    return [node_case("GatherND", x, where, attributes={"batch_dims": batch})]


def _top_k(random: Random) -> list[Case]:
    """Of whole numbers some are equal."""
    x = normal(random, random_shape(random, 1))
    x = np.rint(2 * x) if random.random() < 0.5 else x
    x = x.astype(str(random.choice(["float32", "float32", "int64"])))
    axis = int(random.integers(-x.ndim, x.ndim))
    k = integers([int(random.integers(1, x.shape[axis] + 1))])
    chosen = {"axis": axis, "largest": int(random.random() < 0.5)}
    return [node_case("TopK", x, k, outputs=(x.dtype.name, "int64"), constants=(1,), attributes=chosen)]


def _constant_of_shape(random: Random) -> list[Case]:
    shape, dtype = random_shape(random, 1), str(random.choice(["float32", "int64", "int32"]))
    value = random_values(random, dtype, (1,))
    return [
        node_case("ConstantOfShape", integers(shape), outputs=(dtype,), constants=(0,), attributes={"value": value})
    ]


def _size(random: Random) -> list[Case]:
    return [node_case("Size", normal(random, random_shape(random, 1)), outputs=("int64",))]


def _random_uniform(random: Random) -> list[Case]:
    shape, seed = list(random_shape(random, 1)), float(random.integers(1, 1_000_000))
    return [node_case("RandomUniform", attributes={"shape": shape, "seed": seed})]


def gather_gradient(op_type: str, random: Random, *, optimizer: str = "none") -> list[Case]:
    """The gradient of a table whose rows are read, or with the update by it."""
    shape = random_shape(random, 1, 3)
    axis = int(random.integers(0, len(shape)))
    where = random.integers(-shape[axis], shape[axis], random_shape(random, 1, 2))
    nodes = [onnx_node("Gather", ["w", "i"], ["g"], attributes={"axis": axis})]
    taken = np.take(np.zeros(shape), where, axis).shape
    model = network(random, taken, [*nodes, onnx_node("Mul", ["h", "g"])], {"w": normal(random, shape), "i": where})
    return step_cases(model, op_type, random, optimizer=optimizer)


DRAWS: Mapping[tuple[str, str], Draw] = {
    ("", "Transpose"): _transpose, ("", "Expand"): _expand, ("", "Reshape"): _reshape, ("", "Flatten"): _flatten,
    ("", "Squeeze"): _squeeze, ("", "Unsqueeze"): _unsqueeze, ("", "Slice"): _slice, ("", "Pad"): _pad,
    ("", "Tile"): _tile, ("", "GatherND"): _gather_nd, ("", "TopK"): _top_k, ("", "Concat"): _concat,
    ("", "Split"): _split, ("", "Gather"): _gather, ("", "GatherElements"): _gather_elements,
    ("", "ScatterElements"): _scatter_elements, ("", "ScatterND"): _scatter_nd,
    ("", "ConstantOfShape"): _constant_of_shape, ("", "Size"): _size, ("", "RandomUniform"): _random_uniform,
    (OWN_DOMAIN, "Gather.grad_input"): partial(gather_gradient, "Gather.grad_input"),
    (OWN_DOMAIN, "Gather.grad_input+sgd.update"): partial(
        gather_gradient, "Gather.grad_input+sgd.update", optimizer="sgd"),
}  # fmt: skip
