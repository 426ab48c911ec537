"""Rows for what transformers and mobile networks add to the classic ones, and for elementary functions."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.support.autodiff.specs import Spec, distinct, ints, normal, positive


def _f() -> Any:
    import torch.nn.functional as f

    return f


def _t() -> Any:
    import torch

    return torch


def _index(x: Any, i: Any) -> Any:
    return x[i]


ROWS: tuple[Spec, ...] = (
    # normalization of rows
    Spec("LayerNormalization", (normal(3, 4, 6), normal(4, 6)), (0, 1),
         lambda x, s: _f().layer_norm(x, (4, 6), s), {"axis": 1}, label="two-axes"),
    Spec("LayerNormalization", (normal(5, 6), normal(6), normal(6)), (0,),
         lambda x, s, b: _f().layer_norm(x, (6,), s, b), label="frozen"),
    Spec("LayerNormalization", (normal(5, 6), normal(6), normal(6)), (1, 2),
         lambda x, s, b: _f().layer_norm(x, (6,), s, b), label="weights"),
    Spec("RMSNormalization", (normal(3, 4, 6), normal(6)), (0, 1), lambda x, s: _f().rms_norm(x, (6,), s, 1e-5),
         opset=23),
    # picking
    Spec("Gather", (normal(7, 3), np.array([[1, 6, 1], [0, -1, 2]])), torch=_index, label="table"),
    Spec("Gather", (normal(2, 9, 3), ints(4, -9, 4)), torch=lambda x, i: x[:, [4, 0, 4]], attributes={"axis": 1},
         label="middle"),
    Spec("Gather", (normal(3, 40), ints(*range(0, 39, 2), 0, 2, 4)), torch=lambda x, i: x[:, i],
         attributes={"axis": 1}, label="elements"),
    Spec("Gather", (normal(9, 3), ints(4, 5, 6)), torch=_index, label="range"),
    Spec("Gather", (normal(2, 5, 3), np.array(-2)), torch=lambda x, i: x[:, 3], attributes={"axis": 1},
         label="one"),
    Spec("GatherElements", (normal(4, 3), np.array([[0, 2, 2], [-1, 1, 0]])),
         torch=lambda x, i: x.gather(0, i % 4)),
    Spec("GatherND", (normal(3, 4, 2), np.array([[0, 1], [2, -1], [0, 1]])),
         torch=lambda x, i: x[[0, 2, 0], [1, 3, 1]]),
    Spec("GatherND", (normal(2, 4, 3), np.array([[[1], [3]], [[0], [-1]]])), attributes={"batch_dims": 1},
         torch=lambda x, i: _t().stack([x[0][[1, 3]], x[1][[0, 3]]]), label="batch"),
    # cutting, repeating, surrounding
    Spec("Slice", (normal(5, 7), ints(-1, 1), ints(-100, 7), ints(0, 1), ints(-2, 3)),
         torch=lambda x, *a: x.flip(0)[::2, 1:7:3], label="both-steps"),
    Spec("Slice", (normal(4, 3), ints(3), ints(-2**63), ints(0), ints(-1)), torch=lambda x, *a: x.flip(0),
         label="reverse"),
    Spec("Expand", (normal(3, 1), ints(1, 4)), torch=lambda x, s: x.expand(3, 4), label="both"),
    Spec("Tile", (normal(2, 3), ints(3, 2)), torch=lambda x, r: x.repeat(3, 2)),
    Spec("DepthToSpace", (normal(2, 8, 2, 3),), attributes={"blocksize": 2}),
    Spec("DepthToSpace", (normal(2, 8, 2, 3),), torch=lambda x: _f().pixel_shuffle(x, 2),
         attributes={"blocksize": 2, "mode": "CRD"}, label="CRD"),
    Spec("SpaceToDepth", (normal(2, 2, 4, 6),), attributes={"blocksize": 2}),
    # choices
    Spec("Max", (distinct(2, 3, 4), distinct(3, 1, seed=1), np.array(0.1)), (0, 1),
         lambda a, b, c: _t().maximum(_t().maximum(a, b), c),
         label="three"),
    # powers
    *(
        Spec("Pow", (normal(2, 3) if e == int(e) else positive(2, 3), np.array(e)), torch=lambda x, e: x**e,
             label=f"{e}")
        for e in (3.0, 0.5, -1.0, 1.0, 1.5)
    ),
    Spec("Pow", (normal(2, 3), ints(3, 2, 1)), torch=lambda x, e: x**e, label="integers"),
)  # fmt: skip
