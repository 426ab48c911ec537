"""Random calls of convolutions and pooling, and of their gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from poetopt.graph import OWN_DOMAIN
from tests.support.contract.kernel import Case, node_case
from tests.support.draws.pieces import Draw, Random, network, normal, onnx_node
from tests.support.draws.steps import step_cases

if TYPE_CHECKING:
    from poetopt.graph import Array


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
    x = normal(random, (int(random.integers(1, 3)), (outs if transposed else ins) * groups, *size))
    w = normal(random, (outs * groups, ins, *window["kernel_shape"]))
    return x, w, normal(random, ((ins if transposed else outs) * groups,)), {**window, "group": groups}


def _conv(random: Random) -> list[Case]:
    x, w, bias, window = _convolution(random)
    return [node_case("Conv", x, w, *([bias] if random.random() < 0.5 else []), attributes=window)]


def _transposed(random: Random) -> tuple[Array, Array, Array, dict[str, Any]] | None:
    """Operands and attributes of a ConvTranspose; None where it would write nothing."""
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
    return None if min(out) < 1 else (x, w, bias, window)


def _conv_transpose(random: Random) -> list[Case]:
    drawn = _transposed(random)
    if drawn is None:
        return []
    x, w, bias, window = drawn
    return [node_case("ConvTranspose", x, w, *([bias] if random.random() < 0.5 else []), attributes=window)]


def convolution_gradient(op_type: str, random: Random, *, optimizer: str = "none") -> list[Case]:
    """A gradient of a convolution, or one with the update by it; by the weights also one of a ConvTranspose."""
    of = "ConvTranspose" if "grad_weight" in op_type and random.random() < 0.2 else "Conv"
    drawn = _convolution(random) if of == "Conv" else _transposed(random)
    if drawn is None:
        return []
    x, w, bias, window = drawn
    model = network(random, x.shape, [onnx_node(of, ["h", "w", "b"], attributes=window)], {"w": w, "b": bias})
    return step_cases(model, op_type, random, optimizer=optimizer)


def random_planes(random: Random) -> tuple[int, ...]:
    axes = int(random.integers(1, 3))
    return (int(random.integers(1, 3)), int(random.integers(1, 4)), *(int(n) for n in random.integers(2, 10, axes)))


def pool(op_type: str, random: Random) -> list[Case]:
    """Pooling of one or two axes."""
    x = normal(random, random_planes(random))
    window = _window(random, x.ndim - 2, x.shape[2:], pool=True)
    window["pads"] = [p // 2 for p in window["pads"]]
    window["ceil_mode"] = int(random.random() < 0.3)
    if op_type == "AveragePool":
        window["count_include_pad"] = int(random.random() < 0.5)
        return [node_case(op_type, x, attributes=window)]
    return [node_case(op_type, x, outputs=("float32", "int64")[: int(random.integers(1, 3))], attributes=window)]


def pool_gradient(op_type: str, of: str, random: Random) -> list[Case]:
    """What a training step has of a pooling."""
    shape = random_planes(random)
    window = _window(random, len(shape) - 2, shape[2:], pool=True)
    window["pads"] = [p // 2 for p in window["pads"]]
    if of == "AveragePool":
        window["count_include_pad"] = int(random.random() < 0.5)
    model = network(random, shape, [onnx_node(of, ["h"], attributes=window)], {})
    return step_cases(model, op_type, random)


def _global_average(random: Random) -> list[Case]:
    return [node_case("GlobalAveragePool", normal(random, random_planes(random)))]


def _resize(random: Random) -> list[Case]:
    """By scales of which every length is whole, or by sizes. onnxruntime has cubic ones of two axes alone."""
    x = normal(random, random_planes(random))
    mode = str(random.choice(["nearest", "linear", "cubic"] if x.ndim == 4 else ["nearest", "linear"]))
    places = str(random.choice(["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"]))
    ties = str(random.choice(["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]))
    axes = x.ndim - 2
    scales, sizes = None, None
    if random.random() < 0.6:
        scales = np.array([1, 1, *random.choice([1.0, 2.0, 3.0, 4.0], axes)], np.float32)
    else:
        sizes = np.array([*x.shape[:2], *random.integers(1, 20, axes)], np.int64)
    chosen: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": places, "nearest_mode": ties}
    if mode == "cubic":
        chosen |= {"cubic_coeff_a": float(random.choice([-0.75, -0.5])), "exclude_outside": int(random.random() < 0.5)}
    given = [None, scales] if sizes is None else [None, None, sizes]
    return [node_case("Resize", x, *given, constants=(len(given),), attributes=chosen)]


DRAWS: Mapping[tuple[str, str], Draw] = {
    ("", "Resize"): _resize,
    ("", "Conv"): _conv,
    ("", "ConvTranspose"): _conv_transpose,
    ("", "MaxPool"): partial(pool, "MaxPool"),
    ("", "AveragePool"): partial(pool, "AveragePool"),
    ("", "GlobalAveragePool"): _global_average,
    **{(OWN_DOMAIN, f"Conv.{k}"): partial(convolution_gradient, f"Conv.{k}") for k in ("grad_input", "grad_weight")},
    (OWN_DOMAIN, "MaxPool.indexed"): partial(pool_gradient, "MaxPool.indexed", "MaxPool"),
    (OWN_DOMAIN, "MaxPool.grad_input"): partial(pool_gradient, "MaxPool.grad_input", "MaxPool"),
    (OWN_DOMAIN, "AveragePool.grad_input"): partial(pool_gradient, "AveragePool.grad_input", "AveragePool"),
    **{
        (OWN_DOMAIN, f"Conv.grad_weight+{o}.update"): partial(
            convolution_gradient, f"Conv.grad_weight+{o}.update", optimizer=o
        )
        for o in ("sgd", "momentum", "adam", "adamw")
    },
}
