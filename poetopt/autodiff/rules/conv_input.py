"""dX of a convolution: ConvTranspose, or a Conv with the flipped kernel, whole or by parts of x's channels.

| construction | how | workspace |
|---|---|---|
| transposed | ConvTranspose(dY, W) | its kernel's columns of one image: C/group taps L elements |
| flipped | Conv(dY, W reversed in space, channels swapped), for unit strides | two copies of W, and a Conv's own |

Parts divide that by their number, and cost one dX for putting them together.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import partial

from poetopt.autodiff.emit import OperatorBuilder
from poetopt.autodiff.rules.choice import FLOPS_PER_NS, Candidate, choose, steps_ns
from poetopt.autodiff.rules.geometry import Window, transposed
from poetopt.graph import DTYPE_BYTES, Tensor


def input_gradient(k: OperatorBuilder, dy: Tensor, w: Tensor, window: Window, group: int) -> Tensor:
    """The gradient of x [N, C, ...], given that of the output and w [M, C/group, ...]."""
    dx_bytes = dy.shape[0] * w.shape[1] * group * math.prod(window.size) * DTYPE_BYTES[w.dtype]
    return choose(candidates(dy, w, window, group), k.graph.floor_bytes - dy.nbytes - dx_bytes).build(k)


def candidates(dy: Tensor, w: Tensor, window: Window, group: int) -> Iterator[Candidate]:
    """Every construction that works for these shapes."""
    batch, positions = dy.shape[0], math.prod(window.out)
    item = DTYPE_BYTES[w.dtype]
    columns = w.shape[1] * window.taps * positions
    size = batch * w.shape[1] * group * math.prod(window.size)
    product = 2.0 * w.size * batch * positions / FLOPS_PER_NS
    for parts in (1, 2, 4, 8):
        if parts > 1 and (group > 1 or w.shape[1] % parts):
            continue
        joined = size * item if parts > 1 else 0
        extra = steps_ns(parts) + (0.5 * (size + w.size) if parts > 1 else 0.0)
        yield Candidate(
            f"transposed/{parts}",
            product + 0.3 * batch * columns * group + extra,
            columns * item // parts + joined + (w.nbytes // parts if parts > 1 else 0),
            partial(_by_parts, dy=dy, w=w, window=window, group=group, parts=parts, flip=False),
        )
        if _flippable(window):
            single = window.taps == 1
            inputs = w.shape[1] // parts
            unfolded = 0 if single else 4 * w.shape[0] // group * window.taps * math.prod(window.size)
            slices = unfolded if inputs > math.prod(window.size) else 0 if single else 2**16
            copies = (1 if single else 2) + (1 if parts > 1 else 0)
            yield Candidate(
                f"flipped/{parts}",
                product * (0.75 if single else 1.15) + (0.5 if single else 3.0) * w.size + extra,
                max(min(copies, 2) * w.nbytes // parts, w.nbytes // parts + slices) + joined,
                partial(_by_parts, dy=dy, w=w, window=window, group=group, parts=parts, flip=True),
            )


def _by_parts(
    k: OperatorBuilder, *, dy: Tensor, w: Tensor, window: Window, group: int, parts: int, flip: bool
) -> Tensor:
    build = _flipped if flip else transposed
    bounds = [w.shape[1] * part // parts for part in range(parts + 1)]
    pieces = [build(k, dy, k.slice(w, [low], [high], [1]), window, group) for low, high in itertools.pairwise(bounds)]
    return k.concat(pieces, 1)


def _flippable(window: Window) -> bool:
    reach = [(k - 1) * d for k, d in zip(window.kernel, window.dilations, strict=True)]
    pads = zip(reach, window.before, window.declared_after, strict=True)
    return window.unit_stride and all(0 <= b <= r and 0 <= a <= r for r, b, a in pads)


def _flipped(k: OperatorBuilder, dy: Tensor, w: Tensor, window: Window, group: int) -> Tensor:
    outputs, inputs = w.shape[:2]
    spatial = window.kernel
    axes = range(len(spatial))
    swapped = k.reshape(w, (group, outputs // group, inputs, *spatial))
    swapped = k.transpose(swapped, [0, 2, 1, *(3 + a for a in axes)])
    kernel = k.flip(k.reshape(swapped, (group * inputs, outputs // group, *spatial)), [2 + a for a in axes])
    reach = [(s - 1) * d for s, d in zip(spatial, window.dilations, strict=True)]
    pads = [*(r - b for r, b in zip(reach, window.before, strict=True)),
            *(r - a for r, a in zip(reach, window.declared_after, strict=True))]  # fmt: skip
    return k.conv(dy, kernel, strides=window.strides, dilations=window.dilations, pads=pads, group=group)
