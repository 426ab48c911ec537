"""Windows along spatial axes, and the gradient of Col2Im."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from poetopt.autodiff.emit import OperatorBuilder
from poetopt.autodiff.registry import Primal, single
from poetopt.graph import Tensor
from poetopt.ops.op import Op, declare
from poetopt.ops.runtimes.onnxruntime import axes
from poetopt.util.errors import MissingVjpError, ModelError

declare("Col2Im", op=Op(
    flops=lambda c: c.x, blocked=(1, 2), attributes={"dilations": 1, "pads": 0, "strides": 1}, is_heavy=True,
    cuts=axes.col2im,
))  # fmt: skip


@dataclass(frozen=True)
class Window:
    """A sliding window over `rank` spatial axes of x, and its positions.

    Attributes
    ----------
    size, out
        Spatial shape of x, and of the output.
    before
        Zeros before each axis. The zeros behind follow from the positions (`after`).
    declared_after
        Zeros behind each axis as the node declares them; a pool in ceil mode may reach beyond.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    declared_after: tuple[int, ...]
    size: tuple[int, ...]
    out: tuple[int, ...]

    @property
    def rank(self) -> int:
        """Number of spatial axes."""
        return len(self.kernel)

    @property
    def taps(self) -> int:
        """Elements of the kernel."""
        return math.prod(self.kernel)

    @property
    def extent(self) -> tuple[int, ...]:
        """Elements that the positions cover on each axis, including pads."""
        return tuple(
            (o - 1) * s + (k - 1) * d + 1
            for o, s, k, d in zip(self.out, self.strides, self.kernel, self.dilations, strict=True)
        )

    @property
    def after(self) -> tuple[int, ...]:
        """Zeros to add behind each axis so that x covers exactly `extent`; negative where x is longer."""
        return tuple(e - b - n for e, b, n in zip(self.extent, self.before, self.size, strict=True))

    def reads(self, axis: int, tap: int) -> range:
        """Return the positions along `axis` whose element `tap` lies in x, not in its pads."""
        stride, offset = self.strides[axis], tap * self.dilations[axis] - self.before[axis]
        first = max(0, -(offset // stride))
        return range(first, max(first, min(self.out[axis], -((offset - self.size[axis]) // stride))))

    @property
    def unit_stride(self) -> bool:
        """Return whether the window moves by one on every axis."""
        return all(s == 1 for s in self.strides)


def window(op: Primal, kernel: Sequence[int]) -> Window:
    """Return the window of a Conv or pooling node over its input x [N, C, ...]."""
    size, out = op.x.shape[2:], op.y.shape[2:]
    rank = len(size)
    ones = (1,) * rank
    strides, dilations = op.attr_ints("strides") or ones, op.attr_ints("dilations") or ones
    auto = op.attr_text("auto_pad", "NOTSET")
    pads = op.attr_ints("pads") or (0,) * (2 * rank)
    before, after = pads[:rank], pads[rank:]
    if auto in {"SAME_UPPER", "SAME_LOWER"}:
        total = [
            max((-(-n // s) - 1) * s + (k - 1) * d + 1 - n, 0)
            for n, s, k, d in zip(size, strides, kernel, dilations, strict=True)
        ]
        low = [t // 2 if auto == "SAME_UPPER" else t - t // 2 for t in total]
        before, after = tuple(low), tuple(t - b for t, b in zip(total, low, strict=True))
    elif auto == "VALID":
        before = after = (0,) * rank
    elif auto not in {"NOTSET", ""}:
        raise ModelError(
            f"{op.where}: auto_pad {auto!r} is unknown; export it with NOTSET, SAME_UPPER, SAME_LOWER or VALID"
        )
    return Window(tuple(kernel), strides, dilations, tuple(before), tuple(after), size, out)


def transposed(k: OperatorBuilder, y: Tensor, w: Tensor, window: Window, group: int = 1) -> Tensor:
    """Return the adjoint of the convolution with `w` [M, C/group, ...]: from y's shape back to x's."""
    after = window.after
    attributes: dict[str, object] = {
        "strides": list(window.strides),
        "dilations": list(window.dilations),
        "kernel_shape": list(window.kernel),
        "pads": [*window.before, *(max(a, 0) for a in after)],
        "output_padding": [max(-a, 0) for a in after],
        "group": group,
    }
    shape = (y.shape[0], w.shape[1] * group, *window.size)
    return k.node("ConvTranspose", [y, w], shape, y.dtype, **attributes)


@single("Col2Im", since=18)
def col2im(k: OperatorBuilder, op: Primal, dy: Tensor) -> Tensor:
    """Return dX = the windows of dY (im2col): one Gather from its padded planes.

    It reads only dY. Temporaries are the padded image, and the index of each element of a plane's windows (4 bytes).
    """
    frame = _frame(op)
    planes = math.prod(dy.shape[:2])
    wide = k.pad(k.reshape(dy, (planes, *frame.size)), (0, *frame.before), (0, *frame.declared_after))
    flat = k.reshape(wide, (planes, wide.size // max(planes, 1)))
    places = _places(k, frame, wide.shape[1:])
    columns = k.node("Gather", [flat, places], (planes, *places.shape), dy.dtype, axis=1)
    return k.reshape(columns, op.x.shape)


def _frame(op: Primal) -> Window:
    kernel = tuple(int(n) for n in op.known(2).reshape(-1))
    size, rank = op.y.shape[2:], len(kernel)
    strides, dilations = (op.attr_ints(name) or (1,) * rank for name in ("strides", "dilations"))
    pads = op.attr_ints("pads") or (0,) * (2 * rank)
    if rank != 2 and any(d > 1 for d in dilations):
        raise MissingVjpError(
            f"{op.where}: there is no gradient rule for dilations over {rank} axes, for which onnxruntime deviates "
            "from ONNX; fold over two axes, or without dilations"
        )
    out = tuple(
        (n + before + after - d * (k - 1) - 1) // s + 1
        for n, before, after, d, k, s in zip(size, pads[:rank], pads[rank:], dilations, kernel, strides, strict=True)
    )
    frame = Window(kernel, strides, dilations, pads[:rank], pads[rank:], size, out)
    if op.x.shape[1:] != (op.y.shape[1] * frame.taps, math.prod(out)):
        raise ModelError(
            f"{op.where}: columns of shape {list(op.x.shape)} don't fit {math.prod(out)} windows of {frame.taps} "
            "elements"
        )
    return frame


def _places(k: OperatorBuilder, frame: Window, padded: tuple[int, ...]) -> Tensor:
    """Return the index in a plane of each element of each window: [taps of each axis, positions of each axis]."""
    parts: list[Tensor] = []
    for axis in range(frame.rank):
        taps, positions = np.arange(frame.kernel[axis]), np.arange(frame.out[axis])
        lines = taps[:, None] * frame.dilations[axis] + positions * frame.strides[axis]
        shape = [1] * (2 * frame.rank)
        shape[axis], shape[frame.rank + axis] = lines.shape
        strided = lines * math.prod(padded[axis + 1 :])
        parts.append(k.graph.constant(strided.reshape(shape).astype(np.int32)))
    return reduce(k.add, parts)
