"""Ops that move elements and compute nothing. What is a view forwards is a view backwards."""

from __future__ import annotations

from poetopt.autodiff.registry import Cotangents, Gradients, Primal, register_vjp


def _view(op: Primal, cotangents: Cotangents) -> Gradients:
    return (op.view(op.only(cotangents), op.x),)


@register_vjp("Reshape", since=5)
def reshape(op: Primal, cotangents: Cotangents) -> Gradients:
    """The gradient under the input's shape."""
    return _view(op, cotangents)


@register_vjp("Flatten", since=1)
def flatten(op: Primal, cotangents: Cotangents) -> Gradients:
    """The gradient under the input's shape."""
    return _view(op, cotangents)


@register_vjp("Squeeze", since=1)
def squeeze(op: Primal, cotangents: Cotangents) -> Gradients:
    """The gradient under the input's shape."""
    return _view(op, cotangents)


@register_vjp("Unsqueeze", since=1)
def unsqueeze(op: Primal, cotangents: Cotangents) -> Gradients:
    """The gradient under the input's shape."""
    return _view(op, cotangents)


@register_vjp("Identity", since=1)
def identity(op: Primal, cotangents: Cotangents) -> Gradients:
    """The gradient itself."""
    return (op.only(cotangents),)


@register_vjp("Transpose", since=1)
def transpose(op: Primal, cotangents: Cotangents) -> Gradients:
    """The inverse permutation."""
    dy = op.only(cotangents)
    rank = len(op.x.shape)
    perm = op.attr_ints("perm") or tuple(reversed(range(rank)))
    inverse = [perm.index(axis) for axis in range(rank)]
    moved = [axis for axis in inverse if dy.shape[axis] != 1]
    if moved == sorted(moved):
        return (op.view(dy, op.x),)
    return (op.emit("grad_input").transpose(dy, inverse),)


@register_vjp("Concat", since=4)
def concat(op: Primal, cotangents: Cotangents) -> Gradients:
    """Each input gets its slice."""
    dy = op.only(cotangents)
    axis = op.attr_int("axis", 0) % len(dy.shape)
    gradients, start = [], 0
    for index in range(len(op.inputs)):
        end = start + op.input(index).shape[axis]
        piece = None
        if op.need(index):
            whole = (start, end) == (0, dy.shape[axis])
            piece = dy if whole else op.emit("grad_input").slice(dy, [start], [end], [axis])
        gradients.append(piece)
        start = end
    return tuple(gradients)


@register_vjp("Split", since=2)
def split(op: Primal, cotangents: Cotangents) -> Gradients:
    """The pieces side by side; a piece that nobody used counts as zeros."""
    axis = op.attr_int("axis", 0) % len(op.x.shape)
    k = op.emit("grad_input")
    pieces = [
        dy if dy is not None else k.zeros(op.output(index).shape, op.x.dtype) for index, dy in enumerate(cotangents)
    ]
    return (k.concat(pieces, axis), None)
