"""The rows. Adding a rule? Add a row here: a test fails for a registered op without one."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.support.autodiff import table_more, table_network, table_sampling
from tests.support.autodiff.specs import Spec, distinct, ints, normal, positive

CONV: dict[str, object] = {"kernel_shape": [3, 3], "strides": [2, 1], "pads": [1, 0, 0, 2], "dilations": [1, 2]}


def _f() -> Any:
    import torch.nn.functional as f

    return f


def _t() -> Any:
    import torch

    return torch


PADS: dict[str, tuple[tuple[int, int, int, int], ...]] = {
    "reflect": ((1, 2, 2, 1), (4, 3, 4, 3), (0, 1, -2, 2), (-1, 0, 3, -2)),
    "edge": ((1, 2, 2, 1), (7, 0, 1, 9), (0, 1, -4, 2), (-1, -3, 3, 2)),
    "wrap": ((1, 2, 2, 1), (5, 4, 5, 4), (12, 1, 3, 9), (-2, -3, 4, 5)),
}
"""By mode: before the second and the third axis, and after them; of lengths 5 and 4."""


def _padded(x: Any, mode: str, sides: tuple[int, int, int, int]) -> Any:
    """Cut, then repeated, by index."""
    for axis, before, after in ((1, sides[0], sides[2]), (2, sides[1], sides[3])):
        left = np.arange(x.shape[axis])[max(-before, 0) : x.shape[axis] - max(-after, 0)]
        index = np.pad(left, (max(before, 0), max(after, 0)), mode=mode)  # type: ignore[call-overload]
        x = x.index_select(axis, _t().tensor(index))
    return x


def _conv2(x: Any, w: Any, b: Any) -> Any:
    return _f().conv2d(_f().pad(x, (0, 2, 1, 0)), w, b, stride=(2, 1), dilation=(1, 2))


ROWS: tuple[Spec, ...] = (
    # products
    Spec("Gemm", (normal(3, 4), normal(5, 4), normal(5)), (0, 1, 2), lambda a, b, c: 0.5 * a @ b.T + 2 * c,
         {"transB": 1, "alpha": 0.5, "beta": 2.0}, label="transB"),
    Spec("Gemm", (normal(4, 3), normal(4, 5), normal(3, 1)), (0, 1, 2), lambda a, b, c: a.T @ b + c, {"transA": 1},
         label="transA"),
    Spec("Gemm", (normal(4, 3), normal(5, 4)), (0, 1), lambda a, b: a.T @ b.T, {"transA": 1, "transB": 1},
         label="both"),
    Spec("Gemm", (normal(3, 4), normal(4, 5)), (0, 1), lambda a, b: a @ b, label="plain"),
    Spec("MatMul", (normal(3, 4), normal(4, 5)), (0, 1), lambda a, b: a @ b, label="matrices"),
    Spec("MatMul", (normal(2, 3, 4), normal(4, 5)), (0, 1), lambda a, b: a @ b, label="shared"),
    Spec("MatMul", (normal(2, 1, 3, 4), normal(5, 4, 2)), (0, 1), lambda a, b: a @ b, label="broadcast"),
    Spec("MatMul", (normal(4), normal(4)), (0, 1), lambda a, b: a @ b, label="vectors"),
    Spec("MatMul", (normal(2, 3, 4), normal(4)), (0, 1), lambda a, b: a @ b, label="vector-right"),
    Spec("MatMul", (normal(4), normal(2, 4, 3)), (0, 1), lambda a, b: a @ b, label="vector-left"),
    # arithmetic
    Spec("Add", (normal(2, 3, 4), normal(3, 1)), (0, 1), lambda a, b: a + b),
    Spec("Sub", (normal(3, 1), normal(2, 3, 4)), (0, 1), lambda a, b: a - b),
    Spec("Mul", (normal(2, 3, 4), normal(4)), (0, 1), lambda a, b: a * b),
    Spec("Div", (normal(2, 3), positive(2, 1)), (0, 1), lambda a, b: a / b),
    Spec("Neg", (normal(2, 3),), torch=lambda x: -x),
    Spec("Sum", (normal(2, 3), normal(3), normal(2, 1)), (0, 1, 2), lambda a, b, c: a + b + c),
    Spec("Cast", (normal(2, 3),), torch=lambda x: x, attributes={"to": 11}),
    # activations
    Spec("Relu", (normal(3, 4),), torch=lambda x: x.relu()),
    Spec("LeakyRelu", (normal(3, 4),), torch=lambda x: _f().leaky_relu(x, 0.25), attributes={"alpha": 0.25}),
    Spec("LeakyRelu", (normal(3, 4),), torch=lambda x: _f().leaky_relu(x, -0.5), attributes={"alpha": -0.5},
         label="falling"),
    Spec("Clip", (normal(3, 4), np.array(-0.5), np.array(0.75)), (0, 1, 2), torch=lambda x, a, b: x.clamp(a, b)),
    Spec("Clip", (normal(3, 4), np.array(0.75), np.array(-0.5)), (0, 1, 2), torch=lambda x, a, b: x.clamp(a, b),
         label="crossed"),
    Spec("Clip", (normal(3, 4), None, np.array(0.75)), (0, 2), torch=lambda x, a, b: x.clamp(max=b), label="above"),
    Spec("Clip", (normal(3, 4), np.array(-0.5)), (0, 1), torch=lambda x, a: x.clamp(min=a), label="below"),
    Spec("Clip", (normal(3, 4), np.array(-0.5), np.array(0.75)), torch=lambda x, a, b: x.clamp(-0.5, 0.75),
         label="constants"),
    Spec("Sigmoid", (normal(3, 4),), torch=lambda x: x.sigmoid()),
    Spec("Tanh", (normal(3, 4),), torch=lambda x: x.tanh()),
    Spec("Softmax", (normal(3, 4),), torch=lambda x: x.softmax(-1)),
    Spec("Softmax", (normal(3, 4, 2),), torch=lambda x: x.softmax(1), attributes={"axis": 1}, label="axis"),
    Spec("LogSoftmax", (normal(3, 4),), torch=lambda x: x.log_softmax(-1)),
    Spec("LogSoftmax", (normal(3, 4, 2),), torch=lambda x: x.log_softmax(0), attributes={"axis": 0}, label="axis"),
    # convolution and pooling
    Spec("Conv", (normal(2, 3, 7, 8), normal(4, 3, 3, 3), normal(4)), (0, 1, 2), _conv2, CONV),
    Spec("Conv", (normal(2, 4, 9), normal(6, 2, 3)), (0, 1),
         lambda x, w: _f().conv1d(x, w, stride=2, groups=2, padding=1),
         {"group": 2, "strides": [2], "pads": [1, 1]}, label="groups"),
    Spec("Conv", (normal(1, 2, 4, 5, 4), normal(3, 2, 2, 3, 1)), (0, 1), lambda x, w: _f().conv3d(x, w), label="3d"),
    Spec("Conv", (normal(2, 3, 6, 6), normal(2, 3, 3, 3)), (0, 1), lambda x, w: _f().conv2d(x, w, padding=1),
         {"auto_pad": "SAME_UPPER"}, label="same"),
    Spec("ConvTranspose", (normal(2, 4, 5, 4), normal(4, 3, 3, 2), normal(6)), (0, 1, 2),
         lambda x, w, b: _f().conv_transpose2d(x, w, b, stride=(2, 1), padding=1, output_padding=(1, 0), groups=2),
         {"group": 2, "strides": [2, 1], "pads": [1, 1, 1, 1], "output_padding": [1, 0]}),
    Spec("MaxPool", (distinct(2, 3, 7, 6),), torch=lambda x: _f().max_pool2d(x, 3, 2, 1),
         attributes={"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    Spec("MaxPool", (distinct(2, 3, 7),), torch=lambda x: _f().max_pool1d(x, 2, 2, ceil_mode=True),
         attributes={"kernel_shape": [2], "strides": [2], "ceil_mode": 1}, label="ceil"),
    Spec("AveragePool", (normal(2, 3, 7, 6),),
         torch=lambda x: _f().avg_pool2d(x, 3, 2, 1, count_include_pad=False),
         attributes={"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    Spec("AveragePool", (normal(2, 3, 7),), torch=lambda x: _f().avg_pool1d(x, 3, 2, 1),
         attributes={"kernel_shape": [3], "strides": [2], "pads": [1, 1], "count_include_pad": 1}, label="padded"),
    Spec("GlobalAveragePool", (normal(2, 3, 4, 5),), torch=lambda x: x.mean((2, 3), keepdim=True)),
    # normalization
    Spec("BatchNormalization", (normal(3, 2, 4, 5), normal(2), normal(2), normal(2), positive(2)), (0, 1, 2),
         lambda x, s, b, m, v: _f().batch_norm(x, None, None, s, b, training=True, eps=1e-3),
         {"training_mode": 1, "epsilon": 1e-3}, outputs=3, ignored=(1, 2), label="training"),
    Spec("BatchNormalization", (normal(3, 2, 9, 9), normal(2), normal(2), normal(2), positive(2)), (0, 1, 2),
         lambda x, s, b, m, v: _f().batch_norm(x, None, None, s, b, training=True),
         {"training_mode": 1}, outputs=3, ignored=(1, 2), label="training-large"),
    Spec("BatchNormalization", (normal(5, 3), normal(3), normal(3), normal(3), positive(3)), (0, 1, 2),
         lambda x, s, b, m, v: _f().batch_norm(x, m, v, s, b), label="inference"),
    Spec("BatchNormalization", (normal(3, 2, 2, 3), normal(2), normal(2), normal(2), positive(2)), (0, 1, 2, 3, 4),
         label="computed-statistics"),
    Spec("BatchNormalization", (normal(5, 3), normal(3), normal(3), normal(3), positive(3)), (4,),
         label="computed-variance"),
    Spec("LayerNormalization", (normal(2, 3, 4), normal(4), normal(4)), (0, 1, 2),
         lambda x, s, b: _f().layer_norm(x, (4,), s, b)),
    Spec("LayerNormalization", (normal(2, 3, 4), normal(3, 4)), (0, 1),
         lambda x, s: _f().layer_norm(x, (3, 4), s, eps=1e-3), {"axis": 1, "epsilon": 1e-3}, label="axes"),
    Spec("Dropout", (normal(4, 5), np.array(0.4), np.array(True)), label="training"),
    Spec("Dropout", (normal(4, 5), np.array(0.4)), torch=lambda x, r: x, label="inference"),
    # shapes
    Spec("Reshape", (normal(2, 3, 4), ints(4, 6)), torch=lambda x, s: x.reshape(4, 6)),
    Spec("Flatten", (normal(2, 3, 4),), torch=lambda x: x.flatten(1)),
    Spec("Squeeze", (normal(2, 1, 4), ints(1)), torch=lambda x, a: x.squeeze(1)),
    Spec("Unsqueeze", (normal(2, 4), ints(0, 3)), torch=lambda x, a: x[None, :, :, None]),
    Spec("Identity", (normal(2, 4),), torch=lambda x: x * 1),
    Spec("Transpose", (normal(2, 3, 4),), torch=lambda x: x.permute(2, 0, 1), attributes={"perm": [2, 0, 1]}),
    Spec("Transpose", (normal(2, 3),), torch=lambda x: x.T, label="default"),
    Spec("Concat", (normal(2, 3), normal(2, 1), normal(2, 2)), (0, 1, 2), lambda *x: _t().cat(x, 1), {"axis": -1}),
    Spec("Split", (normal(2, 6), ints(1, 3, 2)), torch=lambda x, s: x.split((1, 3, 2), 1), attributes={"axis": 1},
         outputs=3),
    Spec("Split", (normal(2, 6), ints(1, 3, 2)), torch=lambda x, s: x.split((1, 3, 2), 1), attributes={"axis": 1},
         outputs=3, ignored=(1,), label="unused"),
    # element-wise mathematics
    Spec("Exp", (normal(2, 3),), torch=lambda x: x.exp()),
    Spec("Log", (positive(2, 3),), torch=lambda x: x.log()),
    Spec("Sqrt", (positive(2, 3),), torch=lambda x: x.sqrt()),
    Spec("Reciprocal", (positive(2, 3),), torch=lambda x: 1 / x),
    Spec("Abs", (normal(2, 3),), torch=lambda x: x.abs()),
    Spec("Sin", (normal(2, 3),), torch=lambda x: x.sin()),
    Spec("Cos", (normal(2, 3),), torch=lambda x: x.cos()),
    Spec("Erf", (normal(2, 3),), torch=lambda x: x.erf()),
    Spec("Pow", (normal(2, 3), np.array(2.0)), torch=lambda x, e: x**2, label="square"),
    Spec("Pow", (normal(2, 3), ints(3)), torch=lambda x, e: x**3, label="integer"),
    Spec("Pow", (positive(2, 3), normal(3)), (0, 1), lambda x, e: x**e, label="both"),
    Spec("Where", (normal(2, 3) > 0, normal(3), normal(2, 1)), (1, 2), lambda c, a, b: _t().where(c, a, b)),
    Spec("Max", (normal(2, 3), normal(3)), (0, 1), lambda a, b: _t().maximum(a, b)),
    Spec("Min", (normal(2, 3), normal(3), normal(2, 1)), (0, 1, 2), lambda a, b, c: a.minimum(b).minimum(c)),
    Spec("Gelu", (normal(2, 3),), torch=lambda x: _f().gelu(x), opset=20),
    Spec("Gelu", (normal(2, 3),), torch=lambda x: _f().gelu(x, approximate="tanh"), opset=20,
         attributes={"approximate": "tanh"}, label="tanh"),
    Spec("Elu", (normal(2, 3),), torch=lambda x: _f().elu(x, 0.7), attributes={"alpha": 0.7}),
    Spec("Elu", (normal(2, 3),), torch=lambda x: _f().elu(x), label="default"),
    Spec("Selu", (normal(2, 3),), torch=lambda x: _f().selu(x)),
    Spec("Softplus", (normal(2, 3),), torch=lambda x: _f().softplus(x)),
    Spec("HardSigmoid", (2 * normal(4, 5),), torch=lambda x: (0.3 * x + 0.5).clamp(0, 1),
         attributes={"alpha": 0.3, "beta": 0.5}),
    Spec("HardSwish", (3 * normal(4, 5),), torch=lambda x: _f().hardswish(x)),
    Spec("Mish", (normal(2, 3),), torch=lambda x: _f().mish(x)),
    Spec("PRelu", (normal(2, 3, 4), normal(3, 1)), (0, 1), lambda x, s: _t().where(x > 0, x, s * x)),
    # indexing
    Spec("Expand", (normal(3, 1), ints(2, 1, 4)), torch=lambda x, s: x.expand(2, 3, 4)),
    Spec("Slice", (normal(5, 6), ints(1, -2), ints(4, -7), ints(0, 1), ints(1, -2)),
         torch=lambda x, *_: x[1:4].flip(1)[:, 1::2]),
    Spec("Slice", (normal(7, 3), ints(1), ints(2**40), ints(0), ints(3)), torch=lambda x, *_: x[1::3], label="steps"),
    Spec("Pad", (normal(3, 4), ints(1, -1, 0, 2)), torch=lambda x, p: _f().pad(x, (-1, 2, 1, 0))),
    Spec("Pad", (normal(3, 4), ints(1, 0, 0, 2), np.array(0.3)),
         torch=lambda x, p, v: _f().pad(x, (0, 2, 1, 0), value=0.3),
         label="value"),
    Spec("Pad", (normal(3, 4), ints(1, 2), None, ints(-1)), torch=lambda x, p, v, a: _f().pad(x, (1, 2)),
         label="axes"),
    *(
        Spec("Pad", (normal(2, 5, 4), ints(0, *sides[:2], 0, *sides[2:])), attributes={"mode": mode}, opset=19,
             torch=lambda x, p, m=mode, s=sides: _padded(x, m, s), label=f"{mode}-{k}")
        for mode in PADS for k, sides in enumerate(PADS[mode])
    ),
    Spec("Gather", (normal(5, 3), np.array([[0, -1, 0], [2, 2, 1]])), torch=lambda x, i: x[i], label="rows"),
    Spec("Gather", (normal(2, 5, 3), ints(4, 0, 4)), torch=lambda x, i: x[:, i], attributes={"axis": 1}),
    Spec("Gather", (normal(2, 5, 3), np.array(-2)), torch=lambda x, i: x[:, -2], attributes={"axis": -2},
         label="one"),
    # reductions
    Spec("ReduceSum", (normal(2, 3, 4), ints(-1, 0)), torch=lambda x, a: x.sum((0, 2), keepdim=True)),
    Spec("ReduceSum", (normal(2, 3), ints()), torch=lambda x, a: x * 1, attributes={"noop_with_empty_axes": 1},
         label="noop"),
    Spec("ReduceMean", (normal(2, 3, 4), ints(1)), torch=lambda x, a: x.mean(1), attributes={"keepdims": 0}),
    Spec("ReduceMean", (normal(2, 3, 4),), torch=lambda x: x.mean((0, 2)), attributes={"keepdims": 0, "axes": [0, 2]},
         opset=17, label="attribute"),
    Spec("ReduceMax", (distinct(2, 3, 4), ints(1)), torch=lambda x, a: x.amax(1, keepdim=True)),
    Spec("ReduceMin", (distinct(2, 3, 4),), torch=lambda x: x.amin(), attributes={"keepdims": 0}),
    # losses
    Spec("NegativeLogLikelihoodLoss", (normal(4, 5), ints(1, 0, 4, 2)), torch=lambda x, y: _f().nll_loss(x, y)),
    Spec("NegativeLogLikelihoodLoss", (normal(2, 3, 2), np.array([[0, 1], [2, -1]]), positive(3)),
         torch=lambda x, y, w: _f().nll_loss(x, y, w, ignore_index=-1, reduction="none"),
         attributes={"ignore_index": -1, "reduction": "none"}, label="weights"),
    Spec("SoftmaxCrossEntropyLoss", (normal(4, 5), ints(1, 0, 4, 2)),
         torch=lambda x, y: _f().cross_entropy(x, y), label="mean"),
    Spec("SoftmaxCrossEntropyLoss", (normal(4, 5), ints(1, -3, 4, 2), positive(5)),
         torch=lambda x, y, w: _f().cross_entropy(x, y, w, ignore_index=-3), attributes={"ignore_index": -3},
         label="weights"),
    Spec("SoftmaxCrossEntropyLoss", (normal(2, 3, 2, 2), np.array([[[0, 1], [2, 2]], [[1, 1], [0, 2]]])),
         torch=lambda x, y: _f().cross_entropy(x, y, reduction="sum"), attributes={"reduction": "sum"}, label="planes"),
    Spec("SoftmaxCrossEntropyLoss", (normal(4, 5), ints(1, 0, 4, 2), positive(5)),
         torch=lambda x, y, w: _f().cross_entropy(x, y, w, reduction="none"), attributes={"reduction": "none"},
         label="none"),
    *table_network.ROWS,
    *table_more.ROWS,
    *table_sampling.ROWS,
)  # fmt: skip
