"""Gradients of pooling, and of Resize.

Resize is a linear map along each axis, whose weights poetopt reads off onnxruntime. Its gradient is the transposed map.

An element of y reads a few neighbours along an axis, so a few elements read each element of x. Their gradients are
gathered, weighted and added, one after another (`along`). If the map only repeats each element s times (nearest
neighbours, integer scale), the gradient is a sum over blocks of s: a view and one ReduceSum. The operator reads only
dY; up to three temporaries of dY's size.

Sums of a few weighted elements along an axis are gathers instead of a product with a sparse matrix. With r the most
elements of one sum, these are r gathers, products and additions of the result's size; for large r one gather, a product
and a sum. The last axis is transposed first, as its elements aren't contiguous. If an axis is short, a product with a
dense matrix is faster: it has at most 64 elements for each of the longer line.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poetopt.autodiff.emit import OperatorBuilder, Spread
from poetopt.autodiff.registry import Cotangents, Gradients, Primal, register_vjp, single
from poetopt.frontends import checks
from poetopt.graph import Node, Tensor
from poetopt.ops import flops
from poetopt.ops.convolution.windows import Window, transposed, window
from poetopt.ops.nodes import around
from poetopt.ops.op import AUTO_PAD, Allowed, Op, Origin, Steps, declare
from poetopt.ops.pieces import masked, sign
from poetopt.ops.runtimes.onnxruntime import axes, kernels
from poetopt.util.errors import MissingVjpError

sizes: Allowed = {"auto_pad": AUTO_PAD, "dilations": 1, "kernel_shape": 1, "strides": 1}
pool = partial(Op, evaluation=Steps.COUNTED, is_heavy=True, settings_check=checks.pool, window=True)

declare("AveragePool", op=pool(
    flops=lambda c: c.n * (c.window + 1), keeps_scores=True, attributes=sizes, letters_streamed=axes.pool,
))  # fmt: skip
declare("GlobalAveragePool", op=Op(
    flops=(1, 1), sums=True, numbers=Origin.BETWEEN, keeps_scores=True, letters_streamed=axes.pool,
))  # fmt: skip
declare("LpPool", op=pool(flops=lambda c: c.n * (2 * c.window + 1), attributes=sizes | {"p": 1}))
declare("MaxPool", op=pool(
    flops=lambda c: c.n * c.window, numbers=Origin.BETWEEN, keeps_scores=True,
    attributes=sizes | {"storage_order": (0, 1)}, letters_streamed=axes.pool,
))  # fmt: skip
declare("GlobalLpPool", op=Op(newest_opset=21))
declare("RoiAlign", op=Op(
    newest_opset=21,
    attributes={"mode": ("avg", "max"), "coordinate_transformation_mode": ("half_pixel", "output_half_pixel")},
))  # fmt: skip
declare("MaxRoiPool", op=Op(evaluation=Steps.UNKNOWN, newest_opset=21))
declare("Resize", op=Op(
    flops=flops.interpolated("nearest"), blocked=(1, 2, 3), missing=(1,), settings=(1, 2, 3), keeps_scores=True,
    axes=-1, lists=(1, 2, 3), workspace=kernels.resize, attributes={
        "antialias": (0, 1), "exclude_outside": (0, 1), "mode": ("nearest", "linear", "cubic"),
        "nearest_mode": ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil", ""),
        "keep_aspect_ratio_policy": ("stretch", "not_larger", "not_smaller"), "coordinate_transformation_mode": (
            "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric",
            "tf_crop_and_resize", "tf_half_pixel_for_nn",
        ),
    },
))  # fmt: skip


@single("MaxPool", since=8)
def max_pool(k: OperatorBuilder, op: Primal, dy: Tensor) -> Tensor:
    """Add the gradient of each maximum at its index in X, which the forward operator wrote."""
    dx = _scatter_maxima(k, dy, op)
    op.builder.spreads[dx.name] = Spread(op.y, dy, k.kind, partial(_scatter_maxima, op=op))
    return dx


def _scatter_maxima(k: OperatorBuilder, dy: Tensor, op: Primal) -> Tensor:
    """Scatter `dy` to the indices of the maxima of the MaxPool `op`, and add it up."""
    indices = k.reshape(_row_major(k, op), (dy.size,))
    flat = k.scatter_add(k.zeros((op.x.size,), op.x.dtype), indices, k.reshape(dy, (dy.size,)), 0)
    dx = k.reshape(flat, op.x.shape)
    if len(op.outputs) > 1 and op.outputs[1] is not None and not op.attr_int("storage_order", 0):
        k.amounts_to("MaxPool.grad_input", [dy, op.output(1)], [dx])
    return dx


def _row_major(k: OperatorBuilder, op: Primal) -> Tensor:
    """Return row-major indices; recomputed if the model has them column by column."""
    if len(op.operator.nodes) == 1 and op.attr_int("storage_order", 0):
        values, indices = k.out(op.y.shape, op.y.dtype), k.out(op.y.shape, "int64", f"{k.name}/indices")
        k.write("MaxPool", [op.x], [values, indices], **{**op.node.attributes, "storage_order": 0})
        return indices
    return op.output(1)


@single("AveragePool", since=7)
def average_pool(k: OperatorBuilder, op: Primal, dy: Tensor) -> Tensor:
    """Divide dY by each window's count of elements, then apply the adjoint of a convolution with ones."""
    x = op.x
    frame = window(op, op.attr_ints("kernel_shape") or ())
    counts = _window_counts(frame, padded=bool(op.attr_int("count_include_pad", 0)))
    share = np.float64(1.0) / np.maximum(counts, 1)
    same = bool(np.all(counts == counts.flat[0]))
    factor = k.graph.constant(np.asarray(share.flat[0] if same else share, x.dtype))
    planes = k.reshape(k.mul(dy, factor), (x.shape[0] * x.shape[1], 1, *frame.out))
    ones = k.graph.constant(np.ones((1, 1, *frame.kernel), x.dtype))
    dx = k.reshape(transposed(k, planes, ones, frame), x.shape)
    k.amounts_to(
        "AveragePool.grad_input", [dy], [dx], kernel_shape=list(frame.kernel), strides=list(frame.strides),
        dilations=list(frame.dilations), pads=[*frame.before, *frame.declared_after],
        count_include_pad=op.attr_int("count_include_pad", 0),
    )  # fmt: skip
    return dx


