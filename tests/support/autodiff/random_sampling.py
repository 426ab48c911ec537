"""Random configurations of folding, sampling, norms of windows and Fourier transforms."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.support.autodiff.specs import Spec, ints, normal

Draw = Callable[[st.SearchStrategy[Any]], Any]
Drawn = Callable[[Draw], Spec]


def _int(draw: Draw, low: int, high: int) -> int:
    return int(draw(st.integers(low, high)))


def _col2im(draw: Draw) -> Spec:
    rank = _int(draw, 1, 3)
    kernel, strides, out = ([_int(draw, 1, 3) for _ in range(rank)] for _ in range(3))
    dilations = [_int(draw, 1, 2) if rank == 2 else 1 for _ in range(rank)]
    pads = [_int(draw, 0, 1) for _ in range(2 * rank)]
    size = [
        max((o - 1) * s + (k - 1) * d + 1 - pads[a] - pads[rank + a], 1) + _int(draw, 0, s - 1)
        for a, (k, s, o, d) in enumerate(zip(kernel, strides, out, dilations, strict=True))
    ]
    count = math.prod(
        (n + pads[a] + pads[rank + a] - d * (k - 1) - 1) // s + 1
        for a, (n, k, s, d) in enumerate(zip(size, kernel, strides, dilations, strict=True))
    )
    x = normal(_int(draw, 1, 2), _int(draw, 1, 2) * math.prod(kernel), count)
    return Spec("Col2Im", (x, ints(*size), ints(*kernel)),
                attributes={"strides": strides, "dilations": dilations, "pads": pads})  # fmt: skip


def _grid_sample(draw: Draw) -> Spec:
    rank = _int(draw, 2, 3)
    mode = draw(st.sampled_from(["nearest", "linear", *(["cubic"] if rank == 2 else [])]))
    padding, aligned = draw(st.sampled_from(["zeros", "border", "reflection"])), _int(draw, 0, 1)
    batch, channels = _int(draw, 1, 2), _int(draw, 1, 3)
    sizes, out = (tuple(_int(draw, 1, 4) for _ in range(rank)) for _ in range(2))
    x, rng = normal(batch, channels, *sizes), np.random.default_rng(_int(draw, 0, 99))
    # in elements, and away from the kinks, which lie at halves (edges, nearest) and whole numbers
    at = rng.integers(-4, 10, (batch, *out, rank)) / 2 + rng.uniform(0.1, 0.4, (batch, *out, rank))
    size = np.array(sizes[::-1])
    grid = at / np.maximum(size - 1, 1) * 2 - 1 if aligned else (at * 2 + 1) / size - 1
    return Spec("GridSample", (x, grid), (0,) if mode == "nearest" else (0, 1), opset=20,
                attributes={"mode": mode, "padding_mode": padding, "align_corners": aligned})  # fmt: skip


def _dft(draw: Draw) -> Spec:
    inverse, onesided, opset = _int(draw, 0, 1), _int(draw, 0, 1), draw(st.sampled_from([17, 20]))
    dims = [_int(draw, 1, 4) for _ in range(_int(draw, 1, 3))]
    axis, length = _int(draw, 0, len(dims) - 1), _int(draw, 2, 9)
    if inverse and onesided:
        dims[axis], parts = length // 2 + 1, 2
    else:
        dims[axis], parts = _int(draw, 1, 9), 1 if onesided else _int(draw, 1, 2)
    at = axis - draw(st.sampled_from([0, len(dims) + 1]))
    settings = {"inverse": inverse, "onesided": onesided}
    inputs: tuple[Any, ...] = (normal(*dims, parts), np.array(length))
    if opset == 20:
        return Spec("DFT", (*inputs, np.array(at)), attributes=settings, opset=opset)
    return Spec("DFT", inputs, attributes={**settings, "axis": at}, opset=opset)


SAMPLING: dict[str, Drawn] = {"Col2Im": _col2im, "DFT": _dft, "GridSample": _grid_sample}
