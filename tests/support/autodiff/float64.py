"""Float64 ops for onnx's reference evaluator: its own ConvTranspose knows no groups, its Erf is a float32 one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx.reference.op_run import OpRun

Array = NDArray[Any]


def conv_transpose(
    x: Array, w: Array, strides: Sequence[int], dilations: Sequence[int], pads: Sequence[int],
    extra: Sequence[int], group: int,
) -> Array:  # fmt: skip
    """The adjoint of a convolution, tap by tap: x [N, M, ...], w [M, C/group, ...]."""
    rank = x.ndim - 2
    axes = list(zip(x.shape[2:], strides, w.shape[2:], dilations, extra, strict=True))
    full = [(n - 1) * s + (k - 1) * d + 1 + e for n, s, k, d, e in axes]
    parts = []
    for xs, ws in zip(np.split(x, group, 1), np.split(w, group, 0), strict=True):
        y = np.zeros((x.shape[0], w.shape[1], *full), x.dtype)
        for number, tap in enumerate(itertools.product(*map(range, w.shape[2:]))):
            at: tuple[Any, ...] = tuple(
                slice(t * d, t * d + (n - 1) * s + 1, s) for t, (n, s, _, d, _) in zip(tap, axes, strict=True)
            )
            y[(Ellipsis, *at)] += np.einsum("nm...,mc->nc...", xs, ws.reshape(*ws.shape[:2], -1)[:, :, number])
        parts.append(y)
    whole = np.concatenate(parts, 1)
    crop = [slice(pads[a], whole.shape[2 + a] - pads[rank + a]) for a in range(rank)]
    return np.asarray(whole[(slice(None), slice(None), *crop)])


class Own(OpRun):
    """One of ONNX's domain."""

    op_domain = ""


class ConvTranspose(Own):
    """Replaces the evaluator's own."""

    def _run(self, x: Array, w: Array, b: Array | None = None, **attributes: Any) -> tuple[Array]:
        rank = x.ndim - 2
        found = conv_transpose(
            x, w, attributes["strides"] or [1] * rank, attributes["dilations"] or [1] * rank,
            attributes["pads"] or [0] * (2 * rank), attributes["output_padding"] or [0] * rank,
            attributes["group"] or 1,
        )  # fmt: skip
        return (found if b is None else found + b.reshape(-1, *[1] * rank),)


class Erf(Own):
    """Replaces the evaluator's own."""

    def _run(self, x: Array) -> tuple[Array]:
        return (np.asarray(np.vectorize(math.erf, otypes=[np.float64])(x).astype(x.dtype)),)


class Gelu(Own):
    """Replaces a function whose Erf would be the evaluator's own."""

    def _run(self, x: Array, approximate: str | None = None) -> tuple[Array]:
        if approximate == "tanh":
            inner = np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
        else:
            inner = np.vectorize(math.erf, otypes=[np.float64])(x / math.sqrt(2))
        return (np.asarray(0.5 * x * (1 + inner)).astype(x.dtype),)


class GlobalMaxPool(Own):
    """Replaces the evaluator's own, which is right for two spatial axes only."""

    def _run(self, x: Array) -> tuple[Array]:
        return (np.asarray(x.max(tuple(range(2, x.ndim)), keepdims=True)),)


