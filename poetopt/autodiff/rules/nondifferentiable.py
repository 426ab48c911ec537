"""What nothing flows back through, said one by one."""

from poetopt.autodiff.registry import declare_nondifferentiable

for _op in (
    "And", "ArgMax", "ArgMin", "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Ceil", "Constant",
    "ConstantOfShape", "Equal", "EyeLike", "Floor", "Greater", "GreaterOrEqual", "IsInf", "IsNaN", "Less",
    "LessOrEqual", "NonZero", "Not", "Or", "RandomNormal", "RandomNormalLike", "RandomUniform",
    "RandomUniformLike", "Round", "Shape", "Sign", "Size", "Xor",
):  # fmt: skip
    declare_nondifferentiable(_op)

declare_nondifferentiable("Reshape", inputs=(1,))
declare_nondifferentiable("Squeeze", inputs=(1,))
declare_nondifferentiable("Unsqueeze", inputs=(1,))
declare_nondifferentiable("Split", inputs=(1,))
declare_nondifferentiable("ReduceSum", inputs=(1,))
declare_nondifferentiable("ReduceMean", inputs=(1,))
declare_nondifferentiable("Dropout", inputs=(1, 2))
declare_nondifferentiable("SoftmaxCrossEntropyLoss", inputs=(1, 2), missing=(2,))
declare_nondifferentiable("Expand", inputs=(1,))
declare_nondifferentiable("Gather", inputs=(1,))
declare_nondifferentiable("NegativeLogLikelihoodLoss", inputs=(1, 2), missing=(2,))
declare_nondifferentiable("OneHot", missing=(2,))
declare_nondifferentiable("Pad", inputs=(1, 2, 3), missing=(2,))
declare_nondifferentiable("Range", missing=(0, 1, 2))
declare_nondifferentiable("ReduceMax", inputs=(1,))
declare_nondifferentiable("ReduceMin", inputs=(1,))
declare_nondifferentiable("Slice", inputs=(1, 2, 3, 4))
declare_nondifferentiable("Where", inputs=(0,))
