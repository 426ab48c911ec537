"""ScatterElements and ScatterND: what was written gets the gradient of its place, what was overwritten none."""

from __future__ import annotations

from collections.abc import Callable

from poetopt.autodiff.emit import OperatorBuilder
from poetopt.autodiff.registry import Cotangents, Gradients, Primal, register_vjp
from poetopt.errors import MissingVjpError
from poetopt.graph import Tensor

Step = Callable[[OperatorBuilder, Tensor], Tensor]


@register_vjp("ScatterElements", since=11)
def scatter_elements(op: Primal, cotangents: Cotangents) -> Gradients:
    """dUpdates = dY gathered at the indices; dX = dY, zero where it was replaced (`none`) and whole for `add`.

    Reads the indices; for dX one tensor of zeros of the updates' size.
    """
    indices, axis = op.input(1), op.attr_int("axis", 0) % len(op.x.shape)

    def picked(k: OperatorBuilder, dy: Tensor) -> Tensor:
        return k.node("GatherElements", [dy, indices], indices.shape, dy.dtype, axis=axis)

    def blanked(k: OperatorBuilder, dy: Tensor) -> Tensor:
        zeros = k.zeros(indices.shape, dy.dtype)
        return k.node("ScatterElements", [dy, indices, zeros], dy.shape, dy.dtype, axis=axis)

    return _scattered(op, op.only(cotangents), picked, blanked)


@register_vjp("ScatterND", since=11)
def scatter_nd(op: Primal, cotangents: Cotangents) -> Gradients:
    """As ScatterElements, with GatherND."""
    indices = op.input(1)

    def picked(k: OperatorBuilder, dy: Tensor) -> Tensor:
        return k.node("GatherND", [dy, indices], op.input(2).shape, dy.dtype)

    def blanked(k: OperatorBuilder, dy: Tensor) -> Tensor:
        zeros = k.zeros(op.input(2).shape, dy.dtype)
        return k.node("ScatterND", [dy, indices, zeros], dy.shape, dy.dtype)

    return _scattered(op, op.only(cotangents), picked, blanked)


def _scattered(op: Primal, dy: Tensor, picked: Step, blanked: Step) -> Gradients:
    reduction = op.attr_text("reduction", "none")
    if reduction not in {"none", "add"}:
        raise MissingVjpError(
            f"{op.where}: there are gradient rules for the reductions 'none' and 'add', not for {reduction!r}"
        )
    updates = picked(op.emit("grad_updates"), dy) if op.need(2) else None
    if not op.need(0):
        return None, None, updates
    return (dy if reduction == "add" else blanked(op.emit("grad_input"), dy)), None, updates


@register_vjp("TopK", since=10)
def top_k(op: Primal, cotangents: Cotangents) -> Gradients:
    """dX = dY of the values at their indices, zeros elsewhere. Reads the indices; zeros of X's size."""
    dy = cotangents[0]
    if dy is None:
        return None, None
    axis = op.attr_int("axis", -1) % len(op.x.shape)
    k = op.emit("grad_input")
    return k.scatter_add(k.zeros(op.x.shape, dy.dtype), op.output(1), dy, axis), None


@register_vjp("Trilu", since=14)
def trilu(op: Primal, cotangents: Cotangents) -> Gradients:
    """The same triangle of dY. Reads nothing; no temporary."""
    dy = op.only(cotangents)
    operands = [dy, op.input(1)] if op.has(1) else [dy]
    k = op.emit("grad_input")
    return k.node("Trilu", operands, dy.shape, dy.dtype, upper=op.attr_int("upper", 1)), None
