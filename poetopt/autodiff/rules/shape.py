"""Ops that move elements and compute nothing. What is a view forwards is a view backwards."""

from __future__ import annotations

from poetopt.autodiff.registry import Cotangents, Gradients, Primal, register_vjp
from poetopt.errors import ModelError
from poetopt.graph import Role, Tensor


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
    """The inverse permutation; of a matrix product, the product of the transposed factors."""
    dy = op.only(cotangents)
    rank = len(op.x.shape)
    if op.builder.tensors[op.x.name].role is Role.PARAMETER and (swapped := _swapped_product(op, dy)):
        return (swapped,)
    perm = op.attr_ints("perm") or tuple(reversed(range(rank)))
    if sorted(perm) != list(range(rank)):
        raise ModelError(f"{op.where}: perm {list(perm)} is no order of {rank} axes; the file is damaged")
    inverse = [perm.index(axis) for axis in range(rank)]
    moved = [axis for axis in inverse if dy.shape[axis] != 1]
    if moved == sorted(moved):
        return (op.view(dy, op.x),)
    return (op.emit("grad_input").transpose(dy, inverse),)


def _swapped_product(op: Primal, dy: Tensor) -> Tensor | None:
    """The transpose of dY where a Gemm without addend has just made it: (A B)^T = B^T A^T costs no second matrix.

    The Gemm itself is left without readers, and is dropped with its operator.
    """
    draft = op.builder.writer(dy)
    if draft is None or not draft.backward or draft.view or len(dy.shape) != 2 or op.attr_ints("perm") == (0, 1):
        return None
    last = draft.nodes[-1]
    if last.op_type != "Gemm" or last.outputs != (dy.name,) or len(last.inputs) != 2:
        return None
    k = op.builder.operator(draft.name, draft.kind)
    a, b = (op.builder.tensors[name] for name in last.inputs)
    names: dict[str, str] = {}
    for node in draft.nodes[:-1]:
        (old,) = (op.builder.tensors[name] for name in node.outputs)
        read = [op.builder.tensors[names.get(name, name)] for name in node.inputs]
        names[old.name] = k.node(node.op_type, read, old.shape, old.dtype, **node.attributes).name
    a, b = (op.builder.tensors[names.get(t.name, t.name)] for t in (a, b))
    alpha = last.attributes.get("alpha", 1.0)
    return k.gemm(
        b, a, alpha=float(alpha) if isinstance(alpha, float) else 1.0, trans_a=not last.attributes.get("transB", 0),
        trans_b=not last.attributes.get("transA", 0),
    )  # fmt: skip


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
