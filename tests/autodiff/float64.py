"""Float64 ops for onnx's reference evaluator: its own ConvTranspose knows no groups, its Erf is a float32 one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
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


class ConvTranspose(OpRun):
    """Replaces the evaluator's own."""

    op_domain = ""

    def _run(self, x: Array, w: Array, b: Array | None = None, **attributes: Any) -> tuple[Array]:
        rank = x.ndim - 2
        found = conv_transpose(
            x, w, attributes["strides"] or [1] * rank, attributes["dilations"] or [1] * rank,
            attributes["pads"] or [0] * (2 * rank), attributes["output_padding"] or [0] * rank,
            attributes["group"] or 1,
        )  # fmt: skip
        return (found if b is None else found + b.reshape(-1, *[1] * rank),)


class Erf(OpRun):
    """Replaces the evaluator's own."""

    op_domain = ""

    def _run(self, x: Array) -> tuple[Array]:
        return (np.asarray(np.vectorize(math.erf, otypes=[np.float64])(x).astype(x.dtype)),)


class Gelu(OpRun):
    """Replaces a function whose Erf would be the evaluator's own."""

    op_domain = ""

    def _run(self, x: Array, approximate: str | None = None) -> tuple[Array]:
        if approximate == "tanh":
            inner = np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
        else:
            inner = np.vectorize(math.erf, otypes=[np.float64])(x / math.sqrt(2))
        return (np.asarray(0.5 * x * (1 + inner)).astype(x.dtype),)


class LRN(OpRun):
    """Replaces the evaluator's own, which leaves out the last channel of a window."""

    op_domain = ""

    def _run(self, x: Array, **attributes: Any) -> tuple[Array]:
        size = attributes["size"]
        alpha, beta, bias = (attributes[name] or default for name, default in LRN_DEFAULTS.items())
        squares = np.zeros_like(x)
        for channel in range(x.shape[1]):
            low, high = max(0, channel - (size - 1) // 2), channel + size // 2 + 1
            squares[:, channel] = (x[:, low:high] ** 2).sum(1)
        return (np.asarray(x / (bias + alpha / size * squares) ** beta),)


LRN_DEFAULTS = {"alpha": 1e-4, "beta": 0.75, "bias": 1.0}

NEW_OPS = [ConvTranspose, Erf, Gelu, LRN]
