"""Gradients of convolutions in one to three dimensions, with any stride, dilation, groups and pads.

dX of a convolution has three constructions, each also by parts of x's channels:

| construction | operators | workspace |
|---|---|---|
| transposed | ConvTranspose(dY, W) | the kernel's columns of one image: C/group taps L elements |
| flipped | Conv(dY, W reversed in space, channels swapped), for unit strides | two copies of W, and the Conv's own |
| folded | one Gemm for all images, Col2Im; two axes, no groups, opset 18 on | twice the columns of all images |

Parts divide the workspace by their number, and cost one dX for their Concat; for `flipped` they never pay off. The
first two read all of W once per image, `folded` reads it once: it is the fastest if an image has few positions for the
size of W. Time estimates are fitted to onnxruntime's kernels (1.31, one thread).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from functools import partial

from poetopt.autodiff.alternatives import FLOPS_PER_NS, Costed, chosen, steps_ns
from poetopt.autodiff.emit import OperatorBuilder
from poetopt.autodiff.registry import Cotangents, Gradients, Primal, register_vjp
from poetopt.frontends import checks
from poetopt.graph import DTYPE_BYTES, Tensor
from poetopt.ops.convolution.vjp_weight import weight_gradient
from poetopt.ops.convolution.windows import Window, transposed, window
from poetopt.ops.op import AUTO_PAD, Allowed, Op, Steps, declare
from poetopt.ops.runtimes.onnxruntime import axes, kernels
from poetopt.ops.runtimes.onnxruntime.kernels import CONV_SLICE
from poetopt.util.errors import ModelError

convolution = partial(Op, evaluation=Steps.COUNTED, is_heavy=True, weights=(1, 2), is_product=True, window=True)
sizes: Allowed = {"auto_pad": AUTO_PAD, "dilations": 1, "group": 1, "kernel_shape": 1, "strides": 1}

declare("Conv", op=convolution(
    flops=lambda c: c.n * (2 * c.taps(1) + c.has(2)), filter_axis=0, reads_quantized=True, attributes=sizes,
    settings_check=checks.convolution, workspace=kernels.conv, letters=axes.conv,
))  # fmt: skip
declare("ConvTranspose", op=convolution(
    flops=lambda c: 2 * c.x * c.taps(1) + c.n * c.has(2), filter_axis=1, attributes=sizes | {"output_padding": 0},
    settings_check=checks.transposed_convolution, workspace=kernels.columns,
))  # fmt: skip
declare("DeformConv", op=Op(evaluation=Steps.UNKNOWN, weights=(1, 3)))


Construction = Callable[[OperatorBuilder, Tensor, Tensor, Window, int], Tensor]


def input_gradient(k: OperatorBuilder, dy: Tensor, w: Tensor, window: Window, group: int) -> Tensor:
    """Return the gradient of x [N, C, ...] from that of the output and w [M, C/group, ...]."""
    dx_bytes = dy.shape[0] * w.shape[1] * group * math.prod(window.size) * DTYPE_BYTES[w.dtype]
    return chosen(k.graph, candidates(dy, w, window, group, k.graph.opset), dy.nbytes + dx_bytes).build(k)


def candidates(dy: Tensor, w: Tensor, window: Window, group: int, opset: int) -> Iterator[Costed]:
    """Yield every construction that is valid for these shapes."""
    batch, positions = dy.shape[0], math.prod(window.out)
    item = DTYPE_BYTES[w.dtype]
    columns = w.shape[1] * window.taps * positions
    size = batch * w.shape[1] * group * math.prod(window.size)
    product = 2.0 * w.size * batch * positions / FLOPS_PER_NS
    passes = float(batch * w.size)
    for parts in (1, 2, 4, 8):
        if parts > 1 and (group > 1 or w.shape[1] % parts):
            continue
        joined = size * item if parts > 1 else 0
        extra = steps_ns(parts) + (0.5 * (size + w.size) if parts > 1 else 0.0)
        yield Costed(
            f"transposed/{parts}",
            max(product + 0.2 * passes, 0.47 * passes) + 0.3 * batch * columns * group + extra,
            columns * item // parts + joined + (w.nbytes // parts if parts > 1 else 0),
            partial(_build_by_parts, transposed, dy=dy, w=w, window=window, group=group, parts=parts),
        )
        if group == 1 and _is_foldable(window, opset):
            folded = batch * columns * item // parts
            yield Costed(
                f"folded/{parts}",
                product + 0.4 * w.size + 2.2 * batch * columns + extra,
                folded + max(folded, dy.nbytes) + joined + (w.nbytes // parts if parts > 1 else 0),
                partial(_build_by_parts, _fold_columns, dy=dy, w=w, window=window, group=group, parts=parts),
            )
    if _is_flippable(window):
        single = window.taps == 1
        unfolded = 0 if single else 4 * w.shape[0] // group * window.taps * math.prod(window.size)
        slices = unfolded if w.shape[1] > math.prod(window.size) else 0 if single else CONV_SLICE
        yield Costed(
            "flipped",
            max(product * (0.75 if single else 1.15), 0.25 * passes) + (0.5 if single else 5.0) * w.size + steps_ns(1),
            max((1 if single else 2) * w.nbytes, w.nbytes + slices),
            partial(_flip_kernel, dy=dy, w=w, window=window, group=group),
        )


def _build_by_parts(
    build: Construction, k: OperatorBuilder, *, dy: Tensor, w: Tensor, window: Window, group: int, parts: int
) -> Tensor:
    bounds = [w.shape[1] * part // parts for part in range(parts + 1)]
    pieces = [build(k, dy, k.slice(w, [low], [high], [1]), window, group) for low, high in itertools.pairwise(bounds)]
    return k.concat(pieces, 1)


def _is_foldable(window: Window, opset: int) -> bool:
    # onnxruntime's Col2Im is wrong for one or three axes if one is dilated; two axes have a separate kernel
    # ONNX has Col2Im from opset 18 on
    return opset >= 18 and window.rank == 2 and not (window.taps == 1 and window.unit_stride)


def _is_flippable(window: Window) -> bool:
    reach = [(k - 1) * d for k, d in zip(window.kernel, window.dilations, strict=True)]
    pads = zip(reach, window.before, window.declared_after, strict=True)
    return window.unit_stride and all(0 <= b <= r and 0 <= a <= r for r, b, a in pads)


def _flip_kernel(k: OperatorBuilder, dy: Tensor, w: Tensor, window: Window, group: int) -> Tensor:
    outputs, inputs = w.shape[:2]
    spatial = window.kernel
    axes = range(len(spatial))
    swapped = k.reshape(w, (group, outputs // group, inputs, *spatial))
    swapped = k.transpose(swapped, [0, 2, 1, *(3 + a for a in axes)])
    kernel = k.flip(k.reshape(swapped, (group * inputs, outputs // group, *spatial)), [2 + a for a in axes])
    reach = [(s - 1) * d for s, d in zip(spatial, window.dilations, strict=True)]
    pads = [*(r - b for r, b in zip(reach, window.before, strict=True)),
            *(r - a for r, a in zip(reach, window.declared_after, strict=True))]  # fmt: skip
    return k.conv(dy, kernel, strides=window.strides, dilations=window.dilations, pads=pads, group=group)


def _fold_columns(k: OperatorBuilder, dy: Tensor, w: Tensor, window: Window, group: int) -> Tensor:
    batch, outputs, inputs = dy.shape[0], *w.shape[:2]
    positions = math.prod(window.out)
    axes = range(window.rank)
    grads = k.transpose(dy, [0, *(2 + a for a in axes), 1])
    columns = inputs * window.taps
    product = k.gemm(k.reshape(grads, (batch * positions, outputs)), k.reshape(w, (outputs, columns)))
    unfolded = k.transpose(k.reshape(product, (batch, positions, columns)), [0, 2, 1])
    return k.node(
        "Col2Im", [unfolded, k.graph.ints(window.size), k.graph.ints(window.kernel)], (batch, inputs, *window.size),
        w.dtype, pads=[*window.before, *window.declared_after], strides=list(window.strides),
        dilations=list(window.dilations),
    )  # fmt: skip


@register_vjp("Conv", since=1)
def conv(op: Primal, cotangents: Cotangents) -> Gradients:
    """Differentiate Y = X * W + B: one operator per gradient, whose construction is chosen by the shape."""
    dy = op.only(cotangents)
    w = op.input(1)
    frame = window(op, w.shape[2:])
    group = op.attr_int("group", 1)
    dx = dw = db = None
    if op.need(0):
        k = op.emit("grad_input")
        dx = input_gradient(k, dy, w, frame, group)
        k.amounts_to("Conv.grad_input", [dy, w], [dx], **_attributes(frame, group))
    if op.need(1):
        k = op.emit("grad_weight")
        dw = weight_gradient(k, op.x, dy, w, frame, group)
        k.amounts_to("Conv.grad_weight", [dy, op.x], [dw], **_attributes(frame, group))
    if op.need(2):
        axes = [axis for axis in range(len(dy.shape)) if axis != 1]
        db = op.emit("grad_bias").reduce_sum(dy, axes, keepdims=False)
    return dx, dw, db


def _attributes(frame: Window, group: int) -> dict[str, object]:
    """Return the attributes of the convolution that is differentiated, with explicit pads."""
    return {
        "strides": list(frame.strides), "dilations": list(frame.dilations),
        "pads": [*frame.before, *frame.declared_after], "group": group,
    }  # fmt: skip


@register_vjp("ConvTranspose", since=1)
def conv_transpose(op: Primal, cotangents: Cotangents) -> Gradients:
    """Differentiate the adjoint of a convolution from Y to X by W: dX is the convolution, dW its weight gradient."""
    dy, x, w = op.only(cotangents), op.x, op.input(1)
    frame, group = _adjoint_window(op), op.attr_int("group", 1)
    dx = dw = db = None
    if op.need(0):
        dx = op.emit("grad_input").conv(
            dy, w, strides=frame.strides, dilations=frame.dilations, pads=(*frame.before, *frame.declared_after),
            group=group,
        )  # fmt: skip
    if op.need(1):
        k = op.emit("grad_weight")
        dw = weight_gradient(k, dy, x, w, frame, group)
        k.amounts_to("Conv.grad_weight", [x, dy], [dw], **_attributes(frame, group))
    if op.need(2):
        axes = [axis for axis in range(len(dy.shape)) if axis != 1]
        db = op.emit("grad_bias").reduce_sum(dy, axes, keepdims=False)
    return dx, dw, db


def _adjoint_window(op: Primal) -> Window:
    """Return the window of the convolution from Y to X, with pads that make it end at X's last position."""
    rank = len(op.x.shape) - 2
    kernel, size, out = op.input(1).shape[2:], op.y.shape[2:], op.x.shape[2:]
    strides, dilations = op.attr_ints("strides") or (1,) * rank, op.attr_ints("dilations") or (1,) * rank
    auto = op.attr_text("auto_pad", "NOTSET")
    before = (op.attr_ints("pads") or (0,) * (2 * rank))[:rank]
    extent = [(o - 1) * s + (t - 1) * d + 1 for o, s, t, d in zip(out, strides, kernel, dilations, strict=True)]
    extra = op.attr_ints("output_padding") or (0,) * rank
    total = [e + p - n for e, p, n in zip(extent, extra, size, strict=True)]
    if op.attr_ints("output_shape") or auto in {"SAME_UPPER", "SAME_LOWER"}:
        before = tuple(t // 2 if auto == "SAME_UPPER" else t - t // 2 for t in total)
    elif auto == "VALID":
        before = (0,) * rank
    after = tuple(t - b - p for t, b, p in zip(total, before, extra, strict=True))
    if min((*before, *(a + p for a, p in zip(after, extra, strict=True))), default=0) < 0:
        raise ModelError(
            f"{op.where}: its pads are negative, for which there is no gradient rule; export it with pads of 0 or more"
        )
    return Window(kernel, strides, dilations, before, tuple(max(a, 0) for a in after), size, out)
