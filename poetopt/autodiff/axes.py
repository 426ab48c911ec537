"""How the axes of a tensor come from those of one behind it, through Reshape and Transpose.

Each axis is a list of pieces, outer ones first: (axis behind, stride within that axis, length), without those of length
one. A reshape splits and merges pieces, a transpose puts lists in another order.
"""

from __future__ import annotations

from collections.abc import Sequence

Piece = tuple[int, int, int]
Axes = tuple[tuple[Piece, ...], ...]


def own_axes(shape: Sequence[int]) -> Axes:
    """The axes of a tensor as they come from themselves."""
    return tuple(((axis, 1, length),) if length > 1 else () for axis, length in enumerate(shape))


def transposed(axes: Axes, perm: Sequence[int]) -> Axes:
    """`axes` in the order `perm`."""
    return tuple(axes[axis] for axis in perm)


def reshaped(axes: Axes, shape: Sequence[int]) -> Axes | None:
    """`axes` under another shape; None where a new axis has a part of a piece that doesn't divide it."""
    left = [piece for axis in axes for piece in axis][::-1]
    found: list[tuple[Piece, ...]] = []
    for length in shape:
        pieces: list[Piece] = []
        while length > 1:
            if not left:
                return None
            axis, stride, size = left.pop()
            outer = min(size, length)
            if size % outer or length % outer:
                return None
            if outer < size:
                left.append((axis, stride, size // outer))
            pieces.append((axis, stride * (size // outer), outer))
            length //= outer
        found.append(_merged(pieces))
    return None if left else tuple(found)


def _merged(pieces: Sequence[Piece]) -> tuple[Piece, ...]:
    """Pieces that lie in a row behind as one."""
    found: list[Piece] = []
    for axis, stride, size in pieces:
        if found and found[-1][0] == axis and found[-1][1] == stride * size:
            found[-1] = (axis, stride, found[-1][2] * size)
        else:
            found.append((axis, stride, size))
    return tuple(found)


def place_of(axes: Axes, axis: int, length: int) -> int | None:
    """Which axis is the whole of `axis` behind, of this length, and nothing else."""
    return next((place for place, pieces in enumerate(axes) if pieces == ((axis, 1, length),)), None)


def order_behind(pieces: Sequence[Piece]) -> tuple[int, ...]:
    """The permutation that puts pieces in the order in which they lie behind."""
    return tuple(sorted(range(len(pieces)), key=lambda k: (pieces[k][0], -pieces[k][1])))