@single("LpPool", since=2)
def lp_pool(k: OperatorBuilder, op: Primal, dy: Tensor) -> Tensor:
    """Return dX = X |X|^(p - 2) times the adjoint of a convolution with ones of dY Y^(1 - p).

    It is 0 where a window's norm is 0. The operator reads X, and Y unless p is 1; two temporaries of X's size.
    """
    x, power = op.x, op.attr_int("p", 2)
    frame = window(op, op.attr_ints("kernel_shape") or ())
    if power > 1:
        norm = k.add(op.y, k.cast(k.compare("Equal", op.y, 0.0), dy.dtype))
        dy = k.div(dy, norm if power == 2 else _power(k, norm, power - 1))
    planes = k.reshape(dy, (x.shape[0] * x.shape[1], 1, *frame.out))
    ones = k.graph.constant(np.ones((1, 1, *frame.kernel), x.dtype))
    spread = k.reshape(transposed(k, planes, ones, frame), x.shape)
    if power == 1:
        return masked(k, spread, sign(k, x))
    return k.mul(x if power == 2 else k.mul(x, _power(k, k.unary("Abs", x), power - 2)), spread)


def _power(k: OperatorBuilder, x: Tensor, power: int) -> Tensor:
    return x if power == 1 else k.binary("Pow", x, k.graph.scalar(float(power), x.dtype))


def _window_counts(frame: Window, *, padded: bool) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Return the number of elements that each window averages: those of x, or of x with its declared pads."""
    counts = np.ones((), np.int64)
    for axis in range(frame.rank):
        low = -frame.before[axis] if padded else 0
        high = frame.size[axis] + (frame.declared_after[axis] if padded else 0)
        line = []
        for position, tap in itertools.product(range(frame.out[axis]), range(frame.kernel[axis])):
            at = position * frame.strides[axis] + tap * frame.dilations[axis] - frame.before[axis]
            line.append(low <= at < high)
        counts = np.multiply.outer(counts, np.reshape(line, (frame.out[axis], frame.kernel[axis])).sum(1))
    return counts


@single("GlobalAveragePool", since=1)
def global_average_pool(k: OperatorBuilder, op: Primal, dy: Tensor) -> Tensor:
    """Return for every element its share of the mean's gradient."""
    x = op.x
    return k.expand(k.mul(dy, 1.0 / math.prod(x.shape[2:])), x.shape)


Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Entries:
    """The nonzero elements of a matrix: `places` (rows) read elements `read` (columns) with `weights`."""

    places: Numbers
    read: Numbers
    weights: NDArray[np.float64]

    def until(self, places: int) -> Entries:
        """Return the entries of the first rows."""
        kept = self.places < places
        return Entries(self.places[kept], self.read[kept], self.weights[kept])


