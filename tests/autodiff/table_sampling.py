"""Rows for folding, sampling, norms of windows and Fourier transforms."""

from __future__ import annotations

from typing import Any

from tests.autodiff.specs import Spec, ints, normal


def _f() -> Any:
    import torch.nn.functional as f

    return f


ROWS: tuple[Spec, ...] = (
    Spec("Col2Im", (normal(2, 3 * 6, 4 * 5), ints(7, 6), ints(2, 3)),
         torch=lambda x, *_: _f().fold(x, (9, 7), (2, 3), stride=(2, 1), dilation=(2, 1))[..., 1:8, 1:],
         attributes={"strides": [2, 1], "dilations": [2, 1], "pads": [1, 1, 1, 0]}, label="wide"),
    Spec("Col2Im", (normal(1, 2 * 4, 6), ints(4, 6), ints(2, 2)), torch=lambda x, *_: _f().fold(x, (4, 6), 2, stride=2),
         attributes={"strides": [2, 2]}, label="apart"),
    Spec("Col2Im", (normal(2, 3 * 3, 4), ints(7), ints(3)), attributes={"strides": [2], "pads": [1, 1]}, label="line"),
    Spec("Col2Im", (normal(1, 2 * 8, 12), ints(3, 3, 4), ints(2, 2, 2)), label="3d"),
)  # fmt: skip