class LRN(Own):
    """Replaces the evaluator's own, which leaves out the last channel of a window."""

    def _run(self, x: Array, **attributes: Any) -> tuple[Array]:
        size = attributes["size"]
        alpha, beta, bias = (attributes[name] or default for name, default in LRN_DEFAULTS.items())
        squares = np.zeros_like(x)
        for channel in range(x.shape[1]):
            low, high = max(0, channel - (size - 1) // 2), channel + size // 2 + 1
            squares[:, channel] = (x[:, low:high] ** 2).sum(1)
        return (np.asarray(x / (bias + alpha / size * squares) ** beta),)


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


Function = Callable[[Array], Array]

ACTIVATIONS: dict[str, tuple[int, tuple[float, float], Callable[[Array, float, float], Array]]] = {
    "sigmoid": (0, (0, 0), lambda x, a, b: _sigmoid(x)),
    "tanh": (0, (0, 0), lambda x, a, b: np.tanh(x)),
    "relu": (0, (0, 0), lambda x, a, b: np.maximum(x, 0)),
    "hardsigmoid": (2, (0.2, 0.5), lambda x, a, b: np.clip(a * x + b, 0, 1)),
    "leakyrelu": (1, (0.01, 0), lambda x, a, b: np.where(x < 0, a * x, x)),
    "thresholdedrelu": (1, (0, 0), lambda x, a, b: np.where(x > a, x, 0)),
    "elu": (1, (1, 0), lambda x, a, b: np.where(x < 0, a * np.expm1(np.minimum(x, 0)), x)),
    "softsign": (0, (0, 0), lambda x, a, b: x / (1 + np.abs(x))),
    "softplus": (0, (0, 0), lambda x, a, b: np.logaddexp(0, x)),
    "scaledtanh": (2, (0, 0), lambda x, a, b: a * np.tanh(b * x)),
    "affine": (2, (0, 0), lambda x, a, b: a * x + b),
}
"""How many of alpha and beta each has, what they are by default, and the function."""


def activations(attributes: dict[str, Any], usual: Sequence[str], directions: int) -> list[list[Function]]:
    """Those of each direction; given alphas and betas are taken in order by those that have one."""
    left = [list(attributes.get(f"activation_{name}") or []) for name in ("alpha", "beta")]
    found: list[Function] = []
    for name in attributes.get("activations") or [*usual] * directions:
        count, defaults, function = ACTIVATIONS[(name.decode() if isinstance(name, bytes) else name).lower()]
        a, b = (rest.pop(0) if k < count and rest else defaults[k] for k, rest in enumerate(left))
        found.append(partial(lambda x, function, a, b: np.asarray(function(x, a, b)), function=function, a=a, b=b))
    each = len(usual)
    return [found[d * each : (d + 1) * each] for d in range(directions)]


def lstm_step(x: Array, states: list[Array], w: Array, r: Array, b: Array, attributes: dict[str, Any]) -> list[Array]:
    """One step of an LSTM: the states are h and c."""
    wb, rb = np.split(b, 2)
    i, o, f, g = np.split(x @ w.T + states[0] @ r.T + wb + rb, 4, -1)
    gate, enter, leave = attributes["functions"]
    c = gate(f) * states[1] + gate(i) * enter(g)
    return [gate(o) * leave(c), c]


def gru_step(x: Array, states: list[Array], w: Array, r: Array, b: Array, attributes: dict[str, Any]) -> list[Array]:
    """One step of a GRU: the state is h."""
    (h,), hidden = states, r.shape[1]
    wb, rb = np.split(b, 2)
    left, right = x @ w.T + wb, h @ r.T + rb
    gate, enter = attributes["functions"]
    z, reset = np.split(gate((left + right)[:, : 2 * hidden]), 2, -1)
    if attributes["linear_before_reset"]:
        candidate = enter(left[:, 2 * hidden :] + reset * right[:, 2 * hidden :])
    else:
        candidate = enter(left[:, 2 * hidden :] + (reset * h) @ r[2 * hidden :].T + rb[2 * hidden :])
    return [(1 - z) * candidate + z * h]


def rnn_step(x: Array, states: list[Array], w: Array, r: Array, b: Array, attributes: dict[str, Any]) -> list[Array]:
    """One step of an RNN: the state is h."""
    wb, rb = np.split(b, 2)
    (function,) = attributes["functions"]
    return [function(x @ w.T + states[0] @ r.T + wb + rb)]


USUAL: dict[Any, tuple[str, ...]] = {
    lstm_step: ("sigmoid", "tanh", "tanh"),
    gru_step: ("sigmoid", "tanh"),
    rnn_step: ("tanh",),
}


def unrolled(step: Any, count: int, x: Array, w: Array, r: Array, b: Array | None, lengths: Array | None,
             first: list[Array | None], attributes: dict[str, Any]) -> tuple[Array, ...]:  # fmt: skip
    """Y and the last states of a recurrent layer with `count` states, one sequence of the batch after the other."""
    if lengths is not None:
        parts = []
        for n, length in enumerate(lengths.tolist()):
            start = [None if s is None else s[:, n : n + 1] for s in first]
            y, *last = unrolled(step, count, x[:length, n : n + 1], w, r, b, None, start, attributes)
            parts.append((np.pad(y, ((0, x.shape[0] - length), *[(0, 0)] * 3)), *last))
        return tuple(np.concatenate(each, -2) for each in zip(*parts, strict=True))
    sequences, lasts = [], []
    functions = activations(attributes, USUAL[step], r.shape[0])
    for d in range(r.shape[0]):
        turned = d == 1 or attributes["direction"] == "reverse"
        zeros = np.zeros((x.shape[1], r.shape[2]), x.dtype)
        states = [zeros if s is None else s[d] for s in first]
        bias = np.zeros(2 * r.shape[1], x.dtype) if b is None else b[d]
        found = []
        for piece in x[::-1] if turned else x:
            states = step(piece, states, w[d], r[d], bias, {**attributes, "functions": functions[d]})
            found.append(states[0])
        sequences.append(np.stack(found[::-1] if turned else found))
        lasts.append(states)
    return (np.stack(sequences, 1), *(np.stack([last[s] for last in lasts]) for s in range(count)))


class MeanVarianceNormalization(Own):
    """Replaces the evaluator's own function, whose constants are float32."""

    def _run(self, x: Array, axes: Sequence[int] | None = None) -> tuple[Array]:
        gone = tuple(axes or (0, 2, 3))
        return ((x - x.mean(gone, keepdims=True)) / (x.std(gone, keepdims=True) + 1e-9),)


def _layer(name: str, step: Any, count: int) -> type[OpRun]:
    """Replaces the evaluator's own, which has one direction; it has `count` states."""

    def run(self: Any, x: Array, w: Array, r: Array, *rest: Array | None, **attributes: Any) -> tuple[Array, ...]:
        b, lengths, *first = (*rest, None, None, None, None)[: 2 + count]
        return unrolled(step, count, x, w, r, b, lengths, first, attributes)

    return type(name, (Own,), {"_run": run})


@lru_cache(maxsize=32)
def _resizing(node: bytes, shape: tuple[int, ...], given: tuple[tuple[int, str, bytes], ...], opset: int) -> Array:
    """[elements of y, elements of x] and the shape of y, of one Resize as onnxruntime computes it."""
    proto = onnx.NodeProto.FromString(node)
    info = [onnx.helper.make_tensor_value_info(n, kind, dims) for n, kind, dims in (
        (proto.input[0], onnx.TensorProto.FLOAT, shape), (proto.output[0], onnx.TensorProto.FLOAT, None))]  # fmt: skip
    weights = [onnx.numpy_helper.from_array(np.frombuffer(raw, kind), proto.input[k]) for k, kind, raw in given]
    model = onnx.helper.make_model(
        onnx.helper.make_graph([proto], "one", info[:1], info[1:], weights),
        opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=8,
    )  # fmt: skip
    session = ort.InferenceSession(model.SerializeToString())
    units = np.eye(math.prod(shape), dtype=np.float32).reshape(-1, *shape)
    return np.stack([session.run(None, {proto.input[0]: unit})[0] for unit in units], -1).astype(np.float64)


class Resize(Own):
    """Replaces the evaluator's own: what runs is onnxruntime's, and where they differ the evaluator is no judge."""

    def _run(self, x: Array, *rest: Array | None, **attributes: Any) -> tuple[Array]:
        present = [(k, value) for k, value in enumerate(rest, 1) if value is not None and self.onnx_node.input[k]]
        given = tuple((k, value.dtype.name, value.tobytes()) for k, value in present)
        opset = self.run_params["opsets"][""]
        matrix = _resizing(self.onnx_node.SerializeToString(), x.shape, given, opset)
        return ((matrix @ x.reshape(-1).astype(np.float64)).astype(x.dtype),)


class GridSample(Own):
    """Replaces the evaluator's own, which computes in float32: onnxruntime's of opset 20 knows float64."""

    def _run(self, x: Array, grid: Array, **attributes: Any) -> tuple[Array]:
        names = {b"bilinear": "linear", "bilinear": "linear", b"bicubic": "cubic", "bicubic": "cubic"}
        given = {**attributes, "mode": names.get(attributes["mode"], attributes["mode"])}
        node = onnx.helper.make_node("GridSample", ["x", "grid"], ["y"], **given)
        kind = onnx.helper.np_dtype_to_tensor_dtype(x.dtype)
        info = [onnx.helper.make_tensor_value_info(n, kind, v.shape) for n, v in (("x", x), ("grid", grid))]
        model = onnx.helper.make_model(
            onnx.helper.make_graph([node], "one", info, [onnx.ValueInfoProto(name="y")]),
            opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=8,
        )  # fmt: skip
        return (ort.InferenceSession(model.SerializeToString()).run(None, {"x": x, "grid": grid})[0],)


class LpPool(Own):
    """Replaces the evaluator's own, which is wrong where ceil_mode adds a window; the shape is onnxruntime's."""

    def _run(self, x: Array, **attributes: Any) -> tuple[Array]:
        model = onnx.helper.make_model(
            onnx.helper.make_graph([self.onnx_node], "one", [onnx.helper.make_tensor_value_info(
                self.onnx_node.input[0], onnx.TensorProto.FLOAT, x.shape)],
                [onnx.ValueInfoProto(name=self.onnx_node.output[0])]),
            opset_imports=[onnx.helper.make_opsetid("", self.run_params["opsets"][""])], ir_version=8,
        )  # fmt: skip
        feeds = {self.onnx_node.input[0]: x.astype(np.float32)}
        out = ort.InferenceSession(model.SerializeToString()).run(None, feeds)[0].shape[2:]
        kernel, rank, power = attributes["kernel_shape"], x.ndim - 2, attributes["p"] or 2
        strides, dilations = (attributes.get(name) or [1] * rank for name in ("strides", "dilations"))
        reach = [(o - 1) * s + (k - 1) * d + 1 for o, s, k, d in zip(out, strides, kernel, dilations, strict=True)]
        before = (attributes["pads"] or [0] * (2 * rank))[:rank]
        if attributes["auto_pad"] in {"SAME_UPPER", "SAME_LOWER"}:
            lower = attributes["auto_pad"] == "SAME_LOWER"
            before = [(max(r - n, 0) + lower) // 2 for r, n in zip(reach, x.shape[2:], strict=True)]
        wide = np.pad(np.abs(x) ** power, [(0, 0)] * 2 + [
            (b, max(r - b - n, 0)) for b, r, n in zip(before, reach, x.shape[2:], strict=True)])  # fmt: skip
        total = np.zeros((*x.shape[:2], *out), x.dtype)
        for tap in itertools.product(*map(range, kernel)):
            lines = zip(tap, dilations, out, strides, strict=True)
            at: tuple[Any, ...] = tuple(slice(t * d, t * d + (o - 1) * s + 1, s) for t, d, o, s in lines)
            total += wide[(Ellipsis, *at)]
        return (np.asarray(np.power(total, 1 / power)),)


LRN_DEFAULTS = {"alpha": 1e-4, "beta": 0.75, "bias": 1.0}

NEW_OPS: list[type[OpRun]] = [
    ConvTranspose, Erf, Gelu, GlobalMaxPool, GridSample, LpPool, LRN, MeanVarianceNormalization, Resize,
    _layer("LSTM", lstm_step, 2), _layer("GRU", gru_step, 1), _layer("RNN", rnn_step, 1),
]  # fmt: skip
