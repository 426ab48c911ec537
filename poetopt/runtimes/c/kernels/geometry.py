"""The numbers of a convolution of one or two axes. One axis is two with a height of one."""

from __future__ import annotations

from dataclasses import dataclass

from poetopt.graph import Tensor
from poetopt.runtimes.c.kernel import Call


@dataclass(frozen=True)
class Geometry:
    """A convolution of two axes: x [images, groups * ins, size], w [groups * outs, ins, kernel], y [.., out]."""

    images: int
    groups: int
    outs: int
    ins: int
    out: tuple[int, int]
    size: tuple[int, int]
    kernel: tuple[int, int]
    steps: tuple[int, int]
    taps: tuple[int, int]
    before: tuple[int, int]

    @property
    def reach(self) -> int:
        """How many rows the last tap is behind the first."""
        return (self.kernel[0] - 1) * self.taps[0]

    @property
    def pointwise(self) -> bool:
        """Whether it is a product of matrices, image by image."""
        one = self.kernel == (1, 1) and self.steps == (1, 1) and self.before == (0, 0)
        return one and self.groups == 1 and self.out == self.size

    def numbers(self) -> tuple[int, ...]:
        """The numbers that the functions of the header take, in order."""
        return (
            self.images, self.groups, self.outs, self.ins, *self.out, *self.size, *self.kernel, *self.steps,
            *self.taps, *self.before,
        )  # fmt: skip


def geometry(call: Call, x: Tensor, w: Tensor, y: Tensor) -> Geometry:
    """The convolution that makes y of x by w, with the attributes of the call."""
    axes = len(x.shape) - 2
    groups = call.integer("group", 1)

    def two(values: tuple[int, ...], filler: int) -> tuple[int, int]:
        found = (filler,) * (2 - axes) + values
        return found[0], found[1]

    steps = call.integers("strides", (1,) * axes)
    taps = call.integers("dilations", (1,) * axes)
    before = call.integers("pads", (0,) * 2 * axes)[:axes]
    where = call.text("auto_pad", "NOTSET")
    if where.startswith("SAME"):
        reach = zip(x.shape[2:], y.shape[2:], w.shape[2:], steps, taps, strict=True)
        total = [max((o - 1) * s + (k - 1) * t + 1 - d, 0) for d, o, k, s, t in reach]
        before = tuple(p // 2 if where == "SAME_UPPER" else p - p // 2 for p in total)
    return Geometry(
        x.shape[0], groups, w.shape[0] // groups, w.shape[1], two(y.shape[2:], 1), two(x.shape[2:], 1),
        two(w.shape[2:], 1), two(steps, 1), two(taps, 1), two(before, 0),
    )  # fmt: skip