def along(k: OperatorBuilder, x: Tensor, axis: int, length: int, entries: Entries) -> Tensor:
    """Multiply every line of x along `axis` by the transpose of a matrix [x's `axis`, `length`]."""
    shape = (*x.shape[:axis], length, *x.shape[axis + 1 :])
    outer, lines, inner = around(x.shape, axis)
    # up to this length of the shorter side, the matrix is dense
    if min(lines, length) <= 64:
        return k.reshape(_multiply_dense(k, k.reshape(x, (outer, lines, inner)), length, entries), shape)
    if inner > 1:
        return k.reshape(_multiply_by_gathers(k, k.reshape(x, (outer, lines, inner)), length, entries), shape)
    rows = k.reshape(k.transpose(k.reshape(x, (outer, lines)), [1, 0]), (1, lines, outer))
    result = k.reshape(_multiply_by_gathers(k, rows, length, entries), (length, outer))
    return k.reshape(k.transpose(result, [1, 0]), shape)


def _multiply_dense(k: OperatorBuilder, x: Tensor, length: int, entries: Entries) -> Tensor:
    outer, lines, inner = x.shape
    matrix = np.zeros((length, lines))
    np.add.at(matrix, (entries.read, entries.places), entries.weights)
    if inner == 1:
        constant = k.graph.constant(np.ascontiguousarray(matrix.T).astype(x.dtype))
        return k.gemm(k.reshape(x, (outer, lines)), constant)
    constant = k.graph.constant(matrix.astype(x.dtype))
    if outer == 1:
        return k.gemm(constant, k.reshape(x, (lines, inner)))
    return k.matmul(constant, x)


def _multiply_by_gathers(k: OperatorBuilder, x: Tensor, length: int, entries: Entries) -> Tensor:
    """Return the product [outer, length, inner] of x [outer, lines, inner] by gathers."""
    outer, _, inner = x.shape
    index, weight = _gather_table(length, entries)
    most = index.shape[1]
    # up to 16 elements of a sum are gathered separately
    if most > 16:
        flat = k.node("Gather", [x, k.graph.ints(index.reshape(-1))], (outer, index.size, inner), x.dtype, axis=1)
        wide = k.reshape(flat, (outer, length, most, inner))
        factors = k.graph.constant(weight.reshape(length, most, 1).astype(x.dtype))
        return k.reduce_sum(k.mul(wide, factors), [2], keepdims=False)
    total: Tensor | None = None
    for number in range(most):
        read = k.node("Gather", [x, k.graph.ints(index[:, number])], (outer, length, inner), x.dtype, axis=1)
        part = k.mul(read, k.graph.constant(weight[:, number].reshape(length, 1).astype(x.dtype)))
        total = part if total is None else k.add(total, part)
    return total if total is not None else k.zeros((outer, length, inner), x.dtype)


def _gather_table(length: int, entries: Entries) -> tuple[Numbers, NDArray[np.float64]]:
    """Return indices and weights of the elements of each sum: [length, most], filled up with 0."""
    order = np.lexsort((entries.places, entries.read))
    read = entries.read[order]
    counts = np.bincount(read, minlength=length)
    number = np.arange(read.size) - np.repeat(np.cumsum(counts) - counts, counts)
    index = np.zeros((length, max(int(counts.max(initial=0)), 1)), np.int64)
    weight = np.zeros(index.shape)
    index[read, number], weight[read, number] = entries.places[order], entries.weights[order]
    return index, weight


Floats = NDArray[np.float32]
Settings = tuple[tuple[str, object], ...]


