"""The geometry of sliding windows: kernels, strides, dilations and pads, all resolved to numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from poetopt.autodiff.emit import OperatorBuilder
from poetopt.autodiff.registry import Primal
from poetopt.errors import ModelError
from poetopt.graph import Tensor


@dataclass(frozen=True)
class Window:
    """A sliding window over `rank` spatial axes of x, and the positions that it takes.

    size, out
        Spatial shape of x, and of the output.
    before
        Zeros in front of each axis. Those behind follow from the positions: see `after`.
    declared_after
        Zeros behind each axis as the node declares them; a pool's ceil mode may reach beyond.
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
        """What the positions cover on each axis, pads included."""
        return tuple(
            (o - 1) * s + (k - 1) * d + 1
            for o, s, k, d in zip(self.out, self.strides, self.kernel, self.dilations, strict=True)
        )

    @property
    def after(self) -> tuple[int, ...]:
        """Zeros to add behind each axis so that x covers exactly `extent`; negative where x is longer."""
        return tuple(e - b - n for e, b, n in zip(self.extent, self.before, self.size, strict=True))

    def reads(self, axis: int, tap: int) -> range:
        """The positions along `axis` whose element `tap` lies in x, not in its pads."""
        stride, offset = self.strides[axis], tap * self.dilations[axis] - self.before[axis]
        first = max(0, -(offset // stride))
        return range(first, max(first, min(self.out[axis], -((offset - self.size[axis]) // stride))))

    @property
    def unit_stride(self) -> bool:
        """Whether the window moves by one on every axis."""
        return all(s == 1 for s in self.strides)


def window(op: Primal, kernel: Sequence[int]) -> Window:
    """The window of a Conv or pooling node over its input x [N, C, ...]."""
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
        raise ModelError(f"{op.where}: unknown auto_pad {auto!r}")
    return Window(tuple(kernel), strides, dilations, tuple(before), tuple(after), size, out)


def transposed(k: OperatorBuilder, y: Tensor, w: Tensor, window: Window, group: int = 1) -> Tensor:
    """The adjoint of the convolution with `w` [M, C/group, ...]: from y's shape back to x's."""
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
