"""Rows for what transformers and mobile networks add to the classic ones, and for elementary functions."""

from __future__ import annotations

import numpy as np

from tests.support.autodiff.specs import Spec, distinct, ints, normal, positive

ROWS: tuple[Spec, ...] = (
    # normalization of rows
    Spec("LayerNormalization", (normal(3, 4, 6), normal(4, 6)), (0, 1), {"axis": 1}, label="two-axes"),
    Spec("LayerNormalization", (normal(5, 6), normal(6), normal(6)), (0,), label="frozen"),
    Spec("LayerNormalization", (normal(5, 6), normal(6), normal(6)), (1, 2), label="weights"),
    Spec("RMSNormalization", (normal(3, 4, 6), normal(6)), (0, 1), opset=23),
    # picking
    Spec("Gather", (normal(7, 3), np.array([[1, 6, 1], [0, -1, 2]])), label="table"),
    Spec("Gather", (normal(2, 9, 3), ints(4, -9, 4)), attributes={"axis": 1}, label="middle"),
    Spec("Gather", (normal(3, 40), ints(*range(0, 39, 2), 0, 2, 4)), attributes={"axis": 1}, label="elements"),
    Spec("Gather", (normal(9, 3), ints(4, 5, 6)), label="range"),
    Spec("GatherElements", (normal(4, 3), np.array([[0, 2, 2], [-1, 1, 0]]))),
    Spec("GatherND", (normal(3, 4, 2), np.array([[0, 1], [2, -1], [0, 1]]))),
    Spec("GatherND", (normal(2, 4, 3), np.array([[[1], [3]], [[0], [-1]]])), attributes={"batch_dims": 1},
         label="batch"),
    # cutting, repeating, surrounding
    Spec("Slice", (normal(5, 7), ints(-1, 1), ints(-100, 7), ints(0, 1), ints(-2, 3)), label="both-steps"),
    Spec("Slice", (normal(4, 3), ints(3), ints(-2**63), ints(0), ints(-1)), label="reverse"),
    Spec("Expand", (normal(3, 1), ints(1, 4)), label="both"),
    Spec("Tile", (normal(2, 3), ints(3, 2))),
    Spec("DepthToSpace", (normal(2, 8, 2, 3),), attributes={"blocksize": 2}),
    Spec("DepthToSpace", (normal(2, 8, 2, 3),), attributes={"blocksize": 2, "mode": "CRD"}, label="CRD"),
    Spec("SpaceToDepth", (normal(2, 2, 4, 6),), attributes={"blocksize": 2}),
    # choices
    Spec("Max", (distinct(2, 3, 4), distinct(3, 1, seed=1), np.array(0.1)), (0, 1), label="three"),
    # powers
    *(
        Spec("Pow", (normal(2, 3) if e == int(e) else positive(2, 3), np.array(e)), label=f"{e}")
        for e in (3.0, 0.5, -1.0, 1.0, 1.5)
    ),
    Spec("Pow", (normal(2, 3), ints(3, 2, 1)), label="integers"),
)  # fmt: skip
