"""Gradients of ops that move data (shapes, pads, blocks), and declarations of ops without a gradient.

The dX of a Pad is the middle of dY. In modes other than `constant`, repeated elements add their gradient to the element
that they repeat.

This goes axis by axis, in time and memory that grow with dY alone. Outside of a line, padding runs through the line
forwards (`wrap`), backwards (`reflect`), or stays at its ends (`edge`). A run adds a slice of dY to a stretch of the
line, reversed if the run goes backwards. Stretches are summed separately and joined, so that only edges are added. If a
short line is repeated many times, all repetitions are summed at once.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import partial, reduce

from poetopt.autodiff import behind
from poetopt.autodiff.emit import OperatorBuilder
from poetopt.autodiff.registry import Cotangents, Gradients, Primal, register_vjp, single
from poetopt.frontends import checks
from poetopt.graph import Role, Tensor
from poetopt.ops.op import Allowed, Op, Origin, Steps, declare
from poetopt.ops.runtimes.onnxruntime import axes
from poetopt.util.errors import ModelError

moving_op = partial(Op, flops=0, numbers=Origin.MOVED, keeps_scores=True, any_type=True)
view_op = partial(moving_op, is_linear=True, cuts=axes.view, exact=True)

declare("Bernoulli", "Multinomial", op=Op(random=True, newest_opset=21, blocked=None))
declare("BitCast", op=Op(blocked=None))
declare("Concat", op=Op(flops=0, keeps_scores=True, range=behind.hull, axis=0, any_type=True))
declare("Constant", op=Op(flops=0, blocked=None, any_type=True))
declare("ConstantOfShape", op=Op(flops=0, blocked=None, settings=(0,), lists=(0,), any_type=True))
blocks: Allowed = {"blocksize": 1, "mode": ("DCR", "CRD")}
declare("DepthToSpace", op=Op(flops=0, attributes=blocks, settings_check=checks.blocks))
declare("EyeLike", op=Op(flops=0, blocked=None, looks="anywhere"))
declare("Flatten", op=view_op(axis=1))
declare("Identity", op=view_op())
declare("If", "Loop", "Scan", "SequenceMap", op=Op(evaluation=Steps.UNKNOWN))
declare("Pad", op=Op(
    flops=0, blocked=(1, 2, 3), missing=(2,), settings=(2,), keeps_scores=True, axes=3, lists=(1, 3),
    attributes={"mode": ("constant", "reflect", "edge", "wrap")},
))  # fmt: skip
declare("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", op=Op(
    flops=0, random=True, newest_opset=21, blocked=None,
))  # fmt: skip
declare("Range", op=Op(flops=0, blocked=None, missing=(0, 1, 2), settings=(0, 1, 2)))
declare("Reshape", "Unsqueeze", op=view_op(blocked=(1,), lists=(1,)))
declare("Shape", "Size", op=Op(flops=0, asks_shape=True, blocked=None, settings=(0,), any_type=True))
declare("SpaceToDepth", op=Op(flops=0, attributes=blocks))
declare("Split", op=moving_op(blocked=(1,), axis=0, attributes={"num_outputs": 1}, lists=(1,)))
declare("Squeeze", op=view_op(blocked=(1,), axes=1, lists=(1,)))
declare("TfIdfVectorizer", op=Op(evaluation=Steps.UNKNOWN, attributes={"mode": ("TF", "IDF", "TFIDF")}))
declare("Tile", op=Op(flops=0, blocked=(1,), numbers=Origin.MOVED, lists=(1,)))
declare("Transpose", op=moving_op(letters=axes.transpose))


@register_vjp("Reshape", since=5)
@register_vjp("Flatten", since=1)
@register_vjp("Squeeze", since=1)
@register_vjp("Unsqueeze", since=1)
def view(op: Primal, cotangents: Cotangents) -> Gradients:
    """Return dY in the input's shape."""
    return (op.view(op.only(cotangents), op.x),)


@register_vjp("Identity", since=1)
def identity(op: Primal, cotangents: Cotangents) -> Gradients:
    """Return dX = dY."""
    return (op.only(cotangents),)


