"""The rows. Adding a rule? Add a row here: a test fails for a registered op without one."""

from __future__ import annotations

import numpy as np

from tests.support.autodiff import table_more, table_network, table_sampling
from tests.support.autodiff.specs import Array, Spec, distinct, ints, normal, positive

CONV: dict[str, object] = {"kernel_shape": [3, 3], "strides": [2, 1], "pads": [1, 0, 0, 2], "dilations": [1, 2]}

PADS: dict[str, tuple[tuple[int, int, int, int], ...]] = {
    "reflect": ((1, 2, 2, 1), (4, 3, 4, 3), (0, 1, -2, 2), (-1, 0, 3, -2)),
    "edge": ((1, 2, 2, 1), (7, 0, 1, 9), (0, 1, -4, 2), (-1, -3, 3, 2)),
    "wrap": ((1, 2, 2, 1), (5, 4, 5, 4), (12, 1, 3, 9), (-2, -3, 4, 5)),
}
"""By mode: before the second and the third axis, and after them; of lengths 5 and 4."""

PLAIN = ("Abs", "Asinh", "Atan", "Cos", "Cosh", "Erf", "Exp", "Mish", "Neg", "Relu", "Selu", "Sigmoid", "Sin", "Sinh",
         "Softplus", "Softsign", "Tanh")  # fmt: skip
"""Smooth nearly everywhere, and without attributes."""


def inside(*shape: int) -> Array:
    """Numbers between -0.9 and 0.9."""
    return np.asarray(np.random.default_rng([0, *shape]).uniform(-0.9, 0.9, shape))