@register_vjp("Resize", since=11)
def resize(op: Primal, cotangents: Cotangents) -> Gradients:
    """Return the gradient by the transposed map along each axis (module docstring)."""
    mode = op.attr_text("coordinate_transformation_mode", "half_pixel")
    if mode == "tf_crop_and_resize":
        raise MissingVjpError(
            f"{op.where}: there is no gradient rule for coordinate_transformation_mode {mode!r}; write a fixed "
            "region as a Slice and a Resize ('half_pixel', say), or train what comes after it (--train PATTERN)"
        )
    dy = op.only(cotangents)
    if op.x.shape == op.y.shape:  # copied, whatever the scales are
        return dy, None, None, None
    rank = len(op.x.shape)
    axes = [axis % rank for axis in op.attr_ints("axes") or range(rank)]
    scale_values = op.value(2)
    scales = (
        np.asarray(scale_values, np.float64).reshape(-1) if scale_values is not None and scale_values.size else None
    )
    common = _common_scale(op, axes) if scales is None else None
    settings = _settings(op, scales is not None or common is not None)
    k = op.emit("grad_input")
    # the axis that shrinks the gradient most goes first
    for axis in sorted(range(rank), key=lambda a: round(op.x.shape[a] / max(op.y.shape[a], 1), 2)):
        before, after = op.x.shape[axis], op.y.shape[axis]
        scale = float(scales[axes.index(axis)]) if scales is not None and axis in axes else after / before
        try:
            if common is not None and axis in axes:
                dy = along(k, dy, axis, before, _extended_weights(before, after, common, settings))
            elif before != after or scale != 1.0:
                dy = _resize_axis(k, dy, axis, before, scale, settings)
        except MissingVjpError as error:
            raise MissingVjpError(f"{op.where}: {error}") from None
    return dy, None, None, None


def _common_scale(op: Primal, axes: Sequence[int]) -> float | None:
    """Return the scale of all axes if sizes only limit it (keep_aspect_ratio_policy); None for one scale per axis.

    The lengths are rounded, the scale is not. With aligned corners, only the lengths count.
    """
    policy = op.attr_text("keep_aspect_ratio_policy", "stretch")
    mode = op.attr_text("coordinate_transformation_mode", "half_pixel")
    if policy == "stretch" or mode == "align_corners":
        return None
    alone = mode == "pytorch_half_pixel" and any(op.y.shape[axis] == 1 for axis in axes)
    if alone or mode == "half_pixel_symmetric" or op.attr_int("antialias", 0) or op.attr_int("exclude_outside", 0):
        raise MissingVjpError(
            f"{op.where}: there is no gradient rule for keep_aspect_ratio_policy {policy!r} with these settings; "
            "give the output sizes themselves (policy 'stretch')"
        )
    ratios = [int(size) / op.x.shape[axis] for size, axis in zip(op.known(3).reshape(-1), axes, strict=True)]
    return min(ratios) if policy == "not_larger" else max(ratios)


def _extended_weights(before: int, after: int, scale: float, settings: Settings) -> Entries:
    """Return `weights` for a scale that doesn't reach the last positions, which rounding added.

    The line is extended by repeating its last element, which positions beyond it read anyway.
    """
    longer = before + 4 + math.ceil(1 / scale)
    entries = weights(longer, 0, scale, settings).until(after)
    return replace(entries, read=np.minimum(entries.read, before - 1))


def _settings(op: Primal, scaled: bool) -> Settings:
    defaults: Mapping[str, object] = {
        "antialias": 0, "coordinate_transformation_mode": "half_pixel", "cubic_coeff_a": -0.75,
        "exclude_outside": 0, "mode": "nearest", "nearest_mode": "round_prefer_floor",
    }  # fmt: skip
    values = {name: op.node.attributes.get(name, default) for name, default in defaults.items()}
    return (*sorted(values.items()), ("opset", max(op.opset, 13)), ("scaled", scaled))


