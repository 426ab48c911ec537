"""Gradients of normalizations.

LayerNormalization and RMSNormalization have one operator for all gradients, which share sums. With rows of H elements,
the normalized row x' and g = scale dY:

    dX = inv (g - mean(g) - x' mean(g x')),   dScale = sum over rows of dY x',   dBias = sum over rows of dY

(RMSNormalization lacks mean(g).) Both factors of a row are affine maps of it, which BatchNormalization's kernel
evaluates in one pass. The operator reads X, dY and one or two numbers per row that the forward operator writes; two
temporaries of X's size are alive at once.

GroupNormalization and InstanceNormalization also have one operator for all gradients. Their rows are a group of
channels of one image, or one channel for InstanceNormalization: dX = inv (g - mean(g) - x' mean(g x')). Sums over a
channel's positions are taken once and give dScale, dBias and both means. The operator reads X and dY; two temporaries
of X's size are alive at once.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from poetopt.autodiff.emit import OperatorBuilder
from poetopt.autodiff.regions import DOMAIN
from poetopt.autodiff.registry import Cotangents, Gradients, Primal, register_vjp, single
from poetopt.autodiff.vocabulary import normalized
from poetopt.frontends import checks
from poetopt.graph import Tensor
from poetopt.ops import flops
from poetopt.ops.op import EXP, Op, declare
from poetopt.ops.pieces import column_sum, masked, rows_affine, sign
from poetopt.ops.runtimes.onnxruntime import axes, kernels

normalization = partial(Op, weights=(1, 2), normalizes=True)
group_norm_op = partial(
    normalization, flops=lambda c: 8 * c.x + 5 * c.inputs[0][0] * c.integer("num_groups", c.inputs[0][1])
)

declare("BatchNormalization", op=normalization(
    flops=flops.batch_normalization, settings=(3, 4), keeps_scores=True, attributes={"training_mode": (0, 1)},
    in_place=(0,), workspace=kernels.statistics, letters_streamed=axes.batch_norm(positions=False),
    letters_in_ram=axes.batch_norm(positions=True),
))  # fmt: skip
# training_mode is an input; a model that has this third input trains with dropout
declare("Dropout", op=Op(
    flops=lambda c: 2 * c.x if c.has(2) else 0, random=True, blocked=(1, 2), settings=(1, 2), workspace=kernels.mask,
))  # fmt: skip
declare("GroupNormalization", op=group_norm_op(
    attributes={"num_groups": 1, "stash_type": (1, 10, 11, 16)}, workspace=kernels.group_normalization,
))  # fmt: skip
declare("InstanceNormalization", op=group_norm_op(operands_check=checks.instance_normalization))
declare("LRN", op=Op(
    flops=lambda c: c.x * (c.integer("size", 1) + 4 + EXP), attributes={"size": 1},
    settings_check=checks.local_response, workspace=kernels.lrn,
))  # fmt: skip
declare("LayerNormalization", op=normalization(
    flops=lambda c: c.x * (7 + c.has(2)) + 5 * c.rows, looks="from axis", axis=0,
    settings_check=checks.layer_normalization, letters_streamed=axes.layer_norm,
))  # fmt: skip
declare("LpNormalization", op=Op(
    flops=lambda c: 3 * c.x, normalizes=True, looks="axis", axis=0, attributes={"p": (1, 2)},
))  # fmt: skip
declare("MeanVarianceNormalization", op=Op(
    flops=flops.mean_variance, normalizes=True, looks="axes", axes=1, workspace=kernels.mean_variance,
))  # fmt: skip
declare("RMSNormalization", op=normalization(
    flops=lambda c: 4 * c.x + 4 * c.rows, weights=(1,), looks="from axis", axis=0,
    settings_check=checks.layer_normalization,
))  # fmt: skip


def _affine(
    op: Primal, k: OperatorBuilder, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor
) -> Tensor:
    """Return scale (x - mean) / sqrt(var + epsilon) + bias for each channel, in one pass."""
    epsilon = op.attr_float("epsilon", 1e-5)
    return k.node("BatchNormalization", [x, scale, bias, mean, var], x.shape, x.dtype, epsilon=epsilon)


def _channel_sum(k: OperatorBuilder, x: Tensor) -> Tensor:
    return k.reduce_sum(x, [axis for axis in range(len(x.shape)) if axis != 1], keepdims=False)


def _channel_dot(k: OperatorBuilder, a: Tensor, b: Tensor) -> Tensor:
    """Return the sum of a b for each channel; the product overwrites `a` if it is a temporary.

    Dot products by MatMul need no temporary, but take 2.5 to 8 times as long.
    """
    return _channel_sum(k, k.mul(a, b))


@register_vjp("BatchNormalization", since=9)
def batch_normalization(op: Primal, cotangents: Cotangents) -> Gradients:
    """Return dScale = sum(dY x'), dB = sum(dY) and dX, per channel with m elements.

    x' is (x - mean) / sqrt(var + epsilon). In training mode two operators compute
    dX = scale / sqrt(var + epsilon) (dY - (dB + x' dScale) / m). The first reads X and dY and computes the sums and the
    bracket. The second applies the last factor, so that at most three tensors of X's size are alive at once. In
    inference mode dX is dY times a number per channel. A mean or variance that the network itself computes (a layer
    without running statistics) has dMean = -scale dB / sqrt(var + epsilon), dVar = -scale dScale / (2 (var + epsilon)).
    """
    dy, x, scale = op.only(cotangents), op.x, op.input(1)
    training = bool(op.attr_int("training_mode", 0))
    mean, var = (op.output(1), op.output(2)) if training else (op.input(3), op.input(4))
    ones, zeros = (_constant_vector(op, value, scale) for value in (1.0, 0.0))
    dscale = dbias = dx = dmean = dvar = None
    centred: Tensor = dy
    of_mean, of_var = (not training and op.need(index) for index in (3, 4))
    if op.need(1) or op.need(2) or of_mean or of_var or (training and op.need(0)):
        k = op.emit("grad_weight")
        dbias = _channel_sum(k, dy) if training or op.need(2) or of_mean else None
        whitened = training or op.need(1) or of_var
        dscale = _channel_dot(k, _affine(op, k, x, ones, zeros, mean, var), dy) if whitened else None
        if training and op.need(0) and dscale is not None and dbias is not None:
            share = scale.size / x.size
            centred = k.sub(dy, _affine(op, k, x, k.mul(dscale, share), k.mul(dbias, share), mean, var))
        if training and dscale is not None and dbias is not None:
            written = [centred if op.need(0) else None, dscale, dbias]
            epsilon = op.attr_float("epsilon", 1e-5)
            k.amounts_to("BatchNormalization.grad_weight", [dy, x, mean, var], written, epsilon=epsilon)
    if op.need(0):
        dx = _affine(op, op.emit("grad_input"), centred, scale, zeros, zeros, var)
    if of_mean or of_var:
        k = op.emit("grad_statistics")
        shifted = k.add(var, k.graph.scalar(op.attr_float("epsilon", 1e-5), var.dtype))
        if of_mean and dbias is not None:
            dmean = k.neg(k.div(k.mul(scale, dbias), k.unary("Sqrt", shifted)))
        if of_var and dscale is not None:
            dvar = k.mul(k.div(k.mul(scale, dscale), shifted), -0.5)
    return dx, dscale, dbias, dmean, dvar


def _constant_vector(op: Primal, value: float, like: Tensor) -> Tensor:
    """Return a constant vector with the shape and type of `like`."""
    return op.builder.constant(np.full(like.shape, value, like.dtype))


@register_vjp("Dropout", since=7)
def dropout(op: Primal, cotangents: Cotangents) -> Gradients:
    """Apply the mask and scale of the forward pass; the identity if no element is dropped."""
    if len(op.operator.nodes) == 1:
        return (cotangents[0],)
    dy = op.only(cotangents)
    k = op.emit("grad_input")
    mask = next(t for t in (op.builder.tensors[name] for name in op.operator.inputs) if t.dtype == "bool")
    scaled = k.node("Mul", [dy, op.input(1)], dy.shape, dy.dtype)
    dx = masked(k, scaled, k.cast(mask, dy.dtype))
    k.amounts_to("Dropout", [dy, op.input(1), mask], [dx])
    return (dx,)


@register_vjp("LayerNormalization", since=17)
def layer_normalization(op: Primal, cotangents: Cotangents) -> Gradients:
    """Return all gradients; the forward operator writes mean and 1 / sqrt(variance + epsilon) of each row."""
    dy = cotangents[0]
    if dy is None:
        return (None,) * len(op.inputs)
    k = op.emit("grad_input")
    mean, inv = (k.cast(op.output(index), op.x.dtype) for index in (1, 2))
    gradients = _row_norm_gradients(op, k, op.only((dy, *cotangents[1:])), mean, inv)
    if op.x.dtype == "float32" and op.has(1) and op.input(1).size == _matrix_shape(op)[1]:
        k.amounts_to(
            "LayerNormalization.gradient", [dy, op.x, op.input(1), mean, inv], gradients, axis=op.attr_int("axis", -1)
        )
    return gradients


@register_vjp("RMSNormalization", since=23)
def rms_normalization(op: Primal, cotangents: Cotangents) -> Gradients:
    """Return all gradients; 1 / sqrt(mean of squares + epsilon) is recomputed from X."""
    dy = op.only(cotangents)
    k = op.emit("grad_input")
    rows, columns = _matrix_shape(op)
    squares = k.reduce_sum(k.mul(k.reshape(op.x, (rows, columns)), k.reshape(op.x, (rows, columns))), [1])
    epsilon = k.graph.scalar(op.attr_float("epsilon", 1e-5), op.x.dtype)
    inv = k.unary("Reciprocal", k.unary("Sqrt", k.add(k.mul(squares, 1.0 / columns), epsilon)))
    return _row_norm_gradients(op, k, dy, None, inv)


def _matrix_shape(op: Primal) -> tuple[int, int]:
    """Return the elements before the first normalized axis as rows, and the rest as columns."""
    shape = op.x.shape
    axis = op.attr_int("axis", -1) % len(shape)
    return math.prod(shape[:axis]), math.prod(shape[axis:])


@register_vjp("LayerNormalization", since=1, domain=DOMAIN)
def layer_normalization_region(op: Primal, cotangents: Cotangents) -> Gradients:
    """Return all gradients of a fused LayerNormalization, which writes mean and deviation."""
    dy = op.only(cotangents)
    k = op.emit("grad_input")
    return _row_norm_gradients(op, k, dy, op.output(1), k.unary("Reciprocal", op.output(2)))


@register_vjp("RMSNormalization", since=1, domain=DOMAIN)
def rms_normalization_region(op: Primal, cotangents: Cotangents) -> Gradients:
    """Return all gradients of a fused RMSNormalization, which writes the root of the mean square."""
    dy = op.only(cotangents)
    k = op.emit("grad_input")
    return _row_norm_gradients(op, k, dy, None, k.unary("Reciprocal", op.output(1)))


def _row_norm_gradients(op: Primal, k: OperatorBuilder, dy: Tensor, mean: Tensor | None, inv: Tensor) -> Gradients:
    """Return the gradients from the mean (None: not subtracted) and the inverse deviation of each row."""
    rows, columns = _matrix_shape(op)
    inner = op.x.shape[op.attr_int("axis", -1) % len(op.x.shape) :]
    x, d = k.reshape(op.x, (rows, columns)), k.reshape(dy, (rows, columns))
    scale = k.expand(op.input(1), inner) if op.has(1) else k.graph.constant(np.ones(inner, x.dtype))
    normal = rows_affine(k, x, inv, None, mean)
    product = k.mul(normal, d)
    dscale = k.reshape(column_sum(k, product), inner) if op.need(1) else None
    dbias = k.reshape(column_sum(k, d), inner) if op.need(2) else None
    dx = None
    if op.need(0):
        slope = k.gemm(product, k.reshape(scale, (columns, 1)), alpha=-1.0 / columns)
        weighted = k.mul(d, k.reshape(scale, (1, columns)))
        middle = None if mean is None else k.mul(k.reduce_sum(weighted, [1]), 1.0 / columns)
        pulled = rows_affine(k, weighted, inv, None, middle)
        tilt = k.mul(k.mul(slope, k.reshape(inv, (rows, 1))), k.reshape(inv, (rows, 1)))
        dx = k.reshape(k.add(pulled, rows_affine(k, x, tilt, None, mean)), op.x.shape)
    return dx, dscale, dbias


@register_vjp("InstanceNormalization", since=6)
def instance_normalization(op: Primal, cotangents: Cotangents) -> Gradients:
    """Return all gradients; every channel of every image is a row."""
    return _group_norm(op, op.only(cotangents), op.x.shape[1])


@register_vjp("GroupNormalization", since=18)
def group_normalization(op: Primal, cotangents: Cotangents) -> Gradients:
    """Return all gradients of `num_groups` rows per image.

    Scale and bias have one element per channel; before opset 21 one per group.
    """
    return _group_norm(op, op.only(cotangents), op.attr_int("num_groups", 1))


def _group_norm(op: Primal, dy: Tensor, groups: int) -> Gradients:
    x, scale = op.x, op.input(1)
    batch, channels = x.shape[:2]
    positions = math.prod(x.shape[2:])
    each = channels // groups
    rows, columns = batch * groups, each * positions
    k = op.emit("grad_input")
    normal, inv = _normalize_rows(k, k.reshape(x, (rows, columns)), op.attr_float("epsilon", 1e-5))
    d = k.reshape(dy, (batch * channels, positions))
    tilted = k.reduce_sum(k.mul(k.reshape(normal, d.shape), d), [1])
    plain = k.reduce_sum(d, [1])
    factors = k.reshape(scale, (1, channels)) if scale.size == channels else _repeat_per_channel(k, scale, each)
    dscale = dbias = dx = None
    if op.need(1):
        dscale = _per_parameter(k, tilted, batch, channels, scale)
    if op.need(2):
        dbias = _per_parameter(k, plain, batch, channels, op.input(2))
    if op.need(0):
        slopes = [
            k.mul(
                k.reduce_sum(k.reshape(k.mul(k.reshape(t, (batch, channels)), factors), (rows, each)), [1]),
                k.mul(inv, -1.0 / columns),
            )
            for t in (tilted, plain)
        ]
        spread = k.mul(k.reshape(inv, (batch, groups, 1)), k.reshape(factors, (1, groups, each)))
        pulled = k.reshape(rows_affine(k, d, spread, None, None), x.shape)
        dx = k.add(pulled, k.reshape(rows_affine(k, normal, slopes[0], slopes[1], None), x.shape))
    return dx, dscale, dbias


def _normalize_rows(k: OperatorBuilder, x: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Return the normalized rows of x, and 1 / sqrt(variance + epsilon) [rows, 1], by LayerNormalization."""
    rows = (x.shape[0], 1)
    normal, inv = k.out(x.shape, x.dtype), k.out(rows, "float32", f"{k.name}/inverse_deviation")
    mean = k.out(rows, "float32", f"{k.name}/mean")
    ones = k.graph.constant(np.ones(x.shape[1], x.dtype))
    k.write("LayerNormalization", [x, ones], [normal, mean, inv], axis=1, epsilon=epsilon)
    return normal, k.cast(inv, x.dtype)


def _repeat_per_channel(k: OperatorBuilder, scale: Tensor, each: int) -> Tensor:
    """Repeat a group's factor for each of its channels: [1, channels]."""
    column = k.expand(k.reshape(scale, (scale.size, 1)), (scale.size, each))
    return k.reshape(column, (1, scale.size * each))


def _per_parameter(k: OperatorBuilder, sums: Tensor, batch: int, channels: int, like: Tensor) -> Tensor:
    """Add up sums of each image and channel for each element of a parameter."""
    split = k.reshape(sums, (batch, like.size, channels // like.size))
    return k.reshape(k.reduce_sum(split, [0, 2]), like.shape)


@single("LpNormalization", since=1)
def lp_normalization(k: OperatorBuilder, op: Primal, dy: Tensor) -> Tensor:
    """Return dX = (dY - N sum(dY Y)) / |X|, with Y = X / |X| along the axis, N = Y for p = 2 and sign(X) for p = 1.

    It reads X, and Y if it is kept anyway; three temporaries of X's size.
    """
    x = op.x
    axis = op.attr_int("axis", -1) % len(x.shape)
    shape = tuple(1 if a == axis else d for a, d in enumerate(x.shape))
    first = op.attr_int("p", 2) == 1
    norm = k.node("ReduceL1" if first else "ReduceL2", [x, k.graph.ints([axis])], shape, x.dtype)
    norm = k.binary("Max", norm, k.graph.scalar(float(np.finfo(np.float32).tiny), x.dtype))
    y = op.y if op.builder.kept(op.y) else k.div(x, norm)
    total = k.reduce_sum(k.mul(dy, y), [axis])
    slope = k.mul(sign(k, x) if first else y, total)
    return k.div(k.sub(dy, slope), norm)


@single("MeanVarianceNormalization", since=9)
def mean_variance(k: OperatorBuilder, op: Primal, dy: Tensor) -> Tensor:
    """Return dX = (dY - mean(dY) - Y mean(dY Y)) / D, with Y = (X - mean(X)) / D and the standard deviation D.

    It reads X, and Y if it is kept anyway; three temporaries of X's size.
    """
    x = op.x
    axes = normalized(op.attr_ints("axes") or (0, 2, 3), len(x.shape))
    share = 1.0 / max(math.prod(x.shape[axis] for axis in axes), 1)
    centred = k.sub(x, k.mul(k.reduce_sum(x, axes), share))
    variance = k.mul(k.reduce_sum(k.mul(centred, centred), axes), share)
    # ONNX adds 1e-9 to the standard deviation, not to the variance
    deviation = k.add(k.unary("Sqrt", variance), k.graph.scalar(1e-9, x.dtype))
    y = op.y if op.builder.kept(op.y) else k.div(centred, deviation)
    tilted = k.mul(k.reduce_sum(k.mul(dy, y), axes), share)
    plain = k.mul(k.reduce_sum(dy, axes), share)
    return k.div(k.sub(k.sub(dy, plain), k.mul(y, tilted)), deviation)


@single("LRN", since=1)
def local_response(k: OperatorBuilder, op: Primal, dy: Tensor) -> Tensor:
    """Return dX for Y = X D^-beta, with D = bias + alpha / size (sum of squares of the nearest channels).

    dX = dY D^-beta - 2 alpha beta / size X (sum over the channels that X reaches of dY Y / D). Sums over channels
    are averages of windows. It reads X and Y; three temporaries of X's size.
    """
    x, y = op.x, op.y
    size, alpha, beta = op.attr_int("size", 1), op.attr_float("alpha", 1e-4), op.attr_float("beta", 0.75)
    flat = (x.shape[0], 1, x.shape[1], math.prod(x.shape[2:]))
    below, above = (size - 1) // 2, size // 2
    squares = _channel_means(k, k.reshape(k.mul(x, x), flat), below, above)
    denominator = k.add(k.mul(squares, alpha), k.graph.scalar(op.attr_float("bias", 1.0), x.dtype))
    pulled = k.div(k.mul(k.reshape(dy, flat), k.reshape(y, flat)), denominator)
    reach = k.mul(k.mul(_channel_means(k, pulled, above, below), -2.0 * alpha * beta), k.reshape(x, flat))
    power = k.binary("Pow", denominator, k.graph.scalar(-beta, x.dtype))
    return k.reshape(k.add(k.mul(power, k.reshape(dy, flat)), reach), x.shape)


def _channel_means(k: OperatorBuilder, x: Tensor, below: int, above: int) -> Tensor:
    """Return the mean of each channel and of `below` and `above` channels around it; absent ones count as zeros.

    x is [N, 1, channels, positions].
    """
    if not below and not above:
        return x
    return k.node(
        "AveragePool", [x], x.shape, x.dtype, kernel_shape=[below + above + 1, 1], pads=[below, 0, above, 0],
        strides=[1, 1], count_include_pad=1,
    )  # fmt: skip
