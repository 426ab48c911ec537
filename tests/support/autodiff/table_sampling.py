"""Rows for folding, sampling, norms of windows and Fourier transforms."""

from __future__ import annotations

import numpy as np

from tests.support.autodiff.specs import Array, Spec, ints, normal


def places(*shape: int, seed: int = 0) -> Array:
    """A grid, a third of which lies outside."""
    return np.asarray(np.random.default_rng([seed, *shape]).uniform(-1.6, 1.6, shape))


MODES = {"nearest": "nearest", "linear": "bilinear", "cubic": "bicubic"}
"""As opset 20 calls them, and opset 16."""

GRIDS = tuple(
    (mode, padding, aligned, rank)
    for mode in MODES for padding in ("zeros", "border", "reflection") for aligned in (0, 1) for rank in (2, 3)
    if (mode, rank) != ("cubic", 3)
)  # fmt: skip

FOURIERS: tuple[tuple[tuple[int, ...], int | None, int, int, int], ...] = (
    ((2, 5, 3, 1), None, 1, 0, 0), ((2, 5, 3, 2), None, 2, 0, 0), ((4, 6, 2), 8, 1, 0, 0), ((4, 6, 2), 5, 1, 0, 0),
    ((2, 5, 3, 2), None, 1, 1, 0), ((4, 6, 2), 7, 0, 1, 0), ((4, 6, 1), 5, 1, 1, 0),
    ((2, 5, 3, 1), None, 1, 0, 1), ((2, 8, 1), None, 1, 0, 1), ((2, 8, 1), 6, 1, 0, 1), ((2, 5, 1), 8, 1, 0, 1),
    ((2, 5, 2), None, 1, 1, 1), ((2, 3, 5, 2), 9, 2, 1, 1), ((2, 4, 2), 6, 1, 1, 1),
)  # fmt: skip
"""Shape, length, axis, inverse, onesided."""

ROWS: tuple[Spec, ...] = (
    Spec("Col2Im", (normal(2, 3 * 6, 4 * 5), ints(7, 6), ints(2, 3)),
         attributes={"strides": [2, 1], "dilations": [2, 1], "pads": [1, 1, 1, 0]}, label="wide"),
    Spec("Col2Im", (normal(1, 2 * 4, 6), ints(4, 6), ints(2, 2)), attributes={"strides": [2, 2]}, label="apart"),
    Spec("Col2Im", (normal(2, 3 * 3, 4), ints(7), ints(3)), attributes={"strides": [2], "pads": [1, 1]}, label="line"),
    Spec("Col2Im", (normal(1, 2 * 8, 12), ints(3, 3, 4), ints(2, 2, 2)), label="3d"),
    *(
        Spec("DFT", (normal(*shape), None if length is None else np.array(length), np.array(axis)),
             attributes={"inverse": inverse, "onesided": onesided}, opset=20,
             label=f"{'x'.join(map(str, shape))}-{length}-{axis}-{inverse}-{onesided}")
        for shape, length, axis, inverse, onesided in FOURIERS
    ),
    *(
        Spec("DFT", (normal(2, 5, 4, 2), *length), attributes={"axis": -2, "inverse": 1} if length else {}, opset=17,
             label=f"attribute-{len(length)}")
        for length in ((), (np.array(7),))
    ),
    Spec("DFT", (normal(3, 4, 2),), opset=20, label="default"),
    Spec("LpPool", (normal(2, 3, 7, 6),), attributes={"kernel_shape": [3, 2], "strides": [2, 1]}),
    Spec("LpPool", (normal(1, 2, 8),), attributes={"kernel_shape": [3], "strides": [2], "p": 4}, label="p4"),
    Spec("LpPool", (normal(1, 2, 5, 4, 6),), attributes={"kernel_shape": [2, 2, 2], "p": 3}, label="p3"),
    Spec("LpPool", (normal(2, 2, 6, 6),),
         attributes={"kernel_shape": [3, 3], "strides": [2, 2], "p": 1, "pads": [0, 1, 2, 1]}, label="p1"),
    Spec("LpPool", (normal(2, 2, 6, 7),),
         attributes={"kernel_shape": [3, 3], "strides": [2, 2], "p": 5, "auto_pad": "SAME_UPPER"}, label="same"),
    Spec("LpPool", (normal(1, 2, 6, 7),), attributes={"kernel_shape": [2, 3], "strides": [3, 2], "ceil_mode": 1,
         "dilations": [2, 1], "pads": [1, 0, 0, 2]}, label="ceil", opset=22),
    Spec("LpPool", (np.concatenate([np.zeros((1, 1, 3, 4)), normal(1, 1, 2, 4)], 2),),
         attributes={"kernel_shape": [3, 2], "p": 3}, label="zeros"),
    *(
        Spec("GridSample", (normal(2, 3, *(4, 5, 3)[:rank]), places(2, *(3, 2, 4)[:rank], rank)),
             (0,) if mode == "nearest" else (0, 1), {"mode": mode, "padding_mode": padding, "align_corners": aligned},
             opset=20, label=f"{mode}-{padding}-{aligned}-{rank}d")
        for mode, padding, aligned, rank in GRIDS
    ),
    *(
        Spec("GridSample", (normal(1, 2, 4, 5), places(1, 3, 2, 2)), (0,) if mode == "nearest" else (0, 1),
             {"mode": old, "padding_mode": "border"}, opset=16, label=f"{old}-16")
        for mode, old in MODES.items()
    ),
    Spec("GridSample", (normal(1, 2, 1, 5), places(1, 4, 2, 2)), (0, 1),
         {"padding_mode": "reflection", "align_corners": 1}, opset=22, label="one-line"),
)  # fmt: skip