@register_vjp("Transpose", since=1)
def transpose(op: Primal, cotangents: Cotangents) -> Gradients:
    """Return dY with the inverse permutation; for a matrix product, the product of the transposed factors."""
    dy = op.only(cotangents)
    rank = len(op.x.shape)
    if op.builder.tensors[op.x.name].role is Role.PARAMETER and (swapped := _swapped_product(op, dy)):
        return (swapped,)
    perm = op.attr_ints("perm") or tuple(reversed(range(rank)))
    if sorted(perm) != list(range(rank)):
        raise ModelError(f"{op.where}: perm {list(perm)} isn't a permutation of {rank} axes; export the model again")
    inverse = [perm.index(axis) for axis in range(rank)]
    long_axes = [axis for axis in inverse if dy.shape[axis] != 1]
    if long_axes == sorted(long_axes):
        return (op.view(dy, op.x),)
    return (op.emit("grad_input").transpose(dy, inverse),)


def _swapped_product(op: Primal, dy: Tensor) -> Tensor | None:
    """Return the transpose of dY if a Gemm without addend wrote it: (A B)^T = B^T A^T needs no second matrix.

    The Gemm itself has no readers then, and is dropped with its operator.
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
    """Return for each input its slice of dY."""
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
    """Return the concatenated gradients of the outputs; zeros for an output without readers."""
    axis = op.attr_int("axis", 0) % len(op.x.shape)
    k = op.emit("grad_input")
    pieces = [
        dy if dy is not None else k.zeros(op.output(index).shape, op.x.dtype) for index, dy in enumerate(cotangents)
    ]
    return (k.concat(pieces, axis), None)


@single("Pad", since=11)
def pad(k: OperatorBuilder, op: Primal, dy: Tensor) -> Tensor:
    """Return the gradient of a Pad (module docstring). It reads only dY; one temporary of its size."""
    x = op.x
    rank = len(x.shape)
    before, after = _pad_amounts(op, rank)
    mode = op.attr_text("mode", "constant")
    if mode == "constant":
        return k.pad(dy, [-b for b in before], [-a for a in after])
    if mode not in {"reflect", "edge", "wrap"}:
        raise ModelError(f"{op.where}: mode {mode!r} is unknown; export it with constant, reflect, edge or wrap")
    # onnxruntime cuts first, and repeats the rest
    cut = [[-min(n, 0) for n in side] for side in (before, after)]
    for axis in range(rank):
        length = x.shape[axis] - cut[0][axis] - cut[1][axis]
        if length <= 0:
            raise ModelError(
                f"{op.where}: its pads remove axis {axis} before elements are repeated; export it without negative pads"
            )
        if mode == "reflect" and max(before[axis], after[axis]) >= length:
            raise ModelError(
                f"{op.where}: reflects {max(before[axis], after[axis])} elements of axis {axis}, which has {length}; "
                "onnxruntime reflects fewer than there are"
            )
        dy = folded(k, dy, axis, length, max(before[axis], 0), mode)
    return k.pad(dy, *cut)


def _pad_amounts(op: Primal, rank: int) -> tuple[list[int], list[int]]:
    """Return the elements added before and after each axis; negative if the axis is cut."""
    amounts = op.known_ints(1)
    axes = [axis % rank for axis in op.known_ints(3)] if op.has(3) else list(range(rank))
    before, after = [0] * rank, [0] * rank
    for position, axis in enumerate(axes):
        before[axis], after[axis] = amounts[position], amounts[len(axes) + position]
    return before, after


@dataclass(frozen=True)
class _PadRun:
    """`stop - start` positions of a padded line that repeat the line from `first` on, up or down."""

    start: int
    stop: int
    first: int
    step: int

    @property
    def covered_positions(self) -> range:
        """Positions of the line that the run repeats, ascending."""
        last = self.first + self.step * (self.stop - self.start - 1)
        return range(min(self.first, last), max(self.first, last) + 1)

    def slice(self, k: OperatorBuilder, x: Tensor, axis: int, low: int, high: int) -> Tensor:
        """Return the run's elements for the positions from `low` to before `high`, in their order."""
        if self.step > 0:
            start = self.start + low - self.first
            return k.slice(x, [start], [start + high - low], [axis])
        start = self.start + self.first - high + 1
        return k.flip(k.slice(x, [start], [start + high - low], [axis]), [axis])


