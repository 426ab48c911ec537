"""Gradients of normalizations.

LayerNormalization and RMSNormalization: one operator gives all gradients, for they share their sums.

With rows of H elements, x' the normalized row and g = scale dY:

    dX = inv (g - mean(g) - x' mean(g x')),   dScale = sum over rows of dY x',   dBias = sum over rows of dY

(RMSNormalization: without mean(g).) Both factors of a row are affine maps of it, which BatchNormalization's
kernel evaluates in one pass. They read X, dY and one or two numbers a row that the forward operator writes; two
temporaries of X's size are alive at once.

GroupNormalization and InstanceNormalization: one operator gives all gradients, for they share their sums.

With rows of H elements (a group of channels of one image; for InstanceNormalization a channel), x' the
normalized row and g = scale dY: dX = inv (g - mean(g) - x' mean(g x')). Sums over a channel's positions are taken once
and give dScale, dBias and both means. Reads X and dY; two temporaries of X's size are alive at once.
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
grouped = partial(normalization, flops=lambda c: 8 * c.x + 5 * c.inputs[0][0] * c.integer("num_groups", c.inputs[0][1]))

declare("BatchNormalization", op=normalization(
    flops=flops.batch_normalization, settings=(3, 4), keeps_scores=True, attributes={"training_mode": (0, 1)},
    in_place=(0,), workspace=kernels.statistics, letters_streamed=axes.batch_norm(positions=False),
    letters_in_ram=axes.batch_norm(positions=True),
))  # fmt: skip
# training_mode is an input; whoever gives it as a third input means it
declare("Dropout", op=Op(
    flops=lambda c: 2 * c.x if c.has(2) else 0, random=True, blocked=(1, 2), settings=(1, 2), workspace=kernels.mask,
))  # fmt: skip
declare("GroupNormalization", op=grouped(
    attributes={"num_groups": 1, "stash_type": (1, 10, 11, 16)}, workspace=kernels.group_normalization,
))  # fmt: skip
declare("InstanceNormalization", op=grouped(operands_check=checks.instance_normalization))
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
    """scale (x - mean) / sqrt(var + epsilon) + bias for each channel, in one pass."""
    epsilon = op.attr_float("epsilon", 1e-5)
    return k.node("BatchNormalization", [x, scale, bias, mean, var], x.shape, x.dtype, epsilon=epsilon)


def _channel_sum(k: OperatorBuilder, x: Tensor) -> Tensor:
    return k.reduce_sum(x, [axis for axis in range(len(x.shape)) if axis != 1], keepdims=False)


def _channel_dot(k: OperatorBuilder, a: Tensor, b: Tensor) -> Tensor:
    """The sum of a b for each channel; the product is written over `a`, where `a` is a temporary.

    Dot products by MatMul write nothing, and take 2.5 to 8 times as long: its kernel is not made for them.
    """
    return _channel_sum(k, k.mul(a, b))


@register_vjp("BatchNormalization", since=9)
def batch_normalization(op: Primal, cotangents: Cotangents) -> Gradients:
    """Per channel, with x' = (x - mean) / sqrt(var + epsilon) and m elements: dScale = sum(dY x'), dB = sum(dY).

    In training mode dX = scale / sqrt(var + epsilon) (dY - (dB + x' dScale) / m), in two operators: what reads X
    and dY gives the sums and the bracket, and the last factor waits, so that at most three tensors of X's
    size are alive at once. In inference mode dX is dY times a number for each channel, and a mean or variance that the
    network itself computes (a layer without running statistics) has
    dMean = -scale dB / sqrt(var + epsilon), dVar = -scale dScale / (2 (var + epsilon)).
    """
    dy, x, scale = op.only(cotangents), op.x, op.input(1)
    training = bool(op.attr_int("training_mode", 0))
    mean, var = (op.output(1), op.output(2)) if training else (op.input(3), op.input(4))
    ones, zeros = (_vector(op, value, scale) for value in (1.0, 0.0))
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


def _vector(op: Primal, value: float, like: Tensor) -> Tensor:
    """A constant vector like `like`."""
    return op.builder.constant(np.full(like.shape, value, like.dtype))


@register_vjp("Dropout", since=7)
def dropout(op: Primal, cotangents: Cotangents) -> Gradients:
    """The same mask and scale as forwards; the identity where nothing is dropped."""
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
    """See above; mean and 1 / sqrt(variance + epsilon) of each row are the forward operator's outputs."""
    dy = cotangents[0]
    if dy is None:
        return (None,) * len(op.inputs)
    k = op.emit("grad_input")
    mean, inv = (k.cast(op.output(index), op.x.dtype) for index in (1, 2))
    found = _row_norm(op, k, op.only((dy, *cotangents[1:])), mean, inv)
    if op.x.dtype == "float32" and op.has(1) and op.input(1).size == _matrix(op)[1]:
        k.amounts_to(
            "LayerNormalization.gradient", [dy, op.x, op.input(1), mean, inv], found, axis=op.attr_int("axis", -1)
        )
    return found


@register_vjp("RMSNormalization", since=23)
def rms_normalization(op: Primal, cotangents: Cotangents) -> Gradients:
    """See above; 1 / sqrt(mean of squares + epsilon) is found again, from X."""
    dy = op.only(cotangents)
    k = op.emit("grad_input")
    rows, columns = _matrix(op)
    squares = k.reduce_sum(k.mul(k.reshape(op.x, (rows, columns)), k.reshape(op.x, (rows, columns))), [1])
    epsilon = k.graph.scalar(op.attr_float("epsilon", 1e-5), op.x.dtype)
    inv = k.unary("Reciprocal", k.unary("Sqrt", k.add(k.mul(squares, 1.0 / columns), epsilon)))
    return _row_norm(op, k, dy, None, inv)


def _matrix(op: Primal) -> tuple[int, int]:
    """Rows and columns: what is in front of the first normalized axis, and the rest."""
    shape = op.x.shape
    axis = op.attr_int("axis", -1) % len(shape)
    return math.prod(shape[:axis]), math.prod(shape[axis:])


@register_vjp("LayerNormalization", since=1, domain=DOMAIN)
def layer_normalization_region(op: Primal, cotangents: Cotangents) -> Gradients:
    """LayerNormalization's, with the mean and the deviation that the region writes."""
    dy = op.only(cotangents)
    k = op.emit("grad_input")
    return _row_norm(op, k, dy, op.output(1), k.unary("Reciprocal", op.output(2)))


@register_vjp("RMSNormalization", since=1, domain=DOMAIN)
def rms_normalization_region(op: Primal, cotangents: Cotangents) -> Gradients:
    """RMSNormalization's, with the root of the mean square that the region writes."""
    dy = op.only(cotangents)
    k = op.emit("grad_input")
    return _row_norm(op, k, dy, None, k.unary("Reciprocal", op.output(1)))


def _row_norm(op: Primal, k: OperatorBuilder, dy: Tensor, mean: Tensor | None, inv: Tensor) -> Gradients:
    """The gradients, from the mean (None: not subtracted) and the inverse deviation of each row."""
    rows, columns = _matrix(op)
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
    """Every channel of every image is a row."""
    return _grouped(op, op.only(cotangents), op.x.shape[1])


@register_vjp("GroupNormalization", since=18)
def group_normalization(op: Primal, cotangents: Cotangents) -> Gradients:
    """`num_groups` rows an image; scale and bias have an element a channel, before opset 21 a group."""
    return _grouped(op, op.only(cotangents), op.attr_int("num_groups", 1))


def _grouped(op: Primal, dy: Tensor, groups: int) -> Gradients:
    x, scale = op.x, op.input(1)
    batch, channels = x.shape[:2]
    positions = math.prod(x.shape[2:])
    each = channels // groups
    rows, columns = batch * groups, each * positions
    k = op.emit("grad_input")
    normal, inv = _normalized(k, k.reshape(x, (rows, columns)), op.attr_float("epsilon", 1e-5))
    d = k.reshape(dy, (batch * channels, positions))
    tilted = k.reduce_sum(k.mul(k.reshape(normal, d.shape), d), [1])
    plain = k.reduce_sum(d, [1])
    factors = k.reshape(scale, (1, channels)) if scale.size == channels else _spread(k, scale, each)
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


def _normalized(k: OperatorBuilder, x: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """The normalized rows of x, and 1 / sqrt(variance + epsilon) [rows, 1]: LayerNormalization has both."""
    rows = (x.shape[0], 1)
    normal, inv = k.out(x.shape, x.dtype), k.out(rows, "float32", f"{k.name}/inverse_deviation")
    mean = k.out(rows, "float32", f"{k.name}/mean")
    ones = k.graph.constant(np.ones(x.shape[1], x.dtype))
    k.write("LayerNormalization", [x, ones], [normal, mean, inv], axis=1, epsilon=epsilon)
    return normal, k.cast(inv, x.dtype)


def _spread(k: OperatorBuilder, scale: Tensor, each: int) -> Tensor:
    """A group's factor for each of its channels, [1, channels]."""
    column = k.expand(k.reshape(scale, (scale.size, 1)), (scale.size, each))
    return k.reshape(column, (1, scale.size * each))


def _per_parameter(k: OperatorBuilder, sums: Tensor, batch: int, channels: int, like: Tensor) -> Tensor:
    """Sums for each image and channel, added up for each element of a parameter."""
    split = k.reshape(sums, (batch, like.size, channels // like.size))
    return k.reshape(k.reduce_sum(split, [0, 2]), like.shape)


@single("LpNormalization", since=1)
def lp_normalization(k: OperatorBuilder, op: Primal, dy: Tensor) -> Tensor:
    """With Y = X / |X| along the axis: dX = (dY - N sum(dY Y)) / |X|, N = Y for p = 2 and sign(X) for p = 1.

    Reads X, and Y where it is kept anyway; three temporaries of X's size.
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
    """With D the standard deviation over the axes and Y = (X - mean(X)) / D: dX = (dY - mean(dY) - Y mean(dY Y)) / D.

    Reads X, and Y where it is kept anyway; three temporaries of X's size.
    """
    x = op.x
    axes = normalized(op.attr_ints("axes") or (0, 2, 3), len(x.shape))
    share = 1.0 / max(math.prod(x.shape[axis] for axis in axes), 1)
    centred = k.sub(x, k.mul(k.reduce_sum(x, axes), share))
    variance = k.mul(k.reduce_sum(k.mul(centred, centred), axes), share)
    # both as the operator's definition has them; the latter is added to the standard deviation, not to the variance
    deviation = k.add(k.unary("Sqrt", variance), k.graph.scalar(1e-9, x.dtype))
    y = op.y if op.builder.kept(op.y) else k.div(centred, deviation)
    tilted = k.mul(k.reduce_sum(k.mul(dy, y), axes), share)
    plain = k.mul(k.reduce_sum(dy, axes), share)
    return k.div(k.sub(k.sub(dy, plain), k.mul(y, tilted)), deviation)


@single("LRN", since=1)
def local_response(k: OperatorBuilder, op: Primal, dy: Tensor) -> Tensor:
    """With D = bias + alpha / size (sum of squares of the nearest channels) and Y = X D^-beta:

    dX = dY D^-beta - 2 alpha beta / size X (sum over the channels that X reaches of dY Y / D). Sums over channels
    are averages of windows. Reads X and Y; three temporaries of X's size.
    """
    x, y = op.x, op.y
    size, alpha, beta = op.attr_int("size", 1), op.attr_float("alpha", 1e-4), op.attr_float("beta", 0.75)
    flat = (x.shape[0], 1, x.shape[1], math.prod(x.shape[2:]))
    below, above = (size - 1) // 2, size // 2
    squares = _means(k, k.reshape(k.mul(x, x), flat), below, above)
    denominator = k.add(k.mul(squares, alpha), k.graph.scalar(op.attr_float("bias", 1.0), x.dtype))
    pulled = k.div(k.mul(k.reshape(dy, flat), k.reshape(y, flat)), denominator)
    reach = k.mul(k.mul(_means(k, pulled, above, below), -2.0 * alpha * beta), k.reshape(x, flat))
    power = k.binary("Pow", denominator, k.graph.scalar(-beta, x.dtype))
    return k.reshape(k.add(k.mul(power, k.reshape(dy, flat)), reach), x.shape)


def _means(k: OperatorBuilder, x: Tensor, below: int, above: int) -> Tensor:
    """Of each channel [N, 1, channels, positions] and so many below and above it, absent ones counted as zeros."""
    if not below and not above:
        return x
    return k.node(
        "AveragePool", [x], x.shape, x.dtype, kernel_shape=[below + above + 1, 1], pads=[below, 0, above, 0],
        strides=[1, 1], count_include_pad=1,
    )  # fmt: skip
