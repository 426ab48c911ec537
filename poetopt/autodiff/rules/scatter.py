"""ScatterElements and ScatterND: what was written gets the gradient of its place, what was overwritten none.

| reduction | dX | dUpdates |
|---|---|---|
| none | dY, zero where it was replaced | dY at the indices |
| add | dY | dY at the indices |
| max, min | where X is the result, its share of dY | where it is the result, its share of dY at the indices |
| mul | dY times the product of all others | the same |

All that equal the result share dY evenly, as for ReduceMax and in torch's `scatter_reduce(amax)`. A product's gradient
is exact where there are zeros: see ReduceProd.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from poetopt.autodiff.emit import OperatorBuilder
from poetopt.autodiff.registry import Cotangents, Gradients, Primal, register_vjp
from poetopt.autodiff.rules.gather import add_rows, row_counts, row_numbers
from poetopt.autodiff.rules.pieces import masked
from poetopt.errors import MissingVjpError
from poetopt.graph import Tensor

Step = Callable[[OperatorBuilder, Tensor], Tensor]
Merge = Callable[[OperatorBuilder, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Places:
    """What the indices say.

    picked
        The elements of a tensor like X at the indices, in the shape of the updates.
    blanked
        A tensor like X with zeros there.
    added, multiplied
        A tensor like X, and one like the updates that is merged into it.
    """

    picked: Step
    blanked: Step
    added: Merge
    multiplied: Merge


@register_vjp("ScatterElements", since=11)
def scatter_elements(op: Primal, cotangents: Cotangents) -> Gradients:
    """See above. Reads the indices, for max and min also X, Y and the updates, for mul X and the updates."""
    indices, axis = op.input(1), op.attr_int("axis", 0) % len(op.x.shape)

    def picked(k: OperatorBuilder, x: Tensor) -> Tensor:
        return k.node("GatherElements", [x, indices], indices.shape, x.dtype, axis=axis)

    def blanked(k: OperatorBuilder, x: Tensor) -> Tensor:
        zeros = k.zeros(indices.shape, x.dtype)
        return k.node("ScatterElements", [x, indices, zeros], x.shape, x.dtype, axis=axis)

    def merged(how: str) -> Merge:
        return lambda k, x, updates: k.scatter(x, indices, updates, axis, how)

    return _scattered(op, op.only(cotangents), Places(picked, blanked, merged("add"), merged("mul")))


@register_vjp("ScatterND", since=11)
def scatter_nd(op: Primal, cotangents: Cotangents) -> Gradients:
    """As ScatterElements, with GatherND; rows are merged by their numbers, without races."""
    indices, shape = op.input(1), op.input(2).shape
    rows, count, inner = row_counts(op.x, indices)

    def picked(k: OperatorBuilder, x: Tensor) -> Tensor:
        return k.node("GatherND", [x, indices], shape, x.dtype)

    def blanked(k: OperatorBuilder, x: Tensor) -> Tensor:
        return k.node("ScatterND", [x, indices, k.zeros(shape, x.dtype)], x.shape, x.dtype)

    def added(k: OperatorBuilder, x: Tensor, updates: Tensor) -> Tensor:
        sums = add_rows(k, k.reshape(updates, (1, count, inner)), row_numbers(k, op.x, indices), rows)
        return k.add(x, k.reshape(sums, x.shape))

    def multiplied(k: OperatorBuilder, x: Tensor, updates: Tensor) -> Tensor:
        numbers = k.expand(k.reshape(row_numbers(k, op.x, indices), (count, 1)), (count, inner))
        table, pieces = k.reshape(x, (rows, inner)), k.reshape(updates, (count, inner))
        return k.reshape(k.scatter(table, numbers, pieces, 0, "mul"), x.shape)

    return _scattered(op, op.only(cotangents), Places(picked, blanked, added, multiplied))


def _scattered(op: Primal, dy: Tensor, places: Places) -> Gradients:
    reduction = op.attr_text("reduction", "none")
    if reduction in {"max", "min"}:
        return _extreme(op, dy, places)
    if reduction == "mul":
        return _product(op, dy, places)
    if reduction not in {"none", "add"}:
        raise MissingVjpError(
            f"{op.where}: there is no gradient rule for the reduction {reduction!r}; use none, add, mul, max or min"
        )
    updates = places.picked(op.emit("grad_updates"), dy) if op.need(2) else None
    if not op.need(0):
        return None, None, updates
    return (dy if reduction == "add" else places.blanked(op.emit("grad_input"), dy)), None, updates


def _parts(op: Primal) -> tuple[OperatorBuilder, OperatorBuilder, OperatorBuilder]:
    """Operators for what both gradients need, for dX and for dUpdates: one and the same where one of them is wanted."""
    if op.need(0) and op.need(2):
        return op.emit("grad_share"), op.emit("grad_input"), op.emit("grad_updates")
    k = op.emit("grad_input" if op.need(0) else "grad_updates")
    return k, k, k


def _extreme(op: Primal, dy: Tensor, places: Places) -> Gradients:
    updates = op.input(2)

    def old(k: OperatorBuilder) -> Tensor:
        return k.cast(k.compare("Equal", op.x, op.y), dy.dtype)

    def new(k: OperatorBuilder) -> Tensor:
        return k.cast(k.compare("Equal", updates, places.picked(k, op.y)), dy.dtype)

    both, first, second = _parts(op)
    share = both.div(dy, places.added(both, old(both), new(both)))
    dx = masked(first, share, old(first)) if op.need(0) else None
    return dx, None, (masked(second, places.picked(second, share), new(second)) if op.need(2) else None)


def _product(op: Primal, dy: Tensor, places: Places) -> Gradients:
    updates = op.input(2)

    def split(k: OperatorBuilder, x: Tensor) -> tuple[Tensor, Tensor]:
        """1 where x is zero, and x with ones there."""
        zeros = k.cast(k.compare("Equal", x, 0.0), x.dtype)
        return zeros, k.add(x, zeros)

    def gradient(k: OperatorBuilder, x: Tensor, whole: Tensor, zeros: Tensor) -> Tensor:
        own, filled = split(k, x)
        return masked(k, k.div(whole, filled), k.cast(k.compare("Equal", zeros, own), x.dtype))

    both, first, second = _parts(op)
    (zeros_x, filled_x), (zeros_updates, filled_updates) = split(both, op.x), split(both, updates)
    whole = both.mul(dy, places.multiplied(both, filled_x, filled_updates))
    zeros = places.added(both, zeros_x, zeros_updates)
    dx = gradient(first, op.x, whole, zeros) if op.need(0) else None
    if not op.need(2):
        return dx, None, None
    return dx, None, gradient(second, updates, places.picked(second, whole), places.picked(second, zeros))


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
