"""Rows for folding, sampling, norms of windows and Fourier transforms."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.support.autodiff.specs import Spec, ints, normal


def _f() -> Any:
    import torch.nn.functional as f

    return f


def _t() -> Any:
    import torch

    return torch


def places(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """A grid, a third of which lies outside."""
    return np.asarray(np.random.default_rng([seed, *shape]).uniform(-1.6, 1.6, shape))


MODES = {"nearest": "nearest", "linear": "bilinear", "cubic": "bicubic"}
"""What torch calls them, and ONNX before opset 20."""

GRIDS = tuple(
    (mode, padding, aligned, rank)
    for mode in MODES for padding in ("zeros", "border", "reflection") for aligned in (0, 1) for rank in (2, 3)
    if (mode, rank) != ("cubic", 3)
)  # fmt: skip


def _sampled(x: Any, grid: Any, mode: str, padding: str, aligned: int) -> Any:
    return _f().grid_sample(x, grid, MODES[mode], padding, bool(aligned))


def _fourier(x: Any, length: int | None, axis: int, inverse: int, onesided: int) -> Any:
    """Complex numbers in the last axis, as ONNX has them."""
    fft = _t().fft
    if inverse and onesided:
        return fft.irfft(_t().view_as_complex(x), length, axis)[..., None]
    z = _t().view_as_complex(x) if x.shape[-1] == 2 else x[..., 0]
    found = fft.rfft(z, length, axis) if onesided else (fft.ifft if inverse else fft.fft)(z, length, axis)
    return _t().view_as_real(found.resolve_conj())


FOURIERS: tuple[tuple[tuple[int, ...], int | None, int, int, int], ...] = (
    ((2, 5, 3, 1), None, 1, 0, 0), ((2, 5, 3, 2), None, 2, 0, 0), ((4, 6, 2), 8, 1, 0, 0), ((4, 6, 2), 5, 1, 0, 0),
    ((2, 5, 3, 2), None, 1, 1, 0), ((4, 6, 2), 7, 0, 1, 0), ((4, 6, 1), 5, 1, 1, 0),
    ((2, 5, 3, 1), None, 1, 0, 1), ((2, 8, 1), None, 1, 0, 1), ((2, 8, 1), 6, 1, 0, 1), ((2, 5, 1), 8, 1, 0, 1),
    ((2, 5, 2), None, 1, 1, 1), ((2, 3, 5, 2), 9, 2, 1, 1), ((2, 4, 2), 6, 1, 1, 1),
)  # fmt: skip
"""Shape, length, axis, inverse, onesided."""


ROWS: tuple[Spec, ...] = (
    Spec("Col2Im", (normal(2, 3 * 6, 4 * 5), ints(7, 6), ints(2, 3)),
         torch=lambda x, *_: _f().fold(x, (9, 7), (2, 3), stride=(2, 1), dilation=(2, 1))[..., 1:8, 1:],
         attributes={"strides": [2, 1], "dilations": [2, 1], "pads": [1, 1, 1, 0]}, label="wide"),
    Spec("Col2Im", (normal(1, 2 * 4, 6), ints(4, 6), ints(2, 2)), torch=lambda x, *_: _f().fold(x, (4, 6), 2, stride=2),
         attributes={"strides": [2, 2]}, label="apart"),
    Spec("Col2Im", (normal(2, 3 * 3, 4), ints(7), ints(3)), attributes={"strides": [2], "pads": [1, 1]}, label="line"),
    Spec("Col2Im", (normal(1, 2 * 8, 12), ints(3, 3, 4), ints(2, 2, 2)), label="3d"),
    *(
        Spec("DFT", (normal(*shape), None if length is None else np.array(length), np.array(axis)),
             torch=lambda x, n, a, i=inverse, o=onesided: _fourier(x, None if n is None else int(n), int(a), i, o),
             attributes={"inverse": inverse, "onesided": onesided}, opset=20,
             label=f"{'x'.join(map(str, shape))}-{length}-{axis}-{inverse}-{onesided}")
        for shape, length, axis, inverse, onesided in FOURIERS
    ),
    *(
        Spec("DFT", (normal(2, 5, 4, 2), *length), torch=lambda x, *_: _fourier(x, 7, 2, 1, 0) if _ else
             _fourier(x, None, 1, 0, 0), attributes={"axis": -2, "inverse": 1} if length else {}, opset=17,
             label=f"attribute-{len(length)}")
        for length in ((), (np.array(7),))
    ),
    Spec("DFT", (normal(3, 4, 2),), torch=lambda x: _fourier(x, None, 1, 0, 0), opset=20, label="default"),
    Spec("LpPool", (normal(2, 3, 7, 6),), torch=lambda x: _f().lp_pool2d(x, 2, (3, 2), (2, 1)),
         attributes={"kernel_shape": [3, 2], "strides": [2, 1]}),
    Spec("LpPool", (normal(1, 2, 8),), torch=lambda x: _f().lp_pool1d(x, 4, 3, 2),
         attributes={"kernel_shape": [3], "strides": [2], "p": 4}, label="p4"),
    Spec("LpPool", (normal(1, 2, 5, 4, 6),), torch=lambda x: _f().lp_pool3d(x.abs(), 3, 2, 1),
         attributes={"kernel_shape": [2, 2, 2], "p": 3}, label="p3"),
    Spec("LpPool", (normal(2, 2, 6, 6),), torch=lambda x: _f().lp_pool2d(_f().pad(x.abs(), (1, 1, 0, 2)), 1, 3, 2),
         attributes={"kernel_shape": [3, 3], "strides": [2, 2], "p": 1, "pads": [0, 1, 2, 1]}, label="p1"),
    Spec("LpPool", (normal(2, 2, 6, 7),), torch=lambda x: _f().lp_pool2d(_f().pad(x.abs(), (1, 1, 0, 1)), 5, 3, 2),
         attributes={"kernel_shape": [3, 3], "strides": [2, 2], "p": 5, "auto_pad": "SAME_UPPER"}, label="same"),
    Spec("LpPool", (normal(1, 2, 6, 7),), attributes={"kernel_shape": [2, 3], "strides": [3, 2], "ceil_mode": 1,
         "dilations": [2, 1], "pads": [1, 0, 0, 2]}, label="ceil", opset=22),
    Spec("LpPool", (np.concatenate([np.zeros((1, 1, 3, 4)), normal(1, 1, 2, 4)], 2),),
         attributes={"kernel_shape": [3, 2], "p": 3}, label="zeros"),
    *(
        Spec("GridSample", (normal(2, 3, *(4, 5, 3)[:rank]), places(2, *(3, 2, 4)[:rank], rank)),
             (0,) if mode == "nearest" else (0, 1),
             lambda x, g, m=mode, p=padding, a=aligned: _sampled(x, g, m, p, a),
             {"mode": mode, "padding_mode": padding, "align_corners": aligned}, opset=20,
             label=f"{mode}-{padding}-{aligned}-{rank}d")
        for mode, padding, aligned, rank in GRIDS
    ),
    *(
        Spec("GridSample", (normal(1, 2, 4, 5), places(1, 3, 2, 2)), (0,) if mode == "nearest" else (0, 1),
             lambda x, g, m=mode: _sampled(x, g, m, "border", 0), {"mode": old, "padding_mode": "border"}, opset=16,
             label=f"{old}-16")
        for mode, old in MODES.items()
    ),
    Spec("GridSample", (normal(1, 2, 1, 5), places(1, 4, 2, 2)), (0, 1),
         lambda x, g: _sampled(x, g, "linear", "reflection", 1), {"padding_mode": "reflection", "align_corners": 1},
         opset=22, label="one-line"),
)  # fmt: skip
