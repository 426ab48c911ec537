"""Random calls of what turns integers into floats."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from poetopt.testing.kernel import Case, node_case
from tests.draws.pieces import Draw, Random, random_shape


def _dequantize(random: Random) -> list[Case]:
    dtype = np.dtype(random.choice(["int8", "uint8"]))
    shape = random_shape(random, 2, longest=9)
    axis, kind = int(random.integers(0, len(shape))), int(random.integers(0, 3))
    size = int(random.integers(1, shape[axis] + 2))
    grid = {0: (), 1: shape[axis : axis + 1]}.get(
        kind, tuple(-(-n // size) if k == axis else n for k, n in enumerate(shape))
    )
    attributes = {"axis": axis - len(shape) * int(random.integers(0, 2))} | ({"block_size": size} if kind == 2 else {})
    info = np.iinfo(dtype)
    x, z = (random.integers(info.min, info.max + 1, of).astype(dtype) for of in (shape, grid))
    scale = random.random(grid).astype(np.float32)
    return [
        node_case(
            "DequantizeLinear",
            x,
            np.asarray(scale),
            *([np.asarray(z)] if random.random() < 0.6 else []),
            attributes=attributes,
        )
    ]


DRAWS: Mapping[tuple[str, str], Draw] = {("", "DequantizeLinear"): _dequantize}
