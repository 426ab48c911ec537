"""Ops that repeat or shuffle: the gradient is summed or shuffled back."""

from __future__ import annotations

from poetopt.autodiff.registry import Cotangents, Gradients, Primal, register_vjp


@register_vjp("Tile", since=6)
def tile(op: Primal, cotangents: Cotangents) -> Gradients:
    """dX = the sum of the copies. Reads nothing else; no temporary."""
    dy, x = op.only(cotangents), op.x
    repeats = op.known_ints(1)
    k = op.emit("grad_input")
    split = [part for pair in zip(repeats, x.shape, strict=True) for part in pair]
    copies = k.reshape(dy, split)
    return (k.reshape(k.reduce_sum(copies, [2 * axis for axis, r in enumerate(repeats) if r > 1]), x.shape), None)


@register_vjp("DepthToSpace", since=1)
def depth_to_space(op: Primal, cotangents: Cotangents) -> Gradients:
    """The inverse shuffle. Reads nothing else; no temporary."""
    dy, (n, c, h, w) = op.only(cotangents), op.x.shape
    size = op.attr_int("blocksize", 1)
    k = op.emit("grad_input")
    blocks = k.reshape(dy, (n, c // size**2, h, size, w, size))
    perm = [0, 1, 3, 5, 2, 4] if op.attr_text("mode", "DCR") == "CRD" else [0, 3, 5, 1, 2, 4]
    return (k.reshape(k.transpose(blocks, perm), op.x.shape),)


@register_vjp("SpaceToDepth", since=1)
def space_to_depth(op: Primal, cotangents: Cotangents) -> Gradients:
    """The inverse shuffle. Reads nothing else; no temporary."""
    dy, (n, c, h, w) = op.only(cotangents), op.x.shape
    size = op.attr_int("blocksize", 1)
    k = op.emit("grad_input")
    blocks = k.reshape(dy, (n, size, size, c, h // size, w // size))
    return (k.reshape(k.transpose(blocks, [0, 3, 4, 1, 5, 2]), op.x.shape),)