def folded(k: OperatorBuilder, x: Tensor, axis: int, length: int, before: int, mode: str) -> Tensor:
    """Fold x to the line of `length` on its `axis`; `before` positions are in front of the line, others behind."""
    after = x.shape[axis] - before - length
    if not before and not after:
        return x
    if mode == "edge":
        return _fold_edges(k, x, axis, length, before)
    if mode == "wrap" and max(before, after) > length:
        return _fold_repetitions(k, x, axis, length, before)
    step = -1 if mode == "reflect" else 1
    runs = [
        _PadRun(0, before, before if step < 0 else length - before, step),
        _PadRun(before, before + length, 0, 1),
        _PadRun(before + length, x.shape[axis], length - 2 if step < 0 else 0, step),
    ]
    runs = [run for run in runs if run.start < run.stop]
    ends = sorted({end for run in runs for end in (run.covered_positions.start, run.covered_positions.stop)})
    stretches = [
        reduce(k.add, [run.slice(k, x, axis, low, high) for run in runs if low in run.covered_positions])
        for low, high in itertools.pairwise(ends)
    ]
    return k.concat(stretches, axis)


def _fold_edges(k: OperatorBuilder, x: Tensor, axis: int, length: int, before: int) -> Tensor:
    """Compute `folded` for `edge`: outer elements are added to the first and to the last position."""
    if length == 1:
        return k.reduce_sum(x, [axis])
    ends = (0, before + 1, before + length - 1, x.shape[axis])
    first, middle, last = (
        k.slice(x, [low], [high], [axis]) if low < high else None for low, high in itertools.pairwise(ends)
    )
    sums = [None if t is None else k.reduce_sum(t, [axis]) for t in (first, last)]
    return k.concat([t for t in (sums[0], middle, sums[1]) if t is not None], axis)


def _fold_repetitions(k: OperatorBuilder, x: Tensor, axis: int, length: int, before: int) -> Tensor:
    """Compute `folded` for `wrap` at once: the sum of all repetitions, with incomplete ones filled up with zeros."""
    front = -before % length
    back = -(front + x.shape[axis]) % length
    wide = k.pad(x, *([amount if a == axis else 0 for a in range(len(x.shape))] for amount in (front, back)))
    shape = (*x.shape[:axis], wide.shape[axis] // length, length, *x.shape[axis + 1 :])
    return k.reduce_sum(k.reshape(wide, shape), [axis], keepdims=False)


@single("Tile", since=6)
def tile(k: OperatorBuilder, op: Primal, dy: Tensor) -> Tensor:
    """Return dX = the sum of the copies. It reads only dY; no temporary."""
    x = op.x
    repeats = op.known_ints(1)
    split = [part for pair in zip(repeats, x.shape, strict=True) for part in pair]
    copies = k.reshape(dy, split)
    return k.reshape(k.reduce_sum(copies, [2 * axis for axis, r in enumerate(repeats) if r > 1]), x.shape)


@single("DepthToSpace", since=1)
def depth_to_space(k: OperatorBuilder, op: Primal, dy: Tensor) -> Tensor:
    """Return dY with the inverse shuffle. It reads only dY; no temporary."""
    (n, c, h, w) = op.x.shape
    size = op.attr_int("blocksize", 1)
    blocks = k.reshape(dy, (n, c // size**2, h, size, w, size))
    perm = [0, 1, 3, 5, 2, 4] if op.attr_text("mode", "DCR") == "CRD" else [0, 3, 5, 1, 2, 4]
    return k.reshape(k.transpose(blocks, perm), op.x.shape)


@single("SpaceToDepth", since=1)
def space_to_depth(k: OperatorBuilder, op: Primal, dy: Tensor) -> Tensor:
    """Return dY with the inverse shuffle. It reads only dY; no temporary."""
    (n, c, h, w) = op.x.shape
    size = op.attr_int("blocksize", 1)
    blocks = k.reshape(dy, (n, size, size, c, h // size, w // size))
    return k.reshape(k.transpose(blocks, [0, 3, 4, 1, 5, 2]), op.x.shape)