def _resize_axis(k: OperatorBuilder, dy: Tensor, axis: int, before: int, scale: float, settings: Settings) -> Tensor:
    after = dy.shape[axis]
    entries = weights(before, after, scale, settings)
    if dict(settings)["mode"] == "nearest" and after % before == 0:
        repeats = after // before
        if np.array_equal(entries.read, np.arange(after) // repeats):
            blocks = k.reshape(dy, (*dy.shape[:axis], before, repeats, *dy.shape[axis + 1 :]))
            return k.reduce_sum(blocks, [axis + 1], keepdims=False)
    return along(k, dy, axis, before, entries.until(after))


@lru_cache(maxsize=16)
def weights(before: int, after: int, scale: float, settings: Settings) -> Entries:
    """Return the elements that each element of y reads along one axis with their weights, as in onnxruntime.

    onnxruntime is the reference because it runs the plan. With aligned corners and a fractional scaled length, onnx's
    reference implementation places positions differently from the kernels (and from torch).

    A position reads fewer than `span` neighbours. So a line with ones at every span-th element yields the weight of at
    most one element per position. The line with the elements' numbers instead of ones identifies the element.

    Parameters
    ----------
    after
        Used if the settings have sizes (`scaled` is false).

    Raises
    ------
    MissingVjpError
        onnxruntime refuses the settings, or an axis has more than 2**24 elements.
    """
    length = max(after, math.floor(before * scale))
    # float32 counts up to 2**24 elements of an axis
    if max(before, length) > 2**24:
        raise MissingVjpError(
            f"there is no gradient rule for {before} elements that become {length} along one axis, beyond what float32 "
            "can count; cut the axis into parts"
        )
    options = dict(settings)
    numbers = np.arange(before, dtype=np.float32)
    if options["mode"] == "nearest":
        read = _run_resize(numbers[:, None], after, scale, settings)[:, 0].astype(np.int64)
        return Entries(np.arange(read.size), read, np.ones(read.size))
    reach = math.ceil(before / max(length, 1)) if options["antialias"] else 1
    span = min(before, 2 * (2 if options["mode"] == "cubic" else 1) * reach + 4)
    # bounds the memory of one query for weights
    columns = max(1, 2**22 // max(before, length))
    parts = [
        _probe(before, span, range(low, min(low + columns, span)), after, scale, settings)
        for low in range(0, span, columns)
    ]
    places, read, share = (np.concatenate(each) for each in zip(*parts, strict=True))
    order = np.lexsort((read, places))
    return Entries(places[order], read[order], share[order])


def _probe(
    before: int, span: int, offsets: range, after: int, scale: float, settings: Settings
) -> tuple[Numbers, Numbers, NDArray[np.float64]]:
    """Return positions, their elements and weights, for elements whose numbers modulo `span` are in `offsets`."""
    numbers = np.arange(before)
    ones = (numbers[:, None] % span == np.array(offsets)).astype(np.float32)
    share = _run_resize(ones, after, scale, settings)
    total = _run_resize(ones * numbers[:, None].astype(np.float32), after, scale, settings)
    places, columns = np.nonzero(np.abs(share) > np.finfo(np.float32).tiny)
    weight = share[places, columns].astype(np.float64)
    about = total[places, columns] / weight
    offset = np.array(offsets)[columns]
    # take the nearest element with this remainder: rounding errors are far below half a span
    read = np.rint((about - offset) / span).astype(np.int64) * span + offset
    return places, read, weight


def _run_resize(x: Floats, after: int, scale: float, settings: Settings) -> Floats:
    """Return the columns of x, resized by onnxruntime.

    onnxruntime copies a tensor whose shape stays, whatever its scales are. So columns that keep their length are
    resized one by one, and doubled in the other axis.
    """
    from poetopt.frontends.fold import computed
    from poetopt.frontends.proto import node_proto

    options: dict[str, Any] = dict(settings)
    opset, scaled = options.pop("opset"), options.pop("scaled")
    keeps_length = scaled and int(np.float32(len(x)) * np.float32(scale)) == len(x) and scale != 1.0
    if keeps_length and x.shape[1] > 1:
        return np.concatenate([_run_resize(column, after, scale, settings) for column in np.hsplit(x, x.shape[1])], 1)
    wide = 2.0 if keeps_length else 1.0
    target = np.array([scale, wide], np.float32) if scaled else np.array([after, x.shape[1]], np.int64)
    node = node_proto(
        Node("Resize", ("x", "", "given") if scaled else ("x", "", "", "given"), ("y",), _supported(options, opset))
    )
    outputs = computed(node, {"x": x, "given": target}, opset)
    if outputs is None:
        settings_text = ", ".join(f"{name} {value}" for name, value in options.items())
        raise MissingVjpError(
            f"there is no gradient rule for these settings, which onnxruntime refuses ({settings_text}); export it "
            "with others"
        )
    return np.asarray(outputs["y"][:, : x.shape[1]], np.float32)


def _supported(settings: Mapping[str, Any], opset: int) -> dict[str, Any]:
    """Return the settings that this opset's Resize has."""
    return {name: value for name, value in settings.items() if name != "antialias" or opset >= 18}
