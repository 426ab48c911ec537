"""Einsum: each operand's gradient is a product of dY with the other operands, as transposes and MatMuls.

Never an Einsum: its kernel permutes copies of all it reads. Reads dY and the other operands; temporaries are
their transposes (where axes move), and partial products where there are more than two operands.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from poetopt.autodiff.emit import OperatorBuilder
from poetopt.autodiff.registry import Cotangents, Gradients, Primal, register_vjp
from poetopt.errors import MissingVjpError
from poetopt.graph import Tensor
from poetopt.operators.einsum import labels


@register_vjp("Einsum", since=12)
def einsum(op: Primal, cotangents: Cotangents) -> Gradients:
    """See above. An operand with a repeated label stands for its diagonal, and its gradient lies on it."""
    dy = op.only(cotangents)
    operands = [op.input(index) for index in range(len(op.inputs))]
    terms, result = labels(op.attr_text("equation", ""), [len(t.shape) for t in operands])
    gradients: list[Tensor | None] = []
    for index, (operand, term) in enumerate(zip(operands, terms, strict=True)):
        if not op.need(index):
            gradients.append(None)
            continue
        if len(set(result)) < len(result):
            raise MissingVjpError(f"{op.where}: there is no gradient rule for repeated labels in the result")
        k = op.emit("grad_input")
        others = [pair for at, pair in enumerate(zip(operands, terms, strict=True)) if at != index]
        found, have = dy, result
        for at, (other, other_term) in enumerate(others):
            later = {label for _, t in others[at + 1 :] for label in t} | set(term)
            found, have = contract(k, (found, have), _diagonal(k, other, other_term), later)
        once = "".join(dict.fromkeys(term))
        shape = [operand.shape[term.index(label)] for label in once]
        gradients.append(_on_diagonal(k, _shaped(k, found, have, once, shape), term))
    return tuple(gradients)


def _diagonal(k: OperatorBuilder, x: Tensor, term: str) -> tuple[Tensor, str]:
    """x where axes of one label have one index: masked, and summed over all of them but the first."""
    for axis in reversed(range(len(term))):
        first = term.index(term[axis])
        if first != axis:
            x = k.reduce_sum(k.mul(x, _same(k, x, len(term), first, axis)), [axis], keepdims=False)
            term = term[:axis] + term[axis + 1 :]
    return x, term


def _on_diagonal(k: OperatorBuilder, x: Tensor, term: str) -> Tensor:
    """The transpose of `_diagonal`: x, whose axes have each label once, with zeros around."""
    for axis, label in enumerate(term):
        first = term.index(label)
        if first != axis:
            wider = k.reshape(x, (*x.shape[:axis], 1, *x.shape[axis:]))
            x = k.mul(wider, _same(k, x, len(wider.shape), first, axis))
    return x


def _same(k: OperatorBuilder, x: Tensor, rank: int, first: int, axis: int) -> Tensor:
    """1 where the indices of two axes are equal, else 0; to be broadcast to `rank` axes."""
    length = x.shape[first]
    shape = [length if place in (first, axis) else 1 for place in range(rank)]
    return k.graph.constant(np.eye(length).reshape(shape).astype(x.dtype))


def contract(
    k: OperatorBuilder, left: tuple[Tensor, str], right: tuple[Tensor, str], kept: set[str]
) -> tuple[Tensor, str]:
    """The product of two tensors with labelled axes, summed over the labels that are not `kept`: one MatMul."""
    (a, ta), (b, tb) = _summed(k, left, kept | set(right[1])), _summed(k, right, kept | set(left[1]))
    size = {**dict(zip(tb, b.shape, strict=True)), **{c: d for c, d in zip(ta, a.shape, strict=True) if d != 1}}
    size = {c: size.get(c, 1) for c in dict.fromkeys(ta + tb)}
    shared = [c for c in ta if c in tb and c in kept]
    gone = [c for c in ta if c in tb and c not in kept]
    rows, columns = [c for c in ta if c not in tb], [c for c in tb if c not in ta]
    # an axis of length one that stands for a longer one (broadcasting dots) is repeated
    a = k.expand(a, [size[c] for c in ta])
    b = k.expand(b, [size[c] for c in tb])

    def product(group: list[str]) -> int:
        return math.prod(size[c] for c in group)

    batch = [product(shared)] if shared else []
    a = k.transpose(a, [ta.index(c) for c in (*shared, *rows, *gone)])
    b = k.transpose(b, [tb.index(c) for c in (*shared, *gone, *columns)])
    a = k.reshape(a, (*batch, product(rows), product(gone)))
    b = k.reshape(b, (*batch, product(gone), product(columns)))
    term = "".join((*shared, *rows, *columns))
    return k.reshape(k.matmul(a, b), [size[c] for c in term]), term


def _summed(k: OperatorBuilder, pair: tuple[Tensor, str], needed: set[str]) -> tuple[Tensor, str]:
    x, term = pair
    axes = [axis for axis, label in enumerate(term) if label not in needed]
    if not axes:
        return pair
    return k.reduce_sum(x, axes, keepdims=False), "".join(label for label in term if label in needed)


def _shaped(k: OperatorBuilder, x: Tensor, have: str, term: str, shape: Sequence[int]) -> Tensor:
    """x in the axis order of `term`; labels that nothing else had are repeated, broadcast ones summed."""
    x = k.transpose(x, [have.index(label) for label in term if label in have])
    sizes = dict(zip((label for label in term if label in have), x.shape, strict=True))
    x = k.reshape(x, [sizes.get(label, 1) for label in term])
    x = k.sum_to(x, [1 if d == 1 else x.shape[axis] for axis, d in enumerate(shape)])
    return k.expand(x, shape)