ROWS: tuple[Spec, ...] = (
    # products
    Spec("Gemm", (normal(3, 4), normal(5, 4), normal(5)), (0, 1, 2), {"transB": 1, "alpha": 0.5, "beta": 2.0},
         label="transB"),
    Spec("Gemm", (normal(4, 3), normal(4, 5), normal(3, 1)), (0, 1, 2), {"transA": 1}, label="transA"),
    Spec("Gemm", (normal(4, 3), normal(5, 4)), (0, 1), {"transA": 1, "transB": 1}, label="both"),
    Spec("Gemm", (normal(3, 4), normal(4, 5)), (0, 1), label="plain"),
    Spec("MatMul", (normal(3, 4), normal(4, 5)), (0, 1), label="matrices"),
    Spec("MatMul", (normal(2, 3, 4), normal(4, 5)), (0, 1), label="shared"),
    Spec("MatMul", (normal(2, 1, 3, 4), normal(5, 4, 2)), (0, 1), label="broadcast"),
    Spec("MatMul", (normal(4), normal(4)), (0, 1), label="vectors"),
    Spec("MatMul", (normal(2, 3, 4), normal(4)), (0, 1), label="vector-right"),
    Spec("MatMul", (normal(4), normal(2, 4, 3)), (0, 1), label="vector-left"),
    # arithmetic
    Spec("Add", (normal(2, 3, 4), normal(3, 1)), (0, 1)),
    Spec("Sub", (normal(3, 1), normal(2, 3, 4)), (0, 1)),
    Spec("Mul", (normal(2, 3, 4), normal(4)), (0, 1)),
    Spec("Div", (normal(2, 3), positive(2, 1)), (0, 1)),
    Spec("Sum", (normal(2, 3), normal(3), normal(2, 1)), (0, 1, 2)),
    Spec("Cast", (normal(2, 3),), attributes={"to": 11}),
    # activations
    Spec("LeakyRelu", (normal(3, 4),), attributes={"alpha": 0.25}),
    Spec("LeakyRelu", (normal(3, 4),), attributes={"alpha": -0.5}, label="falling"),
    Spec("Clip", (normal(3, 4), np.array(-0.5), np.array(0.75)), (0, 1, 2)),
    Spec("Clip", (normal(3, 4), np.array(0.75), np.array(-0.5)), (0, 1, 2), label="crossed"),
    Spec("Clip", (normal(3, 4), None, np.array(0.75)), (0, 2), label="above"),
    Spec("Clip", (normal(3, 4), np.array(-0.5)), (0, 1), label="below"),
    Spec("Clip", (normal(3, 4), np.array(-0.5), np.array(0.75)), label="constants"),
    Spec("Softmax", (normal(3, 4),)),
    Spec("Softmax", (normal(3, 4, 2),), attributes={"axis": 1}, label="axis"),
    Spec("LogSoftmax", (normal(3, 4),)),
    Spec("LogSoftmax", (normal(3, 4, 2),), attributes={"axis": 0}, label="axis"),
    # convolution and pooling
    Spec("Conv", (normal(2, 3, 7, 8), normal(4, 3, 3, 3), normal(4)), (0, 1, 2), CONV),
    Spec("Conv", (normal(2, 4, 9), normal(6, 2, 3)), (0, 1), {"group": 2, "strides": [2], "pads": [1, 1]},
         label="groups"),
    Spec("Conv", (normal(1, 2, 4, 5, 4), normal(3, 2, 2, 3, 1)), (0, 1), label="3d"),
    Spec("Conv", (normal(2, 3, 6, 6), normal(2, 3, 3, 3)), (0, 1), {"auto_pad": "SAME_UPPER"}, label="same"),
    Spec("ConvTranspose", (normal(2, 4, 5, 4), normal(4, 3, 3, 2), normal(6)), (0, 1, 2),
         {"group": 2, "strides": [2, 1], "pads": [1, 1, 1, 1], "output_padding": [1, 0]}),
    Spec("MaxPool", (distinct(2, 3, 7, 6),),
         attributes={"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    Spec("MaxPool", (distinct(2, 3, 7),), attributes={"kernel_shape": [2], "strides": [2], "ceil_mode": 1},
         label="ceil"),
    Spec("AveragePool", (normal(2, 3, 7, 6),),
         attributes={"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    Spec("AveragePool", (normal(2, 3, 7),),
         attributes={"kernel_shape": [3], "strides": [2], "pads": [1, 1], "count_include_pad": 1}, label="padded"),
    Spec("GlobalAveragePool", (normal(2, 3, 4, 5),)),
    # normalization
    Spec("BatchNormalization", (normal(3, 2, 4, 5), normal(2), normal(2), normal(2), positive(2)), (0, 1, 2),
         {"training_mode": 1, "epsilon": 1e-3}, outputs=3, ignored=(1, 2), label="training"),
    Spec("BatchNormalization", (normal(3, 2, 9, 9), normal(2), normal(2), normal(2), positive(2)), (0, 1, 2),
         {"training_mode": 1}, outputs=3, ignored=(1, 2), label="training-large"),
    Spec("BatchNormalization", (normal(5, 3), normal(3), normal(3), normal(3), positive(3)), (0, 1, 2),
         label="inference"),
    Spec("BatchNormalization", (normal(3, 2, 2, 3), normal(2), normal(2), normal(2), positive(2)), (0, 1, 2, 3, 4),
         label="computed-statistics"),
    Spec("BatchNormalization", (normal(5, 3), normal(3), normal(3), normal(3), positive(3)), (4,),
         label="computed-variance"),
    Spec("LayerNormalization", (normal(2, 3, 4), normal(4), normal(4)), (0, 1, 2)),
    Spec("LayerNormalization", (normal(2, 3, 4), normal(3, 4)), (0, 1), {"axis": 1, "epsilon": 1e-3}, label="axes"),
    Spec("Dropout", (normal(4, 5), np.array(0.4), np.array(True)), label="training"),
    Spec("Dropout", (normal(4, 5), np.array(0.4)), label="inference"),
    # shapes
    Spec("Reshape", (normal(2, 3, 4), ints(4, 6))),
    Spec("Flatten", (normal(2, 3, 4),)),
    Spec("Squeeze", (normal(2, 1, 4), ints(1))),
    Spec("Unsqueeze", (normal(2, 4), ints(0, 3))),
    Spec("Identity", (normal(2, 4),)),
    Spec("Transpose", (normal(2, 3, 4),), attributes={"perm": [2, 0, 1]}),
    Spec("Transpose", (normal(2, 3),), label="default"),
    Spec("Concat", (normal(2, 3), normal(2, 1), normal(2, 2)), (0, 1, 2), {"axis": -1}),
    Spec("Split", (normal(2, 6), ints(1, 3, 2)), attributes={"axis": 1}, outputs=3),
    Spec("Split", (normal(2, 6), ints(1, 3, 2)), attributes={"axis": 1}, outputs=3, ignored=(1,), label="unused"),
    # element-wise mathematics
    *(Spec(op, (normal(3, 4),)) for op in PLAIN),
    *(Spec(op, (positive(2, 3),)) for op in ("Log", "Sqrt", "Reciprocal")),
    *(Spec(op, (inside(3, 4),)) for op in ("Tan", "Asin", "Acos", "Atanh")),
    Spec("Acosh", (1 + positive(3, 4),)),
    Spec("Pow", (normal(2, 3), np.array(2.0)), label="square"),
    Spec("Pow", (normal(2, 3), ints(3)), label="integer"),
    Spec("Pow", (positive(2, 3), normal(3)), (0, 1), label="both"),
    Spec("Where", (normal(2, 3) > 0, normal(3), normal(2, 1)), (1, 2)),
    Spec("Max", (normal(2, 3), normal(3)), (0, 1)),
    Spec("Min", (normal(2, 3), normal(3), normal(2, 1)), (0, 1, 2)),
    Spec("Gelu", (normal(2, 3),), opset=20),
    Spec("Gelu", (normal(2, 3),), opset=20, attributes={"approximate": "tanh"}, label="tanh"),
    Spec("Elu", (normal(2, 3),), attributes={"alpha": 0.7}),
    Spec("Elu", (normal(2, 3),), label="default"),
    Spec("HardSigmoid", (2 * normal(4, 5),), attributes={"alpha": 0.3, "beta": 0.5}),
    Spec("HardSwish", (3 * normal(4, 5),)),
    Spec("PRelu", (normal(2, 3, 4), normal(3, 1)), (0, 1)),
    # indexing
    Spec("Expand", (normal(3, 1), ints(2, 1, 4))),
    Spec("Slice", (normal(5, 6), ints(1, -2), ints(4, -7), ints(0, 1), ints(1, -2))),
    Spec("Slice", (normal(7, 3), ints(1), ints(2**40), ints(0), ints(3)), label="steps"),
    Spec("Pad", (normal(3, 4), ints(1, -1, 0, 2))),
    Spec("Pad", (normal(3, 4), ints(1, 0, 0, 2), np.array(0.3)), label="value"),
    Spec("Pad", (normal(3, 4), ints(1, 2), None, ints(-1)), label="axes"),
    *(
        Spec("Pad", (normal(2, 5, 4), ints(0, *sides[:2], 0, *sides[2:])), attributes={"mode": mode}, opset=19,
             label=f"{mode}-{k}")
        for mode in PADS for k, sides in enumerate(PADS[mode])
    ),
    Spec("Gather", (normal(5, 3), np.array([[0, -1, 0], [2, 2, 1]])), label="rows"),
    Spec("Gather", (normal(2, 5, 3), ints(4, 0, 4)), attributes={"axis": 1}),
    Spec("Gather", (normal(2, 5, 3), np.array(-2)), attributes={"axis": -2}, label="one"),
    # reductions
    Spec("ReduceSum", (normal(2, 3, 4), ints(-1, 0))),
    Spec("ReduceSum", (normal(2, 3), ints()), attributes={"noop_with_empty_axes": 1}, label="noop"),
    Spec("ReduceMean", (normal(2, 3, 4), ints(1)), attributes={"keepdims": 0}),
    Spec("ReduceMean", (normal(2, 3, 4),), attributes={"keepdims": 0, "axes": [0, 2]}, opset=17, label="attribute"),
    Spec("ReduceMax", (distinct(2, 3, 4), ints(1))),
    Spec("ReduceMin", (distinct(2, 3, 4),), attributes={"keepdims": 0}),
    # losses
    Spec("NegativeLogLikelihoodLoss", (normal(4, 5), ints(1, 0, 4, 2))),
    Spec("NegativeLogLikelihoodLoss", (normal(2, 3, 2), np.array([[0, 1], [2, -1]]), positive(3)),
         attributes={"ignore_index": -1, "reduction": "none"}, label="weights"),
    Spec("SoftmaxCrossEntropyLoss", (normal(4, 5), ints(1, 0, 4, 2)), label="mean"),
    Spec("SoftmaxCrossEntropyLoss", (normal(4, 5), ints(1, -3, 4, 2), positive(5)), attributes={"ignore_index": -3},
         label="weights"),
    Spec("SoftmaxCrossEntropyLoss", (normal(2, 3, 2, 2), np.array([[[0, 1], [2, 2]], [[1, 1], [0, 2]]])),
         attributes={"reduction": "sum"}, label="planes"),
    Spec("SoftmaxCrossEntropyLoss", (normal(4, 5), ints(1, 0, 4, 2), positive(5)), attributes={"reduction": "none"},
         label="none"),
    *table_network.ROWS,
    *table_more.ROWS,
    *table_sampling.ROWS,
)  # fmt: skip
