"""Random configurations of convolutions, pools, normalizations, attention, recurrent layers and losses."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.support.autodiff.specs import Spec, distinct, normal, positive

Draw = Callable[[st.SearchStrategy[Any]], Any]
Drawn = Callable[[Draw], Spec]


def _int(draw: Draw, low: int, high: int) -> int:
    return int(draw(st.integers(low, high)))


def _window(draw: Draw, rank: int) -> dict[str, Any]:
    kernel = [_int(draw, 1, 3) for _ in range(rank)]
    return {"kernel_shape": kernel, "strides": [_int(draw, 1, 2) for _ in range(rank)],
            "pads": [_int(draw, 0, k - 1) for k in (*kernel, *kernel)]}  # fmt: skip


def _conv(op: str, draw: Draw) -> Spec:
    rank, group = _int(draw, 1, 2), _int(draw, 1, 2)
    inputs, outputs, batch = _int(draw, 1, 3), _int(draw, 1, 3), _int(draw, 1, 2)
    settings = {**_window(draw, rank), "group": group, "dilations": [_int(draw, 1, 2) for _ in range(rank)]}
    size = tuple(_int(draw, 5, 6) for _ in range(rank))
    kernel = tuple(settings["kernel_shape"])
    x = normal(batch, group * inputs, *size)
    first, second = (group * outputs, inputs) if op == "Conv" else (group * inputs, outputs)
    weights = (normal(first, second, *kernel, seed=1), normal(group * outputs, seed=2))[: _int(draw, 1, 2)]
    return Spec(op, (x, *weights), tuple(range(1 + len(weights))), attributes=settings)


def _pool(op: str, draw: Draw) -> Spec:
    rank = _int(draw, 1, 2)
    settings = {**_window(draw, rank), "ceil_mode": _int(draw, 0, 1)}
    kernel = settings["kernel_shape"]
    settings["pads"] = [min(p, k // 2) for k, p in zip(kernel * 2, settings["pads"], strict=True)]
    if op == "LpPool":
        settings |= {"p": _int(draw, 1, 4), "dilations": [_int(draw, 1, 2) for _ in range(rank)]}
    if op == "AveragePool":
        settings |= {"count_include_pad": _int(draw, 0, 1), "ceil_mode": 0}
    size = tuple(_int(draw, 4, 6) for _ in range(rank))
    # a norm has no slope at zero, where those of `distinct` may lie
    values = normal if op == "LpPool" else distinct
    return Spec(op, (values(_int(draw, 1, 2), _int(draw, 1, 2), *size),), attributes=settings, opset=19)


def _global(op: str, draw: Draw) -> Spec:
    return Spec(op, (distinct(*(_int(draw, 1, 4) for _ in range(_int(draw, 3, 5)))),))


def _batch_norm(draw: Draw) -> Spec:
    dims = [_int(draw, 2, 4) for _ in range(_int(draw, 2, 4))]
    c = dims[1]
    training = _int(draw, 0, 1)
    inputs = (normal(*dims), normal(c), normal(c, seed=1), normal(c, seed=2), positive(c))
    outputs, ignored = (3, (1, 2)) if training else (1, ())
    return Spec("BatchNormalization", inputs, (0, 1, 2), outputs=outputs, ignored=ignored,
                attributes={"training_mode": training, "epsilon": 1e-3})  # fmt: skip


def _row_norm(op: str, draw: Draw) -> Spec:
    dims = tuple(_int(draw, 2, 4) for _ in range(_int(draw, 1, 4)))
    axis = _int(draw, 0, len(dims) - 1)
    inner = dims[axis:]
    bias = op == "LayerNormalization" and draw(st.booleans())
    inputs = (normal(*dims), normal(*inner, seed=1), *((normal(*inner, seed=2),) if bias else ()))
    return Spec(op, inputs, tuple(range(len(inputs))), opset=18 if op == "LayerNormalization" else 23,
                attributes={"axis": axis - len(dims), "epsilon": 1e-3})  # fmt: skip


def _channel_norm(op: str, draw: Draw) -> Spec:
    groups, each = _int(draw, 1, 3), _int(draw, 1, 2)
    spatial = tuple(_int(draw, 2, 4) for _ in range(_int(draw, 1, 2)))
    c = groups * each
    grouped = op == "GroupNormalization"
    by_group = grouped and draw(st.booleans())
    more = {"num_groups": groups} if grouped else {}
    more |= {"stash_type": 11} if grouped and not by_group else {}
    factors = groups if by_group else c
    inputs = (normal(_int(draw, 1, 2), c, *spatial), normal(factors), normal(factors, seed=1))
    return Spec(op, inputs, (0, 1, 2), attributes={"epsilon": 1e-3, **more}, opset=21 if grouped != by_group else 18)


def _mean_variance(draw: Draw) -> Spec:
    dims = tuple(_int(draw, 2, 4) for _ in range(_int(draw, 1, 4)))
    axes = draw(st.lists(st.integers(-len(dims), len(dims) - 1), min_size=1, unique_by=lambda axis: axis % len(dims)))
    given = {"axes": axes} if len(dims) < 4 or draw(st.booleans()) else {}
    # far apart: where the deviation is small, the slope changes within a step
    return Spec("MeanVarianceNormalization", (100 * distinct(*dims),), attributes=given)


def _lrn(draw: Draw) -> Spec:
    settings = {"size": draw(st.sampled_from([1, 3, 5])), "alpha": 0.3, "beta": 0.7, "bias": 1.5}
    return Spec("LRN", (normal(_int(draw, 1, 2), _int(draw, 1, 6), 2, 2),), attributes=settings)


def _dropout(draw: Draw) -> Spec:
    inputs = (normal(_int(draw, 1, 5), _int(draw, 1, 5)), np.array(0.4), np.array(True))
    return Spec("Dropout", inputs, attributes={"seed": _int(draw, 0, 9)})


def _resize(draw: Draw) -> Spec:
    mode = draw(st.sampled_from(["nearest", "linear", "cubic"]))
    frame = draw(st.sampled_from(["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"]))
    scales = np.array([1, 1, *(draw(st.sampled_from([0.6, 0.7, 1.0, 1.5, 2.0, 2.5])) for _ in range(2))], np.float32)
    settings = {"mode": mode, "coordinate_transformation_mode": frame}
    return Spec(
        "Resize", (normal(1, 2, _int(draw, 3, 5), _int(draw, 3, 5)), None, scales), attributes=settings, opset=19
    )


def _einsum(draw: Draw) -> Spec:
    sizes = {letter: _int(draw, 1, 3) for letter in "bijk"}
    left, right = draw(st.permutations("bij")), draw(st.permutations("bjk"))
    out = draw(st.permutations(draw(st.sampled_from(["bik", "ik", "b", "bijk"]))))
    equation = f"{''.join(left)},{''.join(right)}->{''.join(out)}"
    a, b = (normal(*(sizes[n] for n in names), seed=k) for k, names in enumerate((left, right)))
    return Spec("Einsum", (a, b), (0, 1), attributes={"equation": equation})


def _attention(draw: Draw) -> Spec:
    batch, shared, times, queries, keys, depth, width = (_int(draw, 1, high) for high in (2, 2, 2, 3, 4, 4, 3))
    causal = _int(draw, 0, 1)
    inputs = [normal(batch, shared * times, queries, depth), normal(batch, shared, keys, depth, seed=1),
              normal(batch, shared, keys, width, seed=2)]  # fmt: skip
    if not causal and draw(st.booleans()):
        inputs.append(normal(queries, keys, seed=3))
    settings: dict[str, object] = {"is_causal": causal, "softcap": draw(st.sampled_from([0.0, 2.0]))}
    return Spec("Attention", tuple(inputs), tuple(range(len(inputs))), attributes=settings, opset=23)


def _rotary(draw: Draw) -> Spec:
    batch, heads, tokens, half = (_int(draw, 1, 3) for _ in range(4))
    inputs = (
        normal(batch, heads, tokens, 2 * half),
        normal(batch, tokens, half, seed=1),
        normal(batch, tokens, half, seed=2),
    )
    return Spec("RotaryEmbedding", inputs, attributes={"interleaved": _int(draw, 0, 1)}, opset=23)


def _recurrent(op: str, gates: int, draw: Draw) -> Spec:
    steps, batch, width, hidden = (_int(draw, 1, 3) for _ in range(4))
    direction = draw(st.sampled_from(["forward", "reverse", "bidirectional"]))
    d = 2 if direction == "bidirectional" else 1
    inputs = (normal(steps, batch, width), normal(d, gates * hidden, width, seed=1),
              normal(d, gates * hidden, hidden, seed=2), normal(d, 2 * gates * hidden, seed=3))  # fmt: skip
    more: dict[str, object] = {"linear_before_reset": _int(draw, 0, 1)} if op == "GRU" else {}
    if op == "RNN":
        more["activations"] = [draw(st.sampled_from(["Tanh", "Relu"])) for _ in range(d)]
    ended = draw(st.booleans())
    rest = (np.array([_int(draw, 1, steps) for _ in range(batch)], np.int32) if ended else None,
            *(normal(d, batch, hidden, seed=4 + s) for s in range(2 if op == "LSTM" else 1)))  # fmt: skip
    given = rest if draw(st.booleans()) else rest[: int(ended)]
    return Spec(op, (*inputs, *given), (0, 1, 2, 3, *range(5, 4 + len(given))), outputs=3 if op == "LSTM" else 2,
                attributes={"hidden_size": hidden, "direction": direction, **more})  # fmt: skip


def _loss(op: str, draw: Draw) -> Spec:
    rows, classes = _int(draw, 1, 4), _int(draw, 2, 5)
    spatial = (2,) * _int(draw, 0, 2)
    labels = np.random.default_rng(_int(draw, 0, 9)).integers(0, classes, (rows, *spatial))
    settings: dict[str, object] = {"reduction": draw(st.sampled_from(["mean", "sum", "none"]))}
    if draw(st.booleans()):
        labels.flat[1:2] = settings["ignore_index"] = -1
    weights = (positive(classes),) if draw(st.booleans()) else ()
    return Spec(op, (normal(rows, classes, *spatial), labels, *weights), attributes=settings)


NETWORKS: dict[str, Drawn] = {
    **{op: partial(_conv, op) for op in ("Conv", "ConvTranspose")},
    **{op: partial(_pool, op) for op in ("MaxPool", "AveragePool", "LpPool")},
    **{op: partial(_global, op) for op in ("GlobalAveragePool", "GlobalMaxPool")},
    **{op: partial(_row_norm, op) for op in ("LayerNormalization", "RMSNormalization")},
    "MeanVarianceNormalization": _mean_variance,
    **{op: partial(_channel_norm, op) for op in ("InstanceNormalization", "GroupNormalization")},
    **{op: partial(_loss, op) for op in ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")},
    "BatchNormalization": _batch_norm, "LRN": _lrn, "Dropout": _dropout, "Resize": _resize, "Einsum": _einsum,
    "Attention": _attention, "RotaryEmbedding": _rotary,
    **{op: partial(_recurrent, op, gates) for op, gates in (("LSTM", 4), ("GRU", 3), ("RNN", 1))},
}  # fmt: skip
